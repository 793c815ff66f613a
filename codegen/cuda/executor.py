"""The public face of a plan that runs on a GPU.

    from generated.resnet50_h200 import Executor
    executor = Executor(seed=0)
    loss = executor.step(images, labels)     # returns at once
    print(float(loss))                       # waits

Everything else is as in codegen/executor.py. NumPy arrays are copied to the GPU; PyTorch's CUDA tensors are read where
they are if their memory layout is the planned one.
"""

import sys
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from codegen.arguments import Call
from codegen.cuda.launches import LEFT_OUT, Launch
from codegen.cuda.toolchain import load_nvrtc
from codegen.cuda.turns import turn
from codegen.executor import Executor
from codegen.forks import give_lock
from codegen.initial import checked_seed, set_initial_values
from codegen.native import native_module
from codegen.progress import Progress
from codegen.state import State, from_words, logical, to_words
from planner.errors import InternalError, UserError
from planner.graph.model import DType, Layout, Value
from planner.ops.stored import FILTERS
from planner.ops.strides import strides
from planner.plan.crossing import Crossing

Array = np.ndarray[Any, Any]

_DLPACK = {
    DType.FLOAT32: (2, 32),
    DType.FLOAT64: (2, 64),
    DType.BFLOAT16: (4, 16),
    DType.INT32: (0, 32),
    DType.INT64: (0, 64),
    DType.UINT8: (1, 8),
}
"""DLPack's (code, bits)."""


class Loss:
    """The loss of a step that the GPU may still be computing. `float(loss)` or `loss.wait()` waits for it, once; three
    further steps may be asked for before (SP1859)."""

    def __init__(self, executor: "CudaExecutor", ticket: int) -> None:
        self._executor, self._ticket = executor, ticket
        self._value: float | None = None

    def wait(self) -> float:
        """The loss before the update. SP1608: a label or index that lay on the GPU was out of range."""
        if self._value is None:
            self._value = self._executor._wait(self._ticket)
        return self._value

    def __float__(self) -> float:
        return self.wait()

    def __format__(self, spec: str) -> str:
        return format(self.wait(), spec)

    def __repr__(self) -> str:
        return f"Loss({'under way' if self._value is None else self._value})"


class CudaExecutor(Executor):
    """Runs the programs of one plan on one GPU, or, with `null_device`, on none: slowly, for tests and dry runs."""

    def __init__(
        self,
        seed: int = 0,
        *,
        device: int = 0,
        poison: bool = False,
        record: bool = True,
        null_device: bool = False,
    ) -> None:
        """`device`: which GPU, as nvidia-smi counts. `poison`: fill its memory with NaN first. `record=False`: ask for
        every node of every step anew instead of replaying a recorded graph.

        SP1851: no driver. SP1852: an older driver than the executor needs. SP1853: no such GPU. SP1854: the executor
        is not built for it. SP1855: it has too little free memory. SP1857: its libraries need more than was planned.
        SP1861: there is too little pinned memory on the host.
        """
        seed = checked_seed(seed)
        give_lock(self)
        self._device = device
        if not null_device:
            load_nvrtc()
        self._native = native_module(self._folder, null_device)
        self._handle: Any = self._guard(self._native.create, device, poison, record)
        given = self._given()
        self._state = State(self._graph, self._view, given, self._store, self._layouts())
        self._set_parts()
        self.before_close: list[Callable[[], None]] = []
        """Called while the memory is still there: what shares it goes."""
        self._progress = Progress(seed, self._state.first_lr)
        self._told = False
        self._raw_stream: Callable[[int], int] | None = None
        self._ran: str | None = None
        self._paused: int | None = None
        self._train = self._graph.program.get("train_step")
        set_initial_values(self._state, seed, given)

    # -- running -----------------------------------------------------------------------------------------------
    def step(self, *inputs: Any, lr: float | None = None, **named: Any) -> Loss:  # type: ignore[override]
        """One training step on one batch, without waiting for it: see `Loss`. Work of PyTorch's current stream that
        makes or overwrites inputs is ordered before and after it.

        SP1601: an input has the wrong type or shape; SP1856: it lies on another GPU; SP1608: a label or index on the
        host is out of range. After these nothing has changed.
        """
        with self._lock:
            before = self._progress.lr
            if lr is not None:
                self.lr = lr
            try:
                return self._train_on(inputs, named, hold=False)
            except Exception:
                self._progress.lr = before
                raise

    def accumulate(self, *inputs: Any, **named: Any) -> Loss:  # type: ignore[override]
        """As `Executor.accumulate`, without waiting for it."""
        with self._lock:
            self._require_sums()
            return self._train_on(inputs, named, hold=True)

    def wait(self) -> None:
        """Waits for everything that was asked for."""
        with self._lock:
            self._require_open()
            self._guard(self._native.synchronize, self._handle)
            self._tell_unrecorded()

    # -- looking inside ----------------------------------------------------------------------------------------
    def array(self, name: str) -> Any:
        """A value's bytes where they lie, in the framework's shape: `torch.from_dlpack(executor.array(NAME))` is a
        tensor on the GPU that shares them. The executor lives as long as the array, but its memory only until `close`;
        call `wait` before reading."""
        self._require_open()
        return self._place(self._graph.value[name])

    def node_times(
        self, program: str = "train_step", repetitions: int = 20, launches: Mapping[str, Launch | None] | None = None
    ) -> dict[str, float]:
        """node -> median ns on the GPU, each alone, by events; of nodes that one launch computes each one's part of it.
        Runs the nodes on what the arena holds. `launches`: threads per block and blocks for the nodes that are wanted,
        each in a launch of its own, None or 0 x 0: as planned; the others are left out. SP1862: no repetitions."""
        if repetitions < 1:
            raise UserError("SP1862", f"a median of {repetitions} times is none", "ask for one repetition or more")
        with self._lock, turn(self._device, self._native.null_device):
            self._require_open()
            found: dict[str, float] = {}
            for number, _ in self._parts[program]:
                order = self._tasks(number)
                shapes: list[Launch] = []
                if launches is not None:
                    shapes = [launches[n] or Launch() if n in launches else LEFT_OUT for n in order]
                times = self._guard(self._native.time_nodes, self._handle, number, repetitions, shapes)
                found |= {n: t for n, t in zip(order, times, strict=True) if launches is None or n in launches}
            return found

    def pair_times(
        self, program: str, nodes: tuple[str, str], copies: tuple[int, int], repetitions: int
    ) -> tuple[float, ...]:
        """Median ns of two nodes, each `copies` times in a row: alone, beside each other on two streams, and how long
        both ran. On what the arena holds."""
        with self._lock, turn(self._device, self._native.null_device):
            self._require_open()
            runs = [(number, self._tasks(number)) for number, _ in self._parts[program]]
            number, order = next(run for run in runs if set(nodes) <= set(run[1]))
            tasks = [order.index(n) for n in nodes]
            return tuple(self._guard(self._native.time_pair, self._handle, number, tasks, copies, repetitions))

    @property
    def device_bytes(self) -> int:
        """By how much the executor's own allocations shrank the GPU's free memory, as the driver tells it."""
        self._require_open()
        return int(self._native.device_bytes(self._handle))

    def recorded_nodes(self) -> dict[str, int]:
        """How many nodes of each kind the recorded runs have; none before a second step. Kernels in a line are what a
        driver launches fastest."""
        self._require_open()
        return dict(self._native.recorded_nodes(self._handle))

    def trace(self, path: Path | str | None = None, on: bool = True) -> None:
        raise UserError("SP1860", "a GPU's streams are not traced", "use node_times, or NVIDIA's profilers")

    def handoff_ns(self) -> float:
        return 0.0

    def crossing(self) -> Crossing:
        return Crossing()

    def crowding(self) -> float:
        return 1.0

    def delays(self, seed: int) -> None:
        """For tests: streams wait a while at random before nodes, on the null device take turns at random; 0: they do
        not. What was recorded before keeps its order."""
        self._require_open()
        self._native.shuffle(self._handle, seed)

    def close(self) -> None:
        """Give back the GPU's memory, streams and events. Later calls are errors (SP1607)."""
        with self._lock:
            if self._handle is None:
                return
            try:
                for call in self.before_close:
                    call()
            finally:
                self._native.close(self._handle)
                self._handle = None

    def _tasks(self, run: int) -> list[str]:
        """The nodes of a run (see codegen/parts.py) in the order in which they are asked for."""
        return list(self._native.tasks(run))

    # -- helpers -----------------------------------------------------------------------------------------------
    def _guard(self, call: Any, *arguments: Any) -> Any:
        try:
            return call(*arguments)
        except RuntimeError as error:
            raise InternalError(f"plan {self.plan.name}: {error}") from error

    def _train_on(self, inputs: tuple[Any, ...], named: dict[str, Any], hold: bool) -> Loss:  # type: ignore[override]
        """On the shortest way: calls that a processor was last asked for a step ago take it ten times as long as those
        that it has just made."""
        runs = self._parts.get("train_step", ())
        if named or len(runs) != 1 or len(inputs) != len(runs[0][1].inputs):
            ticket = self._submit(Call("train_step", self._arguments("train_step", inputs, named), hold=hold))
        else:
            self._begin("train_step")
            ticket = self._ask(runs[0][0], inputs, self._progress.moment(hold), None, False)
            self._ran = "train_step"
        self._trained(hold)
        return Loss(self, ticket)

    def _submit(self, call: Call) -> int:
        """Asks for a program, or for some of its parts; the last one's ticket."""
        self._begin(call.program)
        inputs, moment, ticket = self._graph.program[call.program].inputs, self._progress.moment(call.hold), 0
        for number, part in self._parts[call.program][call.parts]:
            ticket = self._ask(number, call.of(inputs, part.inputs), moment, call.gradients, call.lasting)
        self._ran = call.program
        return ticket

    def _ask(self, number: int, given: tuple[Any, ...], moment: Any, gradients: Any, lasting: bool) -> int:
        """For one run (codegen/parts.py); its ticket."""
        if self._handle is None:
            self._require_open()
        shares = self.takes_gradients
        try:
            return int(
                self._native.submit(
                    self._handle, number, given, moment, gradients, lasting, self._callers_stream(), shares
                )
            )
        except RuntimeError as error:
            raise InternalError(f"plan {self.plan.name}: {error}") from error

    def _callers_stream(self) -> int:
        """PyTorch's current stream, on which inputs are made and overwritten; 0 without PyTorch: the default one. Asked
        as the code of PyTorch's own compiler does, which takes a tenth of what `current_stream` takes."""
        if self._raw_stream is None:
            torch = self._torch()
            if torch is None:
                return 0
            self._raw_stream = torch._C._cuda_getCurrentRawStream
        return int(self._raw_stream(self._device))

    def _torch(self) -> Any:
        """PyTorch, where it has work on GPUs."""
        torch = sys.modules.get("torch")
        return torch if torch and not self._native.null_device and torch.cuda.is_initialized() else None

    def _after_callers_work(self) -> None:
        """Waits for what changes parameters where they lie: an optimizer of the caller's."""
        torch = self._torch() if self.takes_gradients else None
        if torch is not None:
            torch.cuda.current_stream(self._device).synchronize()

    def _run(self, call: Call) -> float:
        return self._wait(self._submit(call))

    def _start(self, call: Call) -> None:
        self._submit(call)

    def _finish(self) -> None:
        self.wait()

    def _wait(self, ticket: int) -> float:
        with self._lock:
            self._require_open()
            result: bytes = self._guard(self._native.wait, self._handle, ticket)
            self._tell_unrecorded()
            return float(np.frombuffer(result, np.float32)[0])

    def _tell_unrecorded(self) -> None:
        """SP1863, as a warning, once."""
        reason = "" if self._told else self._native.unrecorded(self._handle)
        if reason:
            self._told = True
            fix = "results are the same; record=False asks for every node anew from the start"
            told = UserError("SP1863", f"the steps of plan {self.plan.name} cannot be recorded: {reason}", fix)
            warnings.warn(str(told), RuntimeWarning, stacklevel=4)

    def _results(self, program: str) -> tuple[tuple[str, Array], ...]:
        values = [self._graph.value[v] for v in self._program(program).outputs]
        return tuple((v.id, logical(self._view(v), v)) for v in values)

    def _view(self, value: Value) -> Array:
        """A copy of a value's contents in its memory order; of bfloat16, which NumPy lacks, in float32."""
        placement = self.plan.placement[value.id]
        data = np.empty(placement.bytes, np.uint8)
        self._after_callers_work()
        self._guard(self._native.read, self._handle, placement.offset, data)
        if value.type.dtype is DType.BFLOAT16:
            return from_words(data.view(np.uint16)).reshape(value.type.physical_shape)
        return data.view(np.dtype(value.type.dtype.value)).reshape(value.type.physical_shape)

    def _place(self, value: Value) -> Any:
        """An array with DLPack in the GPU's memory, in its logical shape."""
        shape, offset = list(value.type.shape), self.plan.placement[value.id].offset
        return self._native.view(self._handle, offset, shape, list(self._strides(value)), *_DLPACK[value.type.dtype])

    def _store(self, value: Value, data: Array) -> None:
        placement = self.plan.placement[value.id]
        if value.type.dtype is DType.BFLOAT16:
            typed = to_words(data)
        else:
            typed = np.ascontiguousarray(data, np.dtype(value.type.dtype.value))
        self._after_callers_work()
        self._guard(self._native.write, self._handle, placement.offset, typed.reshape(-1).view(np.uint8))

    def _strides(self, value: Value) -> tuple[int, ...]:
        """In elements. Weights stored as filters lie as channels-last images do (planner/ops/stored.py)."""
        filters = self.plan.placement[value.id].layout == FILTERS.text
        return strides(value.type.model_copy(update={"layout": Layout.CHANNELS_LAST}) if filters else value.type)
