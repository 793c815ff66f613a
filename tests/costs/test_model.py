"""Modelled times: what a stage beside a kernel's own takes."""

from planner.costs.model import START_NS, modelled_costs
from planner.graph.builder import GraphBuilder
from planner.target.text import load_target
from tests.graphs import classifier, conv, images

CHANNELS, SIZE = 16, 64


def test_packing_weights_and_adding_partial_sums_take_what_copying_them_takes() -> None:
    """Small weights, large images: hardly anything of the convolution's time."""
    b = GraphBuilder("one")
    x = conv(b, images(b, channels=CHANNELS, size=SIZE), CHANNELS, "first")
    graph = classifier(b, conv(b, x, CHANNELS, "second"))
    target = load_target("cpu2")
    copied = 2 * CHANNELS * CHANNELS * 9 * 4 / target.memory_bandwidth * 1e9
    seen = set()
    for entry in modelled_costs(graph, target, lanes=1).entries:
        if entry.signature.startswith("conv2d") and len(entry.cold_ns) == 2:
            packs = bool(entry.facts.get("packed_bytes"))
            beside, itself = sorted(entry.cold_ns)
            assert entry.cold_ns.index(beside) == (0 if packs else 1)
            assert abs(beside - START_NS - copied) < 0.1 and itself > 20 * copied, entry
            seen.add(packs)
    assert seen


def test_few_images_use_all_lanes_by_their_rows() -> None:
    b = GraphBuilder("few")
    graph = classifier(b, conv(b, images(b, channels=CHANNELS, size=SIZE), CHANNELS, "first"))
    batch = graph.value["first.y"].type.shape[0]
    entries = [e for e in modelled_costs(graph, load_target("cpu16")).entries if e.signature.startswith("conv2d(")]
    assert {e.slices for e in entries if e.dim == "batch"} == {k for k in (1, 2, 4, 8, 16) if k <= batch}
    assert {e.slices for e in entries if e.dim == "rows"} == {k for k in (1, 2, 4, 8, 16) if batch % k}
    assert max(e.slices for e in entries) == 16 > batch
