"""What a module's forward may change: running statistics, which batch norms move by themselves, and saved buffers of
floats (the vectors of spectral norms, moving averages), which have their new contents when a step is over. So have
parameters that are not trained, as moving averages of those that are.
"""

import operator
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from typing import Any

from planner.errors import UserError
from planner.frontends.aten import Context, dtype_error
from planner.frontends.torch_assignments import not_saved
from planner.frontends.torch_writes import written_tensors
from planner.ops.scalar import ScalarAttrs

COUNTER = "num_batches_tracked"
"""What batch norms call their counter of batches."""


def changed_buffers(program: Any) -> dict[str, Any]:
    """The program's name of a buffer -> the node that makes its new contents; without statistics. `program`:
    functional."""
    nodes = {n.name: n for n in program.graph.nodes}
    return {s.target: nodes[s.arg.name] for s in _mutations(program) if not _is_statistic(nodes[s.arg.name], s.target)}


def hold_frozen(program: Any) -> None:
    """A parameter that is not trained and that forward writes to, as a teacher's that follows its student, is a buffer
    from here on. `program`: as exported, not functional."""
    signature, nodes = program.graph_signature, {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
    frozen = {
        i: s
        for i, s in enumerate(signature.input_specs)
        if s.kind.name == "PARAMETER" and not program.state_dict[s.target].requires_grad
    }
    written = written_tensors(program) if frozen else set()
    plain: dict[int, Any] = {}
    for i, spec in frozen.items():
        if nodes[spec.arg.name] in written:
            signature.input_specs[i] = replace(spec, kind=type(spec.kind).BUFFER, persistent=True)
            parameter = program.state_dict[spec.target]
            program.state_dict[spec.target] = plain.setdefault(id(parameter), parameter.detach())


def join_buffers(program: Any) -> None:
    """A buffer that the module has under several names becomes one input of the program: PyTorch does not make a
    program functional that changes one of several. `program`: as exported, not functional."""
    graph, signature = program.graph, program.graph_signature
    nodes, tensors = {n.name: n for n in graph.nodes if n.op == "placeholder"}, program.constants | program.state_dict
    first: dict[int, Any] = {}
    for spec in [s for s in signature.input_specs if s.kind.name == "BUFFER"]:
        node = nodes[spec.arg.name]
        kept = first.setdefault(id(tensors[spec.target]), node)
        if kept is not node:
            node.replace_all_uses_with(kept)
            graph.erase_node(node)
            signature.input_specs.remove(spec)


def moving_statistics(program: Any) -> list[str]:
    """The program's names of the means and variances that batch norms move."""
    nodes = {n.name: n for n in program.graph.nodes}
    found = [s for s in _mutations(program) if _is_statistic(nodes[s.arg.name], s.target)]
    return [s.target for s in found if not s.target.endswith(COUNTER)]


def _mutations(program: Any) -> list[Any]:
    return [s for s in program.graph_signature.output_specs if s.kind.name == "BUFFER_MUTATION"]


def _is_statistic(producer: Any, target: str) -> bool:
    """Running statistics come from a batch norm, which counts batches as well."""
    if target.endswith(COUNTER):
        return True
    return producer.target is operator.getitem and is_batch_norm(producer.args[0])


def is_batch_norm(node: Any) -> bool:
    return "batch_norm" in str(node.target)


def require_changeable(
    torch: Any,
    program: Any,
    plain: Callable[[str], str],
    buffers: Mapping[str, Any],
    saved: Collection[str],
    never: str,
) -> None:
    """SP1020: the program writes to what may not change. `plain`: the program's name -> the module's; `saved`: names of
    the module's state; `never`: the way out where no buffer may change at all."""
    for spec in program.graph_signature.output_specs:
        if spec.kind.name == "PARAMETER_MUTATION":
            fix = "the optimizer alone changes what is trained: compute what is used from it, as weight_norm does"
            raise UserError("SP1020", f"the module writes to its parameter {plain(spec.target)!r}", fix)
        if spec.kind.name == "USER_INPUT_MUTATION":
            raise UserError("SP1020", f"the module writes to its input {spec.target!r}", "work on a copy")
    for name in map(plain, _read_counters(program)):
        fix = "count in a buffer of float32: executors count for batch norms, but steps do not see it"
        raise UserError("SP1020", f"the module reads {name!r}, which a batch norm changes in forward", fix)
    for name in map(plain, changed_buffers(program)):
        kind, dtype = "parameter" if isinstance(buffers[name], torch.nn.Parameter) else "buffer", buffers[name].dtype
        problem = f"the module writes to its {kind} {name!r} in forward"
        if never:
            raise UserError("SP1020", problem, never)
        if name not in saved:
            raise not_saved(name)
        if dtype is not torch.float32:
            if dtype.is_floating_point:
                raise dtype_error(f"{kind} {name!r}", dtype)  # statistics that are converted, often
            fix = "keep a buffer of float32, or count outside of the module"
            raise UserError("SP1020", f"{problem}, which holds {str(dtype).removeprefix('torch.')}", fix)


def _read_counters(program: Any) -> list[str]:
    """Counters of batches that are read by others than those who count."""
    nodes = {n.name: n for n in program.graph.nodes}
    given = {s.target: nodes[s.arg.name] for s in program.graph_signature.input_specs if s.kind.name == "BUFFER"}
    found = []
    for spec in _mutations(program):
        if spec.target.endswith(COUNTER):
            counting = [nodes[spec.arg.name]]
            while counting[-1].op != "placeholder" and counting[-1].all_input_nodes:  # once for every run
                counting.append(counting[-1].all_input_nodes[0])
            others = {user for n in counting for user in n.users if user.op != "output"} - {*counting}
            found += [spec.target] if others or counting[-1] is not given[spec.target] else []
    return found


def contents(context: Context, given: Any) -> Any:
    """Arguments of an operator that is no batch norm: of statistics, copies made where it stands, since a batch norm
    behind it may move them before they are read."""
    if isinstance(given, dict):
        return {k: contents(context, v) for k, v in given.items()}
    if isinstance(given, list | tuple):
        return [contents(context, v) for v in given]
    if id(given) in context.statistics:
        return context.op("add_scalar", context.state(given), attrs=ScalarAttrs(value=0.0))
    return given


def carry(context: Context, buffer: Any, contents: Any) -> None:
    """At the end of every step, the state of `buffer` becomes `contents`."""
    state = context.state(buffer)
    # A copy: what it may be a view of, parameters and other buffers, changes at the end of the step, too.
    value = context.op("add_scalar", context.val(contents), attrs=ScalarAttrs(value=0.0))
    context.b.carry(state, context.b.convert(value, context.b.type(state).layout))
