"""Threads per block and blocks: searched one dimension after the other, planned, emitted."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from codegen.cost_table import fill
from codegen.cuda.emit import sources
from codegen.cuda.launches import THREADS, Launch, launch_of, search, worth_keeping
from planner.costs.table import CostTable
from planner.errors import UserError
from planner.ops.base import op_named
from planner.ops.device import device_mode
from planner.plan.check import check
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from tests.codegen.cuda.plans import NULL, asks_the_null_device, gpu, make
from tests.codegen.cuda.test_null_device import batch
from tests.graphs import small_net


def test_one_dimension_after_the_other() -> None:
    """The first node likes 128 threads and few blocks, the second nothing but the runtime's own shape."""
    passes: list[Sequence[Launch]] = []

    def time_all(launches: Sequence[Launch]) -> list[float]:
        passes.append(launches)
        threads, blocks = launches[0] if launches[0].threads else (256, 2112)
        return [100.0 + abs(threads - 128) / 10 + blocks / 100, 50.0 if not launches[1].threads else 49.0]

    tried = search(time_all, 2, 132)
    assert [p[0].threads for p in passes[1 : 1 + len(THREADS)]] == list(THREADS)
    assert {p[0].threads for p in passes[1 + len(THREADS) :]} == {128}
    assert len(passes) == 1 + 4 + 5
    assert worth_keeping(tried[0]) == {Launch(): 133.92, Launch(128, 264): 102.64}
    assert list(worth_keeping(tried[1])) == [Launch()]  # a gain of 2 % may be noise


@pytest.mark.parametrize("text", ["256", "100x20", "1024x1", "256x0", "16x5", "256x2112; x", "999999x1"])
def test_no_shape(text: str) -> None:
    with pytest.raises(UserError, match="SP1517"):
        launch_of("relu1", text)


@asks_the_null_device
def test_a_measured_shape_is_planned_and_launched(tmp_path: Path) -> None:
    graph, target = small_net(), gpu()
    table = fill([graph], target, modelled=True)
    faster = [
        e.model_copy(update={"implementation": "128x264", "warm_ns": (1.0,), "cold_ns": (1.0,)})
        for e in table.entries
        if e.signature.startswith("batch_norm(")
    ]
    assert faster and faster[0].mode.kernel == device_mode(op_named("batch_norm")).kernel
    plan = make_plan(graph, target, table.with_entries(faster), PlanOptions(policy="sequential"))
    assert plan.program["train_step"].node["bn1"].implementation == "128x264"
    assert check(graph, plan, target) == []
    made = make(plan, graph, tmp_path)
    assert "queue.shape(128, 264);" in (tmp_path / "forward.cpp").read_text()
    with made(null_device=NULL) as executor:
        executor._native.log(executor._handle, True)
        float(executor.step(*batch(graph)))
        lines = executor._native.lines(executor._handle)
        assert sum(line.endswith(" in 128x264") for line in lines) == 6  # two batch norms of three kernels
        times = executor.node_times(launches={"bn1": Launch(64, 7), "conv1": None})
        assert set(times) == {"bn1", "conv1"}
        assert any(line.endswith(" in 64x7") for line in executor._native.lines(executor._handle))
        assert len(executor.pair_times("train_step", ("bn1", "conv2"), (1, 2), 2)) == 5


def test_a_strange_shape_reaches_no_source() -> None:
    graph, target = small_net(), gpu()
    table = fill([graph], target, modelled=True)
    strange = [
        e.model_copy(update={"implementation": "9x9/evil", "warm_ns": (1.0,), "cold_ns": (1.0,)})
        for e in table.entries
        if e.signature.startswith("batch_norm(")
    ]
    strange_table: CostTable = table.with_entries(strange)
    plan = make_plan(graph, target, strange_table, PlanOptions(policy="sequential"))
    with pytest.raises(UserError, match="SP1517"):
        sources(plan, graph, target)
