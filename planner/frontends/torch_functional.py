"""Exported programs made functional and decomposed: operators in place and views made pure, composite operators and
those that a table has replaced by what they are made of."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from operator import getitem
from typing import Any

from planner.frontends.aten import HANDLERS, packet
from planner.frontends.torch_in_place import add_node, is_composite, write_apart

PLAIN = {
    *("aten.broadcast_tensors", "aten.dropout", "aten.einsum", "aten.pad", "aten.sum_to_size"),
    *("aten.fft_fft", "aten.fft_ifft", "aten.fft_rfft", "aten.fft_irfft"),
}
"""Composite operators that return no views, and are made of no other composite ones that have handlers."""


def decomposed(torch: Any, program: Any, table: Any) -> Any:
    """The program, functional, with the operators of `table` decomposed: another one, or the same, changed."""
    write_apart(torch, program)
    composite = _plain(torch, program, table)
    if composite is None:
        with _few_kept(torch, program):
            return program.run_decompositions(table)
    for node in composite:
        _expand(torch, program.graph, node)
    program.graph.eliminate_dead_code(lambda n: n.is_impure(impure_random=False))  # as run_decompositions does
    (final,) = (n for n in program.graph.nodes if n.op == "output")
    for spec, result in zip(program.graph_signature.output_specs, final.args[0], strict=True):
        if isinstance(result, torch.fx.Node):
            spec.arg.name = result.name
    return program


def _plain(torch: Any, program: Any, table: Any) -> list[Any] | None:
    """The nodes of composite operators that return views (flatten, reshape, to) or are in PLAIN, where nothing else is
    to be changed; None where there is more. PyTorch's run_decompositions traces a program twice, whatever there is."""
    kept, found = _composite(torch.export.exported_program._collect_all_valid_cia_ops), []
    key = torch._C.DispatchKey
    for node in program.graph.nodes:
        target = node.target
        if node.op != "call_function" or target is getitem or (target in kept and target not in table):
            continue
        if not isinstance(target, torch._ops.OpOverload) or target._schema.is_mutable:
            return None
        composite = is_composite(torch, target)
        if composite and (packet(target) in PLAIN or any(r.alias_info is not None for r in target._schema.returns)):
            found.append(node)
        elif composite or target in table or target.py_kernels.keys() & {key.CompositeImplicitAutograd, key.Autograd}:
            return None
    return found


def _expand(torch: Any, graph: Any, node: Any) -> None:
    """Lets what it is made of be read in the place of a composite operator."""
    tree = torch.utils._pytree
    made = {id(n.meta["val"]): n for n in node.all_input_nodes}
    alive = list[Any]()  # or another tensor might have the id of one

    def append(value: Any, target: Any, arguments: Any, named: Any) -> None:
        made[id(value)] = step = add_node(node, target, arguments, named, value)
        alive.append(value)
        for i, part in enumerate(value if isinstance(value, list | tuple) else ()):
            append(part, getitem, (step, i), {})

    class Recorder(torch.utils._python_dispatch.TorchDispatchMode):  # type: ignore[misc]
        def __torch_dispatch__(self, target: Any, types: Any, arguments: Any = (), named: Any = None) -> Any:
            result = target(*arguments, **(named or {}))
            append(result, target, *tree.tree_map_only(torch.Tensor, lambda x: made[id(x)], (arguments, named or {})))
            return result

    arguments, named = torch.fx.node.map_arg((node.args, node.kwargs), lambda n: n.meta["val"])
    with graph.inserting_before(node), torch.no_grad(), Recorder():
        result = node.target.decompose(*arguments, **named)
    several = isinstance(result, list | tuple)
    for user in list(node.users) if several else ():  # getitem
        user.replace_all_uses_with(made[id(result[user.args[1]])])
    if not several:
        node.replace_all_uses_with(made[id(result)])


@contextmanager
def _few_kept(torch: Any, program: Any) -> Iterator[None]:
    """Within it, PyTorch prepares those composite operators for being left alone that have handlers or are in the
    program, not all thousand that it knows: that takes a quarter of a second each time."""
    module = torch.export.exported_program
    collected = module._collect_all_valid_cia_ops
    blocks = (m for m in program.graph_module.modules() if isinstance(m, torch.fx.GraphModule))
    called = {n.target for block in blocks for n in block.graph.nodes}
    kept = {op for op in _composite(collected) if op in called or packet(op) in HANDLERS}
    module._collect_all_valid_cia_ops = lambda: kept
    try:
        yield
    finally:
        module._collect_all_valid_cia_ops = collected


@cache
def _composite(collected: Callable[[], set[Any]]) -> frozenset[Any]:
    return frozenset(collected())
