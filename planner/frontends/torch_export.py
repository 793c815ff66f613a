"""PyTorch modules -> training graphs, through torch.export.

The module is exported in training mode and made functional (in-place operators and views become pure ones), then
every ATen operator is lowered by the tables of the modules aten_*. Operators without a
handler are decomposed by PyTorch's own tables where those know them. Parameters and buffers keep their names.
"""

import inspect
import warnings
from collections.abc import Callable, Mapping
from typing import Any

from planner.errors import UserError
from planner.frontends.coverage import OpUse
from planner.frontends.naming import identifier, loss_prefix, safe_name
from planner.frontends.torch_arguments import by_parameter, called_with
from planner.frontends.torch_buffers import changed_buffers
from planner.frontends.torch_loss import CALLERS, Loss, append_loss
from planner.frontends.torch_lowering import CaptureOptions, Lowering
from planner.frontends.torch_modes import draws, reads_of_mode
from planner.frontends.torch_program import Exported, export, import_torch
from planner.frontends.torch_refusals import PADDED
from planner.frontends.torch_results import returning
from planner.frontends.torch_sharing import require_apart
from planner.frontends.torch_sparse import is_sparse, sparse_input
from planner.graph.builder import GraphBuilder
from planner.graph.entries import order_entries
from planner.graph.model import DType, Graph, Program
from planner.graph.optimizer import Optimizer
from planner.ops.base import Array


def capture_module(module: Any, inputs: Any, options: CaptureOptions | None = None) -> tuple[Graph, dict[str, Array]]:
    """The training graph of a module and its present weights, by the module's names.

    inputs: example arguments (a tensor, a tuple, or a dict of keyword arguments); their shapes are the graph's.
    """
    options = options or CaptureOptions()
    lowering, trained, evaluated = _prepared(module, inputs, options)
    torch, builder = lowering.torch, lowering.context.b
    predictions, value = lowering.run(trained.program)
    evaluation = None
    if evaluated is not None:
        other = lowering.evaluation()
        evaluation = other.context.b, _in_evaluation(other.run, evaluated.program)[0]
    callers = options.loss == CALLERS
    if callers and options.clip_norm is not None:
        fix = "call torch.nn.utils.clip_grad_norm_ before the optimizer's step"
        raise UserError("SP1023", "gradients are clipped where they are applied, which the caller does", fix)
    if callers and options.accumulate:
        fix = "call backward several times before the optimizer's step"
        raise UserError("SP1023", "gradients are added up where they are applied, which the caller does", fix)
    # The caller may want their gradients; the loss has inputs of its own.
    floats = [i for i in builder.inputs if builder.type(i).dtype is DType.FLOAT32]
    graph = builder.finish(
        value or append_loss(torch, lowering.context, lowering.loss, predictions, options.labels),
        predictions,
        Optimizer() if callers else options.optimizer or Optimizer(lr=0.1, momentum=0.9),
        fuse=options.fuse,
        keep=options.keep,
        gradients_of=floats if callers else (),
        clip_norm=options.clip_norm,
        accumulate=options.accumulate,
        evaluation=evaluation,
    )
    if callers:
        exported = {"train_step": trained, "predict": evaluated or trained}
        graph = returning(graph, torch, {name: (made.program, made.numbers) for name, made in exported.items()})
        examples = inputs, inputs if options.evaluation is None else options.evaluation
        signature = inspect.signature(module.forward)
        graph = called_with(graph, torch, *(by_parameter(signature, *_arguments(torch, e)) for e in examples))
    kept = {v.name for v in graph.values}
    weights = {k: w for k, w in lowering.context.weights.items() if k in kept}
    graph, weights = order_entries(graph, weights)
    known = kept | {a for v in graph.values for a in v.aliases}
    weights |= _rest_of_state(torch, module, known)
    if lowering.loss_module is not None and lowering.loss_module.state_dict():
        prefix = loss_prefix(module)
        weights |= _rest_of_state(torch, lowering.loss_module, known, prefix)
        graph = graph.model_copy(update={"loss_prefix": prefix})
    return graph, weights


def explain_module(module: Any, inputs: Any, options: CaptureOptions | None = None) -> list[OpUse]:
    """What `capture_module` with these arguments would do with every operator, unsupported ones included. The only
    errors are those of a module that cannot be exported at all."""
    options = options or CaptureOptions()
    lowering, trained, evaluated = _prepared(module, inputs, options)
    program, uses = trained.program, _uses(lowering, trained.program)
    beside = [] if evaluated is None else _uses(lowering.evaluation(), evaluated.program)
    missing = [use for use in beside if use.kind == "unsupported"]
    if missing or lowering.coverage.missing:
        return uses + missing
    appended = tuple(lowering.context.b.nodes)
    lowering.carry_buffers(program)
    predictions, value = lowering.results(program)
    value = value or append_loss(lowering.torch, lowering.context, lowering.loss, predictions, options.labels)
    graph = lowering.context.b.finish(value, predictions, options.optimizer or Optimizer(), fuse=options.fuse)
    return lowering.coverage.uses(graph, appended)


def _uses(lowering: Lowering, program: Any) -> list[OpUse]:
    """What becomes of every operator, before anything is fused."""
    lowering.coverage.tolerant = True
    lowering.lower(program)
    appended, values = tuple(lowering.context.b.nodes), tuple(lowering.context.b.values.values())
    lowered = Program(name="lowered", nodes=appended, inputs=(), outputs=())
    return lowering.coverage.uses(Graph(name="lowered", values=values, programs=(lowered,)), appended)


def _prepared(module: Any, inputs: Any, options: CaptureOptions) -> tuple[Lowering, Exported, Exported | None]:
    """A lowering into a fresh builder, and the exported programs: in training mode, and in evaluation mode if it may
    compute something else there."""
    torch = import_torch()
    if not isinstance(module, torch.nn.Module):
        raise UserError("SP1018", f"{type(module).__name__} is no torch.nn.Module", "pass the module itself")
    positional, keywords, labels = _apart(torch, module, (*_arguments(torch, inputs), options.labels))
    _tell_modes(module)
    loss, name = _resolve_loss(torch, options.loss, labels), options.name
    wrapped = callable(loss) and not _is_known(torch, loss, labels)
    if wrapped:
        keywords = {"_inputs": (positional, keywords), "_labels": labels}
        positional = ()
    whole = _with_loss(torch, module, loss) if wrapped else module
    with reads_of_mode(torch) as reads:
        trained = export(torch, whole, module, positional, keywords, of_inputs=options.loss == CALLERS)
    program = trained.program
    require_apart(torch, whole, program)
    evaluated = None
    if options.evaluation is not None:
        positional, keywords = _apart(torch, module, _arguments(torch, options.evaluation))
        if wrapped:
            positional, keywords = (), {"_inputs": (positional, keywords), "_labels": labels}
    if (
        reads
        or trained.normalised
        or draws(torch, program)
        or changed_buffers(program)
        or options.evaluation is not None
    ):
        alone = _with_loss(torch, module, None) if wrapped else module  # the loss takes what training returns
        evaluated = _in_evaluation(export, torch, alone, module, positional, keywords, False)
    builder = GraphBuilder(identifier(name or f"{type(module).__name__.lower()}_b{_batch(torch, inputs)}"))
    return Lowering(torch, builder, module, loss, wrapped), trained, evaluated


def _tell_modes(module: Any) -> None:
    """A warning where only parts of the module are in training mode: all of it will be, though its other parts may be
    meant to stay."""
    part = next((name for name, part in module.named_modules() if part.training), "")
    if part:
        problem = f"the module is in evaluation mode, but {part!r} is not: a plan trains all as after module.train()"
        fix = "if other parts are to stay as they are, call module.train() first and then eval() of those"
        warnings.warn(f"{problem}; {fix}", RuntimeWarning, stacklevel=2)


def _in_evaluation(call: Callable[..., Any], *arguments: Any) -> Any:
    """Errors say which mode they are about."""
    try:
        return call(*arguments)
    except UserError as error:
        what = f"in evaluation mode, which predict computes: {error.problem}"
        fix = f"{error.fix}; or leave what evaluation mode alone does, such as choosing boxes, to the module's caller"
        raise UserError(error.code, what, fix) from error


def _rest_of_state(torch: Any, module: Any, known: set[str], prefix: str = "") -> dict[str, Array]:
    """What the module saves and the graph does not compute with: counters of batches, buffers that were folded into
    constants. It travels with the weights, so that an executor's state is the module's. Not sparse matrices:
    NumPy has none."""
    found: dict[str, Array] = {}
    for name, tensor in module.state_dict(prefix=prefix).items():
        if safe_name(name) not in known and isinstance(tensor, torch.Tensor) and not is_sparse(torch, tensor):
            plain = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
            found[safe_name(name)] = plain.detach().cpu().numpy().copy()
    return found


def _arguments(torch: Any, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    def packed(x: Any) -> bool:
        return isinstance(x, torch.nn.utils.rnn.PackedSequence)

    if any(map(packed, torch.utils._pytree.tree_leaves(inputs, is_leaf=packed))):
        raise UserError("SP1013", "a packed sequence is among the example inputs", PADDED)
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    if not isinstance(inputs, Mapping | list | tuple):
        fix = "pass a tensor, a tuple of tensors, or a dict of tensors by name"
        raise UserError("SP1018", f"the example inputs are a {type(inputs).__name__}", fix)
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


def _apart(torch: Any, module: Any, examples: Any) -> Any:
    """The examples, each tensor an object of its own: torch.export takes those that are the same object, as an
    autoencoder's inputs and labels may be, for one input, and a parameter among them for itself."""
    seen = {id(t) for t in (*module.parameters(), *module.buffers())}

    def own(example: Any) -> Any:
        if is_sparse(torch, example):
            raise sparse_input()
        if isinstance(example, torch.Tensor) and id(example) in seen:
            return example.detach().clone().requires_grad_(example.requires_grad)
        seen.add(id(example))
        return example

    return torch.utils._pytree.tree_map(own, examples)


def _batch(torch: Any, inputs: Any) -> int:
    tensors = [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return int(tensors[0].shape[0]) if tensors and tensors[0].dim() else 1


def _resolve_loss(torch: Any, loss: Loss, labels: Any) -> Loss:
    if isinstance(loss, str) and loss not in ("cross_entropy", "mse", CALLERS):
        raise UserError("SP1016", f"unknown loss {loss!r}", "use 'cross_entropy', 'mse', 'caller', a callable, or None")
    if callable(loss) and labels is None and not _is_known(torch, loss, labels):
        raise UserError("SP1016", "a loss that is a callable needs an example of the labels", "pass labels=...")
    if loss == "cross_entropy" and labels is not None and labels.dtype.is_floating_point:
        return torch.nn.functional.cross_entropy  # type: ignore[no-any-return]  # probabilities
    return loss


def _is_known(torch: Any, loss: Any, labels: Any) -> bool:
    """One of PyTorch's losses whose labels follow from the prediction: class numbers, or its own shape."""
    nn = torch.nn
    return labels is None and type(loss) in (nn.CrossEntropyLoss, nn.MSELoss, nn.BCEWithLogitsLoss)


def _with_loss(torch: Any, module: Any, loss: Any) -> Any:
    """(inputs, labels) -> (loss, what the module returns), without a loss only the latter."""

    class WithLoss(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss = module, loss

        def forward(self, _inputs: Any, _labels: Any) -> Any:
            prediction = self.model(*_inputs[0], **_inputs[1])
            return prediction if self.loss is None else (self.loss(prediction, _labels), prediction)

    return WithLoss()
