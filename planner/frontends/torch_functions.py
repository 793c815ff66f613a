"""Custom autograd functions: an exported program has no place for them, and would be differentiated as if they were not
there. Their backward is traced beside their forward, from stand-ins for the gradients that will arrive, and both go
through operators of our own (aten_functions.py).
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache, wraps
from typing import Any

from planner.frontends.torch_picked import Picked

Refuse = Callable[[str], Exception]
"""The error for what a function does that a plan cannot."""


@contextmanager
def traced_functions(torch: Any, refuse: Refuse, of_inputs: bool = False) -> Iterator[None]:
    """Within it, every `torch.autograd.Function` that is applied is traced with its gradient, and what a checkpoint
    would compute again is traced as it is. PyTorch's other ones, such as torch.cond's, are left alone. `of_inputs`:
    gradients are wanted of the module's inputs, too, which do not say so."""
    meta, applied = torch.autograd.function.FunctionMeta, _Applied(torch, refuse, of_inputs)

    def lookup(function: Any, name: str) -> Any:
        found = type.__getattribute__(function, name)
        return applied.instead(function, name, found) if name in _Applied.LOOKED_UP else found

    # Not `apply`: many hold the bound method, `round = Round.apply`, since they were imported, and it may be compiled.
    # But it asks the class for all that it calls.
    meta.__getattribute__ = lookup
    try:
        yield
    finally:
        del meta.__getattribute__


class _Applied:
    """What `apply` is given when it asks a function's class for what to call: first for the class of the context, then
    for `forward`, which it calls without gradients, and for `setup_context`, if the function has its own. What PyTorch
    would call to differentiate the results tells that it cannot."""

    LOOKED_UP = frozenset({"_backward_cls", "forward", "setup_context", "backward", "vjp"})

    def __init__(self, torch: Any, refuse: Refuse, of_inputs: bool) -> None:
        self.torch, self.refuse, self.of_inputs = torch, refuse, of_inputs
        self._next: Any = None
        """The function that has been applied, but not yet called."""
        self._with_gradients = True
        """Whether there are gradients where it was applied."""
        self._constant: list[Any] = []
        """The last results that have no gradient."""

    def instead(self, function: Any, name: str, found: Any) -> Any:
        checkpointed = (function.__module__, function.__name__) == ("torch.utils.checkpoint", "CheckpointFunction")
        if function.__module__.startswith("torch.") and not checkpointed:
            return found
        if self.torch._C._functorch.peek_interpreter_stack() is not None:
            raise self.refuse(f"the custom autograd function {function.__name__}, within a transformed function")
        if name == "_backward_cls":
            self._next, self._with_gradients = function, self.torch.is_grad_enabled()
            return found
        if name in ("backward", "vjp"):
            return found if found is _own(self.torch.autograd.Function, name) else _never_by_pytorch(found)
        by_itself = _own(function, "setup_context") is not _own(self.torch.autograd.Function, "setup_context")
        if name == "setup_context":
            return (lambda context, given, made: self._mark(context)) if by_itself else found

        @wraps(found)
        def forward(*given: Any, **keywords: Any) -> Any:
            if self._next is not function:  # called by its name, not applied
                return found(*given, **keywords)
            self._next = None
            arguments = given if by_itself else given[1:]
            for x in arguments:
                if isinstance(x, Picked):
                    raise x.refuse(f"the custom autograd function {function.__name__}")
            with _mode(self.torch, self._with_gradients):
                if checkpointed:
                    return _checkpointed(self.torch, arguments[0], arguments[2:])
                returned, self._constant = _traced(self.torch, function, arguments, self.refuse, self.of_inputs)
            if not by_itself:
                self._mark(given[0])
            return returned

        return forward

    def _mark(self, context: Any) -> None:
        context.mark_non_differentiable(*self._constant)


def _never_by_pytorch(backward: Any) -> Any:
    @wraps(backward)
    def called(context: Any, *gradients: Any) -> Any:
        if isinstance(context, _Context):  # by its name, from another function's
            return backward(context, *gradients)
        return _differentiated_elsewhere(context)

    return called


def _own(function: Any, name: str) -> Any:
    return type.__getattribute__(function, name)


@contextmanager
def _mode(torch: Any, gradients: bool) -> Iterator[None]:
    """With or without gradients; not noted in the exported program, as `apply`'s own change of the mode is not."""
    before = torch.is_grad_enabled()
    with torch._C.DisableTorchFunction():
        torch._C._set_grad_enabled(gradients)
    try:
        yield
    finally:
        with torch._C.DisableTorchFunction():
            torch._C._set_grad_enabled(before)


class _Context:
    """What the methods of a function hand each other, as PyTorch's `ctx` does."""

    def __init__(self, needs: tuple[bool, ...], refuse: Refuse) -> None:
        self.needs_input_grad, self._refuse = needs, refuse
        self.saved_tensors: tuple[Any, ...] = ()
        self._constant: set[int] = set()

    def save_for_backward(self, *tensors: Any) -> None:
        self.saved_tensors = tensors

    @property
    def saved_variables(self) -> tuple[Any, ...]:
        """As older code calls them."""
        return self.saved_tensors

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


def _checkpointed(torch: Any, run: Callable[..., Any], given: tuple[Any, ...]) -> Any:
    """What a checkpoint with use_reentrant=True computes: what is computed again, the plan decides. As in PyTorch, the
    result has no gradient where no argument has one."""
    moving = any(isinstance(x, torch.Tensor) and x.requires_grad for x in given)
    with torch.set_grad_enabled(torch.is_grad_enabled() and moving):
        return run(*given)


def _traced(
    torch: Any, function: Any, arguments: tuple[Any, ...], refuse: Refuse, of_inputs: bool
) -> tuple[Any, list[Any]]:
    """What it returns, and the tensors in there that have no gradient though they could."""

    def why(what: str) -> Exception:
        return refuse(f"the custom autograd function {function.__name__}, {what}")

    def is_float(x: Any) -> bool:
        return isinstance(x, torch.Tensor) and bool(x.is_floating_point())

    needs = tuple(is_float(x) and (of_inputs or x.requires_grad) for x in arguments)
    base, context = torch.autograd.Function, _Context(needs, why)
    forward, set_up = _own(function, "forward"), _own(function, "setup_context")
    if set_up is _own(base, "setup_context"):
        returned = forward(context, *arguments)
    else:
        returned = forward(*arguments)
        set_up(context, arguments, returned)
    if not torch.is_grad_enabled():
        return returned, []
    results = list(returned) if isinstance(returned, tuple | list) else [returned]
    moving = [i for i, r in enumerate(results) if is_float(r) and not context.is_constant(r)]
    stand_in, bound = _operators(torch)
    arriving = [torch.zeros_like(r) if isinstance(r, torch.Tensor) else None for r in results]
    for i in moving:
        arriving[i] = stand_in(results[i]).detach()
    backward = _own(function, "backward")
    if backward is _own(base, "backward"):
        backward = _own(function, "vjp")
    gradients = backward(context, *arriving)
    gradients = list(gradients) if isinstance(gradients, tuple | list) else [gradients]
    if len(gradients) < len(arguments) or any(g is not None for g in gradients[len(arguments) :]):
        raise why(f"whose backward returns {len(gradients)} gradients for {len(arguments)} arguments")
    pairs = [(x, g) for x, g in zip(arguments, gradients, strict=False) if is_float(x) and g is not None]
    sources, given = [x for x, _ in pairs], [g.sum_to_size(x.shape).to(x.dtype) for x, g in pairs]
    outputs = bound([results[i] for i in moving], [arriving[i] for i in moving], sources, given) if moving else []
    for i, output in zip(moving, outputs, strict=True):
        results[i] = output
    constant = [i for i, r in enumerate(results) if is_float(r) and i not in moving]
    for i in constant:
        results[i] = results[i].detach()
    whole = type(returned)(results) if isinstance(returned, tuple | list) else results[0]
    return whole, [results[i] for i in constant]


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
