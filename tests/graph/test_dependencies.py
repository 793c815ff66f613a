"""What must run before what; plans of random graphs: tests/solve/test_corun.py, test_budget.py."""

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.dependencies import dependencies, view_roots
from planner.graph.model import Init, TensorType
from planner.graph.optimizer import Optimizer


def test_updates_wait_for_who_reads_a_view() -> None:
    """flat -> wide (view) -> weight (view) -> square, and for the gradient of what lies before: square.backward_data

    flat.update needs square.backward_weights only, but changes what square.backward_data reads.
    """
    b = GraphBuilder("flat_net")
    x, flat = b.input("x", TensorType(shape=(3, 4))), b.parameter("flat", (16,), Init(kind="ones"))
    before = layers.linear(b, x, 4, bias=False, name="before")
    weight = layers.reshape(b, layers.reshape(b, flat, (2, 8), name="wide"), (4, 4), name="weight")
    (y,) = b.op("linear", [before, weight], name="square")
    graph = b.finish(layers.mse(b, y, b.input("target", b.type(y))), y, Optimizer(lr=0.1), fuse=False)
    program = graph.program["train_step"]
    needed = dependencies(graph, program)
    assert {"square", "square.backward_data"} < {*needed["flat.update"]}
    assert {*needed["before.weight.update"]} == {"before", "before.backward_weights"}
    roots = view_roots(graph, program)
    assert [v for v, root in roots.items() if root == "flat"] == ["flat", "wide.y", "weight.y"]
