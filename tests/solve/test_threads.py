"""Which ways to run a node there are."""

from planner.costs.model import modelled_costs
from planner.costs.table import CostTable
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.streaming import UPDATE_STREAMS
from planner.solve.threads import Choice, node_options
from tests.codegen.plans import target_of


def two_layers() -> Graph:
    """4 x 64 numbers through two layers of 16 KiB of weights each."""
    b = GraphBuilder("two_layers")
    x, labels = b.input("x", TensorType(shape=(4, 64))), b.input("labels", TensorType(shape=(4,), dtype=DType.INT64))
    logits = layers.linear(b, layers.linear(b, x, 64, name="near"), 64, name="far")
    return b.finish(layers.cross_entropy(b, logits, labels), logits, Optimizer(lr=0.1))


def test_parameters_that_the_cache_forgets_are_streamed() -> None:
    """The last layer's weights are updated first and read last, a step of more than 32 KiB between; the first layer's
    are updated last, and read right away."""
    graph, target = two_layers(), target_of(2)
    order = graph.program["train_step"].nodes
    table = modelled_costs(graph, target)
    faster = [
        e.model_copy(update={"implementation": UPDATE_STREAMS[0], "cold_ns": tuple(2 * ns for ns in e.cold_ns)})
        for e in table.entries
        if e.signature.startswith("sgd_update")
    ]
    costs = table.with_entries(faster)

    def streaming(costs: CostTable, cache_bytes: int, lanes: int = 2) -> dict[str, set[bool]]:
        cold = {n.id: 1.0 for n in order}
        found = node_options(graph, order, cold, costs, lanes, cache_bytes)
        return {n.id: {_streams(c) for c in found[n.id]} for n in order if n.op == "sgd_update"}

    weights = "far.weight.update", "near.weight.update"
    forgetful = streaming(costs, 2**15)
    assert [forgetful[w] for w in weights] == [{True}, {False}]
    alone = streaming(costs, 2**15, lanes=1)
    assert [alone[w] for w in weights] == [{True, False}, {False}], "nobody else read them: the quicker one"
    assert set().union(*streaming(costs, 2**20).values()) == {False}
    assert set().union(*streaming(table, 2**15).values()) == {False}


def _streams(choice: Choice) -> bool:
    return choice.mode.implementation in UPDATE_STREAMS
