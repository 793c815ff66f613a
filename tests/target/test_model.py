"""Lane orders, restriction and the consistency of targets; the arithmetic of the expected orders is in comments."""

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from planner.errors import InternalError, UserError
from planner.target.model import Caches, Cpu, Gpu, Pool, Target
from planner.target.text import available_targets, load_target
from planner.target.topology import Core, lane_order
from planner.units import Bytes

# A busy machine is slow, not wrong.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


def make_cpu(*cores: Core, **changes: object) -> Cpu:
    facts: dict[str, object] = {
        "model": "Test CPU",
        "march": "x86-64-v3",
        "isa": ("fma", "avx2"),
        "memory": "dram",
        "flops_per_core": 100,
        "memory_bandwidth": 30,
        "thread_bandwidth": 10,
        "caches": Caches(l1d=Bytes(32768), l2=Bytes(1 << 20)),
        "cores": cores or (Core(id=0, cpus=(0,), tile=0),),
    }
    return Cpu.model_validate(facts | changes)


DRAM = Pool(name="dram", kind="dram", capacity=Bytes(1000), bandwidth=40)


def make_target(*cores: Core, **changes: object) -> Target:
    facts = {"name": "test", "kind": "cpu", "cpu": make_cpu(*cores), "pools": (DRAM,)}
    return Target.model_validate(facts | changes)


def pairs(tiles: int, smt: int = 1, tiles_per_l3: int = 100) -> tuple[Core, ...]:
    """Cores in tiles of two, numbered as Linux does: all primaries, then all second threads."""
    n = 2 * tiles
    return tuple(
        Core(id=i, cpus=tuple(i + n * k for k in range(smt)), tile=i // 2, l3=i // 2 // tiles_per_l3) for i in range(n)
    )


def code_of(error: ValidationError) -> str:
    return error.errors()[0]["type"]


def test_compact_fills_tiles_and_spread_does_not() -> None:
    target = make_target(*pairs(3))
    assert target.lanes() == (0, 1, 2, 3, 4, 5)
    assert target.lanes(affinity="spread") == (0, 2, 4, 1, 3, 5)
    assert target.lanes(3, affinity="spread") == (0, 2, 4)


def test_spread_alternates_between_l3_groups_first() -> None:
    # Tiles 0 and 1 (cores 0-3) share an L3, tiles 2 and 3 (cores 4-7) the other.
    target = make_target(*pairs(4, tiles_per_l3=2))
    assert target.lanes(affinity="spread") == (0, 4, 2, 6, 1, 5, 3, 7)


def test_spread_with_unequal_groups_takes_every_tile_once_first() -> None:
    # L3 group 0 has one tile (cores 0, 1), group 1 two (cores 2-5): 1 comes after 4, the last tile's first core.
    cores = tuple(Core(id=i, cpus=(i,), tile=i // 2, l3=min(i // 2, 1)) for i in range(6))
    assert lane_order(cores, affinity="spread") == (0, 2, 4, 1, 3, 5)


def test_siblings_follow_all_primaries_in_the_same_order() -> None:
    target = make_target(*pairs(2, smt=2))
    assert target.lanes(smt=True) == (0, 1, 2, 3, 4, 5, 6, 7)
    assert target.lanes(smt=True, affinity="spread") == (0, 2, 1, 3, 4, 6, 5, 7)
    assert target.lanes() == (0, 1, 2, 3)
    assert target.core_of[6].id == 2


def test_hybrid_cores_have_different_numbers_of_siblings() -> None:
    target = make_target(Core(id=0, cpus=(0, 1), tile=0), Core(id=1, cpus=(2,), tile=1), Core(id=2, cpus=(3,), tile=1))
    assert target.lanes(smt=True) == (0, 2, 3, 1)
    assert (target.physical_cores, target.logical_cpus) == (3, 4)


@pytest.mark.parametrize(("count", "smt"), [(0, False), (-1, False), (5, False), (9, True)])
def test_a_count_that_does_not_fit_is_sp1108(count: int, smt: bool) -> None:
    with pytest.raises(UserError, match="SP1108") as caught:
        make_target(*pairs(2, smt=2)).lanes(count, smt=smt)
    assert f"1 to {8 if smt else 4}" in caught.value.fix


def test_a_gpu_has_no_more_streams_than_kernels_run_at_a_time() -> None:
    h200 = load_target("h200")
    assert h200.streams() == (0,) and h200.streams(128) == tuple(range(128))
    for count in (0, 129, 10**6):
        with pytest.raises(UserError, match="SP1108") as caught:
            h200.streams(count)
        assert "1 to 128" in caught.value.fix


def test_an_unknown_affinity_is_a_defect() -> None:
    with pytest.raises(InternalError, match="diagonal"):
        make_target().lanes(affinity="diagonal")  # type: ignore[arg-type]


def test_restrict_keeps_the_first_lanes() -> None:
    target = make_target(*pairs(3, smt=2))
    two = target.restrict(2)
    assert (two.name, two.lanes(), two.lanes(smt=True)) == ("test_cores2", (0, 1), (0, 1, 6, 7))
    assert two.memory_bandwidth == 20  # 2 threads x 10, less than the machine's 30
    assert two.pools == target.pools
    assert target.restrict(2, affinity="spread").lanes() == (0, 2)
    assert target.restrict(6) is target
    assert target.restrict(4).restrict(1).name == "test_cores1"
    with pytest.raises(UserError, match="SP1108"):
        target.restrict(7)


def test_restrict_keeps_the_longest_name_valid() -> None:
    target = make_target(*pairs(2), name="a" * 60)
    assert len(target.restrict(3).name) <= 60


def test_sharing() -> None:
    target = make_target(*pairs(2))
    assert target.sharing("l1d") == ((0,), (1,), (2,), (3,))
    assert target.sharing("l2") == ((0, 1), (2, 3))
    assert target.sharing("l3") == ((0, 1, 2, 3),)


def test_fingerprint_knows_the_machine_and_not_the_name() -> None:
    target = make_target(*pairs(2))
    assert target.fingerprint() == "Test CPU, x86-64-v3, 4 cores 4 threads, l1d 32.0 KiB/1 l2 1.0 MiB/2"
    assert make_target(*pairs(2), name="other").fingerprint() == target.fingerprint()
    assert make_target(*pairs(3)).fingerprint() != target.fingerprint()
    assert load_target("k40c").fingerprint().endswith("NVIDIA Tesla K40c sm_35 15 SMs")


def test_cores_and_instruction_sets_are_sorted() -> None:
    cpu = make_cpu(Core(id=1, cpus=(1,), tile=1), Core(id=0, cpus=(0,), tile=0))
    assert [c.id for c in cpu.cores] == [0, 1]
    assert cpu.isa == ("avx2", "fma")


@pytest.mark.parametrize(
    ("cores", "problem"),
    [
        ((), "no core"),
        ((Core(id=0, cpus=(0, 1), tile=0), Core(id=1, cpus=(1,), tile=1)), "listed twice, in cores 0 and 1"),
        ((Core(id=0, cpus=(0, 0), tile=0),), "listed twice"),
        ((Core(id=0, cpus=(0,), tile=0), Core(id=0, cpus=(1,), tile=0)), "same id"),
        ((Core(id=0, cpus=(0,), tile=0, l3=0), Core(id=1, cpus=(1,), tile=0, l3=1)), "two L3 groups"),
    ],
)
def test_contradicting_cores_are_sp1106(cores: tuple[Core, ...], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem) as caught:
        make_cpu(cores=cores)
    assert code_of(caught.value) == "SP1106"


@pytest.mark.parametrize("march", ["native", "x", "-O3", "znver4 -O0", "znver4;ls", "$(ls)", "A", "x86-", "", "a" * 50])
def test_a_bad_march_is_sp1109(march: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make_cpu(march=march)
    assert code_of(caught.value) == "SP1109"


@pytest.mark.parametrize("march", ["x86-64", "x86-64-v4", "znver4", "skylake-avx512", "knl", "armv8.2-a+sve"])
def test_good_marches(march: str) -> None:
    assert make_cpu(march=march).march == march


@pytest.mark.parametrize("name", ["", "Cpu2", "2cpu", "a/b", "a-b", "a.b", "a" * 61, "a\n"])
def test_names_are_identifiers(name: str) -> None:
    with pytest.raises(ValidationError) as caught:
        make_target(name=name)
    assert code_of(caught.value) == "SP1105"


@pytest.mark.parametrize("text", ["a\nb", 'a"b', "a\\", "*/", "é", "{{x}}", "??/"])
def test_texts_cannot_leave_a_comment(text: str) -> None:
    for change in ({"source": text}, {"cpu": make_cpu().model_dump() | {"model": text}}):
        with pytest.raises(ValidationError) as caught:
            make_target(**change)
        assert code_of(caught.value) == "SP1105"


DEVICE = Pool(name="device", kind="device", capacity=Bytes(1000), bandwidth=400)
GPU = Gpu(name="gpu0", model="GPU", arch="sm_90", sms=2, flops=1000, memory="device", copy_in=7, copy_out=5)


def cuda(**changes: object) -> Target:
    return make_target(**({"kind": "cuda", "pools": (DRAM, DEVICE), "gpus": (GPU,)} | changes))


def test_a_gpu_is_where_nodes_run() -> None:
    target = cuda()
    assert (target.memory.name, target.memory_bandwidth) == ("device", 400)
    host = make_target(*pairs(2))
    assert (host.memory.name, host.memory_bandwidth) == ("dram", 30)


def test_link_bandwidth() -> None:
    disk = Pool(name="disk", kind="disk", capacity=Bytes(9), bandwidth=50, link_in=2, link_out=3)
    target = cuda(pools=(DRAM, DEVICE, disk))
    assert target.link_bandwidth("dram", "device") == 7
    assert target.link_bandwidth("device", "dram") == 5
    assert target.link_bandwidth("dram", "disk") == 2
    assert target.link_bandwidth("disk", "device") == 3
    assert target.link_bandwidth("dram", "dram") == 20
    with pytest.raises(InternalError, match="tape"):
        target.link_bandwidth("dram", "tape")


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"gpus": ()}, "kind and gpus disagree"),
        ({"kind": "cpu"}, "kind and gpus disagree"),
        ({"pools": (DRAM, DEVICE, DRAM)}, "two pools have the same name"),
        ({"gpus": (GPU, GPU)}, "two GPUs have the same name"),
        ({"pools": (DRAM,)}, "gpu0 works in pool 'device', which is not listed"),
        ({"pools": (DEVICE,)}, "cpu works in pool 'dram', which is not listed"),
        ({"gpus": (GPU, GPU.model_copy(update={"name": "gpu1"}))}, "device pool of its own"),
        ({"gpus": (GPU.model_copy(update={"memory": "dram"}),)}, "device pool of its own"),
        ({"pools": (DRAM, DEVICE.model_copy(update={"link_in": 3}))}, "link speeds"),
    ],
)
def test_contradicting_targets_are_sp1106(changes: dict[str, object], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem) as caught:
        cuda(**changes)
    assert code_of(caught.value) == "SP1106"


def test_a_thread_cannot_beat_the_machine() -> None:
    with pytest.raises(ValidationError, match="one thread") as caught:
        make_cpu(thread_bandwidth=31)
    assert code_of(caught.value) == "SP1106"


def test_knl_is_the_machine_of_liu_et_al() -> None:
    knl = load_target("knl7250")
    assert (knl.physical_cores, knl.logical_cpus, len(knl.sharing("l2"))) == (68, 272, 34)
    assert {len(t) for t in knl.sharing("l2")} == {2}
    assert knl.lanes(4) == (0, 1, 2, 3)
    # 34 spread threads: at most one thread a tile, the paper's cases without cache sharing.
    assert len({knl.core_of[c].tile for c in knl.lanes(34, affinity="spread")}) == 34
    assert knl.memory.capacity == 16 << 30
    assert knl.cpu.flops_per_core * knl.physical_cores == 68 * 1_400_000_000 * 64


def test_gpu_targets_are_those_of_the_papers() -> None:
    k40c, h200 = load_target("k40c"), load_target("h200")
    assert (k40c.gpus[0].sms, k40c.memory.capacity, k40c.link_bandwidth("pinned", "device")) == (
        15,
        12 << 30,
        8 * 10**9,
    )
    assert (h200.gpus[0].sms, h200.gpus[0].arch, h200.memory.capacity) == (132, "sm_90", 141 * 10**9)


@pytest.mark.parametrize("name", available_targets())
def test_checked_in_targets_make_sense(name: str) -> None:
    target = load_target(name)
    assert target.name == name
    assert target.source
    assert sorted(target.lanes(smt=True)) == list(range(target.logical_cpus))
    assert target.cpu.memory_bandwidth <= target.pool[target.cpu.memory].bandwidth


@st.composite
def machines(draw: st.DrawFn) -> tuple[Core, ...]:
    """Cores with nested sharing: NUMA nodes hold L3 groups hold tiles, in any numbering."""
    count = draw(st.integers(1, 24))
    tile = [draw(st.integers(0, 7)) for _ in range(count)]
    l3 = [t // 2 for t in tile]
    width = [draw(st.integers(1, 3)) for _ in range(count)]
    cpus = iter(draw(st.permutations(range(sum(width)))))
    return tuple(
        Core(id=i, cpus=tuple(next(cpus) for _ in range(width[i])), tile=tile[i], l3=l3[i], numa=l3[i] // 2)
        for i in range(count)
    )


@relaxed
@given(machines(), st.booleans(), st.sampled_from(["compact", "spread"]))
def test_lane_orders_hold_every_processor_once(cores: tuple[Core, ...], smt: bool, affinity: str) -> None:
    target = make_target(*cores)
    order = target.lanes(smt=smt, affinity=affinity)  # type: ignore[arg-type]
    assert sorted(order) == sorted(c for core in cores for c in (core.cpus if smt else core.cpus[:1]))
    for count in range(1, len(order) + 1):
        assert target.lanes(count, smt, affinity) == order[:count]  # type: ignore[arg-type]


@relaxed
@given(machines())
def test_compact_shares_and_spread_does_not(cores: tuple[Core, ...]) -> None:
    target = make_target(*cores)
    tiles = [target.core_of[c].tile for c in target.lanes()]
    runs = 1 + sum(a != b for a, b in pairwise(tiles))
    assert runs == len(set(tiles))  # every tile is left only when it is full
    spread = [target.core_of[c].tile for c in target.lanes(affinity="spread")]
    assert len(set(spread[: len(set(tiles))])) == len(set(tiles))  # every tile once before any tile twice


@relaxed
@given(machines(), st.data())
def test_a_restricted_target_is_valid_and_has_the_same_first_lanes(
    cores: tuple[Core, ...], data: st.DataObject
) -> None:
    target = make_target(*cores)
    count = data.draw(st.integers(1, len(cores)))
    small = target.restrict(count)
    assert Target.model_validate(small.model_dump()) == small
    assert small.lanes() == target.lanes(count)
    assert small.memory_bandwidth <= target.memory_bandwidth


@pytest.mark.parametrize(
    ("kind", "nodes", "problem"),
    [("disk", (0,), "has no NUMA nodes"), ("dram", (1, 0), "not in order"), ("hbm", (1, 1), "not in order")],
)
def test_numa_nodes_of_pools(kind: str, nodes: tuple[int, ...], problem: str) -> None:
    with pytest.raises(ValidationError, match=problem) as caught:
        Pool.model_validate({"name": "far", "kind": kind, "capacity": 1000, "bandwidth": 40, "nodes": nodes})
    assert code_of(caught.value) == "SP1106"
