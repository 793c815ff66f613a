"""Profiles on a bench that follows a script: what disturbed a visit is in no table, whatever it hit."""

from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from zlib import crc32

import pytest

from codegen import contenders, visits
from codegen import profile as profiling
from codegen.contenders import Finalist, choose
from codegen.facts import Refused
from codegen.measure import Sampled, quicker
from codegen.profile_cases import Case
from codegen.visits import visit_all
from planner.costs.hill_climb import hill_climb
from planner.costs.table import CostTable, read_costs, write_costs
from planner.graph.model import Attrs, DType, Layout, TensorType
from planner.ops.base import Facts, Mode, Signature, op_named
from planner.ops.conv import ConvAttrs, ConvGradAttrs
from planner.ops.optimizer import SgdAttrs
from planner.ops.signature import signatures_of
from planner.ops.streaming import STREAMS, UPDATE_STREAMS
from planner.plan.crossing import Crossing
from planner.target.model import Target
from tests.codegen.plans import target_of
from tests.graphs import small_net

Disturbance = Callable[[Case, int], float]
"""(case, how often it was visited before) -> how many times as long it takes."""


class Script:
    """What a ScriptedBench answers, and what it was asked."""

    def __init__(self) -> None:
        self.spread = 0.125
        self.begin()

    def begin(self, disturbance: Disturbance = lambda case, before: 1.0) -> None:
        """Anew, nothing visited."""
        self.disturbance = disturbance
        self.looks: Counter[tuple[str, Mode]] = Counter()
        self.visits: Counter[tuple[str, Mode]] = Counter()
        self.budgets: list[float] = []
        self.signals = [100]


def undisturbed(case: Case) -> Sampled:
    """Times of its own for every case, quicker on more lanes."""
    signature, mode, facts = case
    stages = op_named(signature.op).stage_count(signature, mode, facts)
    whole = 1e6 + crc32(repr((signature.text, mode._replace(slices=1))).encode()) % 10**6
    warm = tuple(whole / mode.slices * (1 + stage) for stage in range(stages))
    return Sampled(warm, tuple(2 * w for w in warm), 0.125)


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> Iterator[Script]:
    script = Script()

    class ScriptedBench:
        def __init__(self, cases: list[Case], target: Target, cpus: tuple[int, ...], folder: Path) -> None:
            self.cases, self.sync_ns, self.launch_ns = cases, script.signals, [1000]

        def handoff_ns(self) -> float:
            return 50.0

        def crossing(self) -> Crossing:
            return Crossing(1.0, 2.0, 3.0)

        def quickest(self, case: int, budget_s: float, hopeless_ns: float) -> float:
            key = self.cases[case].signature.text, self.cases[case].mode
            script.looks[key] += 1
            longer = script.disturbance(self.cases[case], script.looks[key] - 1)
            return longer * sum(undisturbed(self.cases[case]).cold_ns)

        def sample(self, case: int, budget_s: float) -> Sampled:
            key = self.cases[case].signature.text, self.cases[case].mode
            script.visits[key] += 1
            script.budgets.append(budget_s)
            longer = script.disturbance(self.cases[case], script.visits[key] - 1)
            warm, cold, _ = undisturbed(self.cases[case])
            return Sampled(tuple(t * longer for t in warm), tuple(t * longer for t in cold), script.spread * longer)

        def close(self) -> None:
            pass

    monkeypatch.setattr(contenders, "Bench", ScriptedBench)
    monkeypatch.setattr(visits, "Bench", ScriptedBench)
    monkeypatch.setattr(visits, "SAVE_EVERY_S", -1.0)
    monkeypatch.setattr(profiling, "require_processor", lambda target, mixed: None)
    monkeypatch.setattr(profiling, "smt_gain", lambda target, table, signatures: None)
    yield script


def profiled(cores: int = 2, table: CostTable | None = None, **options: Any) -> CostTable:
    return profiling.profile([small_net()], target_of(cores), table, **options)


def test_a_disturbed_visit_leaves_no_trace(script: Script) -> None:
    quiet = profiled()
    assert len(quiet.entries) > 20 and not any(e.provisional for e in quiet.entries)
    for number in (0, 1):
        # A host that runs both processors on one core, now for these modes and now for others.
        script.begin(
            lambda case, before, number=number: (
                2.0 if before == (number + len(case.signature.text)) % 2 and case.mode.slices == 2 else 1.0
            )
        )
        assert profiled() == quiet


@pytest.mark.parametrize("restless", [True, False])
@pytest.mark.parametrize("disturbed", [1, 2, 4, 5])
def test_disturbed_visits_are_not_the_last(disturbed: int, restless: bool, script: Script) -> None:
    """A host that runs both processors on one core in the first so many visits, or in parts of each."""
    script.spread = 0.125 if restless else 0.01
    quiet = profiled()
    assert set(script.visits.values()) == {2}
    longer = 1.5 if restless else 2.0
    script.begin(lambda case, before: longer if before < disturbed and case.mode.slices == 2 else 1.0)
    assert (profiled() == quiet) is (disturbed < 5)
    once = {count for (_, mode), count in script.visits.items() if mode.slices == 2}
    assert once == {max(2, min(disturbed + 1, 2 + visits.MORE_VISITS))}


def test_signals_in_a_tight_loop_count_where_no_others_were_seen(script: Script) -> None:
    assert (profiled().sync_ns, profiled().launch_ns) == (100, 1000)
    script.signals = []
    assert (profiled().sync_ns, profiled().handoff_ns) == (50, 50)


def test_of_two_visits_one_is_kept_whole() -> None:
    first = Sampled((1.0, 9.0), (10.0, 1.0), 0.1)
    second = Sampled((5.0, 4.0), (2.0, 10.0), 0.2)
    assert quicker(first, second) == Sampled((5.0, 4.0), (10.0, 1.0), 0.1)
    assert quicker(second, first) == Sampled((5.0, 4.0), (10.0, 1.0), 0.1)


def test_everything_is_visited_once_before_anything_again(script: Script) -> None:
    order: list[tuple[str, Mode]] = []
    script.disturbance = lambda case, before: order.append((case.signature.text, case.mode)) or 1.0
    said: list[tuple[str, int, int]] = []
    profiled(progress=lambda *report: said.append(report))
    visited = order[script.looks.total() :]
    half = len(visited) // 2
    assert visited[:half] == visited[half:] and len(set(visited)) == half
    timing = [(done, total) for what, done, total in said if what.startswith("timing")]
    assert timing == [(done, len(timing)) for done in range(len(timing))]
    assert [what.endswith(" again") for what, _, _ in said if what.startswith("timing")] == [
        done >= len(timing) // 2 for done in range(len(timing))
    ]


def test_both_visits_share_a_budget(script: Script) -> None:
    signatures = len(signatures_of([small_net()]))
    profiled(budget_s=48.0)
    assert set(script.budgets) == {48.0 / signatures / 2 / profiling.MEASUREMENTS}
    script.begin()
    profiled()
    assert script.budgets == pytest.approx([profiling.VISIT_S / profiling.MEASUREMENTS] * len(script.budgets))


@pytest.mark.parametrize("cores", [4, 16])
def test_a_budget_is_kept_on_many_lanes(script: Script, cores: int) -> None:
    """Sixteen cores have five counts to try, in two orders of lanes. Each visit takes its time warm and cold."""
    profiled(cores, budget_s=48.0)
    assert 0.1 * 48.0 < 2 * sum(script.budgets) <= 48.0


class Interrupted(Exception):
    pass


@pytest.mark.parametrize("share", [0.3, 0.5, 0.8])
def test_an_interrupted_profile_goes_on_where_it_was(script: Script, share: float, tmp_path: Path) -> None:
    quiet = profiled()
    script.begin(lambda case, before: 2.0 if before == 0 else 1.0)
    saved: list[CostTable] = []

    def stop(what: str, done: int, total: int) -> None:
        if what.startswith("timing") and done >= share * total:
            raise Interrupted

    with pytest.raises(Interrupted):
        profiled(progress=stop, save=saved.append)
    write_costs(saved[-1], tmp_path / "costs.json")
    found = read_costs(tmp_path / "costs.json")
    known = {(e.signature, e.mode): e.provisional for e in found.entries}
    assert any(known.values())
    before = script.visits.copy()
    resumed = profiled(table=found)
    assert not any(e.provisional for e in resumed.entries)
    for key, provisional in known.items():
        assert script.visits[key] - before[key] == provisional, "the second visit where it was due, and no other"
    # Modes without a saved first visit were visited anew, twice.
    times = {(e.signature, e.mode): (e.warm_ns, e.cold_ns) for e in quiet.entries}
    assert {(e.signature, e.mode): (e.warm_ns, e.cold_ns) for e in resumed.entries} == times
    script.begin()
    assert profiled(table=resumed).entries == resumed.entries and not script.visits


def test_second_visits_are_left_to_as_many_lanes(script: Script) -> None:
    """What more lanes left provisional stays so on fewer; those lanes then make up for it."""
    saved: list[CostTable] = []

    def stop(what: str, done: int, total: int) -> None:
        if what.endswith(" again"):
            raise Interrupted

    with pytest.raises(Interrupted):
        profiled(4, progress=stop, save=saved.append)
    fewer = profiled(4, saved[-1], lanes=2)
    assert {e.slices for e in fewer.entries if e.provisional} == {3, 4}
    assert not any(e.provisional for e in profiled(4, fewer).entries)


def embedding() -> Signature:
    op = op_named("embedding")
    attrs = op.attrs_type()
    operands = (TensorType(shape=(500, 8)), TensorType(shape=(400,), dtype=DType.INT64))
    return Signature("embedding", attrs, operands, op.infer(attrs, operands))


def test_a_climb_that_a_disturbance_ended_goes_on(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    signature, target = embedding(), target_of(8)
    finalist = Finalist(signature, Mode("loops", "positions", 8))

    def climbed() -> CostTable:
        empty = CostTable(target=target.name, fingerprint="")
        return visit_all(
            [finalist],
            [signature],
            target,
            target.lanes(8),
            "compact",
            1,
            hill_climb,
            0.1,
            empty,
            lambda what, done, total: None,
            lambda table: None,
        )

    quiet = climbed()
    assert [e.slices for e in quiet.entries if e.source == "measured"] == list(range(1, 9))
    script.begin(lambda case, before: 3.0 if case.mode.slices == 3 and before == 0 else 1.0)
    assert climbed() == quiet
    visited = {mode.slices: count for (_, mode), count in script.visits.items()}
    assert visited == {1: 2, 2: 2, 3: 2, 4: 1, 5: 1, 6: 1, 7: 1, 8: 2}
    # A climb that the second visit ends earlier: what was visited before is visited again all the same.
    monkeypatch.setattr(visits, "MORE_VISITS", 0)
    script.begin(lambda case, before: 3.0 if case.mode.slices < 3 and before == 0 else 1.0 + (case.mode.slices == 4))
    climbed()
    assert {mode.slices: count for (_, mode), count in script.visits.items()} == {1: 2, 2: 2, 3: 2, 4: 2, 8: 2}


def backward_weights(images: int) -> Signature:
    """Of a convolution of one tap, whose slices of the batch each have a partial sum."""
    x, dy = (TensorType(shape=(images, c, 7, 7), layout=Layout.CHANNELS_LAST) for c in (64, 32))
    attrs = ConvGradAttrs(shape=(32, 64, 1, 1))
    outputs = op_named("conv2d_backward_weights").infer(attrs, (x, dy))
    return Signature("conv2d_backward_weights", attrs, (x, dy), outputs)


def visited(finalists: list[Finalist], lanes: int, interval: int) -> CostTable:
    target, signatures = target_of(lanes), list(dict.fromkeys(f.signature for f in finalists))
    return visit_all(
        finalists,
        signatures,
        target,
        target.lanes(lanes),
        "compact",
        interval,
        hill_climb,
        0.1,
        CostTable(target=target.name, fingerprint=""),
        lambda what, done, total: None,
        lambda table: None,
    )


def test_counts_between_those_of_as_many_stages_are_interpolated(script: Script) -> None:
    """One slice adds no partial sums up. On eight lanes 1, 5 and 8 slices are timed: what lies between 1 and 5 is not
    known, between 5 and 8 it is."""
    mode = Mode("onednn", "batch", 8, "matmul/gemm:jit:f32")
    found = {e.slices: e for e in visited([Finalist(backward_weights(8), mode)], 8, 4).entries}
    assert {c: e.source for c, e in found.items()} == {
        1: "measured",
        5: "measured",
        6: "interpolated",
        7: "interpolated",
        8: "measured",
    }
    assert [len(found[c].cold_ns) for c in found] == [1, 2, 2, 2, 2]
    first, last = (found[c].cold_ns[1] for c in (5, 8))
    assert found[6].cold_ns[1] == pytest.approx(first + (last - first) / 3)


def test_counts_of_which_the_library_has_no_such_kernel_are_left_out(
    script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it has depends on how large the slices are."""

    def some(signature: Signature, mode: Mode) -> Facts:
        if mode.slices in (5, 10):
            raise Refused(mode.text())
        return {}

    monkeypatch.setattr(visits, "facts", some)
    table = visited([Finalist(embedding(), Mode("onednn", "positions", 16, "some"))], 16, 4)
    assert [e.slices for e in table.entries if e.source == "measured"] == [1, 9, 13, 16]
    assert [e.slices for e in table.entries] == [c for c in range(1, 17) if c not in (5, 10)]


def test_something_runs_on_one_lane(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    def some(signature: Signature, mode: Mode) -> Facts:
        if mode.implementation == "parts" and mode.slices == 1:
            raise Refused(mode.text())
        return {}

    monkeypatch.setattr(contenders, "facts", some)
    monkeypatch.setattr(contenders, "implementations", lambda s, mode: ("parts",) if mode.slices > 1 else ("whole",))
    found = choose([backward_weights(8)], target_of(8), range(8), 0.1, lambda what, *report: None)
    assert [f.widest for f in found if f.widest.slices == 1] == [Mode("onednn", "batch", 1, "whole")]
    monkeypatch.setattr(contenders, "facts", lambda signature, mode: {})
    found = choose([backward_weights(8)], target_of(8), range(8), 0.1, lambda what, *report: None)
    assert {f.widest.implementation for f in found} == {"parts"}


def test_entries_are_sorted_into_the_table_when_it_is_saved(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not after every visit: on many lanes a table is long, and so is the list of visits."""
    sorted_in = []
    with_entries = CostTable.with_entries
    monkeypatch.setattr(visits, "SAVE_EVERY_S", 3600.0)
    monkeypatch.setattr(CostTable, "with_entries", lambda *given: sorted_in.append(1) or with_entries(*given))
    profiled(8)
    assert script.visits.total() > 50 and len(sorted_in) <= 2


NAMES = ("one", "two", "three", "four", "five")


def test_a_disturbed_contender_is_not_dropped(script: Script, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(contenders, "implementations", lambda signature, mode: NAMES)
    monkeypatch.setattr(contenders, "facts", lambda signature, mode: {})
    monkeypatch.setattr(contenders, "_may_stream", lambda signature, target: True)
    signature, target = embedding(), target_of(2)

    def chosen() -> list[Finalist]:
        said: list[tuple[int, int]] = []
        found = choose([signature], target, target.lanes(2), 0.1, lambda what, *report: said.append(report))
        assert [done for done, _ in said] == list(range(script.looks.total()))
        assert said[-1] == (len(said) - 1, len(said))
        return found

    def times(*took: float) -> Disturbance:
        """Of the five contenders, whatever the bench makes of a case."""
        return lambda case, before: took[NAMES.index(case.mode.implementation)] / sum(undisturbed(case).cold_ns)

    quiet = times(100.0, 110.0, 130.0, 300.0, 105.0)
    script.begin(quiet)
    best = chosen()
    assert [f.widest.implementation for f in best] == ["one", "five"]
    looks = {mode.implementation: count for (_, mode), count in script.looks.items()}
    assert looks == {"one": 2, "two": 2, "three": 2, "four": 1, "five": 2}, "none at what no disturbance explains"
    for name in NAMES:
        script.begin(
            lambda case, before, name=name: (
                quiet(case, before) * (2.0 if case.mode.implementation == name and before == 0 else 1.0)
            )
        )
        assert chosen() == best
    script.begin(lambda case, before: quiet(case, before) * (2.0 if before == 0 else 1.0))
    assert chosen() == best, "everybody was disturbed, the winners too"
    script.begin(times(100.0, 110.0, 300.0, 300.0, 300.0))
    chosen()
    assert set(script.looks.values()) == {1}, "nobody is in doubt"


@pytest.mark.parametrize(
    ("march", "timed"),
    [
        ("x86-64-v4", {"brgconv:avx512_core", "gemm:jit:f32", "winograd"}),
        ("x86-64-v3", {"jit:avx2", "gemm:jit:f32", "winograd"}),
        ("x86-64-v2", {"jit:sse41", "gemm:jit:f32", "winograd"}),
        ("x86-64", {"gemm:jit:f32", "winograd"}),
    ],
)
def test_the_widest_vectors_are_timed_and_what_does_not_name_its_own(
    march: str, timed: set[str], script: Script, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kernels for AVX2 once were not timed beside a gemm, whose name says nothing of vectors."""
    names = ("brgconv:avx512_core", "jit:avx2", "jit:sse41", "gemm:jit:f32", "ref:any", "winograd")
    monkeypatch.setattr(contenders, "implementations", lambda signature, mode: names)
    monkeypatch.setattr(contenders, "facts", lambda signature, mode: {})
    target = target_of(2)
    target = target.model_copy(update={"cpu": target.cpu.model_copy(update={"march": march})})
    operand = TensorType(shape=(4, 8, 8, 16))
    conv = ConvAttrs(padding=(1, 1, 1, 1))
    signature = Signature("conv2d", conv, (operand, TensorType(shape=(16, 16, 3, 3))), (operand,))
    found = choose([signature], target, (0, 1), 0.1, lambda what, *report: None)
    assert {mode.implementation for _, mode in script.looks} | {f.widest.implementation for f in found} == timed


def test_rows_are_timed_where_images_do_not_come_out_even(script: Script) -> None:
    def dims(images: int, lanes: int) -> set[str]:
        operand = TensorType(shape=(images, 8, 8, 16))
        conv = ConvAttrs(padding=(1, 1, 1, 1))
        signature = Signature("conv2d", conv, (operand, TensorType(shape=(8, 8, 3, 3))), (operand,))
        found = choose([signature], target_of(lanes), range(lanes), 0.1, lambda what, *report: None)
        return {f.widest.dim for f in found}

    assert dims(4, 2) == dims(4, 4) == {"batch"}
    assert dims(1, 2) == dims(3, 2) == dims(4, 6) == {"batch", "rows"}


def test_what_may_stream_is_timed_beside_the_plain_loop(script: Script) -> None:
    """cpu16 has 32 MiB of outermost cache: results of 8 MiB may be gone before they are read, parameters of 64 KiB are
    pushed out by the rest of the step."""

    def timed(op_name: str, elements: int) -> set[str]:
        operand = TensorType(shape=(elements,))
        if op_name == "relu":
            signature = Signature("relu", Attrs(), (operand,), (operand,))
        else:
            signature = Signature("sgd_update", SgdAttrs(lr=0.1), (operand,), (), (operand,))
        found = choose([signature], target_of(2), (0, 1), 0.1, lambda what, *report: None)
        return {f.widest.implementation for f in found}

    assert target_of(2).cpu.caches.l3 == 2**25
    assert "" in timed("relu", 2**21) and set(STREAMS) & timed("relu", 2**21)
    assert timed("relu", 2**21 - 16) == {""}
    assert timed("sgd_update", 2**14) == {"", *UPDATE_STREAMS}
    assert timed("sgd_update", 2**14 - 16) == {""}
