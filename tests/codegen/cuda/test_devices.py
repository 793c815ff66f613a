"""What can be wrong with a GPU, its libraries or its toolchain: one error each, and nothing left behind."""

import importlib.util
import os
import subprocess
import sys
import warnings
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
from torch import nn

from codegen.autograd import Planned
from codegen.build import build
from codegen.cuda import profile as profiling
from codegen.cuda import toolchain
from codegen.cuda.emit import emit_cases
from codegen.cuda.executor import CudaExecutor
from codegen.emit import emit
from codegen.load import executor_class
from codegen.native import native_module
from codegen.toolchain import compiler as host_compiler
from planner import zoo
from planner.errors import InternalError, UserError
from planner.graph.builder import GraphBuilder
from planner.graph.optimizer import Optimizer
from planner.plan.check import check
from planner.plan.schema import Plan
from planner.zoo import Sizes
from tests.codegen.cuda.elsewhere import Elsewhere
from tests.codegen.cuda.plans import asks_the_null_device, gpu, make, plan_for
from tests.codegen.cuda.test_null_device import batch
from tests.graphs import small_net

ROOT = Path(__file__).parents[3]
FINE = {"driver": 13000, "devices": 1, "arch": "sm_90", "has_code": True, "free_bytes": 2**40}


def available() -> str:
    """What keeps this machine from building for a GPU; empty: nothing."""
    try:
        toolchain.toolkit()
        toolchain.libraries()
    except UserError as error:
        return error.problem
    return ""


needs_toolkit = pytest.mark.skipif(bool(available()), reason=f"cannot build for a GPU here: {available()}")


@pytest.fixture(scope="module")
def small_class(tmp_path_factory: pytest.TempPathFactory) -> type[CudaExecutor]:
    return make(plan_for(small_net()), small_net(), tmp_path_factory.mktemp("small"))


@pytest.mark.parametrize(
    ("found", "code"),
    [
        ({"driver": 0}, "SP1851"),
        ({"driver": 12080}, "SP1852"),
        ({"devices": 0}, "SP1853"),
        ({"has_code": False, "arch": "sm_80"}, "SP1854"),
        ({"free_bytes": 1000}, "SP1855"),
    ],
)
def test_no_such_device(small_class: type[CudaExecutor], found: dict[str, Any], code: str) -> None:
    native = native_module(small_class._folder, null_device=True)
    before = native.allocations()
    native.pretend(*(FINE | found).values())
    try:
        with pytest.raises(UserError, match=code):
            small_class(null_device=True)
    finally:
        native.pretend(*FINE.values())
    assert native.allocations() == before


def test_too_little_pinned_memory(small_class: type[CudaExecutor]) -> None:
    native = native_module(small_class._folder, null_device=True)
    before = native.allocations()
    native.pretend_pinned(16)
    try:
        with pytest.raises(UserError, match="SP1861"):
            small_class(null_device=True)
    finally:
        native.pretend_pinned(2**40)
    assert native.allocations() == before


@asks_the_null_device
def test_a_run_that_finds_no_memory(tmp_path: Path) -> None:
    """Gradients of an embedding are made in memory that is there only meanwhile. Without it the run is told, and those
    behind it find their own losses."""
    b = GraphBuilder("words")
    ends = zoo.lstm(steps=3, depth=1, hidden=8)(b, Sizes(4, classes=12))
    graph = b.finish(ends.loss, ends.prediction, Optimizer(lr=0.1))
    made = make(plan_for(graph), graph, tmp_path)
    native = native_module(tmp_path, null_device=True)
    with made(seed=0, null_device=True) as executor, made(seed=0, null_device=True) as other:
        for step in range(7):
            if step in (1, 4):
                native.pretend(*(FINE | {"free_bytes": 64}).values())
                try:
                    with pytest.raises(UserError, match="SP1855"):
                        executor.gradients(*batch(graph, 9))
                finally:
                    native.pretend(*FINE.values())
            given = batch(graph, step)
            assert float(executor.step(*given)) == float(other.step(*given))


@pytest.mark.parametrize("record", [True, False])
def test_a_step_that_fails_in_the_middle(small_class: type[CudaExecutor], record: bool) -> None:
    """While a graph is recorded, and without: the executor is closed, nothing is left, and the next one works."""
    native = native_module(small_class._folder, null_device=True)
    before = native.allocations()
    executor = small_class(null_device=True, record=record)
    images, labels = batch(executor._graph)
    float(executor.step(images, labels))
    native.fail_in("bn1.backward")
    try:
        with pytest.raises(InternalError, match=r"node bn1\.backward: told to fail"):
            executor.step(images, labels)
    finally:
        native.fail_in("")
    assert native.allocations() == before
    with pytest.raises(UserError, match="SP1607"):
        executor.step(images, labels)
    with small_class(null_device=True) as another:
        assert float(another.step(images, labels)) > 0


def test_a_step_that_cannot_be_recorded(small_class: type[CudaExecutor]) -> None:
    """It is asked for node by node, with the same bits, and the reason is told once."""
    native = native_module(small_class._folder, null_device=True)
    before, losses = native.allocations(), []
    for node in ("", "bn1.backward"):
        with small_class(null_device=True) as executor:
            native.fail_to_record(node)
            told = (
                pytest.warns(RuntimeWarning, match=r"SP1863.*node bn1\.backward: told to fail")
                if node
                else nullcontext()
            )
            try:
                with told:
                    losses.append([float(executor.step(*batch(executor._graph, n))) for n in range(4)])
                with warnings.catch_warnings():
                    warnings.simplefilter("error")
                    losses[-1].append(float(executor.step(*batch(executor._graph, 4))))
            finally:
                native.fail_to_record("")
            assert bool(native.recorded(executor._handle)) is (node == "")
    assert losses[0] == losses[1] and native.allocations() == before


def test_devices_count_from_0(small_class: type[CudaExecutor]) -> None:
    with pytest.raises(UserError, match="SP1853"):
        small_class(device=3, null_device=True)


def test_arrays_on_another_gpu(small_class: type[CudaExecutor]) -> None:
    with small_class(null_device=True) as executor:
        images, labels = batch(executor._graph)
        with pytest.raises(UserError, match="SP1856"):
            executor.step(Elsewhere(images, 1), labels)
        assert float(executor.step(images, labels)) > 0


def test_wrong_shapes(small_class: type[CudaExecutor]) -> None:
    with small_class(null_device=True) as executor:
        images, labels = batch(executor._graph)
        with pytest.raises(UserError, match="SP1601"):
            executor.step(images[:2], labels)


def test_a_loss_of_its_own_is_not_for_autograd(small_class: type[CudaExecutor]) -> None:
    with small_class(null_device=True) as executor, pytest.raises(UserError, match="SP1617"):
        Planned(nn.Linear(2, 2), executor)


def test_seeds_and_closing(small_class: type[CudaExecutor]) -> None:
    with pytest.raises(UserError, match="SP1610"):
        small_class(seed=-1, null_device=True)
    executor = small_class(null_device=True)
    executor.close()
    executor.close()
    uses = (lambda: executor.predict(batch(executor._graph)[0]), lambda: executor.array("loss"), executor.state_dict)
    for use in (*uses, executor.wait, lambda: executor.device_bytes):
        with pytest.raises(UserError, match="SP1607"):
            use()


def with_facts(plan: Plan, facts: dict[str, int]) -> Plan:
    """Every batch norm with other facts."""
    programs = []
    for program in plan.programs:
        nodes = tuple(n.model_copy(update={"facts": facts}) if n.node == "bn1" else n for n in program.nodes)
        programs.append(program.model_copy(update={"nodes": nodes}))
    return plan.model_copy(update={"programs": tuple(programs)})


def test_too_little_scratch_is_refused(tmp_path: Path) -> None:
    graph, plan = small_net(), plan_for(small_net())
    with pytest.raises(UserError, match="SP1517"):
        emit_cases(with_facts(plan, {"partial_bytes": 8}), graph, gpu(), tmp_path)
    with pytest.raises(UserError, match="SP1409"):
        emit(with_facts(plan, {"partial_bytes": 8}), graph, gpu(), tmp_path)


def test_processors_modes_are_refused_on_a_gpu() -> None:
    graph, plan = small_net(), plan_for(small_net())
    lanes = tuple(lane.model_copy(update={"kind": "core"}) for lane in plan.lanes)
    assert "SP1427" in {f.code for f in check(graph, plan.model_copy(update={"lanes": lanes}), gpu())}
    program = plan.program["train_step"]
    nodes = tuple(
        n.model_copy(update={"kernel": "loops", "dim": "elements"}) if n.node == "loss.loss.seed" else n
        for n in program.nodes
    )
    changed = tuple(p.model_copy(update={"nodes": nodes}) if p.name == "train_step" else p for p in plan.programs)
    assert "SP1407" in {f.code for f in check(graph, plan.model_copy(update={"programs": changed}), gpu())}


def test_no_nvcc(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.toolkit.cache_clear()
    monkeypatch.setattr(toolchain, "_candidates", lambda: [Path("/nowhere/nvcc")])
    with pytest.raises(UserError, match="SP1518"):
        toolchain.toolkit()
    monkeypatch.undo()
    toolchain.toolkit.cache_clear()


def test_nothing_is_compiled_to_find_that_there_is_no_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(name: str) -> None:
        raise OSError(f"{name}: cannot open shared object file")

    monkeypatch.setattr(toolchain.ctypes, "CDLL", missing)
    monkeypatch.setattr(profiling, "probe", lambda *_: pytest.fail("the probe was built"))
    with pytest.raises(UserError, match="SP1851"):
        profiling.profile([small_net()], gpu())


def test_no_wheels(monkeypatch: pytest.MonkeyPatch) -> None:
    toolchain.libraries.cache_clear()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(UserError, match="SP1519"):
        toolchain.libraries()
    monkeypatch.undo()
    toolchain.libraries.cache_clear()


@needs_toolkit
@pytest.mark.parametrize("asks", ["probe('sm_90')", "CudaExecutor()"])
def test_cudnn_finds_its_compiler(asks: str, tmp_path: Path) -> None:
    """By name, as it and its compiler look for libraries, in a process that PyTorch has loaded nothing into."""
    wheel = tmp_path / "nvidia" / "cu13" / "lib"
    wheel.mkdir(parents=True)
    (tmp_path / "empty.c").touch()
    names = ("libnvrtc.so.13", "libnvrtc-builtins.so.13.0")
    for name in names:
        source, to = str(tmp_path / "empty.c"), str(wheel / name)
        subprocess.run([host_compiler().path, "-shared", f"-Wl,-soname,{name}", "-o", to, source], check=True)
    lines = ["import contextlib, ctypes", "from codegen.cuda.executor import CudaExecutor"]
    lines += ["from codegen.cuda.probe import probe", f"with contextlib.suppress(AttributeError): {asks}"]
    lines += [f"ctypes.CDLL({name!r})" for name in names]
    lines += ["print(open('/proc/self/maps').read())"]
    paths = {"PYTHONPATH": os.pathsep.join((str(tmp_path), str(ROOT)))}
    done = subprocess.run(
        [sys.executable, "-c", "\n".join(lines)], env=os.environ | paths, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert all(str(wheel / name) in done.stdout for name in names)


@needs_toolkit
def test_compiles_and_links_for_a_gpu(tmp_path: Path) -> None:
    """As test_bfloat16.py's network; without a GPU the module loads and says so."""
    graph = zoo.build("digits_cnn", batch=8)
    emit(plan_for(graph, 2), graph, gpu(), tmp_path)
    build(tmp_path, flags=("-Wall", "-Wextra"))
    native = native_module(tmp_path)
    assert (native.null_device, native.arch) == (False, "sm_90")
    with pytest.raises(UserError, match=r"SP185[1-5]"):
        executor_class(tmp_path)(device=99)  # type: ignore[call-arg]
