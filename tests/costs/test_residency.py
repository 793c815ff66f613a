"""How warm operands are, by hand."""

from planner.costs.residency import cold_fractions, gone_before_read
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, TensorType
from planner.graph.optimizer import Optimizer

ROWS, COLUMNS, IDS = 10_000, 16, 8
TABLE = ROWS * COLUMNS * 4


def lookup() -> Graph:
    """An embedding of 8 of 10,000 rows of 64 bytes, summed up by a linear layer."""
    b = GraphBuilder("lookup")
    ids = b.input("ids", TensorType(shape=(IDS,), dtype=DType.INT64))
    labels = b.input("labels", TensorType(shape=(IDS,), dtype=DType.INT64))
    logits = layers.linear(b, layers.embedding(b, ids, ROWS, COLUMNS, name="emb"), 4, name="fc")
    return b.finish(layers.cross_entropy(b, logits, labels), logits, Optimizer(lr=0.1))


def test_only_the_rows_that_are_picked_count() -> None:
    """The step touches little, so within it everything stays in a cache of a fifth of the table; only the rows that a
    step picks first are cold: the other step picked others."""
    graph = lookup()
    order = graph.program["train_step"].nodes
    found = cold_fractions(graph, order, TABLE // 5)
    update = next(n for n in order if n.op == "embedding_sgd_update")
    # 512 bytes of rows are cold, 512 bytes of results and 64 of ids are not.
    assert found["emb"] == 512 / (512 + 512 + 64)
    assert found[update.id] == 0
    assert all(cold == 0 for node, cold in found.items() if node != "emb")
    assert set(cold_fractions(graph, order, 100 * TABLE).values()) == {0.0}


def test_results_that_nothing_reads_from_the_cache() -> None:
    """Every value has 4 KiB. `far` is read after `near` (8 KiB of operands) and `product` (12): 24 KiB with its own.
    `near` is read at once, and `product` and `sum` may overwrite an operand that dies with them."""
    b = GraphBuilder("squares")
    x, w = b.input("x", TensorType(shape=(32, 32))), b.input("w", TensorType(shape=(32, 32)))
    far = layers.unary(b, "square", x, name="far")
    near = layers.unary(b, "square", w, name="near")
    product = layers.mul(b, near, w, name="product")
    graph = b.finish_inference(layers.add(b, product, far, name="sum"), fuse=False)
    order = graph.program["predict"].nodes
    assert [n.id for n in order] == [f"predict.{name}" for name in ("far", "near", "product", "sum")]
    assert gone_before_read(graph, order, 2**14) == {"predict.far"}
    assert gone_before_read(graph, order, 2**15) == frozenset()
