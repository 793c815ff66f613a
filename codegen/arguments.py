"""What a caller passes to a program: which array is which input, and what else it asks for."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from codegen.progress import Moment
from planner.errors import UserError


class Call(NamedTuple):
    """What an executor is asked to run."""

    program: str
    arguments: tuple[Any, ...]
    """In the order of the program's inputs."""
    gradients: Sequence[Any] | None = None
    """Where gradients are wanted instead of updates: per trained parameter an array, or with `lasting` an address."""
    parts: slice = slice(None)
    """Of the program (codegen/parts.py)."""
    hold: bool = False
    """Gradients wait for the update of a later call."""
    moment: Moment | None = None
    """Of the run, where it is not the coming one."""
    lasting: bool = False
    """On a GPU: gradients are wanted in its memory, and in the same places by later calls."""

    def of(self, inputs: tuple[str, ...], wanted: tuple[str, ...]) -> tuple[Any, ...]:
        """The arguments for `wanted` of the program's `inputs`."""
        return self.arguments if wanted == inputs else tuple(self.arguments[inputs.index(i)] for i in wanted)


def matched(
    program: str, wanted: tuple[str, ...], inputs: tuple[Any, ...], named: dict[str, Any], also: str = ""
) -> tuple[Any, ...]:
    """The arrays in the order of the inputs `wanted`. SP1601: there are others, or not all; `also`: a fix besides."""
    if not named and len(inputs) == len(wanted):
        return inputs
    rest = wanted[len(inputs) :]
    if len(inputs) > len(wanted) or set(named) != set(rest):
        given = [f"{len(inputs)} in order"] * bool(inputs) + [f"{', '.join(named)} by name"] * bool(named)
        raise UserError(
            "SP1601",
            f"{program} takes the inputs {', '.join(wanted)}, and was given {' and '.join(given) or 'none'}",
            "pass every input once, in this order or by name" + also,
        )
    return (*inputs, *(named[i] for i in rest))
