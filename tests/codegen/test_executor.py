"""Executors of small nets: numbers, determinism, interruptions, state, errors."""

import copy
import pickle
import random
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from codegen.executor import Executor
from planner.errors import UserError
from tests.codegen.following import assert_follows_reference, batch, reference_state
from tests.codegen.plans import make
from tests.graphs import random_net, small_net
from tests.interpreter import run_program

Array = np.ndarray[Any, Any]


def test_steps_follow_the_reference(small: Executor) -> None:
    assert_follows_reference(small, small_net())


@pytest.mark.parametrize("seed", [3, 4])
def test_random_nets_follow_the_reference(tmp_path: Path, seed: int) -> None:
    graph = random_net(random.Random(seed))
    with make(graph, tmp_path / "net", lanes=3, flags=("-Og",))(pin=False, poison=True) as executor:
        executor.delays(seed)
        assert_follows_reference(executor, graph, steps=2)


def test_same_seed_same_bits_under_any_timing(small_class: type[Executor]) -> None:
    graph = small_net()
    states = []
    for delay in (0, 1, 2):
        with small_class(seed=5, pin=False, poison=bool(delay)) as executor:
            executor.delays(delay)
            for number in range(4):
                executor.step(*batch(graph, number))
            states.append(executor.state_dict())
    for other in states[1:]:
        assert all(np.array_equal(states[0][k], other[k]) for k in states[0])


def test_initial_values_depend_on_seed_and_name_only(small_class: type[Executor]) -> None:
    with small_class(seed=1, pin=False) as a, small_class(seed=1, pin=False) as b, small_class(seed=2, pin=False) as c:
        first, same, other = (e.state_dict() for e in (a, b, c))
    assert all(np.array_equal(first[k], same[k]) for k in first)
    assert not np.array_equal(first["conv1.weight"], other["conv1.weight"])
    assert not np.array_equal(first["conv1.weight"].ravel()[:20], first["conv2.weight"].ravel()[:20])
    assert first["conv2.weight"].std() == pytest.approx(0.2, rel=0.2)


def test_save_load_and_go_on_gives_the_same_bits(small_class: type[Executor]) -> None:
    graph = small_net()
    with small_class(seed=1, pin=False) as first, small_class(seed=9, pin=False) as second:
        for number in range(3):
            first.step(*batch(graph, number), lr=0.05)
        second.load_state_dict(first.state_dict())
        assert (second.lr, second.steps_done) == (0.05, 3)
        for number in range(3, 5):
            assert first.step(*batch(graph, number)) == second.step(*batch(graph, number))
        a, b = first.state_dict(), second.state_dict()
        assert a.keys() == b.keys() and all(np.array_equal(a[k], b[k]) for k in a)


def test_gradients_change_nothing_and_are_right(small: Executor) -> None:
    graph = small_net()
    images, labels = batch(graph)
    before = small.state_dict()
    loss, gradients = small.gradients(images, labels)
    after = small.state_dict()
    assert all(np.array_equal(before[k], after[k]) for k in before)
    held = reference_state(small, graph) | dict(zip(small.input_names, (images.astype(float), labels), strict=True))
    reference = run_program(graph, "train_step", held)
    updates = [n for n in graph.program["train_step"].nodes if n.phase == "update"]
    assert gradients.keys() == {n.updates[0] for n in updates}
    for node in updates:
        want = reference[node.inputs[0]]
        assert np.abs(gradients[node.updates[0]] - want).max() <= 1e-4 * (np.abs(want).max() + 1e-3)
    assert loss == small.step(images, labels)


def test_an_interrupted_step_is_counted(small: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C is raised when the run is over, and parameters have changed: what is saved then goes on with its bits."""
    inputs = batch(small_net())
    state = small.state_dict()
    small.step(*inputs, lr=0.2)
    wanted = small.state_dict()
    small.load_state_dict(state)

    class Interrupted(ModuleType):
        runs = staticmethod(small._native.runs)

        def run(self, *arguments: Any) -> None:
            native.run(*arguments)
            raise KeyboardInterrupt

    native = small._native
    monkeypatch.setattr(small, "_native", Interrupted("native"))
    with pytest.raises(KeyboardInterrupt):
        small.step(*inputs, lr=0.2)
    monkeypatch.undo()
    assert all(array.tobytes() == wanted[name].tobytes() for name, array in small.state_dict().items())


def test_a_step_that_is_interrupted_before_it_runs_is_not_counted(
    small: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(call: Any) -> float:
        raise KeyboardInterrupt

    before = small.state_dict()
    monkeypatch.setattr(small, "_run", interrupted)
    with pytest.raises(KeyboardInterrupt):
        small.step(*batch(small_net()), lr=0.2)
    monkeypatch.undo()
    assert all(array.tobytes() == before[name].tobytes() for name, array in small.state_dict().items())


def test_a_handler_of_a_signal_saves_the_state(small: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python calls it where a step has just run, in the thread that asked for the step and holds the lock."""
    saved: list[dict[str, Array]] = []

    class Signalled(ModuleType):
        runs = staticmethod(small._native.runs)

        def run(self, *arguments: Any) -> None:
            native.run(*arguments)
            signal.raise_signal(signal.SIGUSR1)

    native, before = small._native, signal.signal(signal.SIGUSR1, lambda *_: saved.append(small.state_dict()))
    try:
        monkeypatch.setattr(small, "_native", Signalled("native"))
        small.step(*batch(small_net()))
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(saved) == 1 and saved[0]["stepplan.step"] == 1
    assert all(array.tobytes() == saved[0][name].tobytes() for name, array in small.state_dict().items())


def test_state_dict_takes_pytorch_states(small: Executor) -> None:
    torch = pytest.importorskip("torch")
    state = {k: torch.nn.Parameter(torch.from_numpy(v)) if v.dtype == np.float32 else v
             for k, v in small.state_dict().items() if "momentum" not in k and "stepplan" not in k}  # fmt: skip
    state["bn1.num_batches_tracked"] = torch.tensor(3)
    state["conv1.weight"] = torch.nn.Parameter(torch.ones(8, 3, 3, 3).to(memory_format=torch.channels_last))
    small.load_state_dict(state)
    assert np.all(small.state_dict()["conv1.weight"] == 1)


def test_states_that_do_not_fit(small: Executor) -> None:
    state = small.state_dict()
    for change, told in (
        ({"conv1.weight": np.zeros((1, 2))}, "conv1.weight must be"),
        ({"conv9.weight": np.zeros(3)}, "1 unknown (conv9.weight)"),
        ({"bn1.num_batches_tracked": np.array(-1)}, "bn1.num_batches_tracked counts batches and is int64 -1"),
        ({"bn1.num_batches_tracked": None}, "counts batches and is object None"),
        ({"bn1.num_batches_tracked": np.uint64(2**63)}, "counts batches"),
    ):
        with pytest.raises(UserError, match="SP1611") as error:
            small.load_state_dict(state | change)
        assert told in error.value.problem
    torch = pytest.importorskip("torch")
    for wrong, told in (
        (None, "it is a NoneType"),
        ([state], "it is a list"),
        ({0: state}, "its names are no strings"),
        (state | {"fc.bias": torch.zeros(5, device="meta")}, "fc.bias has no contents"),
    ):
        with pytest.raises(UserError, match=f"SP1611.*{told}"):
            small.load_state_dict(wrong)
    del state["fc.bias"]
    with pytest.raises(UserError, match=r"1 missing \(fc.bias\)"):
        small.load_state_dict(state)
    found = small.load_state_dict(state | {"conv9.weight": np.zeros(3)}, strict=False)
    assert found == (["fc.bias"], ["conv9.weight"])
    assert small.load_state_dict(small.state_dict()) == ([], [])


def test_trace_has_every_slice_once(small: Executor, tmp_path: Path) -> None:
    graph = small_net()
    small.trace(tmp_path / "trace.json")
    small.step(*batch(graph))
    small.step(*batch(graph))
    first, second = small.trace_events()
    entries = [e for lane in small.plan.program["train_step"].lanes for e in lane]
    assert len(first) == len(second) == len(entries)
    assert all(0 < e.start_ns <= e.end_ns for e in first) and second[0].start_ns > first[0].end_ns
    assert (tmp_path / "trace.json").read_text().count('"ph"') >= 2 * len(entries)
    small.trace(on=False)
    small.step(*batch(graph))
    assert small.trace_events() == [first, second]
    small.trace()
    assert small.trace_events() == []


def test_a_trace_that_cannot_be_written(small: Executor, tmp_path: Path) -> None:
    """Told before a step; where the file is lost later, the step has been trained, and counts."""
    with pytest.raises(UserError, match="SP1702"):
        small.trace(tmp_path)
    small.step(*batch(small_net()))
    folder = tmp_path / "traces"
    small.trace(folder / "trace.json")
    (folder / "trace.json").unlink()
    (folder / "trace.json").mkdir()
    with pytest.raises(UserError, match="SP1702"):
        small.step(*batch(small_net()))
    assert small.steps_done == 2 and small.state_dict()["bn1.num_batches_tracked"] == 2


def test_several_executors_and_threads(small_class: type[Executor]) -> None:
    graph = small_net()
    executors = [small_class(seed=s, pin=False) for s in (1, 2)]

    def work(executor: Executor) -> None:
        for number in range(20):
            executor.step(*batch(graph, number))

    threads = [threading.Thread(target=work, args=(e,)) for e in executors * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [e.steps_done for e in executors] == [40, 40]
    for executor in executors:
        executor.close()


def test_losses_are_those_of_the_last_step_or_none(small: Executor) -> None:
    images, labels = batch(small_net())
    with pytest.raises(UserError, match="SP1614: there are no losses"):
        small.losses()
    loss = small.step(images, labels)
    assert list(small.losses().values()) == [loss]
    small.predict(images)
    assert small._loss is not None
    small._loss[0] = np.nan  # predictions may take these bytes
    assert list(small.losses().values()) == [loss]
    with pytest.raises(UserError, match="SP1601"):
        small.predict(images[:1])
    assert list(small.losses().values()) == [loss]
    with pytest.raises(UserError, match="SP1601"):
        small.step(images[:1], labels)
    with pytest.raises(UserError, match="SP1614"):
        small.losses()


def test_closed(small: Executor) -> None:
    kept = small.shared("fc.weight")
    assert kept is not None
    before = kept.copy()
    assert re.fullmatch(r"<Executor of plan \S+ for \S+, 0 steps done>", repr(small))
    small.close()
    small.close()
    assert repr(small).endswith(", closed>")
    uses = (
        small.state_dict,
        small.losses,
        small.outputs,
        small.trace,
        small.handoff_ns,
        small.crossing,
        small.crowding,
    )
    for use in (
        lambda: small.step(*batch(small_net())),
        lambda: small.shared("fc.weight"),
        lambda: small.delays(1),
        *uses,
    ):
        with pytest.raises(UserError, match="SP1607"):
            use()
    assert np.array_equal(kept, before), "an array that is still held keeps the memory"


def test_closing_gives_back_the_memory_of_whoever_looked_at_results(small: Executor) -> None:
    images, labels = batch(small_net())
    small.step(images, labels)
    small.outputs()
    small.predict(images)
    handle, alone = small._handle, object()
    small.close()
    assert sys.getrefcount(handle) == sys.getrefcount(alone), "nothing but this test keeps the arena"


@pytest.mark.parametrize("torch", ["None", "types.ModuleType('torch')"])
def test_without_pytorch(small_class: type[Executor], small_folder: Path, torch: str) -> None:
    """It may be forbidden, or another thread may be importing it."""
    script = f"""
import sys, types
import numpy as np
from codegen.load import executor_class
sys.modules["torch"] = {torch}
with executor_class(sys.argv[1])(seed=0, pin=False) as executor:
    print(executor.step(np.ones((4, 3, 8, 8), np.float32), np.zeros(4, np.int64)) > 0)
"""
    done = subprocess.run([sys.executable, "-c", script, str(small_folder)], capture_output=True, text=True, timeout=60)
    assert done.stdout == "True\n", done.stderr


def test_no_copies(small: Executor) -> None:
    for copied in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(UserError, match="SP1619"):
            copied(small)


def test_scalars_are_checked(small_class: type[Executor], small: Executor) -> None:
    small_class(seed=np.int64(3)).close()
    for bad in (-1, 2**64, 1.5, "1", None):
        with pytest.raises(UserError, match="SP1610"):
            small_class(seed=bad)
    for bad_rate in (float("nan"), float("inf"), 1e300, -0.1, "0.1", None, [0.1, 0.2]):
        with pytest.raises(UserError, match="SP1610"):
            small.lr = bad_rate  # type: ignore[assignment]
    with pytest.raises(UserError, match="SP1610"):
        small.step(*batch(small_net()), lr=-1.0)
    small.lr = np.float32(0.25)
    assert small.lr == 0.25
    state = small.state_dict()
    counts = [("step", n) for n in (-1, 1.5, float("nan"), "x", None, [1, 2], 2**70)]
    for name, bad in (("lr", np.float64(-1.0)), ("lr", np.float64("nan")), ("seed", np.int64(-1)), *counts):
        with pytest.raises(UserError, match="SP1610"):
            small.load_state_dict({k: 0 * v for k, v in state.items()} | {f"stepplan.{name}": bad})
        assert all(np.array_equal(v, state[k]) for k, v in small.state_dict().items()), "nothing has changed"
    before = small.state_dict()
    small.step(*batch(small_net()), lr=0.0)
    assert np.array_equal(before["fc.weight"], small.state_dict()["fc.weight"])
