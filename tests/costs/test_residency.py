"""How warm operands are, by hand."""

from collections.abc import Sequence

from planner.costs.residency import Places, cold_fractions, gone_before_read, stage_times
from planner.costs.table import CostEntry
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Node, TensorType
from planner.graph.optimizer import Optimizer

ROWS, COLUMNS, IDS = 10_000, 16, 8
TABLE = ROWS * COLUMNS * 4


def side_by_side(graph: Graph) -> Places:
    """Every value at bytes of its own."""
    places, at = {}, 0
    for value in graph.values:
        places[value.id] = (at, at + value.type.bytes)
        at += value.type.bytes
    return places


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
    places = side_by_side(graph)
    found = cold_fractions(graph, order, places, TABLE // 5)
    update = next(n for n in order if n.op == "embedding_sgd_update")
    # 512 bytes of rows are cold, 512 bytes of results and 64 of ids are not.
    assert found["emb"] == 512 / (512 + 512 + 64)
    assert found[update.id] == 0
    assert all(cold == 0 for node, cold in found.items() if node != "emb")
    assert set(cold_fractions(graph, order, places, 100 * TABLE).values()) == {0.0}


def squares(count: int) -> Graph:
    """x squared again and again, every value 4 KiB."""
    b = GraphBuilder("squares")
    x = b.input("x", TensorType(shape=(32, 32)))
    for number in range(count):
        x = layers.unary(b, "square", x, name=f"s{number}")
    return b.finish_inference(x, fuse=False)


def test_bytes_that_are_used_again_are_warm() -> None:
    """Eight squares at bytes of their own touch 36 KiB, more than a cache of 32 KiB: each is read right after it was
    made, but made at bytes that nobody has touched for a step, and x was read a step ago. At two places by turns they
    touch 8 KiB, however many there are."""
    graph = squares(8)
    order = graph.program["predict"].nodes
    found = list(cold_fractions(graph, order, side_by_side(graph), 2**15).values())
    assert found == [1.0] + 7 * [0.5]
    turns = {v.id: (4096 * (i % 2), 4096 * (i % 2) + 4096) for i, v in enumerate(graph.values)}
    assert set(cold_fractions(graph, order, turns, 2**15).values()) == {0.0}


def test_a_value_that_takes_half_of_another_ones_bytes() -> None:
    """s1 overwrites the second half of x. s0 finds the first half behind the 4 KiB of s0 and the 4 KiB of s1: with x
    itself 12 KiB, of which a cache of 16 KiB has forgotten half; a quarter of what it touches. s1 finds its own
    second half likewise. Everything else was used one node ago."""
    graph = squares(2)
    x, s0, s1 = (v.id for v in graph.values)
    places = {x: (0, 4096), s0: (8192, 12288), s1: (2048, 6144)}
    found = cold_fractions(graph, graph.program["predict"].nodes, places, 2**14)
    assert list(found.values()) == [0.5 * 0.25, 0.5 * 0.25]


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
    cold = {n.id: 0.5 for n in order}
    assert gone_before_read(graph, order, cold, 2**14) == {"predict.far"}
    assert gone_before_read(graph, order, cold, 2**15) == frozenset()
    # Who reads it finds everything in the cache: then it is there, too.
    assert gone_before_read(graph, order, {**cold, "predict.sum": 0.0}, 2**14) == frozenset()


def test_the_next_step_reads_what_a_step_leaves() -> None:
    """Between an update and the next first reader lie the nodes behind the update and those before the reader."""
    b = GraphBuilder("layer")
    x = layers.unary(b, "square", b.input("x", TensorType(shape=(32, 32))), name="far")
    y = layers.linear(b, x, 32, name="fc")
    graph = b.finish(layers.mse(b, y, b.input("target", b.type(y))), y, Optimizer(lr=0.1))
    order = graph.program["train_step"].nodes
    names = [n.id for n in order]
    update, reader = names.index("fc.weight.update"), names.index("fc")
    assert 0 < reader < update

    def touched(nodes: Sequence[Node]) -> int:
        return sum(graph.value[v].type.bytes for n in nodes for v in {*n.reads, *n.writes})

    reach = graph.value["fc.weight"].type.bytes + touched(order[update + 1 :]) + touched(order[:reader])
    cold = {n.id: 0.5 for n in order}
    assert "fc.weight.update" in gone_before_read(graph, order, cold, reach)
    assert "fc.weight.update" not in gone_before_read(graph, order, cold, reach + 1)
    assert "fc.weight.update" not in gone_before_read(graph, order, {**cold, "fc": 0.0}, reach)


def test_times_lie_between_warm_and_cold_ones() -> None:
    """A stage whose cold time came out shorter keeps the warm one; none takes no time."""
    entry = CostEntry(signature="s", kernel="loops", dim="rows", slices=1, warm_ns=(100, 50, 0), cold_ns=(300, 40, 0))
    assert stage_times(entry, 0.0) == (100, 50, 1)
    assert stage_times(entry, 0.25) == (150, 50, 1)
    assert stage_times(entry, 1.0) == (300, 50, 1)
