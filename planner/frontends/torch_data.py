"""`tensor.data`, of which PyTorch's export knows nothing: to read it is to detach, so what is written through it is
looked at as all that is written through detached views (torch_writes.py). To assign to it is refused."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_assignments import forward_through
from planner.frontends.torch_places import here


@contextmanager
def detached_data(torch: Any, module: Any) -> Iterator[None]:
    """Within it, `module` can be exported. SP1020: forward assigns to the data of a tensor others than these."""
    from torch.utils.weak import WeakIdKeyDictionary

    getter, setter, whole = torch.Tensor.data.__get__, torch.Tensor.data.__set__, WeakIdKeyDictionary()

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function == getter:
                function = torch.Tensor.detach
            if function == setter:
                if whole.get(args[1]) is whole.get(args[0], args[0]):
                    return None
                fix = "write to a buffer, buffer.copy_(new) under torch.no_grad(), or make a new tensor"
                raise UserError("SP1020", f"the module assigns to .data of a tensor{here()}", fix)
            result = function(*args, **(kwargs or {}))
            if function in (torch.Tensor.detach, torch.Tensor.to) and result.dtype is args[0].dtype:
                whole[result] = whole.get(args[0], args[0])  # what it shows all of
            return result

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with Mode():
            return forward(*inputs, **named)

    with forward_through(module, watched):
        yield
