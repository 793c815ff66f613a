"""What the kernel library is asked."""

from pathlib import Path

from codegen.facts import facts, implementations, modelled_by
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.base import Mode, op_named
from planner.ops.signature import signatures_of
from tests.codegen.plans import make, target_of
from tests.graphs import small_net


def test_every_implementation_is_listed_once() -> None:
    """Also when the library has made kernels of them, which then come twice in its own list."""
    modes = [
        (signature, Mode(kernel, dim, min(limit, 2)))
        for signature in signatures_of([small_net()])
        for (kernel, dim), limit in op_named(signature.op).dims(signature).items()
        if kernel == "onednn"
    ]
    for signature, mode in modes:
        for name in implementations(signature, mode):
            facts(signature, mode._replace(implementation=name))
    for listed in (implementations(*asked) for asked in modes):
        assert listed and len(set(listed)) == len(listed)


def test_products_in_blocks_need_what_was_said_with_every_width_of_vectors(tmp_path: Path) -> None:
    """The library that is asked is compiled for any processor, executors for the target's: panels differ in depth."""
    b = GraphBuilder("wide")
    x = layers.linear(b, b.input("x", TensorType(shape=(40, 300))), 70, name="fc")
    loss = layers.mse(b, x, b.input("target", TensorType(shape=(40, 70))), name="loss")
    graph = b.finish(loss, x, Optimizer(lr=0.1))
    executor = make(graph, tmp_path / "wide", costs=modelled_by("blocks", graph, target_of(2)))
    ran = [n for n in executor.plan.program["train_step"].nodes if n.implementation == "blocks"]
    assert ran and all(n.facts["scratch_bytes"] for n in ran)
    with executor(pin=False) as made:  # SP1605 where they differ
        assert made.steps_done == 0
