"""Transformed functions within a module (`torch.func`: vmap, grad, jacrev, jacfwd, hessian, jvp).

An exported program has no place for them. The outermost one is traced below autograd, where nothing is left of it but
operators on whole batches; those are called in its place, and exported and differentiated as all others.
"""

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from inspect import unwrap
from types import FunctionType
from typing import Any

from planner.frontends.aten import packet
from planner.frontends.torch_backward import backward_decompositions
from planner.frontends.torch_derivatives import Refuse, exporting

_RUNNING = {"apis": ("vmap_impl",), "eager_transforms": ("grad_impl", "grad_and_value_impl")}
"""PyTorch's functions that run a transformed one, by module."""
_MAKING = ("jacrev", "jacfwd", "hessian")
"""Those that make one, and run it without any of these."""
_REFUSED = ("vjp", "linearize")
_TRACING = ("torch._", "torch.fx", "torch.autograd", "torch.utils")

_OF_ZERO = {
    *("aten.view", "aten._unsafe_view", "aten.t", "aten.permute", "aten.transpose", "aten.expand", "aten.unsqueeze"),
    *("aten.squeeze", "aten.alias", "aten.detach", "aten.clone", "aten._to_copy", "aten.neg"),
}
"""Operators that make zeros of zeros."""
_PRODUCTS = {"aten.mul", "aten.mm", "aten.bmm"}


@contextmanager
def traced_transforms(torch: Any, barrier: Any, refuse: Refuse) -> Iterator[None]:
    """Within it, transformed functions are exported. `barrier`: the operator whose result has no gradient."""
    functorch, eager = torch._functorch, torch._functorch.eager_transforms

    def run(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if exporting(torch) is None:  # within another transform, or by PyTorch itself
            return function(*arguments, **named)
        with _told_apart(torch, barrier, refuse):
            return _Trace(torch, function, arguments, named).called_again()

    def make(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        transformed = function(*arguments, **named)
        return lambda *inputs, **others: run(transformed, *inputs, **others)

    def refused(function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        if exporting(torch) is not None:
            raise refuse(f"torch.func.{function.__name__}", None)
        return function(*arguments, **named)

    with ExitStack() as stack:
        for module, names in _RUNNING.items():
            for name in names:
                stack.enter_context(_routed(getattr(getattr(functorch, module), name), run))
        stack.enter_context(_routed(eager.jvp, run))
        for names, route in ((_MAKING, make), (_REFUSED, refused)):
            for name in names:
                stack.enter_context(_routed(getattr(eager, name), route))
        yield


@contextmanager
def _routed(function: Any, route: Callable[..., Any]) -> Iterator[None]:
    """Within it, calls of the function go to `route`, with the function as it was first. Its code is replaced, since
    many hold the function itself: `from torch.func import jacrev`."""
    function = unwrap(function)
    code, name = function.__code__, f"stepplan_{function.__name__}"
    original = FunctionType(code, function.__globals__, function.__name__, function.__defaults__, function.__closure__)
    original.__kwdefaults__ = function.__kwdefaults__
    function.__globals__[name] = lambda *arguments, **named: route(original, *arguments, **named)
    template = (lambda *arguments, **named: stepplan_route(*arguments, **named)).__code__  # type: ignore[name-defined]  # noqa: F821
    function.__code__ = template.replace(co_names=(name,))
    try:
        yield
    finally:
        function.__code__ = code
        del function.__globals__[name]


@contextmanager
def _told_apart(torch: Any, barrier: Any, refuse: Refuse) -> Iterator[None]:
    """Within it, what the user detaches goes through the barrier: a trace has autograd's own detached tensors, too."""
    detach, enter = torch.Tensor.detach, torch.no_grad.__enter__

    def detached(x: Any) -> Any:
        return detach(x) if _called_while_tracing() else barrier(detach(x))

    def entered(block: Any) -> None:
        if not _called_while_tracing():
            raise refuse("torch.no_grad() within a transformed function (detach() can be had)", None)
        enter(block)

    torch.Tensor.detach, torch.no_grad.__enter__ = detached, entered
    try:
        yield
    finally:
        torch.Tensor.detach, torch.no_grad.__enter__ = detach, enter


def _called_while_tracing() -> bool:
    """Whether what runs now was called by that of PyTorch which transforms and traces, not by a model or a layer."""
    frame = sys._getframe(2)
    while frame.f_back is not None and frame.f_globals.get("__name__") == "torch.utils._contextlib":  # as a decorator
        frame = frame.f_back
    return str(frame.f_globals.get("__name__", "")).startswith(_TRACING)


class _Trace:
    """A call of a transformed function: operators on whole batches, in order."""

    def __init__(self, torch: Any, function: Callable[..., Any], arguments: Any, named: Any) -> None:
        self._torch = torch
        tree, tracing = torch.utils._pytree, torch.fx.experimental.proxy_tensor
        leaves, structure = tree.tree_flatten((arguments, named))
        places = [i for i, leaf in enumerate(leaves) if isinstance(leaf, torch.Tensor)]
        self._given = [leaves[i] for i in places]
        self._results: Any = None
        """How they are nested."""

        def flat(*tensors: Any) -> Any:
            for i, tensor in zip(places, tensors, strict=True):
                leaves[i] = tensor
            own, others = tree.tree_unflatten(leaves, structure)
            found, self._results = tree.tree_flatten(function(*own, **others))
            return found

        with tracing.disable_proxy_modes_tracing(), torch._C.DisableTorchFunction():
            self._traced = tracing.make_fx(flat, backward_decompositions(torch))(*self._given)
        _leave_zeros_out(torch, self._traced.graph)

    def called_again(self) -> Any:
        """The results of the same operators, called with the tensors that are exported."""
        env: dict[Any, Any] = {}
        given = iter(self._given)
        for node in self._traced.graph.nodes:
            arguments, named = self._torch.fx.node.map_arg((node.args, node.kwargs), env.__getitem__)
            if node.op == "placeholder":
                env[node] = next(given)
            elif node.op == "get_attr":  # a tensor that the function has from elsewhere
                env[node] = getattr(self._traced, node.target)
            elif node.op == "output":
                return self._torch.utils._pytree.tree_unflatten(arguments[0], self._results)
            else:
                saved = packet(node.target) == "aten.detach"  # by autograd: it has a gradient nevertheless
                env[node] = arguments[0] if saved else node.target(*arguments, **named)
        raise AssertionError("a trace ends with its results")


def _leave_zeros_out(torch: Any, graph: Any) -> None:
    """Tangents of what does not depend on the input are zeros, with which PyTorch computes nothing; in a trace they are
    an expanded 0."""
    aten, zeros = torch.ops.aten, set[Any]()
    for node in graph.nodes:
        name, value = packet(node.target), node.meta.get("val")
        if (name == "aten.zeros" and not node.args[0]) or (name in _OF_ZERO and node.args[0] in zeros):
            zeros.add(node)
            continue
        found = [n for n in node.all_input_nodes if n in zeros]
        added = name == "aten.add" and len(node.all_input_nodes) == 2 and not node.kwargs
        if not found or not (name in _PRODUCTS or added):
            continue
        others = [n for n in node.all_input_nodes if n not in zeros]
        with graph.inserting_before(node):
            if name in _PRODUCTS or not others:
                source = graph.call_function(aten.zeros.default, ([],), {"dtype": value.dtype})
            else:
                source = others[0]
            made = graph.call_function(aten.expand.default, (source, list(value.shape)))
        made.meta = dict(node.meta)
        node.replace_all_uses_with(made)
        if source not in others:
            zeros.add(made)
