"""Which neighbours in a lane's program one launch computes.

The plan says it by its order (planner/solve/together.py); nothing is reordered here. Neighbours of one op that takes
several nodes per launch (`Op.joint_launch`) are one launch, unless one waits for another lane, another lane waits for
one that is not the last, or one writes what another touches: within a launch nothing comes before anything.

    a.update, b.update, c.update after x/0#0, d.update, conv.backward_data    (a, b), (c, d), conv.backward_data
"""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from planner.ops.base import op_named
from planner.plan.schema import Entry, parse_slice


class Touch(Protocol):
    """Bytes of one operand that a node reads or writes."""

    @property
    def pool(self) -> int: ...
    @property
    def offset(self) -> int: ...
    @property
    def bytes(self) -> int: ...
    @property
    def write(self) -> bool: ...


def launches(
    lane: Sequence[Entry], ops: Mapping[str, str], touches: Mapping[str, Sequence[Touch]], waited: Collection[str]
) -> list[tuple[str, ...]]:
    """The lane's nodes, launch by launch. By node: `ops`, `touches`. `waited`: nodes that others wait for."""
    found: list[list[str]] = []
    for entry in lane:
        node = parse_slice(entry.run)[0]
        last = found[-1] if found else []
        if (
            last
            and ops[last[-1]] == ops[node]
            and len(last) < op_named(ops[node]).joint_launch
            and not entry.wait
            and last[-1] not in waited
            and not any(_collide(touches[node], touches[other]) for other in last)
        ):
            last.append(node)
        else:
            found.append([node])
    return [tuple(nodes) for nodes in found]


def _collide(one: Sequence[Touch], other: Sequence[Touch]) -> bool:
    """Whether both touch some byte that either writes."""
    return any(
        (a.write or b.write) and a.pool == b.pool and a.offset < b.offset + b.bytes and b.offset < a.offset + a.bytes
        for a in one
        for b in other
    )
