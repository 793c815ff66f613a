"""PyTorch modules -> functional ATen programs, through torch.export: in training mode, in-place operators and views
made pure, decomposed until every operator has a handler, as far as PyTorch's own tables go."""

import io
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stderr, redirect_stdout
from typing import Any, NamedTuple

from planner.errors import UserError
from planner.frontends.aten import HANDLERS, packet
from planner.frontends.torch_asked import asked_numbers
from planner.frontends.torch_assignments import assignments, require_kept
from planner.frontends.torch_branches import branches
from planner.frontends.torch_buffers import hold_frozen, join_buffers
from planner.frontends.torch_checks import unvalidated
from planner.frontends.torch_choices import Choices
from planner.frontends.torch_data import detached_data
from planner.frontends.torch_derivatives import expand_derivatives, recorded_derivatives
from planner.frontends.torch_figures import BranchAsked, NumberAsked
from planner.frontends.torch_functional import decomposed
from planner.frontends.torch_functions import traced_functions
from planner.frontends.torch_held import held_again
from planner.frontends.torch_in_place import dropout_apart
from planner.frontends.torch_known import known_numbers
from planner.frontends.torch_numbers import numbers, of_generators, tell
from planner.frontends.torch_packed import packed_sequences
from planner.frontends.torch_picked import picked_rows
from planner.frontends.torch_places import calling_line, causes, in_brackets, located_error, place_of
from planner.frontends.torch_refusals import export_error, no_derivative, own_gradient
from planner.frontends.torch_same import returned_as_given
from planner.frontends.torch_selected import selected_rows
from planner.frontends.torch_sparse import sparse_constants
from planner.frontends.torch_stand_ins import stand_ins
from planner.frontends.torch_surroundings import surroundings
from planner.frontends.torch_transforms import traced_transforms
from planner.frontends.torch_versions import mended, require_version
from planner.frontends.torch_writes import (
    NO_GRAD,
    buffers_without_gradient,
    hidden_write,
    is_floating,
    views_of_buffers,
    written_arguments,
)
from planner.graph.model import unsupported

_CONSTANT = {"aten.arange", "aten.eye", "aten.full", "aten.ones", "aten.scalar_tensor", "aten.zeros"}
"""Made of Python's numbers alone: computed when they are lowered, to the same bits as what they would be made of."""


def import_torch() -> Any:
    """SP1012 when PyTorch is missing, as it is an optional dependency, or too old."""
    try:
        import torch
    except ImportError as error:
        raise UserError("SP1012", "capturing a PyTorch module needs PyTorch", "pip install torch==2.13.0") from error
    require_version(torch)
    return torch


class Exported(NamedTuple):
    program: Any
    normalised: bool
    """Whether it has derivatives of batch norms, whose operators no longer say in which mode they are."""
    numbers: frozenset[int]
    """Which of the tensors and constants that it returns are Python's numbers to who calls the module."""


def export(
    torch: Any,
    module: Any,
    original: Any,
    positional: Any,
    keywords: dict[str, Any],
    training: bool = True,
    of_inputs: bool = False,
) -> Exported:
    """A functional program whose operators all have handlers, as far as PyTorch can decompose them. `of_inputs`:
    whether their gradients are wanted, too."""
    with mended(torch), sparse_constants(torch, module):
        given = torch, module, original, positional, keywords, training, of_inputs
        program, returned = _asked_again(lambda again: _exported(*given, again))
    with mended(torch), warnings.catch_warnings(), _mode(original, training), _quiet():
        warnings.simplefilter("ignore")
        _refuse_dynamic(program)
        hold_frozen(program)
        join_buffers(program)
        _keep_buffers(program)
        hidden = hidden_write(program, "model." if module is not original else "")
        if hidden is not None:
            raise located_error(*hidden)
        _keep_detached(torch, program)
        dropout_apart(torch, program)
        program = _decomposed(torch, program, _decompositions(torch, program))
        of_norms = expand_derivatives(torch, program, _barrier(torch), no_derivative)
        if of_norms:
            program = _decomposed(torch, program, _decompositions(torch, program))
        for _ in range(8):  # a decomposition may use operators that need another one
            table = _decompositions(torch, program)
            if not table:
                break
            program = _decomposed(torch, program, table)
    return Exported(program, any(of_norms), frozenset(returned))


def _decompositions(torch: Any, program: Any) -> dict[Any, Any]:
    """PyTorch's, of the operators that have no handler; what works in place is made functional first."""
    called = {n.target for n in _calls(program) if packet(n.target) not in HANDLERS.keys() | _CONSTANT}
    missing = sorted((target for target in called if not target._schema.is_mutable), key=str)
    if not missing:
        return {}
    table = torch.export.default_decompositions()
    # To look into it lists the operators of all namespaces first; PyTorch's own are in there from the beginning.
    known = table.decomp_table if all(target.namespace == "aten" for target in missing) else table
    return {target: known[target] for target in missing if target in known}


class _Anew(Exception):
    """Forward is to be begun anew."""


class _Again:
    """What forward has asked for, so that it is begun anew. `among`: global names of code that asks for Python's
    numbers of data, whose float() and int() are replaced; `choices`: branches of which both sides are computed."""

    def __init__(self) -> None:
        self.among, self.choices = list[dict[str, Any]](), Choices()

    def helps(self, error: Exception) -> bool:
        """Whether it will not ask that again."""
        if isinstance(error, BranchAsked):
            return self.choices.add(error)
        names = error.names if isinstance(error, NumberAsked) else None
        if names is None or any(names is known for known in self.among):
            return False
        self.among.append(names)
        return True


def _asked_again(exported: Callable[[_Again], Any]) -> Any:
    """What it returns, at last."""
    again = _Again()
    while True:
        try:
            return exported(again)
        except _Anew:
            continue
        except (NumberAsked, BranchAsked) as error:
            if not again.helps(error):
                raise


def _exported(
    torch: Any,
    module: Any,
    original: Any,
    positional: Any,
    keywords: dict[str, Any],
    training: bool,
    of_inputs: bool,
    again: _Again,
) -> Any:
    """What torch.export makes of the module in one of its modes, and which of its results are Python's numbers."""
    _refuse_hooks(original)
    with warnings.catch_warnings(), _mode(original, training), _quiet():
        warnings.simplefilter("ignore")
        _refuse_cumulative(torch, original)
        given = torch, module, original, positional, keywords, of_inputs, again
        program, returned, left, found = _recorded(*given)
        if left.left:
            found.append(left.told())
            with left.found():
                try:
                    second, *_ = _recorded(*given)
                except Exception as error:
                    raise (_Anew() if again.helps(error) else left.differs()) from error
            left.require_same(program, second)
    tell([*found, *of_generators(program)])
    return program, returned


def _recorded(
    torch: Any,
    module: Any,
    original: Any,
    positional: Any,
    keywords: dict[str, Any],
    of_inputs: bool,
    again: _Again,
) -> tuple[Any, Any, Any, list[UserError]]:
    """The program of one pass, which of its results are Python's numbers, what it leaves, and what is to be told."""
    try:
        prefix = "model." if module is not original else ""
        with (
            _hooks_refused(torch),
            traced_functions(torch, lambda what: own_gradient(what, calling_line()), of_inputs),
            recorded_derivatives(torch, no_derivative),
            traced_transforms(torch, _barrier(torch), no_derivative),
            unvalidated(torch),
            stand_ins(torch),
            surroundings(torch, module),
            held_again(torch, module),
            detached_data(torch, module),
            returned_as_given(torch, module),
            branches(torch, module) as written,
            again.choices.computed(torch, module, written),
            known_numbers(torch, module, prefix),
            asked_numbers(torch, module, written, again.among) as asked,
            selected_rows(torch, module),
            picked_rows(torch, module),
            packed_sequences(torch) as packed,
            numbers(torch, module, original) as fixed,
            assignments(torch, module, prefix) as assigned,
        ):
            program = torch.export.export(module, positional, keywords, strict=False)
            require_kept(program, assigned.replaced, prefix)
    except Exception as error:
        refused = next((e for e in causes(error) if isinstance(e, UserError)), None)
        raise refused or export_error(error) from error
    return program, asked.returned, assigned.left, [*fixed, *asked.told(), *again.choices.told, *packed]


def _decomposed(torch: Any, program: Any, table: Any) -> Any:
    try:
        return decomposed(torch, program, table)
    except Exception as error:  # of whatever PyTorch meets there
        raise export_error(error) from error


@contextmanager
def _mode(module: Any, training: bool) -> Iterator[None]:
    """Training or evaluation mode during the export; submodules that were set to evaluation mode in a training module
    stay so."""
    modes = {m: m.training for m in module.modules()}
    if module.training is not training:
        module.train(training)
    try:
        yield
    finally:
        for submodule, mode in modes.items():
            submodule.training = mode


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch logs and prints the graph when an export fails; the error says enough."""
    import logging

    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()):
            yield
    finally:
        logging.disable(previous)


@contextmanager
def _hooks_refused(torch: Any) -> Iterator[None]:
    """Within it, hooks on gradients are errors (SP1024): an exported program would be differentiated without them."""

    def refused(*arguments: Any) -> None:
        raise own_gradient("a hook on a tensor's gradient", calling_line())

    tensor = torch.Tensor
    kept = tensor.register_hook
    tensor.register_hook = refused
    try:
        yield
    finally:
        tensor.register_hook = kept


def _refuse_hooks(module: Any) -> None:
    """Hooks that were registered before would not run, either."""
    for path, part in module.named_modules():
        if part._backward_hooks or part._backward_pre_hooks:
            raise own_gradient(f"a backward hook of module {path or 'itself'!r}", "")
    for name, parameter in module.named_parameters():
        if parameter._backward_hooks or getattr(parameter, "_post_accumulate_grad_hooks", None):
            raise own_gradient(f"a hook on the gradient of parameter {name!r}", "")


def _refuse_cumulative(torch: Any, module: Any) -> None:
    """Running statistics that are means of all batches read how many there were."""
    for path, part in module.named_modules():
        own = isinstance(part, torch.nn.modules.batchnorm._NormBase) and part.training and part.track_running_stats
        if own and part.momentum is None:
            problem = f"module {path or 'itself'!r} has momentum=None: each batch counts less in its running statistics"
            raise UserError("SP1020", problem, "give it a momentum, such as 0.1")


def _refuse_dynamic(program: Any) -> None:
    for node in program.graph.nodes:
        shape = getattr(node.meta.get("val"), "shape", ())
        if not all(isinstance(d, int) for d in shape):
            raise UserError(
                "SP1014",
                f"node {node.name!r}{in_brackets(node)} has the dynamic shape ({', '.join(map(str, shape))})",
                "stepplan plans fixed shapes: index with masks of fixed size",
            )


def _keep_buffers(program: Any) -> None:
    """A detached buffer is the buffer: it has no gradient, and whoever reads it is to see later changes."""
    for node in views_of_buffers(program):
        node.replace_all_uses_with(node.args[0])
        node.graph.erase_node(node)


def _keep_detached(torch: Any, program: Any) -> None:
    """What is detached, or computed under torch.no_grad(), would get gradients once the program is functional: it goes
    through an operator of our own, which stays."""
    barrier, buffers = _barrier(torch), buffers_without_gradient(program)
    for node in list(program.graph.nodes):
        if node.op != "call_function":
            continue
        alone = packet(node.target) == "aten.detach_" and len(node.args[0].users) == 1
        if packet(node.target) == "aten.detach" or alone:
            node.target = barrier
        elif packet(node.target) == "aten.detach_":
            raise unsupported(node.name, "aten.detach_", "aten.detach", place_of(node))
        elif str(node.target) == NO_GRAD and node.args[0] is False:
            block = program.graph_module.get_submodule(node.args[1].target)
            _detach_block(block, barrier, [a in buffers for a in node.args[2:]])


def _detach_block(block: Any, barrier: Any, buffers: list[bool]) -> None:
    """What a block without gradients returns; and what goes into one that writes in place, since who reads what it
    wrote to need not read what it returns. Not a buffer: it has no gradient, and a batch norm is to move itself.
    `buffers`: which of the block's arguments are some."""
    (final,) = (n for n in block.graph.nodes if n.op == "output")
    given, written = [n for n in block.graph.nodes if n.op == "placeholder"], written_arguments(block.graph)
    whole = {n for n, buffer in zip(given, buffers, strict=True) if buffer}
    with block.graph.inserting_before(final):
        for result in filter(is_floating, dict.fromkeys(final.all_input_nodes)):
            final.replace_input_with(result, _detached(block.graph, result, barrier))
    with block.graph.inserting_after(given[-1] if given else None):
        for argument in filter(is_floating, given if written else ()):
            if argument not in written and argument not in whole:
                users = list(argument.users)
                made = _detached(block.graph, argument, barrier)
                for user in users:
                    user.replace_input_with(argument, made)
    block.recompile()


def _detached(graph: Any, node: Any, barrier: Any) -> Any:
    made = graph.call_function(barrier, (node,))
    made.meta = dict(node.meta)
    return made


def _barrier(torch: Any) -> Any:
    """stepplan::detach, known to PyTorch from the first export on."""
    if not hasattr(torch.ops.stepplan, "detach"):
        made = torch.library.custom_op("stepplan::detach", mutates_args=(), schema="(Tensor x) -> Tensor")
        barrier = made(lambda x: x.clone())
        barrier.register_fake(lambda x: torch.empty_like(x))
        barrier.register_vmap(lambda info, dimensions, x: (barrier(x), dimensions[0]))
    return torch.ops.stepplan.detach.default


def _calls(program: Any) -> list[Any]:
    return [n for n in program.graph.nodes if n.op == "call_function" and str(n.target).startswith("aten.") and n.users]
