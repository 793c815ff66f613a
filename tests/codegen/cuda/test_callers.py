"""Inputs in the GPU's memory: runs come behind the work of their caller's streams, and before what follows there."""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import pytest
import torch

from codegen.cuda.executor import CudaExecutor
from tests.codegen.cuda.elsewhere import Elsewhere, on_gpu
from tests.codegen.cuda.plans import NULL, asks_the_null_device, make, plan_for
from tests.codegen.cuda.test_null_device import batch
from tests.graphs import small_net

Given = list[Any]


@pytest.fixture(scope="module")
def wide_class(tmp_path_factory: pytest.TempPathFactory) -> type[CudaExecutor]:
    """small_net on three streams."""
    return make(plan_for(small_net(), 3), small_net(), tmp_path_factory.mktemp("wide"))


class Streams:
    """The caller's streams, of which one is current at a time."""

    def __init__(self, executor: CudaExecutor, count: int) -> None:
        self._executor, self._made = executor, [None if NULL else torch.cuda.Stream() for _ in range(count)]

    @contextmanager
    def on(self, number: int) -> Iterator[None]:
        if NULL:
            self._executor._raw_stream = lambda _: number
        with nullcontext() if NULL else torch.cuda.stream(self._made[number]):
            yield


@pytest.mark.parametrize("seed", range(6))
def test_runs_follow_each_other_whatever_streams_ask(seed: int, wide_class: type[CudaExecutor]) -> None:
    """Inputs on the host, on the GPU at addresses that come back and at others, on streams of the caller's in turn;
    with predictions, gradients and what is read and written between: the bits of a run that gets all from the host."""
    rng = np.random.default_rng()
    kept = [batch(small_net(), number) for number in range(2)]
    with (
        wide_class(poison=True, null_device=NULL) as executor,
        wide_class(poison=True, null_device=NULL) as host,
    ):
        executor.delays(seed)
        streams, there = Streams(executor, 3), [[on_gpu(x) for x in inputs] for inputs in kept]
        for number in range(40):
            which, what = int(rng.integers(2)), rng.choice(("kept", "kept", "kept", "host", "once", "other"))
            with streams.on(int(rng.integers(3))):
                given: Given = there[which] if what == "kept" else kept[which]
                if what == "once":
                    given = [on_gpu(x) for x in kept[which]]
                if what != "other":
                    found, want = executor.step(*given), host.step(*kept[which])
                    if rng.integers(2):
                        assert float(found) == float(want), number
                    continue
                match rng.integers(3):
                    case 0:
                        assert np.array_equal(executor.predict(there[which][0]), host.predict(kept[which][0]))
                    case 1:
                        gradients, wanted = executor.gradients(*there[which])[1], host.gradients(*kept[which])[1]
                        assert all(np.array_equal(gradients[name], a) for name, a in wanted.items())
                    case _:
                        state = executor.state_dict()
                        assert all(np.array_equal(state[name], a) for name, a in host.state_dict().items())
                        executor.load_state_dict(state)
        state = executor.state_dict()
        assert all(np.array_equal(a, state[name]) for name, a in host.state_dict().items())
        assert executor._native.recorded(executor._handle) >= 2


def logged(executor: CudaExecutor, given: Given) -> tuple[float, list[str]]:
    """A step's loss, and what it asks the streams for, in the order in which they run it."""
    executor._native.log(executor._handle, True)
    loss = float(executor.step(*given))
    return loss, list(executor._native.lines(executor._handle))


@asks_the_null_device
def test_arrays_are_read_where_they_lie(wide_class: type[CudaExecutor]) -> None:
    """At addresses that never come back they are copied, and so are those that lie otherwise than planned; behind the
    caller's work. The losses are those of arrays on the host."""
    copied = []
    with wide_class(null_device=True) as executor, wide_class(null_device=True) as host:
        images, labels = batch(executor._graph)
        held = [on_gpu(images) for _ in range(8)]
        held[2] = Elsewhere(np.ascontiguousarray(images[..., ::-1])[..., ::-1], 0)
        there = on_gpu(labels)
        for number, given in enumerate(held):
            loss, lines = logged(executor, [given, there])
            assert loss == float(host.step(images, labels)), number
            event = lines[0].removeprefix("s3 record ")
            assert lines[1] == f"s0 wait {event}"
            end = lines[-1].removeprefix("s3 wait ")
            assert lines[-2] == f"s0 record {end}"
            copied.append(f"s0 elements {images.size}" in lines[: lines.index("s0 conv1")])
    assert copied == [n == 2 or n >= 5 for n in range(8)]  # four graphs: of three addresses and of the arena


@asks_the_null_device
def test_a_recorded_step_asks_for_nothing_else(wide_class: type[CudaExecutor]) -> None:
    """The first lane's part of it runs in the caller's stream, behind the newest run where that was another graph's."""
    with wide_class(null_device=True) as executor:
        a, b = ([on_gpu(x) for x in batch(executor._graph, number)] for number in range(2))
        for given in (a, a, b):  # the first run is not recorded
            executor.step(*given)
        executor.wait()
        once, again = (logged(executor, b)[1] for _ in range(2))
        assert not any(line.startswith("s0") for line in once + again)
        assert once[0].startswith("s3 wait") and once[1:-1] == again[:-1]  # but for the event behind it
        assert "s0 conv1" in logged(executor, batch(executor._graph))[1]


@asks_the_null_device
def test_who_reads_waits_for_the_callers_stream(wide_class: type[CudaExecutor]) -> None:
    """What is read, written and waited for behind a run that is in the caller's stream alone."""
    with wide_class(null_device=True) as executor:
        given = [on_gpu(x) for x in batch(executor._graph)]
        state = executor.state_dict()
        uses = {
            "read": executor.state_dict,
            "write": lambda: executor.load_state_dict(state),
            "wait": executor.wait,
            "time": lambda: executor.node_times(repetitions=1),
        }
        for _ in range(2):
            float(executor.step(*given))
        for what, use in uses.items():
            executor.step(*given)
            executor._native.log(executor._handle, True)
            use()
            assert executor._native.lines(executor._handle)[0].startswith("s0 wait"), what
