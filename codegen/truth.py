"""Executors against PyTorch in float64: after some steps on the same inputs from the same state, is every tensor as
near to the truth as PyTorch's own float32?

The error of a tensor is norm(tensor - truth) / norm(truth), Euclidean norms over all elements, the truth being the
network's PyTorch twin in float64. Allowed is twice the error of the same twin in float32, or FLOOR where that is more.

Some tensors vanish in truth: the gradient of a bias in front of a batch norm is exactly zero. Where float64 shows
nothing but rounding (norm below VANISHING times that of its layer, per element), the error is taken relative to the
layer's tensor of the largest root mean square instead. A layer is what shares the name up to the last dot.

Where an activation lies within rounding of a kink (kinks.py), float32 programs differ by chance. A row also says how
far the truth moves when all of these take the other side; `explained` allows KINKS times that. It is an estimate: the
contributions of kinks to a single number, like the loss, can cancel.

Dropout multiplies by the executor's masks, computed by the op's NumPy reference. Needs torch.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
import torch

from codegen.bench import random_inputs
from codegen.executor import Executor
from codegen.kinks import Kinks
from codegen.torch_twin import Call, Twin, optimizer_for
from planner.graph.model import Graph, Layout, Node, Role
from planner.ops.dropout import DropoutAttrs, dropout_mask

FLOOR = 1e-5
"""Relative error that is always allowed."""
KINKS = 4
"""PyTorch's two memory formats differ by up to 3.6 times what all kinks do (ResNet 1-1-1-1, batch 2, 8 draws)."""
VANISHING = 1e-10
"""Below this share of its layer, per element, a float64 tensor is rounding noise around zero."""

Kind = Literal["loss", "gradient", "parameter", "statistic", "optimizer"]
Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]

SLOTS = {"momentum_buffer": "momentum", "exp_avg": "exp_avg", "exp_avg_sq": "exp_avg_sq"}
"""PyTorch's name of an optimizer's tensor -> what the executor appends to the parameter's name."""


class Row(NamedTuple):
    """One tensor: relative errors of the executor, of PyTorch in float32, and of float64 with every kink resolved the
    other way."""

    kind: Kind
    name: str
    error: float
    torch_error: float
    kink_error: float = 0.0

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

    @property
    def explained(self) -> bool:
        """Right, or not farther off than kinks can take it."""
        return self.error <= max(self.allowed, KINKS * self.kink_error)


Result = dict[Kind, dict[str, Array]]
"""What one contender computed."""


def truth(
    graph: Graph, executor: Executor, steps: int = 3, seed: int | None = None, *, control: bool = False
) -> list[Row]:
    """Run `steps` training steps on fresh random inputs; compare the loss of every step, the gradients of the first,
    and parameters, running statistics and optimizer state after the last.

    `executor`: a fresh one, whose optimizer has no state yet. `seed` of the inputs; None: another one every time.
    PyTorch's float32 has its default memory format. `control`: compare PyTorch in channels-last format instead of the
    executor, which differs in the order of additions only: how often does a right program miss what is allowed?
    """
    drawn = np.random.default_rng(seed).integers(0, 2**32, steps)
    batches = [random_inputs(graph, int(number)) for number in drawn]
    start = executor.state_dict()
    if control:
        tried = _run_torch(graph, start, batches, torch.float32, channels_last=True)
    else:
        tried = _run_executor(graph, executor, batches)
    kinks = Kinks()
    plain = _run_torch(graph, start, batches, torch.float32, calls=kinks.watching())
    bent = _run_torch(graph, start, batches, torch.float64, calls=kinks.beyond())
    exact = _run_torch(graph, start, batches, torch.float64)
    return compare(tried, plain, exact, bent)


def compare(tried: Result, plain: Result, exact: Result, bent: Result | None = None) -> list[Row]:
    """Rows of every tensor of the truth; a tensor that a contender lacks is infinitely wrong. `bent`: the truth with
    kinks resolved the other way; None: there are none."""
    rows = []
    for kind, truths in exact.items():
        scales = _scales(truths)
        for name, true in truths.items():
            errors = [_error(r[kind].get(name), true, scales[name]) for r in (tried, plain, bent or exact)]
            rows.append(Row(kind, name, *errors))
    return rows


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


def _run_executor(graph: Graph, executor: Executor, batches: Sequence[Sequence[Array]]) -> Result:
    _, gradients = executor.gradients(*batches[0])
    losses = [executor.step(*batch) for batch in batches]
    return _result(graph, losses, gradients, executor.state_dict())


def _run_torch(
    graph: Graph,
    start: Tensors,
    batches: Sequence[Sequence[Array]],
    dtype: torch.dtype,
    channels_last: bool = False,
    calls: Mapping[str, Call] | None = None,
) -> Result:
    step, seed = int(start["stepplan.step"]), int(start["stepplan.seed"])

    def dropped(node: Node, inputs: list[torch.Tensor], updates: list[torch.Tensor]) -> torch.Tensor:
        return inputs[0] * _mask(node, inputs[0], seed, step)

    twin = Twin(graph, {"dropout": dropped, **(calls or {})}).to(dtype).load(dict(start))
    if channels_last:
        twin = twin.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = optimizer_for(graph, twin)
    for group in optimizer.param_groups:
        group["lr"] = float(start["stepplan.lr"])
    losses: list[float] = []
    gradients: dict[str, Array] = {}
    for batch in batches:
        step += 1
        optimizer.zero_grad()
        loss, _ = twin(*(_tensor(array, dtype, channels_last) for array in batch))
        loss.backward()
        losses.append(float(loss.detach()))
        gradients = gradients or {name: g.numpy(force=True).copy() for name, g in twin.gradients().items()}
        optimizer.step()
    return _result(graph, losses, gradients, _state(twin, optimizer))


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


def _result(graph: Graph, losses: Sequence[float], gradients: Tensors, state: Tensors) -> Result:
    result: Result = {"loss": {f"step {i}": np.array([loss]) for i, loss in enumerate(losses, 1)}}
    result["gradient"] = dict(gradients)
    slots = {v for n in graph.program["train_step"].nodes if n.phase == "update" for v in n.updates[1:]}
    for value in graph.values:
        kind: Kind = "parameter" if value.role is Role.PARAMETER else "optimizer" if value.id in slots else "statistic"
        if value.name in state:
            result.setdefault(kind, {})[value.name] = np.asarray(state[value.name])
    return result
