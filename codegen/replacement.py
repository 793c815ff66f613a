"""A torch.nn.Module in another one's place, as far as optimizers, checkpoints and training frameworks can tell: names
of parameters and buffers, modes, attributes and what `forward` takes are the other one's. Needs torch."""

import copy
import inspect
from collections.abc import Iterator
from typing import Any, NoReturn, Self

from torch import nn

from planner.errors import UserError

SHARED = ("_parameters", "_buffers", "_non_persistent_buffers_set", "_modules", "_load_state_dict_post_hooks")
"""Where PyTorch keeps what a module consists of. These are the other module's, so that names do not begin with that
module's own, as they would if it were a part: checkpoints fit both."""


class Replacement(nn.Module):  # type: ignore[misc]
    """What is set here that the other `module` has, it has then; what is not here is looked for there. Methods found so
    are the module's own and compute with PyTorch."""

    module: nn.Module

    def __new__(cls, module: Any, *arguments: Any) -> Self:
        """In a class of its own, whose `forward` tells what the module's takes: frameworks pass what it says."""

        def forward(self: Any, *inputs: Any, **named: Any) -> Any:
            return cls.forward(self, *inputs, **named)

        theirs = type(module).forward
        forward.__doc__, forward.__signature__ = theirs.__doc__, inspect.signature(theirs)  # type: ignore[attr-defined]
        known = {"__module__": cls.__module__, "__qualname__": cls.__qualname__, "__doc__": cls.__doc__}
        made: Self = super().__new__(type(cls.__name__, (cls,), known | {"forward": forward}))
        return made

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.__dict__.update({name: vars(module)[name] for name in SHARED}, module=module)

    @property  # type: ignore[misc]
    def __class__(self) -> type:
        """Frameworks save and load by it. `type` tells what this is, and `isinstance` knows both."""
        return type(vars(self).get("module", self))

    def _get_name(self) -> str:
        return type(self).__name__

    @property
    def training(self) -> bool:
        """Also where a framework sets it of every module that it finds."""
        return bool(self.module.training)

    @training.setter
    def training(self, mode: bool) -> None:
        if "module" in vars(self):  # not while PyTorch's constructor runs
            self.module.training = mode

    def __getattr__(self, name: str) -> Any:
        if "module" not in vars(self) or name.startswith("__"):  # Python asks for these, such as __deepcopy__
            raise AttributeError(f"{type(self).__name__} has no attribute {name}")
        return getattr(self.module, name)

    def __setattr__(self, name: str, value: Any) -> None:
        own = name in vars(self) or hasattr(type(self), name) or name in _declared(type(self))
        if own or not hasattr(self.module, name):
            super().__setattr__(name, value)
        else:
            setattr(self.module, name, value)

    # What PyTorch asks of every part, the other module may do in its own way.
    def train(self, mode: bool = True) -> Self:
        self.module.train(mode)
        return self

    def apply(self, fn: Any) -> Self:
        self.module.apply(fn)
        return self

    def _apply(self, *arguments: Any, **named: Any) -> Self:
        self.module._apply(*arguments, **named)
        return self

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        return self.module.load_state_dict(*arguments, **named)

    def _load_from_state_dict(self, *arguments: Any) -> None:
        """Where this is a part of what is loaded."""
        self.module._load_from_state_dict(*arguments)

    def __deepcopy__(self, memo: dict[int, Any]) -> "Copied":
        """What averages of weights are kept in, on their own or with the module that this is a part of."""
        return Copied(copy.deepcopy(self.module, memo))

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """SP1619: whoever loads it would need an executor."""
        what = "a planned module cannot be pickled or saved as a whole, nor copied in parts"
        fix = "save planned.state_dict(), or planned.module, a plain module with the same parameters"
        raise UserError("SP1619", what, fix)


class Copied(Replacement):
    """The weights of a module in whose place another one was, under the same names, without what computes it."""

    def forward(self, *inputs: Any, **named: Any) -> NoReturn:
        """SP1619: PyTorch would compute it, which should be said."""
        what = "a copy of a planned module has its weights, and no executor"
        fix = (
            "planned.load_state_dict(copied.state_dict()) to compute with them, or call copied.module, as PyTorch does"
        )
        raise UserError("SP1619", what, fix)


def _declared(kind: type) -> Iterator[str]:
    """Attributes of this module itself, which another one may have under the same names."""
    for base in kind.__mro__:
        yield from () if base is nn.Module else vars(base).get("__annotations__", ())
