"""The public face of a built plan: `Executor`.

    from generated.resnet50 import Executor
    executor = Executor(seed=0)
    loss = executor.step(images, labels)

Everything that could differ from run to run is an argument; nothing is decided while a step runs.
"""

import math
import threading
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar, NoReturn, Self

import numpy as np

from codegen.arguments import Call, matched
from codegen.forks import give_lock
from codegen.initial import checked_rate, checked_seed, give_back_memory, read_weights, set_initial_values
from codegen.intact import require_intact
from codegen.parts import Part, parts, predictions
from codegen.passes import input_gradients, start_backward, start_forward
from codegen.progress import Progress
from codegen.state import IncompatibleKeys, State, in_framework, logical
from codegen.tracing import Trace, TraceEvent, events_of_step
from planner.errors import InternalError, UserError
from planner.graph.model import DType, Graph, Program, Value
from planner.ops.optimizer import GradientSum
from planner.ops.stored import Stored, parse_stored
from planner.plan.crossing import Crossing
from planner.plan.expand import expanded
from planner.plan.schema import Plan

Array = np.ndarray[Any, Any]


class Executor:
    """Runs the programs of one plan. Made by `codegen.load.executor_class`; generated folders export it.

    One step at a time: calls from several threads run one after the other. The executor owns its threads, one per lane
    of the plan, and the GIL is released while they run.
    """

    plan: ClassVar[Plan]
    _native: ModuleType
    _folder: ClassVar[Path]
    _graph: ClassVar[Graph]
    _graph_file: ClassVar[bytes]
    """The folder's graph.json when the class was made."""
    _predicted: tuple[Value, ...] = ()
    """What `forward` returns; nothing where the plan has a loss of its own."""
    _trace: Trace | None = None
    """What was recorded since it was asked for last; `_recording`: it goes on."""
    _recording = False
    _lock: "threading.RLock"
    _losses: dict[str, float] | None = None
    """Of the last step, where another program has run since, which may use their bytes."""
    _torn = False
    """Another thread used the executor when this process was forked off: what it was changing is half-changed here."""
    _module: Any = None
    """A weak reference to the module whose parameters lie in this executor's memory (codegen/autograd.py)."""

    def __init__(
        self, seed: int = 0, *, pin: bool = True, poison: bool = False, spill: Path | str | None = None
    ) -> None:
        """`seed` fixes initial parameters (where no weights.npz lies beside the plan), dropout and random numbers.

        `pin=False`: let the system move the threads. `poison=True`: fill the memory with NaN first, so that reading
        before writing shows. `spill`: a folder on the disk for what the plan keeps there. SP1512: the folder has
        another model by now. SP1602, SP1603: not the threads or processors that the plan needs; SP1604: not the memory;
        SP1605: another kernel library than planned; SP1615, SP1616: not the disk.
        """
        seed = checked_seed(seed)
        give_lock(self)
        given = self._given()
        self._handle: Any = self._native.create(pin, poison, str(spill or ""))
        self._arena: Array = self._native.arena(self._handle)
        self._state = State(self._graph, self._view, given, layouts=self._layouts())
        self._set_parts()
        self._progress = Progress(seed, self._state.first_lr)
        self._ran: str | None = None
        """The program whose values the arena holds."""
        self._paused: int | None = None
        """The batch whose forward pass ran last and left its values for the backward pass."""
        self._outputs: dict[str, tuple[tuple[str, Array], ...]] = {}
        self._train = self._graph.program.get("train_step")
        self._loss: Array | None = None
        if self._train:
            self._loss = self._view(self._graph.value[self._train.outputs[0]]).reshape(-1)
        set_initial_values(self._state, seed, given)
        del given  # as many bytes as the parameters
        give_back_memory()
        self._native.settle()

    # -- running -----------------------------------------------------------------------------------------------
    def step(self, *inputs: Any, lr: float | None = None, **named: Any) -> float:
        """One training step on one batch; returns the loss before the update (of several, the first; see `losses`).

        Inputs in the order of `input_names`, or by name: NumPy arrays or anything with DLPack or the buffer protocol.
        No copy is made where the memory layout is the planned one. `lr`: the learning rate from now on.
        SP1601: an input has the wrong type, shape or place; SP1608: a label or index is out of range. After either,
        nothing has changed, unless the step computed the index.
        """
        with self._lock:
            return self._train_on(inputs, named, hold=False, lr=lr)

    def accumulate(self, *inputs: Any, **named: Any) -> float:
        """The forward and backward pass of one batch, whose gradients wait: the next `step` takes the mean of those of
        its own batch and of all since the last one. Returns the loss; running statistics move. Inputs as `step` has
        them. SP1612: the plan was not captured with `accumulate`."""
        with self._lock:
            self._require_sums()
            return self._train_on(inputs, named, hold=True)

    def predict(self, *inputs: Any, **named: Any) -> Any:
        """The model's output in evaluation mode, in the framework's shape: an array of its own; a tuple of them where
        the model returns several tensors. Random numbers are those of the coming step: the same ones until a step has
        run."""
        with self._lock:
            self._run(Call("predict", self._arguments("predict", inputs, named)))
            return self._predictions("predict")

    def gradients(self, *inputs: Any, **named: Any) -> tuple[float, dict[str, Array]]:
        """The loss and the gradient of every trained parameter, by the framework's name. Changes nothing."""
        with self._lock:
            arguments = self._arguments("train_step", inputs, named)
            found = {n: np.zeros(self._graph.value[v].type.shape, np.float32) for v, n in self._state.trained.items()}
            loss = self._run(Call("train_step", arguments, list(found.values())))
            return loss, self._plain(found)

    def forward(self, *inputs: Any, **named: Any) -> tuple[Any, int]:
        """The model's output in training mode, of a plan whose loss is the caller's: dropout draws, running statistics
        move. Also the number of the step, for `backward`, which draws the same; until then the inputs must not
        change."""
        with self._lock:
            step = start_forward(self, inputs, named)
            self._finish()
            found = tuple(self._copy(v) for v in self._predicted)
            return found[0] if len(found) == 1 else found, step

    def backward(self, step: int, *inputs: Any) -> tuple[dict[str, Array], dict[str, Array]]:
        """Gradients of the parameters and of the inputs, by name, from the inputs of step number `step` and the
        gradients of what `forward` returned, behind them. Goes on where that `forward` ended; where something else ran
        since, the activations are computed again. Changes nothing."""
        with self._lock:
            found = {n: np.zeros(self._graph.value[v].type.shape, np.float32) for v, n in self._state.trained.items()}
            start_backward(self, step, inputs, list(found.values()))
            self._finish()
            return self._plain(found), {v.gradient_of: self._copy(v) for v in input_gradients(self)}

    def counters_per_step(self) -> dict[str, int]:
        """Name of every batch norm's counter of batches -> by how much a step raises it."""
        return dict(self._state.per_step)

    def shared(self, name: str) -> Any:
        """A parameter or state as the executor holds it, in the framework's shape and without a copy: what is written
        there is what the next run reads. A NumPy array; on a GPU one with DLPack. None: the plan has no such value, or
        stores it in another order."""
        with self._lock:
            self._require_open()
            value = self._state.by_name.get(name)
            return None if value is None or self.plan.placement[value.id].layout else self._place(value)

    def losses(self) -> dict[str, float]:
        """Every loss of the last step, by the graph's name, for instance a discriminator's and its generator's. SP1614:
        none ran, or the last one was refused. SP1612: the loss is the caller's."""
        with self._lock:
            self._require_open()
            self._program("train_step")
            if self.takes_gradients:
                raise UserError("SP1612", f"plan {self.plan.name} has the caller's loss", "read it where it is made")
            found = self._read_losses() if self._ran == "train_step" else self._losses
            if found is None:
                what = "there are no losses: no step has run, or the last one was refused"
                raise UserError("SP1614", what, "run a step first")
            return dict(found)

    def outputs(self) -> dict[str, Array]:
        """All outputs of the program that ran last, by the graph's names: arrays of their own, in the framework's
        shapes. SP1614: none ran."""
        with self._lock:
            self._require_open()
            if self._ran is None:
                raise UserError("SP1614", "no program has run yet", "run a step first")
            return {v: found.copy(order="C") for v, found in self._results(self._ran)}

    @property
    def takes_gradients(self) -> bool:
        """Whether the loss is the caller's: `forward` and `backward` are there."""
        return bool(self._predicted)

    @property
    def input_names(self) -> tuple[str, ...]:
        """What `step` takes, in order."""
        return (self._train or self._graph.programs[0]).inputs

    @property
    def lr(self) -> float:
        """The learning rate of the next step."""
        return self._progress.lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._progress.lr = checked_rate(value)

    @property
    def steps_done(self) -> int:
        """How many training steps the state has seen."""
        return self._progress.steps

    @property
    def batches_held(self) -> int:
        """How many batches were given to `accumulate` since the last step."""
        return self._progress.held

    # -- state -------------------------------------------------------------------------------------------------
    def state_dict(self) -> dict[str, Array]:
        """Parameters and states by the framework's names (tied ones under each), optimizer state as `NAME.momentum`
        and the like, and `stepplan.step`, `stepplan.seed`, `stepplan.lr`. Arrays of their own, in PyTorch's layout."""
        with self._lock:
            self._require_open()
            return self._state.read_all() | self._progress.entries()

    def torch_state_dict(self) -> dict[str, Any]:
        """What the captured module's `load_state_dict` takes, strictly: tensors of exactly the names that it has, but
        for sparse matrices, which are constants of the plan: `strict=False` with those. Needs PyTorch (SP1012)."""
        from planner.frontends.torch_program import import_torch

        torch = import_torch()
        with self._lock:
            self._require_open()
            everything = self._state.read_all()
            return {name: torch.from_numpy(everything[name]) for name in self._state.module_names()}

    def loss_state_dict(self) -> dict[str, Any]:
        """What the `load_state_dict` of a loss that is a module takes, strictly: its parameters, trained or not, and
        buffers. Empty where it has none. Needs PyTorch (SP1012)."""
        from planner.frontends.torch_program import import_torch

        torch = import_torch()
        with self._lock:
            self._require_open()
            everything = self._state.read_all()
            return {name: torch.from_numpy(everything[n]) for name, n in self._state.loss_names().items()}

    def load_state_dict(self, state: Mapping[str, Any], strict: bool = True) -> IncompatibleKeys:
        """Take over parameters and states: from `state_dict` of this or another executor (training goes on with the
        same bits), or from a PyTorch module (what the optimizer or a loss keeps then stays as it is). Returns the names
        that did not fit, as PyTorch does: none but with `strict=False`.

        SP1611: names are missing or unknown (only with `strict`), or a shape or type differs. SP1610: its seed or
        learning rate is none. Nothing has changed then.
        """
        if not isinstance(state, Mapping) or not all(isinstance(name, str) for name in state):
            told = "its names are no strings" if isinstance(state, Mapping) else f"it is a {type(state).__name__}"
            raise UserError("SP1611", f"the state is no mapping of names to arrays: {told}", "pass a state_dict")
        with self._lock:
            self._require_open()
            progress = self._progress.loaded(state)
            found = self._state.load(state, strict)
            self._progress = progress
            return found

    # -- looking inside ----------------------------------------------------------------------------------------
    def value(self, name: str) -> Array:
        """What the program that ran last computed for a value of the graph: an activation, a gradient, a saved mask.
        An array of its own, in the framework's shape. Values share memory: a plan made with `keep` (`stepplan plan
        --keep NAME`) leaves those that it names intact until the program ends.

        SP1614: the value is not there (any more); the message names what wrote over it.
        """
        with self._lock:
            self._require_open()
            require_intact(self._graph, self.plan, self._ran, name)
            return self._copy(self._graph.value[name])

    def trace(self, path: Path | str | None = None, on: bool = True) -> None:
        """Record the coming runs: when each slice of each node ran. With `path`, every run rewrites that file as a
        Perfetto / Chrome trace of everything recorded, in the form of `stepplan show --trace`, so that plan and run
        open side by side. `trace(on=False)` stops. SP1702: the file cannot be written; after a run, too, which then
        counts all the same."""
        with self._lock:
            self._require_open()
            if on:
                self._trace = Trace(self.plan, self._graph, None if path is None else Path(path))
            self._native.trace(self._handle, on)
            self._recording = on

    def trace_events(self) -> list[list[TraceEvent]]:
        """What was recorded since `trace` was asked for last: per run, one event per slice."""
        return [list(run) for _, run in self._trace.runs] if self._trace else []

    def handoff_ns(self) -> float:
        """How long a signal takes between lanes 0 and 1 now, ns; 0 with one lane."""
        with self._lock:
            self._require_open()
            return float(self._native.handoff_ns(self._handle))

    def crossing(self) -> Crossing:
        """What bytes cost now that lane 0 and the last lane touch in turn; nothing with one lane."""
        with self._lock:
            self._require_open()
            return Crossing(*self._native.crossing(self._handle))

    def crowding(self) -> float:
        """How many times as long arithmetic takes now while all lanes work as while one works alone: 1 where each has a
        core of its own (somewhat more where cores slow down together), 2 where two share one."""
        with self._lock:
            self._require_open()
            return float(self._native.crowding(self._handle))

    def delays(self, seed: int) -> None:
        """For tests: pseudo-random delays between slices, so that every order that the plan allows can happen."""
        self._require_open()
        self._native.delays(self._handle, seed)

    def close(self) -> None:
        """End the threads and give back the memory (arrays from `shared` keep it). Later calls are errors (SP1607):
        take what is still wanted, such as `state_dict`, before."""
        with self._lock:
            if self._handle is not None:
                self._native.close(self._handle)
                self._handle = self._loss = None
                self._outputs.clear()
                self._arena = np.empty(0, np.uint8)

    def __repr__(self) -> str:
        done = f"{self.steps_done} steps done" if self._handle is not None else "closed"
        return f"<Executor of plan {self.plan.name} for {self.plan.target}, {done}>"

    def __reduce__(self) -> NoReturn:
        """SP1619: what would be copied or pickled are threads and one block of memory."""
        what = "an executor cannot be copied, pickled or saved as a whole"
        raise UserError("SP1619", what, "save its state_dict(), and load that into another executor of the same model")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    # -- helpers -----------------------------------------------------------------------------------------------
    def _start(self, call: Call) -> None:
        """As `_run`, but `_finish` says when it is over."""
        self._run(call)

    def _finish(self) -> None:
        """Waits for what was started."""

    def _given(self) -> dict[str, Array]:
        """The weights that lie beside the plan. SP1512: another model's do by now."""
        file = self._folder / "graph.json"
        if not file.exists() or file.read_bytes() != self._graph_file:
            raise UserError(
                "SP1512",
                f"{self._folder.name}: the folder has another model than when this executor's class was made",
                "make the class again: codegen.load.executor_class(folder), or importlib.reload(module)",
            )
        return read_weights(self._folder / "weights.npz")

    def _require_open(self) -> None:
        if self._handle is None:
            raise UserError("SP1607", "the executor is closed", "make a new executor")
        if self._torn:
            what = "this process was forked off while another thread used the executor"
            raise UserError("SP1606", what, "make the executor in the process that runs it")

    @classmethod
    def _layouts(cls) -> dict[str, Stored]:
        """Value -> how the plan stores it, where that is not plainly."""
        return {p.value: stored for p in cls.plan.placements if p.layout and (stored := parse_stored(p.layout))}

    def _set_parts(self) -> None:
        paused = bool(predictions(self._graph))
        graph = expanded(self._graph, self.plan) if paused else self._graph
        self._predicted = tuple(graph.value[v] for v in predictions(graph))
        self._parts: dict[str, list[tuple[int, Part]]] = {}
        """Program -> (number, part) of its runs."""
        count = 0
        for program in self.plan.programs:
            found = parts(self.plan, graph, program)
            self._parts[program.name] = list(enumerate(found, count))
            count += len(found)

    def _program(self, name: str) -> Program:
        if name not in self.plan.program:
            raise UserError("SP1612", f"plan {self.plan.name} has no program {name}", "capture the model with it")
        return self._graph.program[name]

    def _arguments(self, name: str, inputs: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, ...]:
        also = ", or call forward, then backward" if self.takes_gradients and name == "train_step" else ""
        return matched(name, self._program(name).inputs, inputs, named, also)

    @cached_property
    def _accumulates(self) -> bool:
        return any(n.op == GradientSum.name for n in self._program("train_step").nodes)

    def _require_sums(self) -> None:
        if not self._accumulates:
            fix = "capture with accumulate=True, or make with --accumulate"
            raise UserError("SP1612", f"plan {self.plan.name} does not add up gradients", fix)

    def _train_on(self, inputs: tuple[Any, ...], named: dict[str, Any], hold: bool, lr: float | None = None) -> float:
        """Counted before the run: Ctrl-C is raised when the run is over, and what it has trained then stays counted."""
        self._require_open()
        progress, handle = self._progress, self._handle
        runs = self._native.runs(handle)
        before = progress.lr, progress.batches, progress.steps, progress.held, self._state.steps
        if lr is not None:
            self.lr = lr
        try:
            arguments, moment = self._arguments("train_step", inputs, named), progress.moment(hold)
            self._trained(hold)
            return self._run(Call("train_step", arguments, moment=moment))
        except BaseException:
            if self._native.runs(handle) == runs:  # refused, or interrupted before: nothing has changed
                progress.lr, progress.batches, progress.steps, progress.held, self._state.steps = before
            raise

    def _trained(self, hold: bool = False) -> None:
        self._progress.trained(hold)
        self._state.steps += 1

    def _run(self, call: Call) -> float:
        """Runs a program, or some of its parts; the first loss, where it has one."""
        self._require_open()
        self._begin(call.program)
        inputs, moment = self._graph.program[call.program].inputs, call.moment or self._progress.moment()
        events: list[TraceEvent] = []
        for number, part in self._parts[call.program][call.parts]:
            try:
                self._native.run(self._handle, number, call.of(inputs, part.inputs), moment, call.gradients)
            except RuntimeError as error:
                raise InternalError(f"{call.program} of plan {self.plan.name}: {error}") from error
            if self._recording:
                events += events_of_step(part.lanes, self._native.spans(self._handle, number))
        self._ran = call.program
        if self._recording and self._trace is not None:
            self._trace.add(call.program, events)
        return float(self._loss[0]) if self._loss is not None else math.nan

    def _begin(self, program: str) -> None:
        """The arena's values are this program's from now on."""
        if program == "train_step":
            self._losses = None
        elif self._ran == "train_step" and not self.takes_gradients:
            self._losses = self._read_losses()
        self._ran = self._paused = None

    def _read_losses(self) -> dict[str, float]:
        outputs = self._program("train_step").outputs
        return {name: float(self._copy(self._graph.value[name]).reshape(-1)[0]) for name in outputs}

    def _results(self, program: str) -> tuple[tuple[str, Array], ...]:
        """A program's outputs where they lie, in the framework's shapes, by name."""
        if program not in self._outputs:
            values = [self._graph.value[v] for v in self._program(program).outputs]
            self._outputs[program] = tuple((v.id, logical(self._view(v), v)) for v in values)
        return self._outputs[program]

    def _predictions(self, program: str) -> Any:
        """Copies of what a program returned: an array, or a tuple of them."""
        found = tuple(array.copy(order="C") for _, array in self._results(program))
        return found[0] if len(found) == 1 else found

    def _plain(self, gradients: dict[str, Array]) -> dict[str, Array]:
        """Gradients of parameters, by name, as kernels made them: in the framework's layout."""
        state = self._state
        plain = {n: np.asarray(state.plain(state.by_name[n], g), order="C") for n, g in gradients.items()}
        return {n: in_framework(state.by_name[n], g) for n, g in plain.items()}

    def _view(self, value: Value) -> Array:
        """A value's bytes in the arena as an array in its memory order."""
        placement = self.plan.placement[value.id]
        data = self._arena[placement.offset : placement.offset + placement.bytes]
        dtype = np.uint16 if value.type.dtype is DType.BFLOAT16 else np.dtype(value.type.dtype.value)
        return data.view(dtype).reshape(value.type.physical_shape)

    def _place(self, value: Value) -> Any:
        """A value where it lies, in its logical shape."""
        return logical(self._view(value), value)

    def _copy(self, value: Value) -> Array:
        """A value's contents in its logical shape."""
        return self._state.read(value)
