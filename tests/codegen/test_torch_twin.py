"""The PyTorch contender of a step with several losses does what the graph says."""

import numpy as np
import torch

from codegen.bench import random_inputs
from codegen.initial import draw
from codegen.torch_twin import Twin
from planner import zoo
from planner.graph.model import PERSISTENT
from tests.interpreter import run_program


def test_losses_that_train_different_parameters() -> None:
    graph = zoo.build("dcgan", 2)
    program = graph.program["train_step"]
    values = {v.name: draw(v, 3).astype(np.float64) for v in graph.values if v.role in PERSISTENT}
    twin = Twin(graph).load(values)
    step = twin.alternating()
    inputs = random_inputs(graph, None)
    held = run_program(graph, "train_step", {**values, **dict(zip(program.inputs, inputs, strict=True))})
    loss = step(*(torch.from_numpy(np.ascontiguousarray(a)) for a in inputs))
    np.testing.assert_allclose(float(loss), float(held[program.outputs[0]]), rtol=1e-4)
    moved = {name: held[name] - values[name] for name, _ in twin.named_values()}
    for name, tensor in twin.named_values():
        # Adam's first step is the sign of the gradient where that is not tiny: a wrong network would differ by 2 lr.
        difference = tensor.detach().numpy() - held[name]
        assert np.mean(np.abs(difference)) < 0.05 * np.mean(np.abs(moved[name])) + 1e-7, name
