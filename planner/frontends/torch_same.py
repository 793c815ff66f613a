"""Functions that return what they are given, as `x.float()` does of floats and `x.flatten(1)` of rows. PyTorch's
exporter notes an operator nevertheless, and takes the tensor for its result from there on: under torch.no_grad() that
would be one without gradients, for all who read the tensor later."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from planner.frontends.torch_alike import is_recorded, slot_of, take_for
from planner.frontends.torch_assignments import forward_through


@contextmanager
def returned_as_given(torch: Any, module: Any) -> Iterator[None]:
    """Within it, such functions are no operators of the program."""

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            given = args[0] if args and isinstance(args[0], torch.Tensor) and is_recorded(torch) else None
            before = None if given is None else slot_of(given)
            result = function(*args, **(kwargs or {}))
            if result is given and before is not None and _only_returns(slot_of(given).proxy.node, before.proxy.node):
                take_for(given, before)
            return result

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        with Mode():
            return forward(*inputs, **named)

    with forward_through(module, watched):
        yield


def _only_returns(node: Any, before: Any) -> bool:
    """Whether a tensor's node is made of what it was before, without writing to it."""
    while node is not before:
        schema = getattr(node.target, "_schema", None)
        if schema is None or schema.is_mutable or not node.args or not hasattr(node.args[0], "op"):
            return False
        node = node.args[0]
    return True
