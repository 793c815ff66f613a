"""The peak that `check` accepts at least, counted by hand."""

import pytest

from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph, Program, TensorType
from planner.plan.check import check
from planner.plan.schema import Plan
from tests.plan.mutations import edit_program, edit_value
from tests.plan.plans import codes
from tests.plan.reference import Choices, make

BYTES = 128
"""Of every value: x -> a -> b -> c, on one lane."""


def chain(outputs: tuple[str, ...]) -> tuple[Graph, Plan]:
    b = GraphBuilder("chain")
    x = b.input("x", TensorType(shape=(BYTES // 4,)))
    for name in "abc":
        (x,) = b.op("relu", [x], name=name)
    program = Program(name="run", nodes=tuple(b.nodes), inputs=tuple(b.inputs), outputs=outputs)
    graph = Graph(name="chain", values=tuple(b.values.values()), programs=(program,))
    return graph, make(graph, Choices(lanes=1, reuse=False, inplace=False))


def least(graph: Graph, plan: Plan) -> int:
    """The smallest peak that the plan may state, in values."""
    accepted = [n for n in range(6) if not check(graph, edit_program(plan, "run", peak_bytes=n * BYTES))]
    assert codes(check(graph, edit_program(plan, "run", peak_bytes=accepted[0] * BYTES - 1))) == {"SP1429"}
    return accepted[0]


@pytest.mark.parametrize(
    ("outputs", "values"),
    [
        (("c.y",), 3),  # the input, what a node reads and what it writes
        (("a.y", "c.y"), 4),  # a.y stays until the end
        (("a.y", "b.y", "c.y"), 4),
    ],
)
def test_values_are_alive_from_their_first_to_their_last_use(outputs: tuple[str, ...], values: int) -> None:
    assert least(*chain(outputs)) == values


def test_what_is_made_in_place_counts_once() -> None:
    graph, plan = chain(("c.y",))
    for value, below in (("b.y", "a.y"), ("c.y", "b.y")):
        plan = edit_value(plan, value, offset=plan.placement["a.y"].offset, shares=below)
    assert least(graph, plan) == 2
