"""Plans for GPUs on the null device: the numbers of the NumPy references, in every order that streams and events
allow; and plans whose waits or places are wrong do not get through."""

import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen import toolchain
from codegen.build import build
from codegen.cuda.build import HOST
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.toolchain import CUDA_RUNTIME
from codegen.load import executor_class
from codegen.paths import RUNTIME
from planner.errors import InternalError, UserError
from planner.graph.model import DType, Graph
from planner.graph.optimizer import Optimizer
from planner.zoo import build as build_zoo
from tests.codegen.cuda.plans import NULL, asks_the_null_device, flags, make, plan_for
from tests.codegen.every_op import every_op_net
from tests.graphs import small_net
from tests.interpreter import run_program

Array = np.ndarray[Any, Any]


def batch(graph: Graph, seed: int = 0) -> list[Array]:
    """Inputs of the training step: numbers at random, indices small enough for all."""
    rng, found = np.random.default_rng(seed), []
    for name in graph.program["train_step"].inputs:
        type_ = graph.value[name].type
        if type_.dtype is DType.INT64:
            found.append(rng.integers(0, 5, type_.shape))
        else:
            found.append(rng.standard_normal(type_.shape).astype(np.float32))
    return found


def expected(executor: CudaExecutor, inputs: list[Array]) -> dict[str, Array]:
    """All values of a step after the references, from the executor's state, in float64."""
    graph = executor._graph
    values = {v.id: executor._state.read(v).astype(np.float64) for v in executor._state.values}
    for name, array in zip(graph.program["train_step"].inputs, inputs, strict=True):
        values[name] = array.astype(np.float64) if array.dtype.kind == "f" else array
    return run_program(graph, "train_step", values)


def assert_steps_agree(executor: CudaExecutor, steps: int = 3, tolerance: float = 2e-5) -> None:
    """Losses and states of some steps, each compared with one reference step from the state before it."""
    graph = executor._graph
    loss = graph.program["train_step"].outputs[0]
    for number in range(steps):
        inputs = batch(graph, number)
        want = expected(executor, inputs)
        assert float(executor.step(*inputs)) == pytest.approx(float(want[loss].reshape(-1)[0]), rel=1e-5)
        for value in executor._state.values:
            error = np.abs(executor._state.read(value) - want[value.id]).max()
            assert error <= tolerance * max(1.0, np.abs(want[value.id]).max()), value.id


def run(executor: CudaExecutor) -> list[Any]:
    """What some steps make of a fresh executor."""
    graph = executor._graph
    losses = [float(executor.step(*batch(graph, number))) for number in range(4)]
    return [losses, executor.predict(batch(graph)[0]), *executor.state_dict().values()]


@pytest.mark.parametrize(("name", "lanes"), [("mlp", 1), ("digits_cnn", 3)])
def test_zoo_networks(name: str, lanes: int, tmp_path: Path) -> None:
    graph = build_zoo(name, batch=8)
    with make(plan_for(graph, lanes), graph, tmp_path)(poison=True, null_device=NULL) as executor:
        assert_steps_agree(executor)


def test_a_residual_network(tmp_path: Path) -> None:
    graph = build_zoo("resnet18", batch=8, image_size=32, classes=5)
    with make(plan_for(graph, 2), graph, tmp_path)(poison=True, null_device=NULL) as executor:
        assert_steps_agree(executor, steps=1, tolerance=2e-4)


@pytest.fixture(scope="module")
def wide_class(tmp_path_factory: pytest.TempPathFactory) -> type[CudaExecutor]:
    """small_net on three streams, whose weight gradients co-run."""
    plan = plan_for(small_net(), 3)
    assert sum(len(e.wait) for lane in plan.program["train_step"].lanes for e in lane) > 5
    return make(plan, small_net(), tmp_path_factory.mktemp("wide"))


def test_every_order_gives_the_same_bits(wide_class: type[CudaExecutor]) -> None:
    found = []
    for seed in range(12):
        with wide_class(poison=True, null_device=NULL) as executor:
            executor.delays(seed)
            found.append(run(executor))
    assert all(np.array_equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))


@asks_the_null_device
def test_orders_do_differ(wide_class: type[CudaExecutor]) -> None:
    orders = set()
    for seed in range(4):
        with wide_class(null_device=NULL) as executor:
            executor.delays(seed)
            executor._native.log(executor._handle, True)
            float(executor.step(*batch(executor._graph)))
            orders.add(tuple(executor._native.lines(executor._handle)))
    assert len(orders) > 1


def test_replayed_and_asked_for_are_the_same(wide_class: type[CudaExecutor]) -> None:
    with wide_class(null_device=NULL) as replayed, wide_class(null_device=NULL, record=False) as asked:
        assert all(np.array_equal(a, b) for a, b in zip(run(replayed), run(asked), strict=True))
        assert replayed._native.recorded(replayed._handle)
        assert not asked._native.recorded(asked._handle)
        nodes = replayed.recorded_nodes()
        assert sum(nodes.values()) >= len(replayed.plan.program["train_step"].nodes) - 2 and not asked.recorded_nodes()


def test_every_op_family_trains(tmp_path: Path) -> None:
    graph = every_op_net(Optimizer(kind="adam", lr=0.01))
    with make(plan_for(graph, 2), graph, tmp_path)(seed=5, poison=True, null_device=NULL) as executor:
        first = [float(executor.step(*batch(graph, 0))) for _ in range(2)]
        loss, gradients = executor.gradients(*batch(graph, 1))
        assert np.isfinite([*first, loss]).all()
        assert all(np.isfinite(g).all() and g.any() for g in gradients.values())


@asks_the_null_device
def test_bindings_compile_without_a_warning(wide_class: type[CudaExecutor]) -> None:
    """What plans share is built without `FLAGS`."""
    strict = (*HOST, "-O1", "-Werror", "-DSTEPPLAN_NULL_DEVICE", f"-I{CUDA_RUNTIME}")
    source = wide_class._folder / "module.cpp"
    assert toolchain.compile_object(source, flags=strict, folders=(CUDA_RUNTIME, RUNTIME)).exists()


def test_steps_do_not_wait(wide_class: type[CudaExecutor]) -> None:
    graph = small_net()
    with wide_class(null_device=NULL) as executor, wide_class(null_device=NULL) as waiting:
        pending = [executor.step(*batch(graph, number)) for number in range(6)]
        waited = [float(waiting.step(*batch(graph, number))) for number in range(6)]
        assert [float(loss) for loss in pending[3:]] == waited[3:]
        assert f"{pending[5]:.3f}" == f"{waited[5]:.3f}"
        with pytest.raises(UserError, match="SP1859"):
            pending[0].wait()


def edited(made: type[CudaExecutor], folder: Path, where: dict[str, str], by: str, number: int | None = None) -> Any:
    """The executor class with places of its sources changed: what a defect in planner or emitter would do. `where`: a
    pattern by file; one of the places that it matches, or all."""
    shutil.copytree(made._folder, folder)
    for name, pattern in where.items():
        text = (folder / name).read_text()
        found = list(re.finditer(pattern, text))
        assert found, pattern
        for match in reversed(found if number is None else [found[number]]):
            text = text[: match.start()] + match.expand(by) + text[match.end() :]
        (folder / name).write_text(text)
    build(folder, flags=flags(), null_device=NULL)
    return executor_class(folder)


@asks_the_null_device
@pytest.mark.parametrize("number", [0, 2, 4])
def test_a_missing_wait_is_caught(wide_class: type[CudaExecutor], number: int, tmp_path: Path) -> None:
    broken = edited(wide_class, tmp_path / "broken", {"lanes.cpp": r"\{train_step_waits [^}]+\}"}, "{}", number)
    with broken(null_device=NULL) as executor, pytest.raises(InternalError, match=r"may still be|for value"):
        float(executor.step(*batch(executor._graph)))


def moved(made: type[CudaExecutor], folder: Path, offset: int) -> Any:
    """`conv1.y` lies somewhere else, for all nodes of a step."""
    planned = made.plan.placement["conv1.y"]
    written = rf"    // conv1\n(?:    {{.*\n)*?    {{(\d+), 0, {planned.offset}, {planned.bytes}, true}}"
    number = re.search(written, (made._folder / "lanes.cpp").read_text())[1]
    where = {"values.hpp": rf"(?<=constexpr int64_t conv1_y = ){planned.offset}(?=;)"}
    where["lanes.cpp"] = rf"(?<={{{number}, 0, ){planned.offset}(?=, )"
    return edited(made, folder, where, str(offset))


@asks_the_null_device
def test_a_value_written_over_is_caught(wide_class: type[CudaExecutor], tmp_path: Path) -> None:
    parameter = next(v.id for v in small_net().values if v.role.value == "parameter")
    broken = moved(wide_class, tmp_path / "broken", wide_class.plan.placement[parameter].offset)
    with broken(null_device=NULL) as executor, pytest.raises(InternalError, match="for value"):
        float(executor.step(*batch(executor._graph)))


def said(made: type[CudaExecutor], folder: Path, operand: str, less: int) -> Any:
    """`conv1` is said to touch fewer bytes of an operand than it does."""
    planned = made.plan.placement[operand]
    pattern = rf"(    // conv1\n(?:    {{.*\n)*?    {{\d+, 0, {planned.offset}, ){planned.bytes}"
    return edited(made, folder, {"lanes.cpp": pattern}, rf"\g<1>{planned.bytes - less}")


@asks_the_null_device
def test_a_kernel_that_touches_more_than_is_said_is_caught(wide_class: type[CudaExecutor], tmp_path: Path) -> None:
    writing = said(wide_class, tmp_path / "writing", "conv1.y", 4)
    with writing(null_device=NULL) as executor, pytest.raises(InternalError, match=r"conv1 writes byte \d+ of pool 0"):
        float(executor.step(*batch(executor._graph)))
    reading = said(wide_class, tmp_path / "reading", "conv1.weight", 4)
    with reading(null_device=NULL) as executor:
        assert np.isnan(float(executor.step(*batch(executor._graph))))  # it found no number there


@asks_the_null_device
def test_a_failed_step_closes_the_executor(wide_class: type[CudaExecutor], tmp_path: Path) -> None:
    broken = moved(wide_class, tmp_path / "broken", wide_class.plan.pools[0].arena - 64)
    executor = broken(null_device=NULL)
    loss = executor.step(*batch(executor._graph))
    with pytest.raises(InternalError, match="which has only"):
        loss.wait()
    assert executor._native.allocations() == 0
    with pytest.raises(UserError, match="SP1607"):
        executor.step(*batch(executor._graph))
    with broken(null_device=NULL) as other:  # the process goes on
        assert np.isfinite(other.predict(batch(other._graph)[0])).all()


def test_budgets_move_values_over_copy_streams(tmp_path: Path) -> None:
    graph = build_zoo("digits_cnn", batch=24 if NULL else 64)
    plain = plan_for(graph)
    # Libraries' workspaces are a part of so small a network that no plan can do without.
    tight = plan_for(graph, budget=plain.pools[0].arena * (75 if NULL else 95) // 100)
    assert [lane.kind for lane in tight.lanes[1:]] == ["copy"] * (len(tight.lanes) - 1)
    assert any(p.rewrite for p in tight.programs)
    with make(plain, graph, tmp_path / "plain")(null_device=NULL) as executor:
        want = run(executor)
    for seed in (0, 1):
        with make(tight, graph, tmp_path / "tight")(poison=True, null_device=NULL) as executor:
            executor.delays(seed)
            assert all(np.array_equal(a, b) for a, b in zip(want, run(executor), strict=True))


def test_bad_labels_change_nothing(wide_class: type[CudaExecutor]) -> None:
    with wide_class(null_device=NULL) as executor:
        images, labels = batch(executor._graph)
        before = executor.state_dict()
        labels[1] = 99
        with pytest.raises(UserError, match="SP1608"):
            executor.step(images, labels)
        assert all(np.array_equal(before[k], v) for k, v in executor.state_dict().items() if "step" not in k)


def test_losses_outlive_predictions(wide_class: type[CudaExecutor]) -> None:
    with wide_class(null_device=NULL) as executor:
        inputs = batch(executor._graph)
        with pytest.raises(UserError, match="SP1614"):
            executor.losses()
        loss = float(executor.step(*inputs))
        executor.predict(inputs[0])
        assert executor._ran == "predict" and list(executor.losses().values()) == [loss]


@asks_the_null_device
def test_arrays_share_bytes(wide_class: type[CudaExecutor]) -> None:
    with wide_class(null_device=NULL) as executor:
        float(executor.step(*batch(executor._graph)))
        weight = np.from_dlpack(executor.array("fc.weight"))
        assert np.array_equal(weight, executor.state_dict()["fc.weight"])


def test_node_times_name_every_node(wide_class: type[CudaExecutor]) -> None:
    with wide_class(null_device=NULL) as executor:
        float(executor.step(*batch(executor._graph)))
        times = executor.node_times(repetitions=1)
        assert set(times) == {n.node for n in executor.plan.program["train_step"].nodes if n.stage_ns}
        with pytest.raises(UserError, match="SP1862"):
            executor.node_times(repetitions=0)


@asks_the_null_device
def test_traces_are_nvidias(wide_class: type[CudaExecutor]) -> None:
    with wide_class(null_device=NULL) as executor, pytest.raises(UserError, match="SP1860"):
        executor.trace()
