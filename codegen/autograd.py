"""A planned module inside PyTorch's autograd: the user keeps loss, optimizer and training loop.

    captured = planner.capture(module, inputs, loss="caller")
    made = make(captured)
    with executor_class(made.folder)() as executor:
        planned = Planned(module, executor)
        optimizer = torch.optim.RMSprop(module.parameters())
        loss = my_loss(planned(x), y)
        loss.backward()
        optimizer.step()

The module's parameters and running statistics become views of the executor's memory, so nothing is copied between
them. The backward pass computes the activations again, from the same inputs and random numbers: any number of forward
passes may come before their backward passes, as long as parameters do not change in between. Needs torch.
"""

from typing import Any

import torch
from torch import nn

from codegen.executor import Executor
from planner.errors import UserError
from planner.frontends.emitter import safe_name
from planner.frontends.torch_lowering import GIVEN


class Planned(nn.Module):
    """`module`, computed by an executor of its plan. `planned.module` is the module itself, with the same parameters:
    its state_dict is the executor's. In evaluation mode calls run the `predict` program, without gradients."""

    def __init__(self, module: nn.Module, executor: Executor) -> None:
        """SP1617: the plan was not made for a loss of the caller, or for another module."""
        super().__init__()
        if "forward" not in executor.plan.program:
            fix = "capture the module with loss='caller', plan and build that"
            raise UserError("SP1617", "the plan has a loss of its own, not the caller's", fix)
        self.module, self.executor = module, executor
        self.trained = [n for n, p in module.named_parameters() if p.requires_grad]
        for name, parameter in module.named_parameters():
            parameter.data = self._shared(name, parameter.data)
        for name, buffer in list(module.named_buffers()):
            if name.endswith(("running_mean", "running_var")):
                owner, _, own = name.rpartition(".")
                module.get_submodule(owner)._buffers[own] = self._shared(name, buffer)

    def _shared(self, name: str, data: torch.Tensor) -> torch.Tensor:
        array = self.executor.shared(safe_name(name))
        if array is None:
            return data  # nothing reads it
        if array.shape != tuple(data.shape):
            fix = "make the executor from this module's plan"
            raise UserError("SP1617", f"{name} has the shape {tuple(data.shape)}, in the plan {array.shape}", fix)
        shared = torch.from_numpy(array)
        shared.copy_(data)
        return shared

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        if not self.module.training:
            return torch.from_numpy(self.executor.predict(*(x.detach() for x in inputs)))
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        for name, times in self.executor.counters_per_step().items():
            buffers[name] += times
        result: torch.Tensor = _Step.apply(self, len(inputs), *inputs, *(parameters[n] for n in self.trained))
        return result


class _Step(torch.autograd.Function):
    """(planned, number of inputs, inputs, parameters) -> prediction."""

    @staticmethod
    def forward(ctx: Any, planned: Planned, count: int, *tensors: torch.Tensor) -> torch.Tensor:
        inputs = tensors[:count]
        prediction, ctx.step = planned.executor.forward(*(x.detach() for x in inputs))
        ctx.planned, ctx.count = planned, count
        ctx.save_for_backward(*inputs)
        return torch.from_numpy(prediction)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[Any, ...]:
        executor, inputs = ctx.planned.executor, ctx.saved_tensors
        given = [x.detach() for x in inputs]
        found, of_inputs = executor.backward(ctx.step, *given, gradient.detach())
        names = [n for n in executor.input_names if n != GIVEN]
        first = [torch.from_numpy(of_inputs[n]) if n in of_inputs else None for n in names]
        rest = [torch.from_numpy(found[safe_name(n)]) if safe_name(n) in found else None for n in ctx.planned.trained]
        return (None, None, *first, *rest)
