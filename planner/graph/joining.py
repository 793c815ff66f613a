"""What several nodes of a forward pass compute is said by others in the place of the last one."""

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from planner.graph.model import Node


class Joinable(Protocol):
    @property
    def members(self) -> tuple[Node, ...]:
        """What the others stand for, but for the last node."""


Found = TypeVar("Found", bound=Joinable)


def with_joined(
    nodes: Sequence[Node], find: Callable[[Node], Found | None], made: Callable[[Node, Found], list[Node]]
) -> list[Node]:
    """The nodes with what is made of those for which `find` knows something, and without the members of that."""
    gone: set[str] = set()
    joined: dict[str, list[Node]] = {}
    for last in nodes:
        found = find(last)
        if found is not None:
            gone |= {n.id for n in found.members}
            joined[last.id] = made(last, found)
    return [n for node in nodes if node.id not in gone for n in joined.get(node.id, [node])]
