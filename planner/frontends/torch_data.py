"""`tensor.data`, of which PyTorch's export knows nothing: to read it is to detach, so what is written through it is
looked at as all that is written through detached views (torch_writes.py). To assign to it is refused."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_assignments import forward_through


@contextmanager
def detached_data(torch: Any, module: Any, line: Callable[[], str]) -> Iterator[None]:
    """Within it, `module` can be exported. `line`: the one that runs, of the module's.

    SP1020: forward assigns to the data of a tensor."""
    getter, setter = torch.Tensor.data.__get__, torch.Tensor.data.__set__

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function == getter:
                return torch.Tensor.detach(args[0])
            if function == setter:
                place = line()
                what = "the module assigns to .data of a tensor" + (f" ({place})" if place else "")
                fix = "write to a buffer, buffer.copy_(new) under torch.no_grad(), or make a new tensor"
                raise UserError("SP1020", what, fix)
            return function(*args, **(kwargs or {}))

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with Mode():
            return forward(*inputs, **named)

    with forward_through(module, watched):
        yield
