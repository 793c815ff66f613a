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
them. The backward pass goes on where the forward pass ended. Of several forward passes before their backward passes
only the last one's activations are still there: the others are computed again, from the same inputs and random numbers,
so parameters must not change in between. Needs torch.
"""

from typing import Any

import torch
from torch import nn

from codegen.executor import Executor
from planner.errors import UserError
from planner.frontends.emitter import safe_name
from planner.graph.model import Role


class Planned(nn.Module):  # type: ignore[misc]
    """`module`, computed by an executor of its plan. `planned.module` is the module itself, with the same parameters:
    its state_dict is the executor's. In evaluation mode calls run the `predict` program, without gradients."""

    def __init__(self, module: nn.Module, executor: Executor) -> None:
        """SP1617: the plan was not made for a loss of the caller, or for another module."""
        super().__init__()
        if not executor.takes_gradients:
            fix = "capture the module with loss='caller', plan and build that"
            raise UserError("SP1617", "the plan has a loss of its own, not the caller's", fix)
        self.module, self.executor = module, executor
        self.trained = [n for n, p in module.named_parameters() if p.requires_grad]
        self._require_own()
        for name, parameter in module.named_parameters():
            parameter.data = self._shared(name, parameter.data)
        self._places = {name: parameter.data_ptr() for name, parameter in module.named_parameters()}
        """Where parameters lie: in the executor's memory."""
        for name, buffer in list(module.named_buffers()):
            if name.endswith(("running_mean", "running_var")):
                owner, _, own = name.rpartition(".")
                module.get_submodule(owner)._buffers[own] = self._shared(name, buffer)

    def _require_own(self) -> None:
        """SP1617: the plan has a parameter that the module lacks."""
        names = {safe_name(n) for n, _ in self.module.named_parameters(remove_duplicate=False)}
        for value in self.executor._graph.values:
            if value.role is Role.PARAMETER and value.name not in names:
                fix = "make the executor from this module's plan"
                raise UserError("SP1617", f"the plan's parameter {value.name} is none of the module's", fix)

    def _require_shared(self, parameters: dict[str, nn.Parameter]) -> None:
        """SP1617: a parameter was moved away, so that what the optimizer changes is not what the executor reads."""
        for name, parameter in parameters.items():
            if parameter.data_ptr() != self._places[name]:
                fix = "convert a module before it is planned, and load into it in place (not with assign=True)"
                raise UserError("SP1617", f"{name} lies no longer in the executor's memory", fix)

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

    def forward(self, *inputs: torch.Tensor) -> Any:
        """What the module returns; several results as a tuple, in the order in which its structure lists them."""
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        self._require_shared(parameters)
        if not self.module.training:
            found = self.executor.predict(*(x.detach() for x in inputs))
            return tuple(map(torch.from_numpy, found)) if isinstance(found, tuple) else torch.from_numpy(found)
        for name, times in self.executor.counters_per_step().items():
            buffers[name] += times
        return _Step.apply(self, len(inputs), *inputs, *(parameters[n] for n in self.trained))


class _Step(torch.autograd.Function):  # type: ignore[misc]
    """(planned, number of inputs, inputs, parameters) -> prediction, or predictions."""

    @staticmethod
    def forward(ctx: Any, planned: Planned, count: int, *tensors: torch.Tensor) -> Any:
        inputs = tensors[:count]
        found, ctx.step = planned.executor.forward(*(x.detach() for x in inputs))
        ctx.planned, ctx.count = planned, count
        ctx.save_for_backward(*inputs)
        predictions = tuple(map(torch.from_numpy, found if isinstance(found, tuple) else (found,)))
        ctx.floating = [p.is_floating_point() for p in predictions]
        ctx.mark_non_differentiable(*(p for p in predictions if not p.is_floating_point()))
        return predictions if isinstance(found, tuple) else predictions[0]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        executor, inputs = ctx.planned.executor, ctx.saved_tensors
        wanted = [g for g, floating in zip(gradients, ctx.floating, strict=True) if floating]
        found, of_inputs = executor.backward(ctx.step, *(x.detach() for x in (*inputs, *wanted)))
        names = executor.input_names[: ctx.count]
        first = [torch.from_numpy(of_inputs[n]) if n in of_inputs else None for n in names]
        rest = [torch.from_numpy(found[safe_name(n)]) if safe_name(n) in found else None for n in ctx.planned.trained]
        return (None, None, *first, *rest)
