"""What a module's forward may change: running statistics, which batch norms move by themselves, and saved buffers of
floats (the vectors of spectral norms, moving averages), which have their new contents when a step is over.
"""

import operator
from collections.abc import Callable, Collection, Mapping
from typing import Any

from planner.errors import UserError
from planner.frontends.aten import Context, dtype_error
from planner.ops.scalar import ScalarAttrs


def changed_buffers(program: Any) -> dict[str, Any]:
    """The program's name of a buffer -> the node that makes its new contents; without statistics. `program`:
    functional."""
    nodes = {n.name: n for n in program.graph.nodes}
    changed = [s for s in program.graph_signature.output_specs if s.kind.name == "BUFFER_MUTATION"]
    return {s.target: nodes[s.arg.name] for s in changed if not _is_statistic(nodes[s.arg.name], s.target)}


def _is_statistic(producer: Any, target: str) -> bool:
    """Running statistics come from a batch norm; its counter of batches is not needed."""
    if target.endswith("num_batches_tracked"):
        return True
    return producer.target is operator.getitem and "batch_norm" in str(producer.args[0].target)


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
            fix = "the optimizer alone changes parameters: compute what is used from them, as weight_norm does"
            raise UserError("SP1020", f"the module writes to its parameter {plain(spec.target)!r}", fix)
        if spec.kind.name == "USER_INPUT_MUTATION":
            raise UserError("SP1020", f"the module writes to its input {spec.target!r}", "work on a copy")
    for name in map(plain, changed_buffers(program)):
        problem, dtype = f"the module writes to its buffer {name!r} in forward", buffers[name].dtype
        if never:
            raise UserError("SP1020", problem, never)
        if name not in saved:
            fix = "register it without persistent=False: it is part of what training goes on from"
            raise UserError("SP1020", f"{problem}, but does not save it with its state", fix)
        if dtype is not torch.float32:
            if dtype.is_floating_point:
                raise dtype_error(f"buffer {name!r}", dtype)  # statistics that are converted, often
            fix = "keep a buffer of float32, or count outside of the module"
            raise UserError("SP1020", f"{problem}, which holds {str(dtype).removeprefix('torch.')}", fix)


def carry(context: Context, buffer: Any, contents: Any) -> None:
    """At the end of every step, the state of `buffer` becomes `contents`."""
    state = context.state(buffer)
    # A copy: what it may be a view of, parameters and other buffers, changes at the end of the step, too.
    value = context.op("add_scalar", context.val(contents), attrs=ScalarAttrs(value=0.0))
    context.b.carry(state, context.b.convert(value, context.b.type(state).layout))
