"""A schedule: one program's decisions about time, before bytes and waits are known."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.graph.model import Node
from planner.solve.threads import Choice


@dataclass(frozen=True)
class Schedule:
    """The order in which nodes start, how each runs, and where.

    On every lane, slices run in the order of their nodes; stage by stage within a node.
    """

    program: str
    order: tuple[Node, ...]
    choices: Mapping[str, Choice]
    """node id -> mode with its predicted times"""
    lanes: Mapping[str, tuple[int, ...]]
    """node id -> the lane of each of its slices, all different"""


def one_at_a_time(program: str, order: Sequence[Node], choices: Mapping[str, Choice]) -> Schedule:
    """Slice i of every node runs on lane i: nothing co-runs, but for lanes that a node leaves idle."""
    lanes = {node.id: tuple(range(choices[node.id].mode.slices)) for node in order}
    return Schedule(program, tuple(order), choices, lanes)
