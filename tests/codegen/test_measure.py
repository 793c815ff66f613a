"""What is timed is what steps do: rows all over a table, and two threads of one core."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen import measure, pairs, smt
from codegen.cpu.emit import emit_cases
from codegen.facts import facts
from codegen.measure import AWAKE_NS, Bench, handovers
from codegen.native import native_module
from codegen.pairs import Pair, PairBench
from codegen.profile_cases import Case, case_programs
from planner.costs.table import CostEntry, CostTable
from planner.errors import InternalError
from planner.graph.model import DType, Graph, TensorType
from planner.ops.base import Mode, Signature, op_named
from planner.plan.schema import Plan
from planner.target.detect import detect
from planner.target.model import Core, Target
from tests.codegen.plans import target_of

IDS = TensorType(shape=(400,), dtype=DType.INT64)


def whole_numbers(name: str, dim: str, inputs: tuple[TensorType, ...], folder: Path) -> tuple[int, list[np.ndarray]]:
    """What two copies of the first operand of whole numbers hold while an op is timed, and what they may not reach."""
    op = op_named(name)
    ids = next(t for t in inputs if t.dtype is DType.INT64)
    attrs = op.attrs_type()
    signature = Signature(name, attrs, inputs, op.infer(attrs, inputs))
    mode = Mode("loops", dim, 1)
    target = detect()
    bench = Bench([Case(signature, mode, facts(signature, mode))], target, target.lanes(1), folder)
    try:
        assert sum(bench.sample(0, 0.01).cold_ns) > 0
        footprint = bench._footprints[0]
        room = next(r for r in footprint.tensors if r.type == ids)
        copies = [
            bench._arena[base + room.offset : base + room.offset + ids.bytes].view(np.int64).copy()
            for base in (0, footprint.bytes)
        ]
    finally:
        bench.close()
    return room.end, copies


def test_what_the_compiler_says_of_a_kernel_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody has edited a profile's sources, whose graph is no plan's."""

    def emitted(plan: Plan, graph: Graph, target: Target, folder: Path) -> None:
        emit_cases(plan, graph, target, folder)
        for source in folder.glob("*.cpp"):
            source.write_text(source.read_text() + "nonsense\n")

    monkeypatch.setattr(measure, "emit_cases", emitted)
    with pytest.raises(InternalError, match="nonsense"):
        whole_numbers("embedding", "positions", (TensorType(shape=(5, 8)), IDS), tmp_path)


def test_indices_are_random_rows_of_the_whole_table(tmp_path: Path) -> None:
    table = TensorType(shape=(5000, 8))
    end, copies = whole_numbers("embedding", "positions", (table, IDS), tmp_path)
    assert end == 5000
    for found in copies:
        assert 0 <= found.min() < 500 and 4500 < found.max() < 5000 and len(np.unique(found)) > 350
    assert not np.array_equal(*copies)


def test_groups_are_as_large_as_each_other(tmp_path: Path) -> None:
    rows, matrices = TensorType(shape=(50, 8)), TensorType(shape=(4, 8, 16))
    ends = TensorType(shape=(4,), dtype=DType.INT64)
    _, copies = whole_numbers("grouped_matmul", "rows", (rows, matrices, ends), tmp_path)
    assert all(found.tolist() == [12, 25, 37, 50] for found in copies)


def test_sequences_are_of_full_length(tmp_path: Path) -> None:
    types = TensorType(shape=(3, 9, 7)), TensorType(shape=(3, 7))
    lengths = TensorType(shape=(3,), dtype=DType.INT64)
    _, copies = whole_numbers("ctc_loss", "sequences", (*types, lengths, lengths), tmp_path)
    assert all(found.tolist() == [9, 9, 9] for found in copies)


def test_only_lanes_that_are_awake_tell_what_a_signal_takes() -> None:
    long, late = 2_000_000, 2_000_000 + AWAKE_NS
    first, second = [(0, long), (10, late)], [(late + 150, late + 160), (late + 40, late + 60)]
    assert handovers([first, second]) == [150]
    slept = [(0, long - 1), (10, late)]
    assert handovers([slept, second]) == []
    assert handovers([slept, second, [(late + 300, late + 310), (late + 360, late + 370)]]) == [200]
    assert handovers([first]) == []


class Flushing:
    """An executor that tells what it flushes; `able`: as a processor without such an instruction."""

    def __init__(self, native: Any, able: bool) -> None:
        self.native, self.able = native, able
        self.flushed: list[tuple[int, int]] = []

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def create(self, pin: bool, poison: bool) -> Any:
        return self.native.create(False, poison)

    def flush(self, handle: Any, begin: int, size: int) -> bool:
        self.flushed.append((begin, size))
        return self.able and self.native.flush(handle, begin, size)


def relu(x: TensorType) -> Case:
    signature = Signature("relu", op_named("relu").attrs_type(), (x,), (x,))
    mode = Mode("loops", next(iter(op_named("relu").dims(signature)))[1], 1)
    return Case(signature, mode, facts(signature, mode))


def with_l3(target: Target, l3: int) -> Target:
    sizes = target.cpu.caches.model_copy(update={"l3": l3})
    return target.model_copy(update={"cpu": target.cpu.model_copy(update={"caches": sizes})})


@pytest.mark.parametrize("l3, able", [(2**27, True), (2**27, False), (2**20, True)])
def test_cold_operands_are_flushed_from_large_caches(
    l3: int, able: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before every round over the copies, all of them; what a case computes stays what it is. Without the instruction,
    and where the caches are small, as much is written as makes them forget."""
    found: list[Flushing] = []
    monkeypatch.setattr(measure, "native_module", lambda f: found.append(Flushing(native_module(f), able)) or found[-1])
    x = TensorType(shape=(2**21,))
    case, target = relu(x), with_l3(detect(), l3)
    bench = Bench([case], target, target.lanes(1), tmp_path)
    try:
        runs = bench._cold_runs(0, 10.0)
        (footprint,) = bench._footprints
        copies = bench._replicas(footprint)
        flushed = found[0].flushed[1:]
        if l3 > 2**20 and able and found[0].native.flush(bench._handle, 0, 0):
            assert copies == 5  # 16 MiB each: those that 64 MiB hold, and one
            assert flushed == [(0, copies * footprint.bytes)] * -(-len(runs) // copies)
        else:
            assert not flushed
            assert copies == (2 if able else 17)
        source, result = (r.offset for r in footprint.tensors)
        values = bench._arena[: copies * footprint.bytes].reshape(copies, -1).view(np.float32)
        n = x.elements
        np.testing.assert_array_equal(values[:, result // 4 :][:, :n], values[:, source // 4 :][:, :n])
    finally:
        bench.close()


def test_so_are_those_of_nodes_side_by_side(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found: list[Flushing] = []
    monkeypatch.setattr(measure, "native_module", lambda f: found.append(Flushing(native_module(f), True)) or found[-1])
    case, target = relu(TensorType(shape=(2**20,))), with_l3(target_of(2), 2**27)
    bench = PairBench([Pair(case, case, (1, 1))], target, target.lanes(), tmp_path)
    try:
        if not found[0].native.flush(bench._handle, 0, 0):
            pytest.skip("this processor cannot flush lines together")
        bench.visit(0)
        footprint = bench._footprints[2]
        copies, runs = bench._replicas(footprint), 3 * pairs.REPETITIONS[1]
        assert 1 < copies < runs
        assert found[0].flushed[1:] == [(0, copies * footprint.bytes)] * -(-runs // copies)
    finally:
        bench.close()


class Unpinned:
    """An executor of more lanes than this machine has processors."""

    def __init__(self, native: Any) -> None:
        self.native = native

    def __getattr__(self, name: str) -> Any:
        return getattr(self.native, name)

    def create(self, pin: bool, poison: bool) -> Any:
        return self.native.create(False, poison)


def test_stages_of_many_slices_follow_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waits for all of a stage are one, as in plans: lists of them are what a compiler takes minutes for."""
    monkeypatch.setattr(measure, "native_module", lambda folder: Unpinned(native_module(folder)))
    op, lanes = op_named("linear_backward_weights"), 7
    shapes = TensorType(shape=(700, 8)), TensorType(shape=(700, 8))
    signature = Signature(op.name, op.attrs_type(), shapes, op.infer(op.attrs_type(), shapes))
    modes = [Mode("onednn", "depth", slices) for slices in (2, lanes)]
    cases = [Case(signature, mode, facts(signature, mode)) for mode in modes]
    target = target_of(lanes)
    _, plan = case_programs(cases, target, target.lanes()).plan(2**20)
    waits = [[e.wait for e in p.lanes[0]] for p in plan.programs]
    assert waits == [[(), ("case0/0#1",)], [(), ("case1/0#*",)]]
    bench = Bench(cases, target, target.lanes(), tmp_path)
    try:
        for _ in range(20):
            assert len(bench._run(1, 0)) == 2
            first, second = zip(*(lane for lane in bench._native.spans(bench._handle, 1) if lane), strict=True)
            assert len(first) == lanes and max(end for _, end in first) <= min(start for start, _ in second)
    finally:
        bench.close()


def test_gain_of_second_threads() -> None:
    """Two real cores told as two threads of one: nearly twice the work, and never less than one thread's."""
    target = detect()
    if target.physical_cores < 2:
        pytest.skip("needs two processors")
    first, second = target.cpu.cores[:2]
    one = Core.model_validate(first.model_dump() | {"cpus": (first.cpus[0], second.cpus[0])})
    together = target.model_copy(update={"cpu": target.cpu.model_copy(update={"cores": (one,)})})
    op = op_named("linear")
    attrs = op.attrs_type()
    shapes = (TensorType(shape=(256, 512)), TensorType(shape=(512, 512)), TensorType(shape=(512,)))
    signature = Signature("linear", attrs, shapes, op.infer(attrs, shapes))
    (kernel, dim), _ = max(op.dims(signature).items(), key=lambda d: d[1])
    entry = CostEntry(signature=signature.text, kernel=kernel, dim=dim, slices=1, warm_ns=(1e6,), cold_ns=(1e6,))
    table = CostTable(target=target.name, fingerprint="", entries=(entry,))
    found = smt.smt_gain(together, table, [signature])
    assert found is not None and 1.0 <= found <= 2.0
    assert smt.smt_gain(target, table, [signature]) is None or target.logical_cpus > target.physical_cores
    assert smt.smt_gain(together, table, []) is None
