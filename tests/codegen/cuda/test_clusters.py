"""Batch norms in one launch: blocks of a cluster wait for each other's sums."""

from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from codegen.cuda.build import KERNELS
from codegen.cuda.emit import sources
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.facts import clusters, facts
from codegen.cuda.used import used
from planner.costs.model import modelled_costs
from planner.costs.table import CostTable
from planner.errors import UserError
from planner.graph.model import Graph
from planner.ops.base import Sample, Signature, op_named
from planner.ops.device import device_mode
from planner.ops.signature import signature_of, signatures_of
from planner.plan.check import check
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target
from tests.codegen.cuda.plans import NULL, asks_the_null_device, gpu, make
from tests.codegen.cuda.test_null_device import batch
from tests.codegen.plans import Case, graph_of, in_bfloat16
from tests.codegen.test_ops import drawn, load, mistakes
from tests.graphs import small_net

OPS = ("batch_norm", "batch_norm_backward")
LAUNCHES = ("clusters:256x8", "clusters:64x2", "clusters:512x4", "clusters:32x1")
MADE_AGAIN = "batch_norm_apply"


def grown(sample: Sample, channels: int) -> Sample:
    """With rows for clusters of eight blocks, in no equal parts."""
    shape = (3, channels, 19, 19)
    types = [t.model_copy(update={"shape": shape if len(t.shape) == 4 else (channels,)}) for t in sample.inputs]
    return Sample(sample.attrs, tuple(types))


def samples(name: str) -> list[Sample]:
    """All that batch norms are fused with, in both precisions, in channels that fill their last cluster and do not."""
    op = op_named(name)
    wide = [grown(s, n) for s in op.samples() if len(s.inputs[0].shape) == 4 for n in (20, 32)]
    return [each for s in wide for each in (s, in_bfloat16(op, s))]


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    """With every batch norm also that which computes its rows again."""
    found: list[Case] = []
    for name in (*OPS, MADE_AGAIN):
        op = op_named(name)
        for number, sample in enumerate(samples(name)):
            launch = LAUNCHES[number % len(LAUNCHES)] if name in OPS else ""
            found.append(Case(len(found), op, sample, device_mode(op, launch)))
    return found


def costs(graph: Graph, target: Target, launches: Mapping[str, str]) -> CostTable:
    """`launches`: of signatures, the only ones in the table."""
    known: Mapping[str, Signature] = {s.text: s for s in signatures_of([graph])}
    found = []
    for e in modelled_costs(graph, target, facts).entries:
        launch = launches.get(e.signature, e.implementation)
        sizes = facts(known[e.signature], e.mode._replace(implementation=launch))
        found.append(e.model_copy(update={"implementation": launch, "facts": dict(sizes)}))
    return CostTable(target=target.name, fingerprint=target.fingerprint()).with_entries(found)


@pytest.fixture(scope="module")
def executor(cases: list[Case], tmp_path_factory: pytest.TempPathFactory) -> CudaExecutor:
    graph = graph_of(cases)
    launches = {signature_of(graph, c.node).text: c.mode.implementation for c in cases}
    plan = make_plan(graph, gpu(), costs(graph, gpu(), launches), PlanOptions(policy="sequential"))
    assert {n.implementation for n in plan.programs[0].nodes} == {*LAUNCHES, ""}
    return make(plan, graph, tmp_path_factory.mktemp("clusters"), safe=False)(poison=True, null_device=NULL)


def test_they_compute_what_three_launches_do(executor: CudaExecutor, cases: list[Case]) -> None:
    state = drawn(cases, np.random.default_rng())
    load(executor, state)
    executor.predict()
    wrong = [m for case in cases for m in mistakes(executor, case, state)]
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {len(cases)}"


def test_rows_that_are_computed_again_have_the_same_bits(executor: CudaExecutor, cases: list[Case]) -> None:
    """And every run leaves the same, in whatever order blocks and threads run."""

    def bits(case: Case) -> bytes:
        return b"".join(executor._copy(executor._graph.value[v]).tobytes() for v in case.outputs)

    def copy(value: str) -> np.ndarray:
        return np.array(executor._copy(executor._graph.value[value]))

    forward = [c for c in cases if c.op.name == OPS[0]]
    again = [c for c in cases if c.op.name == MADE_AGAIN]
    assert [c.sample.attrs for c in forward] == [c.sample.attrs for c in again]
    executor.predict()
    first = {c.node_id: bits(c) for c in cases if c.op.name in OPS}
    statistics = {}
    for one, other in zip(forward, again, strict=True):
        statistics |= {to: copy(at) for at, to in zip(one.inputs, other.inputs, strict=False)}
        statistics |= {to: copy(at) for at, to in zip(one.outputs[1:], other.inputs[-2:], strict=True)}
    executor.load_state_dict(statistics, strict=False)
    executor.predict()
    assert {c.node_id: bits(c) for c in cases if c.op.name in OPS} == first
    for one, other in zip(forward, again, strict=True):
        np.testing.assert_array_equal(copy(other.outputs[0]), copy(one.outputs[0]), err_msg=one.label)


def planned(launch: str, target: Target | None = None, graph: Graph | None = None) -> tuple[Plan, Graph, Target]:
    """With `launch` for all of small_net's batch norms, or those of `graph`."""
    graph, target = graph or small_net(batch=16), target or gpu()
    launches = {s.text: launch for s in signatures_of([graph]) if s.op in OPS}
    return make_plan(graph, target, costs(graph, target, launches), PlanOptions(policy="sequential")), graph, target


@asks_the_null_device
def test_a_network_launches_them(tmp_path: Path) -> None:
    plan, graph, target = planned("clusters:256x4")
    assert check(graph, plan, target) == []
    made = make(plan, graph, tmp_path)
    assert "queue.shape({.threads = 256, .blocks = 4, .clusters = true});" in (tmp_path / "forward.cpp").read_text()
    with made(null_device=NULL) as executor:
        executor._native.log(executor._handle, True)
        float(executor.step(*batch(graph)))
        lines = executor._native.lines(executor._handle)
        assert sum(line.endswith(" in clusters of 256x4") for line in lines) == 4  # of two norms, there and back


def test_what_batch_norms_call_is_compiled(tmp_path: Path) -> None:
    (tmp_path / "forward.cpp").write_text("gpu::batch_norm<Fusion::relu>(queue, a, sums, 4);\n")
    assert set(used([tmp_path / "forward.cpp"], KERNELS)) == {"norm_clusters.cu", "normalise.cu"}


def test_clusters_that_cannot_be_launched() -> None:
    old = gpu().model_copy(update={"gpus": (gpu().gpus[0].model_copy(update={"arch": "sm_86"}),)})
    with pytest.raises(UserError, match=r"SP1517.*on sm_86 it runs in clusters of at most 1 blocks"):
        sources(*planned("clusters:256x4", old))
    sources(*planned("clusters:256x1", old))
    with pytest.raises(UserError, match=r"SP1517.*of at most 2 blocks"):  # of 256 rows
        sources(*planned("clusters:256x4", graph=small_net(batch=4)))
    with pytest.raises(UserError, match=r"SP1517.*is no number"):
        sources(*planned("clusters:256x3"))
    plan, graph, target = planned("")
    program = plan.program["train_step"]
    nodes = [
        n.model_copy(update={"implementation": "clusters:256x1"}) if n.node == "maxpool" else n for n in program.nodes
    ]
    edited = (program.model_copy(update={"nodes": tuple(nodes)}), *plan.programs[1:])
    with pytest.raises(UserError, match="SP1517: node maxpool: clusters:256x1, but on sm_90 it runs in no clusters"):
        sources(plan.model_copy(update={"programs": edited}), graph, target)


def test_few_rows_make_small_clusters() -> None:
    def possible(shape: tuple[int, ...], name: str = "batch_norm") -> tuple[int, ...]:
        op = op_named(name)
        sample = op.samples()[0]
        types = [t.model_copy(update={"shape": shape if len(t.shape) == 4 else shape[1:2]}) for t in sample.inputs]
        return clusters(Signature(name, sample.attrs, tuple(types), op.infer(sample.attrs, types)), "sm_90")

    assert possible((32, 256, 14, 14)) == possible((32, 256, 14, 14), "batch_norm_backward") == (1, 2, 4, 8)
    assert possible((8, 64, 8, 8)) == (1, 2, 4)
    assert possible((1, 64, 8, 8)) == (1,)
    assert possible((32, 255, 14, 14)) == ()
    assert possible((32, 256, 14, 14), "relu") == ()
