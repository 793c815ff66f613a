"""Executors against PyTorch in float64: after some steps on the same inputs from the same state, is every tensor as
near to the truth as PyTorch's own float32?

The error of a tensor is norm(tensor - truth) / norm(truth), Euclidean norms over all elements, the truth being the
network's PyTorch twin in float64. Allowed is twice the error of the same twin in float32, or FLOOR where that is more.

Relu and max pooling decide: two right float32 programs, which round differently, differ in some decisions, and then
in their gradients by far more than rounding. So every float32 run is compared with a float64 run that takes the same
decisions in every step (branches.py): the executor with one truth, PyTorch's float32 with another. And every decision
that float64 would not have taken at that point must lie within rounding, by the same bar: the distance from the kink
is at most twice what PyTorch's own float32 error in that tensor, in the same step, can account for, or FLOOR times the
tensor's root mean square.

Some tensors vanish in truth: the gradient of a bias in front of a batch norm is exactly zero. Where float64 shows
nothing but rounding (norm below VANISHING times that of its layer, per element), the error is taken relative to the
layer's tensor of the largest root mean square instead. A layer is what shares the name up to the last dot, or up to
PyTorch's parametrizations (of optimizer state, one slot of what shares the parameter's name so far).

Dropout multiplies by the executor's masks, and random numbers are the executor's, computed by the ops' NumPy
references. Needs torch.

Memory: one contender at a time beside its float64, compared step by step, tensors dropped as soon as they are
compared. At most, with P parameters of 4 bytes: the executor, the start (P), the contender and its float64 with
gradients and optimizer state (9 P with momentum), and float64's activations of one step.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from codegen.branches import Decisions, Forced, Watched, kinked, read_decisions
from codegen.cpu.tables import first_lr
from codegen.executor import Executor
from codegen.kinks import KINKS
from codegen.state import in_pairs
from codegen.steps import random_inputs
from codegen.torch_random import Drawn
from codegen.torch_twin import Call, Twin, optimizer_for
from planner.graph.model import Graph, Role

FLOOR = 1e-5
"""Relative error that is always allowed."""
VANISHING = 1e-10
"""Below this share of its layer, per element, a float64 tensor is rounding noise around zero."""
CHUNK = 2**20
"""Elements that are compared at once: a whole layer's copies in float64 would take as long to make as to compare."""

Kind = Literal["loss", "gradient", "parameter", "statistic", "optimizer"]
Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]
Alone = Callable[[], AbstractContextManager[None]]
Errors = dict[tuple[Kind, str], float]
"""Relative error of every tensor."""

SLOTS = {"momentum_buffer": "momentum", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
"""PyTorch's name of an optimizer's tensor -> what the executor appends to the parameter's name."""


class Row(NamedTuple):
    """One tensor: relative errors of the contender and of PyTorch in float32."""

    kind: Kind
    name: str
    error: float
    torch_error: float

    @property
    def allowed(self) -> float:
        return max(2 * self.torch_error, FLOOR)

    @property
    def ratio(self) -> float:
        """Share of what is allowed; more than 1 is wrong, and so is NaN."""
        return self.error / self.allowed

    @property
    def ok(self) -> bool:
        return self.error <= self.allowed


class Flips(NamedTuple):
    """Decisions of one node in one step that float64 would not have taken at that point."""

    node: str
    step: int
    decisions: int
    count: int  # type: ignore[assignment]  # of tuples
    torch_count: int
    worst: float
    """The largest distance from the kink."""
    torch_worst: float
    allowed: float

    @property
    def ok(self) -> bool:
        return self.worst <= self.allowed


class Verdict(NamedTuple):
    """One contender beside PyTorch's float32."""

    rows: list[Row]
    """Each against float64 on its own branch: what the bar is about."""
    free: list[Row]
    """Both against float64 that decides for itself; empty unless asked for."""
    flips: list[Flips]

    @property
    def wrong(self) -> list[Row | Flips]:
        return [*(r for r in self.rows if not r.ok), *(f for f in self.flips if not f.ok)]


class Course(NamedTuple):
    """What is left of one contender's steps: numbers, no tensors, so that large networks fit into memory."""

    errors: Errors
    """Against float64 on the contender's branch."""
    free: Errors
    """Against float64 that decides for itself; empty unless asked for."""
    wrong: dict[tuple[str, int], tuple[int, int, float]]
    """(node, step) -> decisions, how many of them float64 would not have taken, the largest distance from the kink."""
    allowed: dict[tuple[str, int], float]
    """(node, step) -> the distance that a decision may have, where the contender is PyTorch."""


def truth(
    graph: Graph,
    executor: Executor,
    steps: int = 3,
    seed: int | None = None,
    *,
    control: bool = False,
    free: bool = False,
    device: str = "cpu",
    alone: Alone = nullcontext,
) -> dict[str, Verdict]:
    """Run `steps` training steps on fresh random inputs. Compared are loss and gradients of every step, and
    parameters, running statistics and optimizer state after the last.

    `executor`: a fresh one, whose optimizer has no state yet, of a plan that keeps `decisive_values(graph)`. `seed` of
    the inputs; None: another one every time. PyTorch's float32 has its default memory format. Verdicts: "executor",
    and with `control` "channels_last", PyTorch in that format, which differs in the order of additions only.
    `device`: where PyTorch computes; on a GPU the caller keeps it from TF32. `alone`: entered for as long as anything
    computes there, not while results are compared.
    """
    drawn = [int(number) for number in np.random.default_rng(seed).integers(0, 2**32, steps)]
    start = _without_slots(graph, executor.state_dict())
    more = (drawn, free, device, alone)
    plain = follow(graph, start, _TorchRun(graph, start, Watched(), device=device), *more)
    verdicts = {"executor": _verdict(follow(graph, start, _ExecutorRun(graph, executor), *more), plain)}
    if control:
        other = _TorchRun(graph, start, Watched(), channels_last=True, device=device)
        verdicts["channels_last"] = _verdict(follow(graph, start, other, *more), plain)
    return verdicts


def follow(
    graph: Graph,
    start: Tensors,
    contender: "_ExecutorRun | _TorchRun",
    seeds: Sequence[int],
    free: bool,
    device: str = "cpu",
    alone: Alone = nullcontext,
) -> Course:
    """Take steps with a contender and with float64 beside it."""
    course = Course({}, {}, {}, {})
    forced = Forced()
    truths = [(_TorchRun(graph, start, forced, torch.float64, device=device), course.errors)]
    if free:
        truths.append((_TorchRun(graph, start, None, torch.float64, device=device), course.free))
    for step, seed in enumerate(seeds, 1):
        batch = random_inputs(graph, seed)
        _backward(contender, truths, forced, batch, step, alone)
        for node in kinked(graph):
            course.wrong[node.id, step] = (forced.decisions[node.id].numel(), *forced.wrong[node.id])
            if node.id in forced.errors:
                error, root_mean_square = forced.errors[node.id]
                course.allowed[node.id, step] = KINKS[node.op].compared * max(2 * error, FLOOR * root_mean_square)
        with alone():
            for run in (contender, *(exact for exact, _ in truths)):
                run.update(batch)
    found = dict(_kinds(graph, contender.state()))
    for exact, errors in truths:
        for kind, true in _kinds(graph, exact.state()):
            errors |= {(kind, name): error for name, error in compare(found.get(kind, {}), true).items()}
    return course


def _backward(
    contender: "_ExecutorRun | _TorchRun",
    truths: Sequence[tuple["_TorchRun", Errors]],
    forced: Forced,
    batch: Sequence[Array],
    step: int,
    alone: Alone,
) -> None:
    """Loss and gradients of one step, which are gone when the next one runs."""
    with alone():
        loss, gradients, forced.decisions = contender.backward(batch)
    forced.operands = contender.operands
    for exact, errors in truths:
        with alone():
            true_loss, true_gradients, _ = exact.backward(batch)
        errors["loss", f"step {step}"] = compare({"": np.array([loss])}, {"": np.array([true_loss])})[""]
        for name, error in compare(gradients, true_gradients).items():
            errors["gradient", f"step {step}: {name}"] = error


def compare(tried: Tensors, true: Tensors) -> dict[str, float]:
    """Relative error of every tensor of the truth; infinite for one that is missing or of another shape."""
    scales = _scales(true)
    return {name: _error(tried.get(name), tensor, scales[name]) for name, tensor in true.items()}


def _verdict(tried: Course, plain: Course) -> Verdict:
    def rows(errors: Errors, torch_errors: Errors) -> list[Row]:
        return [Row(kind, name, error, torch_errors[kind, name]) for (kind, name), error in errors.items()]

    flips = []
    for (node, step), (decisions, count, worst) in tried.wrong.items():
        _, torch_count, torch_worst = plain.wrong[node, step]
        allowed = plain.allowed[node, step]
        flips.append(Flips(node, step, decisions, count, torch_count, worst, torch_worst, allowed))
    return Verdict(rows(tried.errors, plain.errors), rows(tried.free, plain.free), flips)


def worst_per_kind(rows: Iterable[Row]) -> list[Row]:
    """Of every kind the row that is nearest to, or farthest beyond, what is allowed."""
    worst: dict[str, Row] = {}
    for row in rows:
        if row.kind not in worst or not row.ratio <= worst[row.kind].ratio:
            worst[row.kind] = row
    return list(worst.values())


def _error(got: Array | None, true: Array, scale: float) -> float:
    if got is None or got.shape != true.shape:
        return float("inf")
    return _norm(true, got) / scale


def _norm(true: Array, got: Array | None = None) -> float:
    """Of the tensor, or of what another one differs from it by."""
    flat, other = true.reshape(-1), None if got is None else got.reshape(-1)
    total = 0.0
    for start in range(0, flat.size, CHUNK):
        part = flat[start : start + CHUNK].astype(np.float64)
        if other is not None:
            part -= other[start : start + CHUNK]
        total += float(part @ part)
    return float(np.sqrt(total))


def _scales(truths: Tensors) -> dict[str, float]:
    """Name -> what errors are relative to: the norm, or that of the layer where the tensor vanishes."""
    roots = {name: _norm(true) / true.size**0.5 for name, true in truths.items()}
    layers: dict[str, float] = {}
    for name, root in roots.items():
        layers[_layer(name)] = max(layers.get(_layer(name), 0.0), root)
    found = {}
    for name, root in roots.items():
        layer = layers[_layer(name)]
        per_element = layer if root < VANISHING * layer else root
        found[name] = per_element * truths[name].size ** 0.5 or 1.0
    return found


def _layer(name: str) -> str:
    """What the tensors of a layer have in common; of its optimizer state, those of one slot. Parametrizations are
    parts of their layer."""
    owner, _, last = name.rpartition(".")
    slot = f"/{last}" if last in SLOTS.values() else ""
    return (owner.rpartition(".")[0] if slot else owner).partition(".parametrizations.")[0] + slot


class _ExecutorRun:
    """Its steps in two halves, as PyTorch has them."""

    operands = None
    """Of its kinks: not known."""

    def __init__(self, graph: Graph, executor: Executor) -> None:
        self._graph, self._executor = graph, executor

    def backward(self, batch: Sequence[Array]) -> tuple[float, Tensors, Decisions]:
        """Runs a step that changes nothing; `update` then computes the same bits once more."""
        loss, gradients = self._executor.gradients(*batch)
        given = dict(zip(self._executor.input_names, batch, strict=True))
        value = self._executor.value
        decisions = read_decisions(self._graph, lambda name: given[name] if name in given else value(name))
        return loss, _all_in_pairs(gradients), decisions

    def update(self, batch: Sequence[Array]) -> None:
        self._executor.step(*batch)

    def state(self) -> Tensors:
        return _all_in_pairs(self._executor.state_dict())


def _all_in_pairs(tensors: Tensors) -> Tensors:
    """Complex tensors as twins have them."""
    return {name: in_pairs(array) for name, array in tensors.items()}


class _TorchRun:
    """The twin and its optimizer. `branches`: what watches its decisions or forces them upon it."""

    def __init__(
        self,
        graph: Graph,
        start: Tensors,
        branches: Watched | Forced | None,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
        device: str = "cpu",
    ) -> None:
        self._graph, self._branches, self._dtype, self._channels_last = graph, branches, dtype, channels_last
        self._device = device
        self._drawn = Drawn(int(start["stepplan.seed"]), int(start["stepplan.step"]))
        calls: dict[str, Call] = {**self._drawn.calls(), **(branches.calls() if branches else {})}
        self._twin = Twin(graph, calls).to(dtype).load(dict(start)).to(device)
        if channels_last:
            self._twin = self._twin.of_images(torch.channels_last)
        self._optimizer = optimizer_for(graph, self._twin)
        first = first_lr(graph)
        for group in self._optimizer.param_groups:
            group["lr"] *= float(start["stepplan.lr"]) / first if first else 1.0

    @property
    def operands(self) -> dict[str, tuple[torch.Tensor, ...]] | None:
        """Of its kinks, in the last step."""
        return self._branches.operands if self._branches else None

    def backward(self, batch: Sequence[Array]) -> tuple[float, Tensors, Decisions]:
        self._drawn.step += 1
        given = (_tensor(array, self._dtype, self._channels_last) for array in batch)
        loss, _ = self._twin(*(tensor.to(self._device) for tensor in given))
        loss.backward()
        gradients = {name: g.numpy(force=True) for name, g in self._twin.gradients().items()}
        return float(loss.detach()), gradients, dict(self._branches.decisions) if self._branches else {}

    def update(self, batch: Sequence[Array]) -> None:
        self._optimizer.step()
        self._optimizer.zero_grad()

    def state(self) -> Tensors:
        return _state(self._twin, self._optimizer)


def _tensor(array: Array, dtype: torch.dtype, channels_last: bool) -> torch.Tensor:
    tensor = torch.from_numpy(array)
    tensor = tensor.to(dtype) if tensor.is_floating_point() else tensor
    wanted = torch.channels_last if channels_last and tensor.ndim == 4 else torch.contiguous_format
    return tensor.contiguous(memory_format=wanted)


def _state(twin: Twin, optimizer: torch.optim.Optimizer) -> dict[str, Array]:
    """Parameters, statistics and optimizer state under the executor's names."""
    found = {name: tensor.numpy(force=True) for name, tensor in twin.named_values()}
    for name, parameter in twin.named_values():
        for what, tensor in optimizer.state.get(parameter, {}).items():
            if what in SLOTS and tensor is not None:
                found[f"{name}.{SLOTS[what]}"] = tensor.numpy(force=True)
    return found


def _slots(graph: Graph) -> set[str]:
    """Ids of what the optimizer keeps."""
    return {v for n in graph.program["train_step"].nodes if n.phase == "update" for v in n.updates[1:]}


def _without_slots(graph: Graph, state: Tensors) -> Tensors:
    """What a twin starts from: the optimizer's tensors of a fresh executor say nothing."""
    left_out = {graph.value[v].name or v for v in _slots(graph)}
    return {name: array for name, array in state.items() if name not in left_out}


def _kinds(graph: Graph, state: Tensors) -> Iterator[tuple[Kind, dict[str, Array]]]:
    """Parameters, running statistics and optimizer state of a state_dict; constants cannot change."""
    slots = _slots(graph)
    found: dict[Kind, dict[str, Array]] = {}
    for value in graph.values:
        kind: Kind = "parameter" if value.role is Role.PARAMETER else "optimizer" if value.id in slots else "statistic"
        if value.name in state and not value.constant:
            found.setdefault(kind, {})[value.name] = np.asarray(state[value.name])
    yield from found.items()
