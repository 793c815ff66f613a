"""Executors in bfloat16 against PyTorch's own mixed precision: how far each is from the same steps in float64.

Both round activations to 8 bits, so they take other decisions in relu and max pooling than float64 does; there is no
branch to follow as in truth.py. What is compared is how far the whole step is off: the relative error, in Euclidean
norms, of every tensor, and per kind the median over tensors. Needs torch.
"""

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch

from codegen.executor import Executor
from codegen.steps import random_inputs
from codegen.torch_random import Drawn
from codegen.torch_twin import Twin, optimizer_for
from planner.graph.model import Graph

Array = np.ndarray[Any, Any]
Tensors = Mapping[str, Array]


KINDS = ("loss", "gradient", "parameter")


class Distance(NamedTuple):
    """Of one kind of tensors from float64: medians of relative errors."""

    kind: str
    executor: float
    autocast: float
    tensors: int

    @property
    def ok(self) -> bool:
        """No further off; NaN is."""
        return self.executor <= self.autocast


def distances(graph: Graph, executor: Executor, steps: int = 3, device: str = "cuda", seed: int = 0) -> list[Distance]:
    """Losses, the first step's gradients and the parameters after some steps. `graph`: in float32, of which the
    executor runs the bfloat16 one. `seed`: of the first batch. All draw the executor's random numbers."""
    state = {k: np.asarray(v) for k, v in executor.state_dict().items()}
    batches = [random_inputs(graph, seed) for seed in range(seed, seed + steps)]
    lr = executor.lr
    true = _torch_course(graph, state, batches, lr, device, torch.float64)
    theirs = _torch_course(graph, state, batches, lr, device, torch.float32)
    gradients = {k: np.array(v) for k, v in executor.gradients(*batches[0])[1].items()}
    losses = [float(executor.step(*batch)) for batch in batches]
    after = {k: np.asarray(v) for k, v in executor.state_dict().items()}
    ours = ({str(i): np.asarray(loss) for i, loss in enumerate(losses)}, gradients, after)
    found = []
    for kind, mine, other, exact in zip(KINDS, ours, theirs, true, strict=True):
        pairs = [(_off(mine[k], exact[k]), _off(other[k], exact[k])) for k in exact if np.linalg.norm(exact[k]) > 0]
        found.append(Distance(kind, median(p[0] for p in pairs), median(p[1] for p in pairs), len(pairs)))
    return found


def _torch_course(
    graph: Graph, state: Tensors, batches: Sequence[Sequence[Array]], lr: float, device: str, dtype: torch.dtype
) -> tuple[Tensors, Tensors, Tensors]:
    """Losses, first gradients, last parameters; float32: under autocast."""
    drawn = Drawn(int(state["stepplan.seed"]), int(state["stepplan.step"]))
    twin = Twin(graph, drawn.calls()).to(dtype).load(dict(state)).to(device)
    optimizer = optimizer_for(graph, twin)
    for group in optimizer.param_groups:
        group["lr"] = lr
    losses: dict[str, Array] = {}
    gradients: dict[str, Array] = {}
    for number, batch in enumerate(batches):
        drawn.step += 1
        tensors = [torch.from_numpy(array).to(device) for array in batch]
        given = [t.to(dtype) if t.is_floating_point() else t for t in tensors]
        with torch.autocast(torch.device(device).type, dtype=torch.bfloat16, enabled=dtype is torch.float32):
            loss = twin(*given)[0]
        loss.backward()
        losses[str(number)] = loss.detach().double().cpu().numpy()
        if not number:
            gradients = {k: g.detach().double().cpu().numpy() for k, g in twin.gradients().items()}
        optimizer.step()
        optimizer.zero_grad()
    parameters = {twin.value[s].name: p.detach().double().cpu().numpy() for s, p in twin.named_parameters()}
    return losses, gradients, parameters


def _off(got: Array, exact: Array) -> float:
    return float(np.linalg.norm(np.asarray(got, np.float64) - exact) / np.linalg.norm(exact))
