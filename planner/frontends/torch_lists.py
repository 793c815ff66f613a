"""Lists as indices. PyTorch takes one of slices, lists or tensors for a tuple, `x[[slice(0, 2), slice(1, 3)]]` for
`x[0:2, 1:3]`, but not where modes see the call, as those of an export do: there it is one tensor of places."""

import warnings
from collections.abc import Sequence
from functools import cache
from typing import Any

import numpy as np

_MOST = 31
"""Elements of a list that counts as a tuple."""


def indexed(torch: Any, function: Any, args: Any) -> Any:
    """The arguments of a function of PyTorch's, with a tuple in the place of a list that counts as one."""
    name = getattr(function, "__name__", "")
    if name not in ("__getitem__", "__setitem__") or type(args[1]) is not list or not 0 < len(args[1]) <= _MOST:
        return args
    kinds = torch.Tensor | np.ndarray | Sequence | slice
    several = any(isinstance(i, kinds) or i is Ellipsis or i is None for i in args[1])
    return (args[0], tuple(args[1]), *args[2:]) if several and _counts(torch) else args


@cache
def _counts(torch: Any) -> bool:
    """Whether this PyTorch takes such lists for tuples."""
    from torch.utils._python_dispatch import _disable_current_modes

    with _disable_current_modes(), torch._C.DisableTorchFunction(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return bool(torch.zeros(2, 2)[[[0, 1], [0, 1]]].dim() == 1)
