"""Custom autograd functions: an exported program has no place for them, and would be differentiated as if they were not
there. Their backward is traced beside their forward, from stand-ins for the gradients that will arrive, and both go
through operators of our own (aten_functions.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from inspect import signature
from types import FunctionType
from typing import Any

Refuse = Callable[[str], Exception]
"""The error for what a function does that a plan cannot."""


@contextmanager
def traced_functions(torch: Any, refuse: Refuse, of_inputs: bool = False) -> Iterator[None]:
    """Within it, every `torch.autograd.Function` that is applied is traced with its gradient, and what a checkpoint
    would compute again is traced as it is. PyTorch's other ones, such as torch.cond's, are left alone. `of_inputs`:
    gradients are wanted of the module's inputs, too, which do not say so."""
    module = torch.autograd.function
    apply = torch.autograd.Function.apply.__func__
    code = apply.__code__
    original = FunctionType(code, apply.__globals__, apply.__name__, apply.__defaults__, apply.__closure__)

    def route(function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Any:
        if (function.__module__, function.__name__) == ("torch.utils.checkpoint", "CheckpointFunction"):
            run, _, *given = arguments
            return _checkpointed(torch, run, given)
        if function.__module__.startswith("torch."):
            return original(function, *arguments, **keywords)
        if torch._C._functorch.peek_interpreter_stack() is not None:
            raise refuse(f"the custom autograd function {function.__name__}, within a transformed function")
        return _traced(torch, function, _bound(torch, function, arguments, keywords), refuse, of_inputs)

    # Not the method, but its code: many hold the bound method, `round = Round.apply`, since they were imported.
    module.stepplan_route = route
    apply.__code__ = _Routed.apply.__code__
    try:
        yield
    finally:
        apply.__code__ = code
        del module.stepplan_route


class _Routed:
    """Only for the code of its method, which runs as that of `torch.autograd.Function.apply`."""

    def apply(cls: Any, *arguments: Any, **keywords: Any) -> Any:
        __class__  # type: ignore[name-defined]  # noqa: B018  (its closure has this cell, too)
        return stepplan_route(cls, arguments, keywords)  # type: ignore[name-defined]  # noqa: F821


class _Context:
    """What the methods of a function hand each other, as PyTorch's `ctx` does."""

    def __init__(self, needs: tuple[bool, ...], refuse: Refuse) -> None:
        self.needs_input_grad, self._refuse = needs, refuse
        self.saved_tensors: tuple[Any, ...] = ()
        self._constant: set[int] = set()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    def save_for_forward(self, *tensors: Any) -> None:
        """Of forward mode, which a training step does not use."""

    def set_materialize_grads(self, value: bool) -> None:
        """Gradients that do not arrive are zeros, whatever is set: which they are is not known yet."""

    def mark_non_differentiable(self, *tensors: Any) -> None:
        self._constant = {id(t) for t in tensors}

    def mark_dirty(self, *tensors: Any) -> None:
        raise self._refuse("which writes to its input")

    def is_constant(self, result: Any) -> bool:
        return id(result) in self._constant


def _bound(torch: Any, function: Any, arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, ...]:
    """All arguments by position, as PyTorch gives them to `setup_context`."""
    if function.setup_context is not torch.autograd.Function.setup_context:
        bound = signature(function.forward).bind(*arguments, **keywords)
        bound.apply_defaults()
        return bound.args
    if keywords:
        raise TypeError(f"{function.__name__}.apply takes no keyword arguments")
    return arguments


def _checkpointed(torch: Any, run: Callable[..., Any], given: list[Any]) -> Any:
    """What a checkpoint with use_reentrant=True computes: what is computed again, the plan decides. As in PyTorch, the
    result has no gradient where no argument has one."""
    moving = any(isinstance(x, torch.Tensor) and x.requires_grad for x in given)
    with torch.set_grad_enabled(torch.is_grad_enabled() and moving):
        return run(*given)


def _traced(torch: Any, function: Any, arguments: tuple[Any, ...], refuse: Refuse, of_inputs: bool) -> Any:
    def why(what: str) -> Exception:
        return refuse(f"the custom autograd function {function.__name__}, {what}")

    def is_float(x: Any) -> bool:
        return isinstance(x, torch.Tensor) and bool(x.is_floating_point())

    needs = tuple(is_float(x) and (of_inputs or x.requires_grad) for x in arguments)
    base, context = torch.autograd.Function, _Context(needs, why)
    if function.setup_context is base.setup_context:
        returned = function.forward(context, *arguments)
    else:
        returned = function.forward(*arguments)
        function.setup_context(context, arguments, returned)
    if not torch.is_grad_enabled():
        return returned
    results = list(returned) if isinstance(returned, tuple | list) else [returned]
    moving = [i for i, r in enumerate(results) if is_float(r) and not context.is_constant(r)]
    stand_in, bound = _operators(torch)
    arriving = [torch.zeros_like(r) if isinstance(r, torch.Tensor) else None for r in results]
    for i in moving:
        arriving[i] = stand_in(results[i]).detach()
    backward = function.backward if function.backward is not base.backward else function.vjp
    gradients = backward(context, *arriving)
    gradients = list(gradients) if isinstance(gradients, tuple | list) else [gradients]
    if len(gradients) < len(arguments) or any(g is not None for g in gradients[len(arguments) :]):
        raise why(f"whose backward returns {len(gradients)} gradients for {len(arguments)} arguments")
    pairs = [(x, g) for x, g in zip(arguments, gradients, strict=False) if is_float(x) and g is not None]
    sources, given = [x for x, _ in pairs], [g.sum_to_size(x.shape).to(x.dtype) for x, g in pairs]
    outputs = bound([results[i] for i in moving], [arriving[i] for i in moving], sources, given) if moving else []
    for i, output in zip(moving, outputs, strict=True):
        results[i] = output
    results = [r.detach() if is_float(r) and i not in moving else r for i, r in enumerate(results)]
    return type(returned)(results) if isinstance(returned, tuple | list) else results[0]


@cache
def _operators(torch: Any) -> tuple[Any, Any]:
    """stepplan::arriving, a result's gradient that will arrive; stepplan::own_gradient, a function's results, whose
    gradients it computes."""
    one = torch.library.custom_op("stepplan::arriving", mutates_args=(), schema="(Tensor result) -> Tensor")
    arriving = one(torch.zeros_like)
    arriving.register_fake(torch.empty_like)
    several = torch.library.custom_op(
        "stepplan::own_gradient",
        mutates_args=(),
        schema="(Tensor[] results, Tensor[] arriving, Tensor[] inputs, Tensor[] gradients) -> Tensor[]",
    )
    own = several(lambda results, arriving, inputs, gradients: [r.clone() for r in results])
    own.register_fake(lambda results, arriving, inputs, gradients: [torch.empty_like(r) for r in results])
    for made in (arriving, own):
        made.register_autograd(_differentiated_elsewhere)
    return arriving, own


def _differentiated_elsewhere(context: Any, *gradients: Any) -> Any:
    raise NotImplementedError("an exported program is differentiated by stepplan")
