"""Attributes that a plan has as constants: buffers that forward does not write to, other tensors, numbers, text, hooks.
One that changes behind the capture, such as a schedule's factor, or that a checkpoint changes, changes nothing of what
the plan computes: that is told of."""

import hashlib
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from codegen.state import as_array
from planner.errors import UserError
from planner.frontends.naming import safe_name

Array = np.ndarray[Any, Any]
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
MADE, CALLED = 4, 7
"""Frames from the warning to who makes a planned module, or calls it."""


class FixedAttributes:
    """`shared`: names of buffers that the executor reads where they are, or counts itself. `captured`: contents of
    other buffers by name, as far as the module saves them."""

    def __init__(self, module: nn.Module, shared: set[str], captured: Mapping[str, Array]) -> None:
        buffers = {name: b for name, b in module.named_buffers() if name not in shared}
        named = dict(module.named_modules())
        self._hooks = {name: (part, _hooks(part)) for name, part in named.items()}
        parts = [(f"{name}." if name else "", vars(part)) for name, part in named.items()]
        self._plain = [(prefix, held, found) for prefix, held in parts if (found := dict(_plain(held)))]
        self._owners = {prefix + k: (held, k) for prefix, held in parts for k, x in held.items() if _is_tensor(x)}
        tensors = buffers | {name: held[k] for name, (held, k) in self._owners.items()}
        self._seen = {name: (t, _version(t)) for name, t in tensors.items()}
        self._contents = {name: _digest(t) for name, t in tensors.items()}
        for name, buffer in buffers.items():
            if buffer.layout is not torch.strided:  # which NumPy lacks, and no executor's state has
                continue
            own = as_array(buffer)
            if not np.array_equal(captured.get(safe_name(name), own), own, equal_nan=own.dtype.kind == "f"):
                del self._seen[name]
                _tell(name, MADE)

    def look(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """A warning for each that has changed, once. `buffers`: the module's, as they are now."""
        for name, (known, version) in list(self._seen.items()):
            held, key = self._owners.get(name, (buffers, name))
            tensor = held.get(key, known)
            if tensor is known and _version(tensor) == version:
                continue
            if isinstance(tensor, torch.Tensor) and _digest(tensor) == self._contents[name]:
                self._seen[name] = tensor, _version(tensor)
            else:
                del self._seen[name]
                _tell(name, CALLED)
        for prefix, now, then in self._plain:
            if not then.items() <= now.items():
                for key in [k for k, x in then.items() if (k, x) not in now.items()]:
                    del then[key]
                    _tell(prefix + key, CALLED)
        for name, (part, known) in list(self._hooks.items()):
            if _hooks(part) != known:
                del self._hooks[name]
                _tell(f"the hooks of {name or 'the module'}", CALLED, "return what they see")


def _tell(what: str, frames: int, instead: str = "let it be an input") -> None:
    problem = f"{what} changed after the module was captured: the plan has what was there before"
    fix = f"capture the module again, or {instead}; if nothing depends on it, all is well"
    warnings.warn(str(UserError("SP1014", problem, fix)), RuntimeWarning, stacklevel=frames)


def _plain(held: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Numbers and text. A part's mode is none of its constants."""
    yield from ((k, x) for k, x in held.items() if isinstance(x, (int, float, complex, str)) and k != "training")


def _hooks(part: nn.Module) -> list[int]:
    return [number for kind in HOOKS for number in vars(part)[kind]]


def _is_tensor(x: Any) -> bool:
    """With bytes that are its contents."""
    return type(x) is torch.Tensor and x.layout is torch.strided and not (x.is_meta or x.is_quantized)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _digest(tensor: torch.Tensor) -> bytes:
    if tensor.layout is not torch.strided:
        parts = tensor.detach().to_sparse_coo().coalesce()
        return _digest(parts.indices()) + _digest(parts.values())
    plain = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous().reshape(-1)
    return hashlib.blake2b(plain.view(torch.uint8).numpy()).digest()
