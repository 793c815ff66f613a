"""PyTorch's training step of a graph, in each of the ways that its users would try: eager and compiled, images in
either memory order. Needs torch."""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import torch

from codegen.steps import Step
from codegen.torch_twin import Twin, optimizer_for
from planner.graph.model import Graph
from planner.graph.precision import full_precision, is_mixed

Tensor: TypeAlias = torch.Tensor

ORDERS = {"NCHW": torch.contiguous_format, "NHWC": torch.channels_last}
"""Images' memory orders, by the names that end the ways'."""


def prepare(graph: Graph, inputs: Sequence[np.ndarray], state: dict[str, Any], threads: int, way: str) -> Step:
    """A step of the graph's twin that starts from an executor's `state_dict`; it returns its loss. Of a graph in
    bfloat16 the float32 one under autocast. `way`: of contender.WAYS. SP1513: an op that the twin does not know."""
    torch.set_num_threads(threads)
    # One code object runs all parts of a step: at the default of 8 shapes the rest would run eagerly.
    torch._dynamo.config.recompile_limit = 256
    how, order = way.split()
    low = is_mixed(graph)
    graph = full_precision(graph) if low else graph
    module = Twin(graph).load(state).of_images(ORDERS[order])
    tensors = [tensor_of(each, ORDERS[order]) for each in inputs]

    def forward_of(part: Any) -> Callable[..., Any]:
        call = torch.compile(part, dynamic=False) if how == "compile" else part  # shapes are what the plan has fixed

        def run(*given: Any) -> Any:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=low):
                return call(*given)

        return run

    if len(module.parts) > 1:
        several = module.alternating(forward_of)
        return lambda: float(several(*tensors))
    return partial(train, forward_of(module), optimizer_for(graph, module), tensors)


def train(forward: Callable[..., Any], optimizer: torch.optim.Optimizer, tensors: Sequence[Tensor]) -> float:
    """One training step of a PyTorch module, as its users write it; its loss."""
    optimizer.zero_grad(set_to_none=True)
    loss, _ = forward(*tensors)
    loss.backward()
    optimizer.step()
    return float(loss.detach())


def tensor_of(array: np.ndarray, order: torch.memory_format) -> Tensor:
    """Of the array's memory where it is contiguous; images in a memory order."""
    tensor: Tensor = torch.from_numpy(np.ascontiguousarray(array))
    return tensor.contiguous(memory_format=order) if tensor.ndim == 4 else tensor
