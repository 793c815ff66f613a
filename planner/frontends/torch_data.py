"""`tensor.data`, of which PyTorch's export knows nothing: to read it is to detach, so what is written through it is
looked at as all that is written through detached views (torch_writes.py). To assign new numbers to it is to write them
there, where nobody has a view of the old ones or writes to the new ones later; anything else is refused."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

from planner.errors import UserError
from planner.frontends.torch_alike import node_of
from planner.frontends.torch_assignments import ONCE, forward_through
from planner.frontends.torch_places import here
from planner.frontends.torch_writes import is_changed, is_made, views_of


class _Replaced(NamedTuple):
    """An assignment. `views`: of what was there -> how many had read each by then; `new`: the node of what is there
    now; `place`: where."""

    views: dict[Any, int]
    new: Any
    place: str


def _refused(place: str) -> UserError:
    fix = f"write to a buffer, buffer.copy_(new) under torch.no_grad(); {ONCE}, if it does so in its first step alone"
    return UserError("SP1020", f"the module assigns to .data of a tensor{place}", fix)


@contextmanager
def detached_data(torch: Any, module: Any) -> Iterator[None]:
    """Within it, `module` can be exported. SP1020: forward assigns to the data of a tensor others than these."""
    from torch.utils.weak import WeakIdKeyDictionary

    getter, setter, whole = torch.Tensor.data.__get__, torch.Tensor.data.__set__, WeakIdKeyDictionary()
    replaced: list[_Replaced] = []

    class Mode(torch.overrides.TorchFunctionMode):  # type: ignore[misc]
        def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
            if function == getter:
                function = torch.Tensor.detach
            if function == setter:
                if whole.get(args[1]) is whole.get(args[0], args[0]):
                    return None
                old, new = node_of(args[0]), node_of(args[1])
                same = (args[0].shape, args[0].dtype) == (args[1].shape, args[1].dtype)
                if not same or old is None or old.op != "placeholder" or new is None or not is_made(new):
                    raise _refused(here())
                replaced.append(_Replaced(views_of(old), new, here()))
                with torch.no_grad():
                    args[0].copy_(args[1])
                return None
            result = function(*args, **(kwargs or {}))
            if function in (torch.Tensor.detach, torch.Tensor.to) and result.dtype is args[0].dtype:
                whole[result] = whole.get(args[0], args[0])  # what it shows all of
            return result

    def watched(forward: Callable[..., Any], *inputs: Any, **named: Any) -> Any:
        replaced.clear()
        with Mode():
            result = forward(*inputs, **named)
        for one in replaced:
            if any(len(view.users) > users for view, users in one.views.items()) or is_changed([one.new]):
                raise _refused(one.place)
        return result

    with forward_through(module, watched):
        yield
