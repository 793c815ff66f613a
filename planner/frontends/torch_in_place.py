"""Exported programs that write in place where nobody has a view, made pure: functions of one element that overwrite
what a layer returned, and batch norms' statistics and counters. PyTorch's run_decompositions traces a program twice to
find out what is written where."""

from collections import defaultdict
from collections.abc import Mapping
from operator import getitem
from typing import Any

from planner.frontends.aten import packet
from planner.frontends.torch_buffers import COUNTER

_NORM = "aten.batch_norm.default"
_NEW = {
    *("aten.adaptive_avg_pool2d", "aten.batch_norm", "aten.conv1d", "aten.conv2d", "aten.conv3d"),
    *("aten.conv_transpose2d", "aten.group_norm", "aten.layer_norm", "aten.linear", "aten.max_pool2d"),
}
"""Composite operators whose results are new tensors. Of others, such as dropout's, the schema does not tell."""
PLACE = ("stack_trace", "nn_module_stack")
"""What a node's meta says of where it comes from."""


def write_apart(torch: Any, program: Any) -> None:
    """Makes new tensors of all that is written in place, and results of what buffers hold in the end. A program that
    does more than this module knows of stays as it was."""
    graph = program.graph
    buffers = {s.arg.name: s.target for s in program.graph_signature.input_specs if s.kind.name == "BUFFER"}
    if not _is_known(torch, graph, buffers):
        return
    now, kept = dict[Any, Any](), dict[Any, Any]()
    for node in list(graph.nodes):
        for given in node.all_input_nodes:
            latest = given
            while latest in now:
                latest = now[latest]
            node.replace_input_with(given, latest)
        with graph.inserting_before(node):
            if str(node.target) == _NORM:
                now[node] = _normalised(torch, node, kept)
            elif _writes(node):
                made = _called(torch, node, _pure(torch, node), *node.args, **node.kwargs)
                now[node] = now[node.args[0]] = kept[node.args[0]] = made
    for node in [n for n in now if str(n.target) == _NORM or _writes(n)]:
        graph.erase_node(node)
    inputs = [n for n in graph.find_nodes(op="placeholder") if n in kept]
    (final,) = graph.find_nodes(op="output")
    final.args = ((*(kept[n] for n in inputs), *final.args[0]),)
    made = torch.export.graph_signature
    kind = made.OutputKind.BUFFER_MUTATION
    specs = [made.OutputSpec(kind, made.TensorArgument(kept[n].name), buffers[n.name]) for n in inputs]
    program.graph_signature.output_specs[:0] = specs


def dropout_apart(torch: Any, program: Any) -> None:
    """Dropout in place, where nobody reads what it overwrites, is dropout: left alone it would become a comparison of
    random numbers."""
    later: set[Any] = set()
    for node in reversed(list(program.graph.nodes)):
        if node.target is torch.ops.aten.dropout_.default and node.args[0] not in later:
            node.target = torch.ops.aten.dropout.default
        later.update(node.all_input_nodes)


def _is_known(torch: Any, graph: Any, buffers: Mapping[str, str]) -> bool:
    """Whether there is something to do, and all that is written are counters and statistics of one batch norm each, and
    new tensors of which no view is made before the last write."""
    number = {node: i for i, node in enumerate(graph.nodes)}
    calls = [n for n in graph.nodes if n.op == "call_function" and n.target is not getitem]
    writing, norms = [n for n in calls if _writes(n)], [n for n in calls if str(n.target) == _NORM]
    if not (writing or norms) or not all(isinstance(n.target, torch._ops.OpOverload) for n in calls):
        return False
    if not all(_moves_own(n, buffers) for n in norms) or not all(_pure(torch, n) for n in writing):
        return False
    root, writers = dict[Any, Any](), defaultdict[Any, list[Any]](list)
    for node in writing:
        root[node] = root.get(node.args[0], node.args[0])
        writers[root[node]].append(node)
    for tensor, changing in writers.items():
        if tensor.op == "placeholder":
            counts = buffers.get(tensor.name, "").endswith(COUNTER) and packet(changing[0].target) == "aten.add_"
            if not counts or len(tensor.users) > 1 or changing[0].users:
                return False
            continue
        users = {user for same in (tensor, *changing) for user in same.users if number[user] < number[changing[-1]]}
        maker = tensor.args[0] if tensor.target is getitem else tensor
        if not all(_is_new(torch, n) for n in (maker, *users.difference(changing))):
            return False
    return True


def _moves_own(norm: Any, buffers: Mapping[str, str]) -> bool:
    """Whether the statistics are there and, if they are moved, buffers that nobody else reads."""
    *_, mean, variance, moves, _, _, _ = norm.args
    own = mean is not variance and all(
        s is not None and s.name in buffers and len(s.users) == 1 for s in (mean, variance)
    )
    return own if moves else mean is not None and variance is not None


def _normalised(torch: Any, norm: Any, kept: dict[Any, Any]) -> Any:
    """The result of a batch norm that moves nothing. `kept`: buffer -> its new contents."""
    *given, moves, momentum, eps, _ = norm.args
    if not moves:
        made = _called(torch, norm, torch.ops.aten._native_batch_norm_legit_no_training.default, *given, momentum, eps)
        return _called(torch, norm, getitem, made, 0)
    operator = torch.ops.aten._native_batch_norm_legit_functional.default
    made = _called(torch, norm, operator, *given, moves, momentum, eps)
    y, kept[given[3]], kept[given[4]] = (_called(torch, norm, getitem, made, i) for i in (0, 3, 4))
    return y


def _called(torch: Any, origin: Any, target: Any, *arguments: Any, **named: Any) -> Any:
    return add_node(origin, target, arguments, named, _value(torch, target, arguments, named))


def add_node(origin: Any, target: Any, arguments: Any, named: Any, value: Any) -> Any:
    """A call where the graph of `origin` inserts nodes, from its place in the module."""
    name = getattr(target, "overloadpacket", target).__name__
    made = origin.graph.create_node("call_function", target, arguments, named, name=name)
    made.meta = {"val": value} | {k: origin.meta[k] for k in PLACE if k in origin.meta}
    return made


def _value(torch: Any, target: Any, arguments: Any, named: Any) -> Any:
    """What an operator makes of nodes' values, which are without contents."""
    held, held_named = torch.fx.node.map_arg((arguments, named), lambda n: n.meta["val"])
    with torch.no_grad():
        return target(*held, **held_named)


def _writes(node: Any) -> bool:
    return getattr(getattr(node.target, "_schema", None), "is_mutable", False)


def _is_new(torch: Any, node: Any) -> bool:
    """Whether no result can be an argument, or a view of one."""
    if node.op != "call_function" or any(r.alias_info is not None for r in node.target._schema.returns):
        return False
    return packet(node.target) in _NEW or not is_composite(torch, node.target)


def is_composite(torch: Any, target: Any) -> bool:
    """Whether PyTorch makes an operator of others before it differentiates."""
    return bool(torch._C._dispatch_has_kernel_for_dispatch_key(target.name(), "CompositeImplicitAutograd"))


def _without_writing(torch: Any, target: Any) -> Any:
    """The operator with the same arguments that makes a new tensor; None where there is none. Names of overloads do not
    tell: what pow_.Scalar takes, pow.Tensor_Scalar does, and pow.Scalar something else."""
    operator = getattr(torch.ops.aten, target._opname.removesuffix("_"), None)
    overloads = () if operator is None else (getattr(operator, name) for name in operator.overloads())
    return next((o for o in overloads if _takes(o) == _takes(target)), None)


def _takes(overload: Any) -> list[tuple[str, str]]:
    return [(a.name, str(a.type)) for a in overload._schema.arguments]


def _pure(torch: Any, node: Any) -> Any:
    """What makes a new tensor with the contents that a function of one element leaves in its first argument; None where
    there is none, or the node is no such function."""
    target, tags = node.target, torch.Tag
    other = _without_writing(torch, target)
    by_element = tags.pointwise in target.tags or packet(target) == "aten.hardswish_"
    if other in (None, target) or not by_element or tags.nondeterministic_seeded in target.tags:
        return None
    if is_composite(torch, target) or any(r.alias_info is not None for r in other._schema.returns):
        return None
    before, after = node.args[0].meta["val"], _value(torch, other, node.args, node.kwargs)
    return other if (after.shape, after.dtype) == (before.shape, before.dtype) else None
