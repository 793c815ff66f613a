"""Target files: canonical round trips, and one test for every error code."""

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from planner.errors import UserError
from planner.target import text as module
from planner.target.model import Caches, Cpu, Gpu, Pool, Target
from planner.target.text import (
    available_targets,
    load_target,
    parse_target,
    read_target,
    target_hash,
    target_text,
    write_target,
)
from planner.target.topology import Core

# A busy machine is slow, not wrong.
relaxed = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])

FOLDER = Path(module.__file__).parent
CPU2 = (FOLDER / "cpu2.toml").read_text()


def error_of(text: str) -> UserError:
    with pytest.raises(UserError) as caught:
        parse_target(text, "t.toml")
    assert "t.toml" in caught.value.problem
    assert caught.value.fix
    assert "\n" not in caught.value.problem
    return caught.value


def change(old: str, new: str) -> str:
    assert old in CPU2
    return CPU2.replace(old, new)


@pytest.mark.parametrize("name", available_targets())
def test_checked_in_files_are_canonical(name: str) -> None:
    assert target_text(load_target(name)) == (FOLDER / f"{name}.toml").read_text()


def test_the_checked_in_targets_are_there() -> None:
    assert available_targets() == ("cpu16", "cpu2", "h100", "h200", "k40c", "knl7250")


def test_one_core_per_line() -> None:
    lines = target_text(load_target("knl7250")).splitlines()
    assert sum(line.startswith("  { id = ") for line in lines) == 68
    assert "  { id = 67, cpus = [67, 135, 203, 271], tile = 33, l3 = 0, numa = 0 }," in lines


def test_write_and_read(tmp_path: Path) -> None:
    target = load_target("k40c")
    write_target(target, tmp_path / "deep" / "mine.toml")
    assert read_target(tmp_path / "deep" / "mine.toml") == target
    assert load_target(tmp_path / "deep" / "mine.toml") == target
    assert load_target(str(tmp_path / "deep" / "mine.toml")) == target
    assert [p.name for p in (tmp_path / "deep").iterdir()] == ["mine.toml"]


def test_the_hash_follows_the_content() -> None:
    cpu2 = load_target("cpu2")
    assert target_hash(cpu2) == target_hash(parse_target(CPU2))
    assert target_hash(cpu2.restrict(1)) != target_hash(cpu2)


def test_a_bare_name_is_never_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("cpu2").write_text("not a target")
    assert load_target("cpu2").name == "cpu2"


def test_comments_and_other_spellings_are_read() -> None:
    loose = change("[cpu]", "# the processor\n[cpu]").replace("25_769_803_776", "0x600000000")
    assert parse_target(loose) == parse_target(CPU2)


def test_sp1101_missing_file(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"SP1101.*No such file") as caught:
        load_target(tmp_path / "none.toml")
    assert "cpu2" in caught.value.fix
    with pytest.raises(UserError, match="SP1101"):
        read_target(tmp_path)


def test_sp1102_not_toml(tmp_path: Path) -> None:
    assert "line 1" in error_of("name == 3").problem
    assert error_of(CPU2 + "\nname").code == "SP1102"
    assert error_of("a = " + "[" * 100_000).code == "SP1102"
    assert error_of(change("45_000_000_000", "9" * 5000)).code == "SP1102"
    (tmp_path / "latin.toml").write_bytes(b"name = '\xe9'")
    with pytest.raises(UserError, match=r"SP1102.*UTF-8"):
        read_target(tmp_path / "latin.toml")


@pytest.mark.parametrize("version", ["2", "0", '"1"', "1.0", "true"])
def test_sp1103_another_schema(version: str) -> None:
    assert error_of(change("schema_version = 1", f"schema_version = {version}")).code == "SP1103"


def test_sp1103_no_schema() -> None:
    assert error_of("name = 'x'").code == "SP1103"


def test_an_empty_file() -> None:
    error = error_of("\n")
    assert error.code == "SP1102" and "is empty" in error.problem


def test_sp1104_unknown_fields() -> None:
    error = error_of(change("march = ", "marsh = "))
    assert error.code in ("SP1104", "SP1105")
    error = error_of(change("[cpu]", "[cpu]\nmarchh = 'knl'"))
    assert (error.code, error.fix) == ("SP1104", "write march")
    assert "cpu.marchh" in error.problem
    error = error_of(change("tile = 1", "tile = 1, zzz = 3"))
    assert (error.code, error.fix) == ("SP1104", "remove it")
    assert "cpu.cores[1].zzz" in error.problem
    error = error_of(change("[cpu]", "memory_bandwidth = 3\n[cpu]"))
    assert (error.code, error.fix) == ("SP1104", "move it to cpu, or remove it")
    error = error_of(change("[cpu]", "[cpu]\nname = 'x'"))
    assert error.fix == "move it to the top of the file or an entry of pools or an entry of gpus, or remove it"


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ('kind = "cpu"\n', 'kind = "gpu"\n', "kind"),
        ('name = "cpu2"', 'name = "Cpu 2"', "name"),
        ('name = "cpu2"\n', "", "name"),
        ("cpus = [1]", 'cpus = ["1"]', "cpu.cores[1].cpus[0]"),
        ("cpus = [1]", "cpus = [1.0]", "cpu.cores[1].cpus[0]"),
        ("cpus = [1]", "cpus = [true]", "cpu.cores[1].cpus[0]"),
        ("cpus = [1]", "cpus = [-1]", "cpu.cores[1].cpus[0]"),
        ("cpus = [1]", "cpus = []", "cpu.cores[1].cpus"),
        ("cpus = [1]", "cpus = 1", "cpu.cores[1].cpus"),
        ("capacity = 25_769_803_776", "capacity = 0", "pools[0].capacity"),
        ("capacity = 25_769_803_776", "capacity = 24.5", "pools[0].capacity"),
        ("capacity = 25_769_803_776", "capacity = nan", "pools[0].capacity"),
        ("capacity = 25_769_803_776", "capacity = 2026-01-01", "pools[0].capacity"),
        ("capacity = 25_769_803_776", "capacity = 99_999_999_999_999_999_999", "pools[0].capacity"),
        ('isa = ["avx"', 'isa = ["-O3"', "cpu.isa[0]"),
        ('model = "AMD EPYC"', 'model = "AMD */ EPYC"', "cpu.model"),
    ],
)
def test_sp1105_missing_or_wrong(old: str, new: str, field: str) -> None:
    error = error_of(change(old, new))
    assert error.code == "SP1105"
    assert f" {field}" in error.problem


def test_sp1105_shows_only_the_start_of_long_values() -> None:
    assert len(error_of(change("cpus = [1]", "cpus = 'a" + "b" * 5000 + "'")).problem) < 300


def test_sp1106_contradictions() -> None:
    error = error_of(change("cpus = [1]", "cpus = [0]"))
    assert error.code == "SP1106"
    assert "cpu.cores" in error.problem
    assert "logical processor 0 is listed twice, in cores 0 and 1" in error.problem
    no_cores = CPU2[: CPU2.index("cores = [")] + "cores = []\n"
    assert (error_of(no_cores).code, "no core" in error_of(no_cores).problem) == ("SP1106", True)
    assert "'hbm'" in error_of(change('memory = "dram"', 'memory = "hbm"')).problem


def test_sp1107_unknown_name() -> None:
    with pytest.raises(UserError, match=r"SP1107.*cpu3") as caught:
        load_target("cpu3")
    assert "cpu16, cpu2, h100, h200, k40c, knl7250" in caught.value.fix


def test_sp1109_march() -> None:
    error = error_of(change("x86-64-v4", "native"))
    assert (error.code, "cpu.march" in error.problem) == ("SP1109", True)
    assert error_of(change("x86-64-v4", "x86 -o /etc/passwd")).code == "SP1109"


NAMES = st.from_regex(r"[a-z][a-z0-9_]{0,20}", fullmatch=True)
TEXTS = st.from_regex(r"[A-Za-z0-9 ()@.,:;+_/%=-]{0,40}", fullmatch=True)
SIZES = st.integers(1, 2**63 - 1)


@st.composite
def targets(draw: st.DrawFn) -> Target:
    count = draw(st.integers(1, 8))
    cpus = iter(draw(st.permutations(range(2 * count))))
    cores = []
    for i in draw(st.permutations(range(count))):
        own = tuple(next(cpus) for _ in range(draw(st.integers(1, 2))))
        tile = draw(st.integers(0, 9))
        cores.append(Core(id=i, cpus=own, tile=tile, l3=tile // 3, numa=draw(st.integers(0, 2))))
    names = draw(st.lists(NAMES, min_size=2, max_size=4, unique=True))
    kinds = st.sampled_from(["dram", "hbm", "disk", "pinned"])
    links = st.none() | SIZES
    nodes = st.none() | st.sets(st.integers(0, 70), min_size=1, max_size=3).map(lambda s: tuple(sorted(s)))
    pools = [
        Pool(
            name=n,
            kind=kind,
            capacity=draw(SIZES),
            bandwidth=draw(SIZES),
            link_in=draw(links),
            link_out=draw(links),
            nodes=draw(nodes) if kind in ("dram", "hbm") else None,
        )
        for n, kind in ((n, draw(kinds)) for n in names[1:])
    ]
    gpus: list[Gpu] = []
    if draw(st.booleans()):
        pools.append(Pool(name=names[0], kind="device", capacity=draw(SIZES), bandwidth=draw(SIZES)))
        gpus.append(
            Gpu(
                name=draw(NAMES),
                model=draw(TEXTS),
                arch=draw(st.from_regex(r"sm_[1-9][0-9]a?", fullmatch=True)),
                sms=draw(st.integers(1, 4096)),
                flops=draw(SIZES),
                memory=names[0],
                copy_in=draw(SIZES),
                copy_out=draw(SIZES),
            )
        )
    one, other = draw(SIZES), draw(SIZES)
    cpu = Cpu(
        model=draw(TEXTS),
        march=draw(st.sampled_from(["x86-64", "x86-64-v4", "znver4", "skylake-avx512"])),
        isa=tuple(draw(st.lists(NAMES, max_size=4))),
        memory=names[1],
        flops_per_core=draw(SIZES),
        flops_source=draw(st.sampled_from(["measured", "estimated", "published"])),
        memory_bandwidth=max(one, other),
        thread_bandwidth=min(one, other),
        caches=Caches(l1d=draw(SIZES), l2=draw(SIZES), l3=draw(SIZES)),
        cores=tuple(cores),
    )
    return Target(
        name=draw(NAMES),
        kind="cuda" if gpus else "cpu",
        source=draw(TEXTS),
        cpu=cpu,
        pools=tuple(pools),
        gpus=tuple(gpus),
    )


@relaxed
@given(targets())
def test_round_trip(target: Target) -> None:
    text = target_text(target)
    assert parse_target(text) == target
    assert target_text(parse_target(text)) == text


@relaxed
@given(st.data())
def test_damaged_files_are_user_errors(data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(CPU2)))
    end = data.draw(st.integers(start, min(start + 40, len(CPU2))))
    damaged = CPU2[:start] + data.draw(st.text(max_size=8)) + CPU2[end:]
    try:
        parse_target(damaged)
    except UserError as error:
        assert error.code.startswith("SP11")
