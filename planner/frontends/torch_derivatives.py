"""Derivatives that a module computes itself, by `torch.autograd.grad`: residuals of differential equations, forces,
penalties on gradients.

An exported program has no place for autograd's engine. While a module is exported, each call is an operator of our own
with the results that PyTorch gives. Once the program is functional, what lies between its inputs and outputs is run
once more and traced below autograd, and the operators of that backward pass take its place. They are differentiated as
all others are, so derivatives may have derivatives.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from operator import getitem
from typing import Any

from planner.frontends.aten import packet
from planner.frontends.torch_backward import backward_decompositions, operators_in_parts
from planner.frontends.torch_buffers import is_batch_norm
from planner.frontends.torch_in_place import PLACE

Refuse = Callable[[str, Any], Exception]
"""The error for what a plan cannot have, and the exported program's node that has it, if there is one yet."""

OPERATOR = "stepplan.derivatives"
_NO_FORMULA = re.compile(r"derivative for (\S+) is not implemented")


@contextmanager
def recorded_derivatives(torch: Any, refuse: Refuse) -> Iterator[None]:
    """Within it, `torch.autograd.grad` of what is exported is an operator of the exported program."""
    engine, vmap = torch.autograd._engine_run_backward, torch._vmap_internals._vmap

    def recorded(outputs: Any, slopes: Any, retain: Any, create: bool, inputs: Any, *rest: Any, **named: Any) -> Any:
        mode, tracing = exporting(torch), torch.fx.experimental.proxy_tensor
        if mode is None:
            return engine(outputs, slopes, retain, create, inputs, *rest, **named)
        if named.get("accumulate_grad"):
            raise refuse("backward(), called in forward", None)
        with tracing.disable_proxy_modes_tracing():
            try:
                found = list(engine(outputs, slopes, True, create, inputs, *rest, **named))
            except NotImplementedError as error:  # of operators of our own
                what = "custom autograd functions, CTC losses and circular padding within what is differentiated"
                raise refuse(what, None) from error
        reached = [i for i, gradient in enumerate(found) if gradient is not None]
        arriving = [torch.ones_like(y) if slope is None else slope for y, slope in zip(outputs, slopes, strict=True)]
        arguments = (list(outputs), arriving, [inputs[i] for i in reached], create)
        proxies = torch.utils._pytree.tree_map(mode.tracer.unwrap_proxy, arguments)
        made = mode.tracer.create_proxy("call_function", _operator(torch), proxies, {})
        tracing.track_tensor_tree([found[i] for i in reached], made, constant=None, tracer=mode.tracer)
        return tuple(found)

    def one_by_one(function: Any, *dimensions: Any, **named: Any) -> Any:
        """What PyTorch runs for many slopes at once (is_grads_batched), for each."""
        if exporting(torch) is None:
            return vmap(function, *dimensions, **named)

        def run(slopes: Sequence[Any]) -> Any:
            rows = next(len(s) for s in slopes if s is not None)
            found = [function(tuple(None if s is None else s[i] for s in slopes)) for i in range(rows)]
            return tuple(None if row[0] is None else torch.stack(row) for row in zip(*found, strict=True))

        return run

    torch.autograd._engine_run_backward, torch._vmap_internals._vmap = recorded, one_by_one
    try:
        yield
    finally:
        torch.autograd._engine_run_backward, torch._vmap_internals._vmap = engine, vmap


def exporting(torch: Any) -> Any:
    """The mode of PyTorch's that records an exported program, where one is being recorded."""
    return torch._ops._get_dispatch_mode_pre_dispatch(torch._C._TorchDispatchModeKey.PROXY)


@cache
def _operator(torch: Any) -> Any:
    """stepplan::derivatives of outputs with respect to inputs, times the slopes that arrive."""
    made = torch.library.custom_op(
        "stepplan::derivatives",
        mutates_args=(),
        schema="(Tensor[] outputs, Tensor[] slopes, Tensor[] inputs, bool differentiable) -> Tensor[]",
    )
    operator = made(lambda outputs, slopes, inputs, differentiable: [x.clone() for x in inputs])
    operator.register_fake(lambda outputs, slopes, inputs, differentiable: [torch.empty_like(x) for x in inputs])
    return torch.ops.stepplan.derivatives.default


def expand_derivatives(torch: Any, program: Any, barrier: Any, refuse: Refuse) -> list[bool]:
    """Puts the operators of their backward passes in the place of all derivatives of a functional program. Of each,
    whether it is a batch norm's. `barrier`: the operator whose result has no gradient."""
    nodes = [n for n in program.graph.nodes if packet(n.target) == OPERATOR]
    return [_expand(torch, program.graph, node, barrier, refuse) for node in nodes]


def _expand(torch: Any, graph: Any, node: Any, barrier: Any, refuse: Refuse) -> bool:
    outputs, _, inputs, differentiable = node.args
    for step in _between(graph, inputs, outputs, barrier):
        if packet(step.target) == "aten.native_dropout":
            _dropout_as_product(torch, graph, step)
    path = _between(graph, inputs, outputs, barrier)
    try:
        traced = _traced(torch, node, path)
    except RuntimeError as error:
        missing = _NO_FORMULA.search(str(error))
        if missing is None:
            raise
        raise refuse(f"{missing[1].replace('::', '.')} within it, of which PyTorch knows none", node) from error
    made = _copied(torch, graph, node, *traced, refuse)
    for user in list(node.users):  # getitem
        gradient = made[user.args[1]]
        if not differentiable:
            with graph.inserting_before(node):
                gradient = graph.call_function(barrier, (gradient,))
                gradient.meta = dict(user.meta)
        user.replace_all_uses_with(gradient)
        graph.erase_node(user)
    graph.erase_node(node)
    return any(map(is_batch_norm, path))


def _between(graph: Any, inputs: Sequence[Any], outputs: Sequence[Any], barrier: Any) -> list[Any]:
    """The nodes through which outputs depend on inputs, in order; inputs among them where they depend on others."""
    below, first = set(inputs), set(inputs)
    for node in graph.nodes:
        if node.target is not barrier and below.intersection(node.all_input_nodes):
            below.add(node)
            first.discard(node)
    wanted = _above(outputs, below - first)
    return [n for n in graph.nodes if n in wanted]


def _above(nodes: Iterable[Any], among: Any) -> set[Any]:
    """Those of `among` on which nodes depend through nodes of `among`, themselves included."""
    found: set[Any] = set()
    left = [n for n in nodes if n in among]
    while left:
        node = left.pop()
        if node not in found:
            found.add(node)
            left += [n for n in node.all_input_nodes if n in among]
    return found


def _dropout_as_product(torch: Any, graph: Any, node: Any) -> None:
    """Dropout as a product with what it makes of ones: the backward pass is to have the same mask."""
    (found,) = (user for user in node.users if user.args[1] == 0)
    value = found.meta["val"]
    with graph.inserting_before(node):
        ones = graph.call_function(torch.ops.aten.ones.default, (list(value.shape),), {"dtype": value.dtype})
        dropped = graph.call_function(node.target, (ones, *node.args[1:]))
        mask = graph.call_function(getitem, (dropped, 0))
        product = graph.call_function(torch.ops.aten.mul.Tensor, (node.args[0], mask))
    dropped.meta = dict(node.meta)
    for new in (ones, mask, product):
        new.meta = dict(found.meta)
    found.replace_all_uses_with(product)
    graph.erase_node(found)
    graph.erase_node(node)


def _traced(torch: Any, node: Any, path: Sequence[Any]) -> tuple[list[Any], dict[Any, Any]]:
    """The path's run forward and back, traced below autograd: the nodes of that trace that are the gradients; and those
    that the program has already -> the program's."""
    outputs, slopes, inputs, _ = node.args
    inside = set(path)
    needed = [n for step in path for n in step.all_input_nodes] + [*inputs, *outputs, *slopes]
    given = [n for n in dict.fromkeys(needed) if n not in inside]
    leaves = set(inputs) - inside

    def run(*tensors: Any) -> Any:
        env = {n: t.detach().requires_grad_() if n in leaves else t for n, t in zip(given, tensors, strict=True)}
        with torch.enable_grad(), _in_parts(torch):
            for step in path:
                env[step] = _called(torch, step, *torch.fx.node.map_arg((step.args, step.kwargs), env.__getitem__))
            ends, starts, arriving = ([env[n] for n in nodes] for nodes in (outputs, inputs, slopes))
            return torch.autograd.grad(ends, starts, arriving), [env[n] for n in path]

    trace = torch.fx.experimental.proxy_tensor.make_fx(run, backward_decompositions(torch))
    traced = trace(*(n.meta["val"] for n in given)).graph
    (final,) = (n for n in traced.nodes if n.op == "output")
    gradients, values = final.args[0]
    known = {own: n for own, n in zip(values, path, strict=True) if isinstance(own, torch.fx.Node)}
    known |= zip((n for n in traced.nodes if n.op == "placeholder"), given, strict=True)
    return list(gradients), known


@contextmanager
def _in_parts(torch: Any) -> Iterator[None]:
    """Within it, attention and recurrent layers are what they are made of: their kernels have no second derivatives."""
    math = torch.nn.attention.SDPBackend.MATH
    with torch.nn.attention.sdpa_kernel(math), torch.backends.mkldnn.flags(enabled=False):
        yield


def _called(torch: Any, node: Any, arguments: Any, named: Any) -> Any:
    return operators_in_parts(torch).get(packet(node.target), node.target)(*arguments, **named)


def _copied(
    torch: Any, graph: Any, node: Any, gradients: Sequence[Any], known: Mapping[Any, Any], refuse: Refuse
) -> list[Any]:
    """The program's nodes that are the gradients, with what is new of the trace put in front of `node`."""
    made = dict(known)
    for own in _new(gradients, known):
        if packet(own.target) == "aten.detach":  # of what autograd has saved: it has a gradient nevertheless
            made[own] = made[own.args[0]]
            continue
        if torch.Tag.nondeterministic_seeded in getattr(own.target, "tags", ()):
            raise refuse("random numbers within what torch.autograd.grad differentiates", node)
        with graph.inserting_before(node):
            made[own] = graph.node_copy(own, made.__getitem__)
        made[own].meta = {**own.meta, **{k: node.meta[k] for k in PLACE if k in node.meta}}
    return [made[g] for g in gradients]


def _new(gradients: Sequence[Any], known: Mapping[Any, Any]) -> list[Any]:
    """The nodes of a trace that gradients are made from and that are not known, in order; those that write to one of
    them are such, too."""
    wanted = set(gradients)
    found: list[Any] = []
    for own in reversed(gradients[0].graph.nodes):
        schema = getattr(own.target, "_schema", None)
        written = own.args[:1] if schema is not None and schema.is_mutable else ()
        if own.op == "call_function" and own not in known and (own in wanted or wanted.intersection(written)):
            wanted |= {own, *own.all_input_nodes}
            found.append(own)
    return found[::-1]
