"""Nodes on a GPU compute the same bits whenever they are asked: also those that a library computes."""

from pathlib import Path

import pytest

from codegen.cuda.launches import Launch
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.graph.precision import mixed_precision
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.zoo import build as build_zoo
from tests.codegen.cuda.plans import NULL, costs_of, gpu, make
from tests.codegen.cuda.test_null_device import batch
from tests.graphs import classifier, conv, gated_net, images

TIMES = 2 if NULL else 20


def narrow_net() -> Graph:
    """Convolutions over few channels and pixels."""
    b = GraphBuilder("narrow")
    x = images(b, batch=2, size=4)
    for i in range(4):
        x = conv(b, x, 8, f"c{i}", kernel=1 if i > 1 else 3, bias=True)
    return classifier(b, x, optimizer=Optimizer(lr=0.01))


NETWORKS = {
    "narrow": narrow_net(),
    "narrow in bfloat16": mixed_precision(narrow_net()),
    "gated in bfloat16": mixed_precision(gated_net()),
    **({} if NULL else {"resnet18 in bfloat16": mixed_precision(build_zoo("resnet18", batch=8, image_size=64))}),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_nodes_repeat_their_bits(name: str, tmp_path: Path) -> None:
    graph = NETWORKS[name]
    nodes = [n for n in graph.program["train_step"].nodes if not n.updates]
    made = tuple(v for n in graph.program["train_step"].nodes for v in n.outputs)  # each in bytes of its own
    plan = make_plan(graph, gpu(), costs_of(graph), PlanOptions(policy="sequential", keep=made))
    with make(plan, graph, tmp_path)(seed=1, null_device=NULL) as executor:
        executor.gradients(*batch(graph))
        timed = plan.program["train_step"].node

        def bits() -> dict[str, list[bytes]]:
            return {n.id: [executor._copy(graph.value[v]).tobytes() for v in n.outputs] for n in nodes}

        def run() -> None:
            executor.node_times("train_step", 1, {n.id: Launch() for n in nodes if timed[n.id].stage_ns})

        run()  # what is drawn by the step's number is drawn anew
        first, changed = bits(), set[str]()
        for _ in range(TIMES):
            run()
            changed |= {node for node, found in bits().items() if found != first[node]}
    assert not changed, [timed[n.id] for n in nodes if n.id in changed][:3]
