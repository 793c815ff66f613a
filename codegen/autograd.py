"""A planned module inside PyTorch's autograd: the user keeps loss, optimizer and training loop.

    captured = planner.capture(module, inputs, loss="caller")
    made = make(captured)
    with executor_class(made.folder)() as executor:
        planned = Planned(module, executor)
        optimizer = torch.optim.RMSprop(module.parameters())
        loss = my_loss(planned(x), y)
        loss.backward()
        optimizer.step()

What the module returns beside one tensor, a dict or a dataclass for instance, is in the captured graph, per mode
(planner/frontends/torch_results.py).

The module's parameters and running statistics become views of the executor's memory, so nothing is copied between
them. The backward pass goes on where the forward pass ended. Of several forward passes before their backward passes
only the last one's activations are still there: the others are computed again, from the same inputs and random numbers.
Parameters must not change in between (SP1620), and gradients have no gradients (PyTorch's error tells).

On a GPU the module is moved there first. Calls return before the work is done, in the order of PyTorch's current
stream, and the backward pass is replayed as `step` is. Needs torch.
"""

import weakref
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from torch import nn

from codegen.arguments import Call
from codegen.cuda.executor import CudaExecutor
from codegen.executor import Executor
from codegen.fixed_attributes import FixedAttributes
from codegen.passes import input_gradients, model_inputs, sources, start_backward, start_forward
from codegen.planned_arguments import PlannedArguments
from codegen.replacement import Replacement
from codegen.state import COUNTER
from planner.errors import UserError
from planner.frontends.naming import safe_name
from planner.frontends.torch_results import Results
from planner.graph.model import Role, Value

STATISTICS = ("running_mean", "running_var")


class Planned(Replacement):
    """`module`, computed by an executor of its plan. `planned.module` is the module itself, with the same parameters
    under the same names: its state_dict is the executor's. In evaluation mode calls run the `predict` program, without
    gradients."""

    executor: Executor
    trained: list[str]
    _frozen: set[str]
    _results: dict[str, Results]
    _arguments: dict[str, PlannedArguments]
    _planned_modes: list[tuple[str, nn.Module, bool]]
    _places: dict[str, int]
    _fixed: FixedAttributes

    def __init__(self, module: nn.Module, executor: Executor) -> None:
        """SP1617: the plan was not made for a loss of the caller, or for another module; or the module lies elsewhere
        than the executor computes, or is of another type; or the executor has another module. SP1621: what the module
        returned holds a class that is not there. Nothing has changed."""
        super().__init__(module)
        if not executor.takes_gradients:
            fix = "capture the module with loss='caller', plan and build that"
            raise UserError("SP1617", "the plan has a loss of its own, not the caller's", fix)
        self.executor = executor
        self.trained = [n for n, p in module.named_parameters() if p.requires_grad]
        known = executor._state.by_name
        self._frozen = {n for n, p in module.named_parameters() if not p.requires_grad and safe_name(n) in known}
        self._require_own()
        programs = executor._graph.program
        self._results = {n: Results(torch, programs[n].results, module) for n in ("train_step", "predict")}
        taken = model_inputs(executor)
        read = {n: p.inputs if n == "predict" else taken for n, p in programs.items()}
        self._arguments = {n: PlannedArguments(module, p, taken, read[n]) for n, p in programs.items()}
        parameters = dict(module.named_parameters())
        statistics = {n: b for n, b in module.named_buffers() if n.endswith(STATISTICS)}
        given = parameters | statistics
        places = {n: self._shared(n, t.data) for n, t in given.items()}  # all are looked at before one is moved
        _hold(executor, module)
        for name, place in places.items():
            place.copy_(given[name].data)
        for name, parameter in parameters.items():
            parameter.data = places[name]
        held: list[torch.Tensor] = list(parameters.values())
        for name in statistics:
            owner, _, own = name.rpartition(".")
            module.get_submodule(owner)._buffers[own] = places[name]
            held.append(places[name])
        self._planned_modes = self._modes()
        self._places = {name: places[name].data_ptr() for name in given}
        """Where parameters and statistics lie: in the executor's memory."""
        shared = {*statistics, *executor.counters_per_step()}
        self._fixed = FixedAttributes(module, shared, {**executor._state.fixed, **self._constants(shared)})
        if isinstance(executor, CudaExecutor):
            executor.before_close.append(partial(_leave, held))

    def _constants(self, shared: set[str]) -> dict[str, np.ndarray[Any, Any]]:
        """What the executor has of the module's other buffers: what they held when the module was captured."""
        executor, known = self.executor, self.executor._state.by_name
        names = [safe_name(n) for n, _ in self.module.named_buffers() if n not in shared]
        with executor._lock:
            return {n: executor._copy(known[n]) for n in names if n in known}

    def _require_own(self) -> None:
        """SP1617: the plan has a parameter that the module lacks."""
        names = {safe_name(n) for n, _ in self.module.named_parameters(remove_duplicate=False)}
        for value in self.executor._graph.values:
            if value.role is Role.PARAMETER and value.name not in names:
                fix = "make the executor from this module's plan"
                raise UserError("SP1617", f"the plan's parameter {value.name} is none of the module's", fix)

    def _require_shared(self, tensors: dict[str, torch.Tensor]) -> None:
        """SP1617: a parameter, or running statistics, were moved away, so that what the optimizer or the module changes
        is not what the executor reads and writes; or they are gone, or new."""
        for name in sorted(tensors.keys() ^ self._places.keys()):
            kind = "buffer" if name.endswith(STATISTICS) else "parameter"
            what = f"{name} is no {kind} of the module" + (" any more" if name in self._places else "'s plan")
            raise UserError("SP1617", what, "change the module before it is captured, then plan, build and wrap it")
        for name, tensor in tensors.items():
            if tensor.data_ptr() != self._places[name]:
                fix = "convert it before it is planned, write in place (copy_, no assign=True), give it one executor"
                raise UserError("SP1617", f"{name} lies no longer in the executor's memory", fix)

    def _modes(self) -> list[tuple[str, nn.Module, bool]]:
        """(name, part, whether it is in training mode where the plan trains): batch norms, of which the plan tells, and
        layers of dropout, which are as they were captured while the module is in training mode."""
        executor, found = self.executor, list[tuple[str, nn.Module, bool]]()
        counted = executor.counters_per_step()
        for name, part in self.module.named_modules():
            if isinstance(part, nn.modules.batchnorm._BatchNorm) and part.track_running_stats:
                if safe_name(f"{name}.running_mean") in executor._state.by_name:
                    found.append((name, part, counted.get(f"{name}.{COUNTER}", 0) > 0))
            elif isinstance(part, nn.modules.dropout._DropoutNd) and part.p and self.module.training:
                found.append((name, part, part.training))
        return found

    def _require_modes(self) -> None:
        """SP1617: a part is in another mode than the plan has it in, which would silently go on as planned."""
        whole = self.module.training
        for name, part, trains in self._planned_modes:
            if part.training != (whole and trains):
                told = ("evaluation", "training")
                what = f"{name} is in {told[part.training]} mode, in the plan in {told[whole and trains]} mode"
                fix = "set its mode" + f", or capture the module with {name} in evaluation mode" * (whole and trains)
                raise UserError("SP1617", what, fix)

    def _require_trained(self, parameters: dict[str, nn.Parameter]) -> None:
        """SP1617: a parameter was frozen when the module was planned, and would silently stay so."""
        for name, parameter in parameters.items():
            if parameter.requires_grad and name in self._frozen:
                fix = "capture the module with every parameter that will be trained at some time; freeze some later"
                raise UserError("SP1617", f"{name} was frozen when the module was planned: it has no gradient", fix)

    def _shared(self, name: str, data: torch.Tensor) -> torch.Tensor:
        place = self.executor.shared(safe_name(name))
        if place is None:
            return data  # nothing reads it
        shared = torch.view_as_complex(_tensor(place)) if data.is_complex() else _tensor(place)
        if shared.shape != data.shape:
            fix = "make the executor from this module's plan"
            raise UserError(
                "SP1617", f"{name} has the shape {tuple(data.shape)}, in the plan {tuple(shared.shape)}", fix
            )
        if shared.device != data.device:
            fix = f"move the module first: module.to('{shared.device}')"
            raise UserError("SP1617", f"{name} lies on {data.device}, the executor's memory on {shared.device}", fix)
        if shared.dtype != data.dtype:
            raise UserError(
                "SP1617", f"{name} is {data.dtype}, the executor's {shared.dtype}", "use module.float() first"
            )
        return shared

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """What the module returns, in its own structure; what is no tensor in there is as it was captured.

        Inputs as the module takes them: in order or by name, also in lists and dicts. In evaluation mode what `predict`
        does not read may be left out. SP1601: not those of the plan.
        """
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        self._require_shared(parameters | {n: b for n, b in buffers.items() if n in self._places})
        self._require_trained(parameters)
        self._fixed.look(buffers)
        self._require_modes()
        tensors = self._arguments["train_step" if self.module.training else "predict"].tensors(inputs, named)
        if not self.module.training:
            read = self.executor._program("predict").inputs
            found = self._evaluated(*(x.detach() for name, x in tensors.items() if name in read))
            return self._results["predict"].of(found)
        found = _Step.apply(self, len(tensors), *tensors.values(), *(parameters[n] for n in self.trained))
        for name, times in self.executor.counters_per_step().items():
            if name in buffers:  # under one of its names
                buffers[name] += times
        return self._results["train_step"].of(found)

    def _evaluated(self, *inputs: torch.Tensor) -> tuple[torch.Tensor, ...]:
        executor = self.executor
        with executor._lock:
            executor._start(Call("predict", executor._arguments("predict", inputs, {})))
            return self._copies(tuple(executor._graph.value[v] for v in executor._graph.program["predict"].outputs))

    def _copies(self, values: tuple[Value, ...]) -> tuple[torch.Tensor, ...]:
        """Tensors of their own, made behind what was started last."""
        return tuple(_tensor(self.executor._place(v)).clone(memory_format=torch.contiguous_format) for v in values)

    @cached_property
    def _sources(self) -> list[frozenset[str]]:
        """Of every prediction: the inputs and the parameters, by name, that it is computed from. As in PyTorch, what
        the loss does not depend on has no gradient, which an optimizer passes over; zero would be one."""
        value = self.executor._graph.value
        return [frozenset(value[v].name or v for v in found) for found in sources(self.executor._graph)]

    @cached_property
    def _shapes(self) -> tuple[torch.Size, ...]:
        """Of the gradients of parameters, in the order in which the executor takes their places."""
        return tuple(torch.Size(self.executor._graph.value[v].type.shape) for v in self.executor._state.trained)

    @cached_property
    def _lasting(self) -> tuple[torch.Tensor, list[int]]:
        """On a GPU: memory in which every backward pass leaves all gradients, so that it can be replayed; and their
        addresses there."""
        elements = sum(shape.numel() for shape in self._shapes)
        whole = torch.zeros(elements, dtype=torch.float32, device=next(self.module.parameters()).device)
        return whole, [part.data_ptr() for part in self._cut(whole)]

    def _cut(self, whole: torch.Tensor) -> list[torch.Tensor]:
        parts = whole.split([shape.numel() for shape in self._shapes])
        return [part.view(shape) for part, shape in zip(parts, self._shapes, strict=True)]

    def _gradients(
        self, step: int, inputs: tuple[torch.Tensor, ...]
    ) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
        """Of the parameters and of the inputs, by the graph's names."""
        executor = self.executor
        with executor._lock:
            if isinstance(executor, CudaExecutor):
                whole, places = self._lasting
                start_backward(executor, step, inputs, places, lasting=True)
                found = self._cut(whole.clone())  # one copy for all
            else:
                found = [torch.zeros(shape, dtype=torch.float32, device="cpu") for shape in self._shapes]
                start_backward(executor, step, inputs, found)
            values = input_gradients(executor)
            of_inputs = {v.gradient_of: g for v, g in zip(values, self._copies(values), strict=True)}
            return self._named(found), of_inputs

    def _named(self, gradients: list[torch.Tensor]) -> dict[str, torch.Tensor]:
        """Gradients of parameters by their names; of complex ones complex."""
        state = self.executor._state
        named = zip(state.trained.values(), gradients, strict=True)
        return {n: torch.view_as_complex(g) if state.by_name[n].pairs else g for n, g in named}


def _hold(executor: Executor, module: nn.Module) -> None:
    """The executor's memory is the module's from now on. SP1617: it is another's, which would get this one's
    parameters; also where that one is gone, as its `state_dict()` may still be there."""
    if executor._module is not None and executor._module() is not module:
        fix = "make an executor for every module: executor_class(folder)()"
        raise UserError("SP1617", "another module's parameters lie in the executor's memory", fix)
    executor._module = weakref.ref(module)


def _leave(held: list[torch.Tensor]) -> None:
    """Memory of their own for a module's parameters and statistics."""
    for tensor in held:
        tensor.data = tensor.data.clone()


def _versions(module: nn.Module) -> list[int]:
    return [parameter._version for parameter in module.parameters()]


def _require_unchanged(module: nn.Module, versions: list[int]) -> None:
    """SP1620: a parameter was written to since the forward pass."""
    for (name, _), before, now in zip(module.named_parameters(), versions, _versions(module), strict=True):
        if now != before:
            what = f"parameter {name} was changed between the forward and the backward pass"
            raise UserError("SP1620", what, "call backward before optimizer.step(), or run the forward pass again")


def _tensor(place: Any) -> torch.Tensor:
    return torch.from_numpy(place) if isinstance(place, np.ndarray) else torch.from_dlpack(place)


class _Step(torch.autograd.Function):  # type: ignore[misc]
    """(planned, number of inputs, inputs, parameters) -> predictions."""

    @staticmethod
    def forward(ctx: Any, planned: Planned, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        inputs, executor = tensors[:count], planned.executor
        with executor._lock:
            ctx.step = start_forward(executor, tuple(x.detach() for x in inputs), {})
            predictions = planned._copies(executor._predicted)
        ctx.planned, ctx.count, ctx.versions = planned, count, _versions(planned.module)
        ctx.save_for_backward(*inputs)
        ctx.made = [(p.shape, p.device, p.is_floating_point()) for p in predictions]
        ctx.set_materialize_grads(False)
        names = *executor.input_names[:count], *map(safe_name, planned.trained)
        trained = {n for n, needed in zip(names, ctx.needs_input_grad[2:], strict=True) if needed}
        made = zip(predictions, planned._sources, strict=True)
        ctx.mark_non_differentiable(*(p for p, own in made if not p.is_floating_point() or own.isdisjoint(trained)))
        return predictions

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        with torch.no_grad():
            found = _Step.once(ctx, *gradients)
        if not torch.is_grad_enabled():  # they will not be differentiated
            return found
        made = [g for g in found if g is not None]
        origins = [*(g for g in gradients if g is not None), *ctx.saved_tensors, *ctx.planned.module.parameters()]
        tied = iter(_Final.apply(len(made), *made, *origins))
        return tuple(None if g is None else next(tied) for g in found)

    @staticmethod
    def once(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        _require_unchanged(ctx.planned.module, ctx.versions)
        planned, names = ctx.planned, ctx.planned.executor.input_names[: ctx.count]
        used = frozenset[str]().union(*(s for g, s in zip(gradients, planned._sources, strict=True) if g is not None))
        wanted = [
            torch.zeros(shape, dtype=torch.float32, device=device) if gradient is None else gradient
            for gradient, (shape, device, floating) in zip(gradients, ctx.made, strict=True)
            if floating
        ]
        found, of_inputs = planned._gradients(ctx.step, tuple(x.detach() for x in (*ctx.saved_tensors, *wanted)))
        first = [of_inputs.get(n) if n in used else None for n in names]
        rest = [found.get(safe_name(n)) if safe_name(n) in used else None for n in planned.trained]
        return (None, None, *first, *rest)


class _Final(torch.autograd.Function):  # type: ignore[misc]
    """(number of gradients, gradients, what they were computed from) -> these gradients, which have none. Unlike behind
    PyTorch's `once_differentiable`, whoever asks for those of chosen tensors alone is told, too."""

    @staticmethod
    def forward(ctx: Any, count: int, *tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
        return tensors[:count]

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[Any, ...]:
        raise RuntimeError("gradients of a planned module's gradients: its backward pass is once_differentiable")
