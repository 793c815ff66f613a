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
layer's tensor of the largest root mean square instead. A layer is what shares the name up to the last dot.

Dropout multiplies by the executor's masks, computed by the op's NumPy reference. Needs torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import torch

from codegen.bench import random_inputs
from codegen.branches import KINKS, Decisions, Forced, Watched, decisive_values, kinked, read_decisions
from codegen.executor import Executor
from codegen.torch_twin import Call, Twin, optimizer_for
from planner.graph.model import Graph, Layout, Node, Role
from planner.ops.dropout import DropoutAttrs, dropout_mask

__all__ = ["FLOOR", "Flips", "Row", "Verdict", "compare", "decisive_values", "truth", "worst_per_kind"]

FLOOR = 1e-5
"""Relative error that is always allowed."""
VANISHING = 1e-10
"""Below this share of its layer, per element, a float64 tensor is rounding noise around zero."""

Kind = Literal["loss", "gradient", "parameter", "statistic", "optimizer"]
Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]
Result = dict[Kind, dict[str, Array]]
"""What one contender computed."""

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
    count: int
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
        return [x for x in (*self.rows, *self.flips) if not x.ok]


def truth(
    graph: Graph,
    executor: Executor,
    steps: int = 3,
    seed: int | None = None,
    *,
    control: bool = False,
    free: bool = False,
) -> dict[str, Verdict]:
    """Run `steps` training steps on fresh random inputs. Compared are loss and gradients of every step, and
    parameters, running statistics and optimizer state after the last.

    `executor`: a fresh one, whose optimizer has no state yet, of a plan that keeps `decisive_values(graph)`. `seed` of
    the inputs; None: another one every time. PyTorch's float32 has its default memory format. Verdicts: "executor",
    and with `control` "channels_last", PyTorch in that format, which differs in the order of additions only.
    """
    drawn = np.random.default_rng(seed).integers(0, 2**32, steps)
    start = executor.state_dict()
    contenders: dict[str, _Contender] = {"executor": _ExecutorRun(graph, executor)}
    if control:
        contenders["channels_last"] = _TorchRun(graph, start, Watched(), channels_last=True)
    rough_watched = Watched()
    rough, rough_truth = _TorchRun(graph, start, rough_watched), _TorchRun(graph, start, Forced(), torch.float64)
    truths = {name: _TorchRun(graph, start, Forced(), torch.float64) for name in contenders}
    exact = _TorchRun(graph, start, None, torch.float64) if free else None
    flips: dict[str, list[Flips]] = {name: [] for name in contenders}
    for number, batch_seed in enumerate(drawn, 1):
        batch = random_inputs(graph, int(batch_seed))
        decided = {name: contender.step(batch) for name, contender in contenders.items()}
        own = rough_truth.forced
        own.decisions, own.operands = rough.step(batch), rough_watched.operands
        rough_truth.step(batch)
        for name, follower in truths.items():
            follower.forced.decisions = decided[name]
            follower.step(batch)
            flips[name] += [_flips(node, number, follower.forced, own) for node in kinked(graph)]
        if exact:
            exact.step(batch)
    verdicts = {}
    for name, contender in contenders.items():
        found, plain = contender.result(), rough.result()
        rows = compare(found, truths[name].result(), plain, rough_truth.result())
        both = compare(found, exact.result(), plain, exact.result()) if exact else []
        verdicts[name] = Verdict(rows, both, flips[name])
    return verdicts


def compare(tried: Result, truth_of_tried: Result, plain: Result, truth_of_plain: Result) -> list[Row]:
    """Rows of every tensor of the truth; a tensor that a contender lacks is infinitely wrong."""
    rows = []
    for kind, truths in truth_of_tried.items():
        others = truth_of_plain[kind]
        scales, other_scales = _scales(truths), _scales(others)
        for name, true in truths.items():
            error = _error(tried[kind].get(name), true, scales[name])
            rows.append(Row(kind, name, error, _error(plain[kind].get(name), others[name], other_scales[name])))
    return rows


def worst_per_kind(rows: Iterable[Row]) -> list[Row]:
    """Of every kind the row that is nearest to, or farthest beyond, what is allowed."""
    worst: dict[str, Row] = {}
    for row in rows:
        if row.kind not in worst or not row.ratio <= worst[row.kind].ratio:
            worst[row.kind] = row
    return list(worst.values())


def _flips(node: Node, step: int, forced: Forced, torch_forced: Forced) -> Flips:
    count, worst = forced.wrong[node.id]
    torch_count, torch_worst = torch_forced.wrong[node.id]
    error, root_mean_square = torch_forced.errors[node.id]
    allowed = KINKS[node.op].compared * max(2 * error, FLOOR * root_mean_square)
    decisions = forced.decisions[node.id].numel()
    return Flips(node.id, step, decisions, count, torch_count, worst, torch_worst, allowed)


def _error(got: Array | None, true: Array, scale: float) -> float:
    if got is None or got.shape != true.shape:
        return float("inf")
    return float(np.linalg.norm((got.astype(np.float64) - true).ravel())) / scale


def _scales(truths: Tensors) -> dict[str, float]:
    """Name -> what errors are relative to: the norm, or that of the layer where the tensor vanishes."""
    roots = {name: float(np.sqrt(np.mean(np.square(true)))) for name, true in truths.items()}
    layers: dict[str, float] = {}
    for name, root in roots.items():
        layer = name.rpartition(".")[0]
        layers[layer] = max(layers.get(layer, 0.0), root)
    found = {}
    for name, root in roots.items():
        layer = layers[name.rpartition(".")[0]]
        per_element = layer if root < VANISHING * layer else root
        found[name] = per_element * truths[name].size ** 0.5 or 1.0
    return found


class _Contender(Protocol):
    """Something in float32 that takes training steps."""

    def step(self, batch: Sequence[Array]) -> Decisions: ...

    def result(self) -> Result: ...


class _ExecutorRun:
    def __init__(self, graph: Graph, executor: Executor) -> None:
        self._graph, self._executor = graph, executor
        self._losses: list[float] = []
        self._gradients: list[Tensors] = []

    def step(self, batch: Sequence[Array]) -> Decisions:
        """`gradients` and `step` compute the same bits; the first leaves parameters as the decisions saw them."""
        _, gradients = self._executor.gradients(*batch)
        given = dict(zip(self._executor.input_names, batch, strict=True))
        value = self._executor.value
        decisions = read_decisions(self._graph, lambda name: given[name] if name in given else value(name))
        self._gradients.append(gradients)
        self._losses.append(self._executor.step(*batch))
        return decisions

    def result(self) -> Result:
        return _result(self._graph, self._losses, self._gradients, self._executor.state_dict())


class _TorchRun:
    """The twin and its optimizer. `branches`: what watches its decisions or forces them upon it."""

    def __init__(
        self,
        graph: Graph,
        start: Tensors,
        branches: Watched | Forced | None,
        dtype: torch.dtype = torch.float32,
        channels_last: bool = False,
    ) -> None:
        self._graph, self._branches, self._dtype, self._channels_last = graph, branches, dtype, channels_last
        self._seed, self._number = int(start["stepplan.seed"]), int(start["stepplan.step"])
        calls: dict[str, Call] = {"dropout": self._drop, **(branches.calls() if branches else {})}
        self._twin = Twin(graph, calls).to(dtype).load(dict(start))
        if channels_last:
            self._twin = self._twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self._optimizer = optimizer_for(graph, self._twin)
        for group in self._optimizer.param_groups:
            group["lr"] = float(start["stepplan.lr"])
        self._losses: list[float] = []
        self._gradients: list[Tensors] = []

    @property
    def forced(self) -> Forced:
        assert isinstance(self._branches, Forced)
        return self._branches

    def step(self, batch: Sequence[Array]) -> Decisions:
        self._number += 1
        self._optimizer.zero_grad()
        loss, _ = self._twin(*(_tensor(array, self._dtype, self._channels_last) for array in batch))
        loss.backward()
        self._losses.append(float(loss.detach()))
        self._gradients.append({name: g.numpy(force=True).copy() for name, g in self._twin.gradients().items()})
        self._optimizer.step()
        return dict(self._branches.decisions) if self._branches else {}

    def result(self) -> Result:
        return _result(self._graph, self._losses, self._gradients, _state(self._twin, self._optimizer))

    def _drop(self, node: Node, inputs: list[torch.Tensor], updates: list[torch.Tensor]) -> torch.Tensor:
        return inputs[0] * _mask(node, inputs[0], self._seed, self._number)


def _mask(node: Node, x: torch.Tensor, seed: int, step: int) -> torch.Tensor:
    """What the executor multiplies a dropout's input by in that step (1, 2, ...): 0 or 1 / (1 - p), in the shape and
    type of x. `attrs.layout` says in which memory order the executor counts elements."""
    attrs = node.attrs
    assert isinstance(attrs, DropoutAttrs)
    drawn = dropout_mask(seed, attrs.stream, step, attrs.p, x.numel())
    if attrs.layout is Layout.CHANNELS_LAST:
        n, c, h, w = x.shape
        drawn = drawn.reshape(n, h, w, c).transpose(0, 3, 1, 2)
    scale = 1 / (1 - attrs.p) if attrs.p < 1 else 0.0
    return torch.from_numpy(drawn.copy()).reshape(x.shape).to(x.dtype) * scale


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


def _result(graph: Graph, losses: Sequence[float], gradients: Sequence[Tensors], state: Tensors) -> Result:
    result: Result = {"loss": {f"step {i}": np.array([loss]) for i, loss in enumerate(losses, 1)}}
    result["gradient"] = {f"step {i}: {name}": g for i, each in enumerate(gradients, 1) for name, g in each.items()}
    slots = {v for n in graph.program["train_step"].nodes if n.phase == "update" for v in n.updates[1:]}
    for value in graph.values:
        kind: Kind = "parameter" if value.role is Role.PARAMETER else "optimizer" if value.id in slots else "statistic"
        if value.name in state:
            result.setdefault(kind, {})[value.name] = np.asarray(state[value.name])
    return result
