"""What a caller passes to a program: which array is which input."""

from typing import Any

from planner.errors import UserError


def matched(
    program: str, wanted: tuple[str, ...], inputs: tuple[Any, ...], named: dict[str, Any], also: str = ""
) -> tuple[Any, ...]:
    """The arrays in the order of the inputs `wanted`. SP1601: there are others, or not all; `also`: a fix besides."""
    if not named and len(inputs) == len(wanted):
        return inputs
    rest = wanted[len(inputs) :]
    if len(inputs) > len(wanted) or set(named) != set(rest):
        given = [*map(str, range(len(inputs))), *named]
        raise UserError(
            "SP1601",
            f"{program} takes the inputs {', '.join(wanted)}, not {len(given)} ({', '.join(given) or 'none'})",
            "pass every input once, in this order or by name" + also,
        )
    return (*inputs, *(named[i] for i in rest))
