"""The replay of lane programs, against arithmetic by hand and a brute-force event simulation."""

import random
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.errors import UserError
from planner.plan.contention import contention_of
from planner.plan.schema import Bounds, Entry, NodePlan, ProgramPlan, Sharing, slice_name
from planner.plan.simulate import simulate

NO_BOUNDS = Bounds(critical_path_ns=0, work_ns=0, bandwidth_ns=0)


def program(times: dict[str, tuple[int, ...]], lanes: list[list[tuple[str, ...]]]) -> ProgramPlan:
    """Lanes as lists of (slice, waits...)."""
    return ProgramPlan(
        name="p",
        nodes=tuple(NodePlan(node=n, kernel="loops", dim="elements", slices=1, stage_ns=t) for n, t in times.items()),
        lanes=tuple(tuple(Entry(run=e[0], wait=e[1:]) for e in lane) for lane in lanes),
        predicted_ns=0,
        peak_bytes=0,
        bounds=NO_BOUNDS,
    )


def test_by_hand() -> None:
    plan = program(
        {"a": (100,), "b": (50, 30), "c": (10,)},
        [[("a/0#0",), ("b/1#0", "b/0#0")], [("c/0#0",), ("b/0#0", "a/0#0", "c/0#0")]],
    )
    found = simulate(plan, sync_ns=10)
    # lane 0: a 0..100; lane 1: c 0..10, then b/0 waits for a: 100 + 10 = 110..160; b/1 at 160 + 10 = 170..200.
    assert found.rows() == [
        ("a/0#0", 0, 0.0, 100.0),
        ("b/1#0", 0, 170.0, 200.0),
        ("c/0#0", 1, 0.0, 10.0),
        ("b/0#0", 1, 110.0, 160.0),
    ]
    assert found.total_ns == 200
    assert found.busy_ns.tolist() == [130, 60]
    assert found.waits == 3


def test_a_stage_that_ends_on_the_waiting_lane() -> None:
    """Lane 2 sees its own slice of s end at 110, and lane 1's, of 105, at 125; lane 0's, of 100, does not count."""
    plan = program(
        {"s": (100,), "before": (10,), "early": (5,), "after": (1,)},
        [[("s/0#0",)], [("early/0#0",), ("s/0#1",)], [("before/0#0",), ("s/0#2",), ("after/0#0", "s/0#*")]],
    )
    nodes = tuple(n.model_copy(update={"slices": 3}) if n.node == "s" else n for n in plan.nodes)
    found = simulate(plan.model_copy(update={"nodes": nodes}), sync_ns=20)
    assert found.rows()[-1] == ("after/0#0", 2, 125.0, 126.0)


def test_a_wait_within_one_lane_costs_no_signal() -> None:
    plan = program({"a": (5,), "b": (5,)}, [[("a/0#0",), ("b/0#0", "a/0#0")]])
    assert simulate(plan, sync_ns=1000).total_ns == 10


def test_other_stage_times_replace_the_plan_s() -> None:
    plan = program({"a": (5,), "b": (5,)}, [[("a/0#0",), ("b/0#0",)]])
    assert simulate(plan, stage_ns={"b": (7.5,)}).total_ns == 12.5


def test_an_empty_program_takes_no_time() -> None:
    found = simulate(program({}, [[], []]))
    assert (found.total_ns, found.lanes, found.busy_ns.tolist()) == (0.0, 2, [0.0, 0.0])


@pytest.mark.parametrize(
    ("lanes", "why"),
    [
        ([[("a/0#0", "b/0#0")], [("b/0#0", "a/0#0")]], "a/0#0 (lane 0) waits for b/0#0 (lane 1)"),
        ([[("a/0#0", "b/0#0"), ("b/0#0",)]], "a/0#0 (lane 0) waits for b/0#0 (lane 0)"),
        ([[("a/0#0", "a/0#0")]], "waits for a/0#0"),
        ([[("a/0#0", "z/0#0")]], "no lane runs"),
        ([[("a/0#0",)], [("a/0#0",)]], "more than once"),
        ([[("a/1#0",)]], "is no slice of a planned node"),
        ([[("nonsense",)]], "is no slice of a planned node"),
        ([[("a/0#0",), ("a/0#0x",)]], "'a/0#0x' is no slice of a planned node"),
        ([[("a/0#*",)]], "is no slice of a planned node"),
    ],
)
def test_what_can_never_finish_is_an_error(lanes: list[list[tuple[str, ...]]], why: str) -> None:
    with pytest.raises(UserError, match="SP1452") as caught:
        simulate(program({"a": (5,), "b": (5,)}, lanes))
    assert why in str(caught.value)


def random_program(seed: int, nodes: int, lanes: int) -> ProgramPlan:
    """Nodes with 1..2 stages and 1..lanes slices; waits only for slices made earlier, so it always finishes."""
    rng = random.Random(seed)
    plans, made = [], []
    programs: list[list[Entry]] = [[] for _ in range(lanes)]
    for number in range(nodes):
        times = tuple(rng.randrange(0, 1000) for _ in range(rng.choice((1, 1, 2))))
        count = rng.randint(1, lanes)
        name = f"n{number}"
        plans.append(NodePlan(node=name, kernel="loops", dim="elements", slices=count, stage_ns=times))
        for stage in range(len(times)):
            for index in range(count):
                waits = tuple(sorted(set(rng.choices(made[-20:], k=rng.randint(0, 3))))) if made else ()
                programs[rng.randrange(lanes)].append(Entry(run=slice_name(name, stage, index), wait=waits))
            made += [slice_name(name, stage, index) for index in range(count)]
    return ProgramPlan(
        name="p",
        nodes=tuple(plans),
        lanes=tuple(map(tuple, programs)),
        predicted_ns=0,
        peak_bytes=0,
        bounds=NO_BOUNDS,
    )


def brute_force(plan: ProgramPlan, sync_ns: float) -> dict[str, tuple[float, float]]:
    """Repeat over all lanes, starting whatever may start, until nothing changes."""
    times = {n.node: n.stage_ns for n in plan.nodes}
    done: dict[str, tuple[float, float]] = {}
    where = {entry.run: lane for lane, entries in enumerate(plan.lanes) for entry in entries}
    changed = True
    while changed:
        changed = False
        for lane, entries in enumerate(plan.lanes):
            for position, entry in enumerate(entries):
                before = [entries[position - 1].run] if position else []
                if entry.run in done or any(w not in done for w in (*before, *entry.wait)):
                    continue
                ready = [done[w][1] + sync_ns * (where[w] != lane) for w in (*before, *entry.wait)]
                node, _, rest = entry.run.rpartition("/")
                start = max(ready, default=0.0)
                done[entry.run] = (start, start + times[node][int(rest.split("#")[0])])
                changed = True
    return done


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4), st.sampled_from([0, 1, 200]))
def test_equals_brute_force(seed: int, nodes: int, lanes: int, sync: int) -> None:
    plan = random_program(seed, nodes, lanes)
    found = simulate(plan, sync_ns=sync)
    assert {name: (start, end) for name, _, start, end in found.rows()} == brute_force(plan, sync)
    assert found.total_ns >= found.busy_ns.max()


def waiting(plan: ProgramPlan, how: Callable[[str], tuple[str, ...]]) -> ProgramPlan:
    """Every wait for a slice becomes `how` of its stage, `node/stage`."""
    lanes = tuple(
        tuple(
            Entry(run=e.run, wait=tuple(dict.fromkeys(w for s in e.wait for w in how(s.split("#")[0])))) for e in lane
        )
        for lane in plan.lanes
    )
    return plan.model_copy(update={"lanes": lanes})


@given(st.integers(0, 10**6), st.integers(1, 12), st.integers(1, 4), st.sampled_from([0, 1, 200]), st.booleans())
def test_a_whole_stage_is_all_of_its_slices(seed: int, nodes: int, lanes: int, sync: int, contended: bool) -> None:
    plan = random_program(seed, nodes, lanes)
    count = {n.node: n.slices for n in plan.nodes}
    listed = waiting(plan, lambda s: tuple(f"{s}#{i}" for i in range(count[s.split("/")[0]])))
    whole = waiting(plan, lambda s: (f"{s}#*",))
    contention = contention_of(Sharing(cores=tuple(lane // 2 for lane in range(lanes))), plan) if contended else None
    found = simulate(whole, sync_ns=sync, contention=contention)
    assert found.rows() == simulate(listed, sync_ns=sync, contention=contention).rows()
    if not contended:
        assert {name: (start, end) for name, _, start, end in found.rows()} == brute_force(listed, sync)


def test_noise_is_fixed_by_its_seed() -> None:
    plan = random_program(1, 40, 3)
    first, again = (simulate(plan, noise=0.1, seed=7).rows() for _ in range(2))
    assert first == again
    assert first != simulate(plan, noise=0.1, seed=8).rows()
    assert simulate(plan, noise=0.0, seed=7).rows() == simulate(plan).rows()


@pytest.mark.parametrize("lanes", [2, 16])
def test_sixteen_thousand_nodes_are_quick(lanes: int) -> None:
    plans, entries = [], [[] for _ in range(lanes)]
    for number in range(16000):
        plans.append(NodePlan(node=f"n{number}", kernel="loops", dim="elements", slices=lanes, stage_ns=(100,)))
        for lane in range(lanes):
            wait = (slice_name(f"n{number - 1}", 0, (lane + 1) % lanes),) if number else ()
            entries[lane].append(Entry(run=slice_name(f"n{number}", 0, lane), wait=wait))
    plan = ProgramPlan(
        name="p",
        nodes=tuple(plans),
        lanes=tuple(map(tuple, entries)),
        predicted_ns=0,
        peak_bytes=0,
        bounds=NO_BOUNDS,
    )
    # Every slice waits for another lane's slice of the node before: 16000 x 100 + 15999 x 200.
    assert simulate(plan).total_ns == 16000 * 100 + 15999 * 200
