"""PyTorch modules -> training graphs, through torch.export.

The module is exported in training mode and made functional (in-place operators and views become pure ones), then
every ATen operator is lowered by the tables of the modules aten_*. Operators without a
handler are decomposed by PyTorch's own tables where those know them. Parameters and buffers keep their names.
"""

import difflib
import operator
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from planner.errors import InternalError, UserError
from planner.frontends import aten_layers, aten_losses, aten_math, aten_recurrent, aten_resize, aten_shapes
from planner.frontends.aten import HANDLERS, Context, Unsupported, call, dtype_error, packet
from planner.frontends.coverage import Coverage, OpUse
from planner.frontends.emitter import identifier, safe_name
from planner.frontends.torch_program import export, import_torch, located_error, source_line
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Program, Role, unsupported
from planner.graph.optimizer import Optimizer
from planner.ops.base import Array
from planner.ops.loss import ClassLossAttrs, LossAttrs

__all__ = [
    "Loss", "aten_layers", "aten_losses", "aten_math", "aten_recurrent", "aten_resize", "aten_shapes", "capture_module",
    "explain_module",
]  # fmt: skip

CALLERS = "caller"
GIVEN = "d_prediction"
"""The input that the caller's gradient of the prediction goes to."""
Loss = str | Callable[..., Any] | None
"""`cross_entropy` or `mse` (of the prediction and `labels`), a callable (prediction, labels) -> scalar tensor, or
None: the module returns the loss itself. `caller`: the caller's own, outside of the plan: the step takes the gradient
of the prediction instead of labels (codegen/autograd.py)."""


def capture_module(
    module: Any,
    inputs: Any,
    *,
    loss: Loss = "cross_entropy",
    labels: Any = None,
    optimizer: Optimizer | None = None,
    name: str | None = None,
    fuse: bool = True,
    keep: Sequence[str] = (),
) -> tuple[Graph, dict[str, Array]]:
    """The training graph of a module and its present weights, by the module's names.

    inputs: example arguments (a tensor, a tuple, or a dict of keyword arguments); their shapes are the graph's.
    labels: an example batch of labels; needed where `loss` is a callable. The graph's input is called `labels`.
    keep: as in `GraphBuilder.finish`.
    """
    lowering, program, loss = _prepared(module, inputs, loss, labels, name)
    torch, builder = lowering.torch, lowering.context.b
    prediction, value = lowering.run(program)
    if not lowering.wrapped:
        value = lowering.append_loss(prediction, loss, labels)
    callers = loss == CALLERS
    graph = builder.finish(
        value,
        prediction,
        Optimizer() if callers else optimizer or Optimizer(lr=0.1, momentum=0.9),
        fuse=fuse,
        keep=keep,
        gradients_of=[i for i in builder.inputs[:-1] if builder.type(i).dtype is DType.FLOAT32] if callers else (),
        forward=callers,
    )
    kept = {v.name for v in graph.values}
    weights = {k: w for k, w in lowering.context.weights.items() if k in kept}
    return graph, weights | _rest_of_state(torch, module, kept | {a for v in graph.values for a in v.aliases})


def explain_module(
    module: Any,
    inputs: Any,
    *,
    loss: Loss = "cross_entropy",
    labels: Any = None,
    optimizer: Optimizer | None = None,
    name: str | None = None,
    fuse: bool = True,
) -> list[OpUse]:
    """What `capture_module` with these arguments would do with every operator, unsupported ones included. The only
    errors are those of a module that cannot be exported at all."""
    lowering, program, loss = _prepared(module, inputs, loss, labels, name)
    lowering.coverage.tolerant = True
    lowering.lower(program)
    appended = tuple(lowering.context.b.nodes)
    if lowering.coverage.missing:
        values = tuple(lowering.context.b.values.values())
        lowered = Program(name="lowered", nodes=appended, inputs=(), outputs=())
        return lowering.coverage.uses(Graph(name="lowered", values=values, programs=(lowered,)), appended)
    prediction, value = lowering.results(program)
    value = value or lowering.append_loss(prediction, loss, labels)
    graph = lowering.context.b.finish(value, prediction, optimizer or Optimizer(), fuse=fuse)
    return lowering.coverage.uses(graph, appended)


def _prepared(module: Any, inputs: Any, loss: Loss, labels: Any, name: str | None) -> tuple["_Lowering", Any, Loss]:
    """A lowering into a fresh builder, the exported program, and the loss as it is computed."""
    torch = import_torch()
    if not isinstance(module, torch.nn.Module):
        raise UserError("SP1018", f"{type(module).__name__} is no torch.nn.Module", "pass the module itself")
    positional, keywords = _arguments(torch, inputs)
    loss = _resolve_loss(torch, loss, labels)
    wrapped = callable(loss) and not _is_known(torch, loss, labels)
    if wrapped:
        keywords = {"_labels": labels, "_inputs": (positional, keywords)}
        positional = ()
    program = export(torch, _with_loss(torch, module, loss) if wrapped else module, module, positional, keywords)
    builder = GraphBuilder(identifier(name or f"{type(module).__name__.lower()}_b{_batch(torch, inputs)}"))
    return _Lowering(torch, builder, module, loss, wrapped), program, loss


def _rest_of_state(torch: Any, module: Any, known: set[str]) -> dict[str, Array]:
    """What the module saves and the graph does not compute with: counters of batches, buffers that were folded into
    constants. It travels with the weights, so that an executor's state is the module's."""
    found: dict[str, Array] = {}
    for name, tensor in module.state_dict().items():
        if safe_name(name) not in known and isinstance(tensor, torch.Tensor):
            plain = tensor.float() if tensor.dtype is torch.bfloat16 else tensor
            found[safe_name(name)] = plain.detach().cpu().numpy().copy()
    return found


def _arguments(torch: Any, inputs: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if isinstance(inputs, torch.Tensor):
        return (inputs,), {}
    return ((), dict(inputs)) if isinstance(inputs, Mapping) else (tuple(inputs), {})


def _batch(torch: Any, inputs: Any) -> int:
    tensors = [t for t in torch.utils._pytree.tree_leaves(inputs) if isinstance(t, torch.Tensor)]
    return int(tensors[0].shape[0]) if tensors and tensors[0].dim() else 1


def _resolve_loss(torch: Any, loss: Loss, labels: Any) -> Loss:
    if isinstance(loss, str) and loss not in ("cross_entropy", "mse", CALLERS):
        raise UserError("SP1016", f"unknown loss {loss!r}", "use 'cross_entropy', 'mse', a callable, or None")
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
    class WithLoss(torch.nn.Module):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss = module, loss

        def forward(self, _labels: Any, _inputs: Any) -> Any:
            prediction = self.model(*_inputs[0], **_inputs[1])
            return self.loss(prediction, _labels), prediction

    return WithLoss()


# -- lowering --------------------------------------------------------------------------------------------------
class _Lowering:
    """One exported program into one builder."""

    def __init__(self, torch: Any, builder: GraphBuilder, module: Any, loss: Loss, wrapped: bool) -> None:
        self.torch, self.module, self.wrapped = torch, module, wrapped
        self.loss_module = loss if isinstance(loss, torch.nn.Module) else None
        self.context = Context(builder, torch)
        self.values: dict[Any, Any] = {}
        self.coverage = Coverage()

    def run(self, program: Any) -> tuple[str, str]:
        """Lower everything. Returns (prediction, loss); the loss is empty where it is still to be appended."""
        self._check_outputs(program)
        self.lower(program)
        self.coverage.require_complete()
        return self.results(program)

    def results(self, program: Any) -> tuple[str, str]:
        """(prediction, loss) of a lowered program."""
        outputs = {s.arg.name for s in program.graph_signature.output_specs if s.kind.name == "USER_OUTPUT"}
        (final,) = (n for n in program.graph.nodes if n.op == "output")
        found = [self.context.val(self.values[n]) for n in final.args[0] if n is not None and n.name in outputs]
        return (found[-1], found[0]) if self.wrapped else (found[0], "")

    def lower(self, program: Any) -> None:
        """All operators into the builder and into `coverage`; what nobody lowers leaves a stand-in behind, so that the
        operators after it are looked at too."""
        self._placeholders(program)
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._call(node)

    def _check_outputs(self, program: Any) -> None:
        specs = program.graph_signature.output_specs
        users = [s for s in specs if s.kind.name == "USER_OUTPUT"]
        wanted = 2 if self.wrapped else 1
        if len(users) != wanted or any(type(s.arg).__name__ != "TensorArgument" for s in users):
            what = f"{len(users) - self.wrapped} values" if len(users) != wanted else "something that is no tensor"
            raise UserError(
                "SP1015", f"the module returns {what}, not one tensor", "wrap it so that it returns the prediction only"
            )
        producers = {n.name: n for n in program.graph.nodes}
        for spec in specs:
            if spec.kind.name == "BUFFER_MUTATION" and not self._is_statistic(producers[spec.arg.name], spec.target):
                raise UserError(
                    "SP1020",
                    f"the module writes to its buffer {self._plain(spec.target)!r} in forward",
                    "only batch norm's running statistics may change; keep other state outside of the module",
                )
            if spec.kind.name == "USER_INPUT_MUTATION":
                raise UserError("SP1020", f"the module writes to its input {spec.target!r}", "work on a copy")

    @staticmethod
    def _is_statistic(producer: Any, target: str) -> bool:
        """Running statistics come from a batch norm; its counter of batches is not needed."""
        if target.endswith("num_batches_tracked"):
            return True
        return producer.target is operator.getitem and "batch_norm" in str(producer.args[0].target)

    # -- parameters, buffers, inputs ---------------------------------------------------------------------------
    def _plain(self, target: str) -> str:
        """The name within the module: the wrapper that computes the loss adds `model.`."""
        return target.removeprefix("model.") if self.wrapped else target

    def _placeholders(self, program: Any) -> None:
        parameters, buffers = self._tensors("named_parameters"), self._tensors("named_buffers")
        self.context.aliases = _tied(parameters) | _tied(buffers)
        self.context.saved = frozenset(self.module.state_dict())
        first: dict[int, str] = {}
        nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        for spec in program.graph_signature.input_specs:
            kind, node = spec.kind.name, nodes.get(spec.arg.name)
            if kind == "PARAMETER":
                name, tensor = self._plain(spec.target), parameters[self._plain(spec.target)]
                name = next(n for n, t in parameters.items() if t is tensor)  # tied: the first name
                if id(tensor) not in first:
                    data = self._data(name, tensor, (self.torch.float32,))
                    first[id(tensor)] = self.context.stored(name, data, Role.PARAMETER, bool(tensor.requires_grad))
                self.values[node] = first[id(tensor)]
            elif kind == "BUFFER":
                tensor = buffers[self._plain(spec.target)]
                self.context.buffers[id(tensor)] = next(n for n, t in buffers.items() if t is tensor)
                self.values[node] = tensor
            elif kind == "CONSTANT_TENSOR":
                self.values[node] = program.constants[spec.target]
            elif kind == "USER_INPUT":
                self.values[node] = self._input(node, spec)

    def _tensors(self, method: str) -> dict[str, Any]:
        found = dict(getattr(self.module, method)(remove_duplicate=False))
        if self.loss_module is not None:
            found.update({f"loss.{k}": t for k, t in getattr(self.loss_module, method)(remove_duplicate=False)})
        return found

    def _data(self, name: str, tensor: Any, kinds: Sequence[Any]) -> Array:
        if tensor.dtype not in kinds:
            raise dtype_error(f"parameter {name!r}", tensor.dtype)
        data: Array = tensor.detach().cpu().contiguous().numpy().copy()
        return data

    def _input(self, node: Any, spec: Any) -> Any:
        if type(spec.arg).__name__ != "TensorArgument":
            return getattr(spec.arg, "value", None)
        value, torch = node.meta["val"], self.torch
        kinds = {torch.float32: DType.FLOAT32, torch.int64: DType.INT64}
        name = node.name.removeprefix("_") if not self.wrapped else _input_name(node.name)
        if value.dtype not in kinds:
            raise dtype_error(f"input {name!r}", value.dtype)
        return self.context.input(name, value.shape, kinds[value.dtype])

    # -- nodes -------------------------------------------------------------------------------------------------
    def _call(self, node: Any) -> None:
        if node.target is operator.getitem:
            source, index = self.values[node.args[0]], node.args[1]
            self.values[node] = source[index] if isinstance(source, list | tuple) else None
            return
        self.context.name = layer = self._layer(node)
        before = len(self.context.b.nodes)
        try:
            _require_static(self.torch, node)
            if not hasattr(node.target, "_schema"):
                raise Unsupported("")
            result = call(self.context, node, self._resolve(node.args), self._resolve(node.kwargs))
        except Unsupported as error:
            if node.users or packet(node.target) in HANDLERS:
                self.coverage.miss(node, packet(node.target), layer, self._unsupported(node, str(error)))
                result = self._stand_in(node)
            else:
                result = None  # assertions and the like
        except UserError as error:
            located = located_error(error, node)
            if not self.coverage.tolerant and not self.coverage.missing:
                raise located from None
            self.coverage.miss(node, packet(node.target), layer, located)
            result = self._stand_in(node)
        except InternalError:  # behind a stand-in, anything may happen
            if not self.coverage.missing:
                raise
            result = self._stand_in(node)
        else:
            made = self.context.b.nodes[before:]
            self.coverage.lowered(node, packet(node.target), layer, [n.id for n in made])
        self.values[node] = result

    def _stand_in(self, node: Any) -> Any:
        """Values of the shapes that an operator without a handler would have had."""

        def stand_in(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [stand_in(v) for v in value]
            if not isinstance(value, self.torch.Tensor):
                return None
            whole = not value.dtype.is_floating_point and value.dtype is not self.torch.bool
            name = self.context.fresh(f"unsupported.{node.name}")
            return self.context.input(name, tuple(value.shape), DType.INT64 if whole else DType.FLOAT32)

        return stand_in(node.meta.get("val"))

    def _resolve(self, argument: Any) -> Any:
        if isinstance(argument, dict):
            return {k: self._resolve(v) for k, v in argument.items()}
        if isinstance(argument, list | tuple):
            return [self._resolve(v) for v in argument]
        return self.values[argument] if isinstance(argument, self.torch.fx.Node) else argument

    def _layer(self, node: Any) -> str:
        """The module's path, with the operator behind it unless the module is one operator: `layer1.0.conv1`."""
        packet_name = packet(node.target).removeprefix("aten.").strip("_")
        stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
        path = re.sub(r"@\d+", "", stack[-1]) if stack else ""
        if self.wrapped:
            path = "" if path == "model" else path.removeprefix("model.")
        try:
            module = self.module.get_submodule(path)
        except AttributeError:
            module = None
        alone = type(module).__module__.startswith("torch.nn") and not list(module.children()) if module else False
        return path if path and alone else f"{path}.{packet_name}" if path else packet_name

    def _unsupported(self, node: Any, detail: str) -> UserError:
        name = packet(node.target)
        if name in HANDLERS:
            nearest = f"{name} without {detail}" if detail else name
            return unsupported(node.name, f"{name} with {detail}" if detail else name, nearest, source_line(node))
        near = difflib.get_close_matches(name, HANDLERS, 1, 0.0)[0]
        return unsupported(node.name, name, near, source_line(node))

    # -- loss --------------------------------------------------------------------------------------------------
    def append_loss(self, prediction: str, loss: Loss, labels: Any) -> str:
        """`cross_entropy` or `mse` of the prediction and a new input `labels`; None: the prediction is the loss."""
        context = self.context
        if loss is None:
            return prediction
        context.name = "loss"
        shape = context.shape(prediction)
        if loss == CALLERS:  # of this product, the gradient of the prediction is what the caller gives
            given = context.input(GIVEN, shape)
            return context.reduce("reduce_sum", context.op("mul", prediction, given), None)
        by_class = loss == "cross_entropy" or isinstance(loss, self.torch.nn.CrossEntropyLoss)
        classes = (shape[:1] + shape[2:] if len(shape) > 1 else ()) if by_class else shape
        if labels is not None and tuple(labels.shape) != classes:
            raise UserError(
                "SP1016", f"labels of shape {tuple(labels.shape)} do not fit a prediction of shape {shape}",
                f"{loss} needs labels of shape {classes}",
            )  # fmt: skip
        target = context.input("labels", classes, DType.INT64 if by_class else DType.FLOAT32)
        if not isinstance(loss, str):
            return self._known_loss(loss, prediction, target)
        if loss == "mse":
            return context.op("mse_loss", prediction, target, attrs=LossAttrs())
        return aten_losses.class_loss(context, "cross_entropy", prediction, target, ClassLossAttrs())

    def _known_loss(self, loss: Any, prediction: str, target: str) -> str:
        """A loss object of PyTorch as its operator, with the object's options."""
        context, nn = self.context, self.torch.nn
        reduction = {"none": 0, "mean": 1, "sum": 2}[loss.reduction]
        if reduction == 0:
            raise UserError("SP1016", "the loss has reduction='none'", "train on one number: reduction='mean' or 'sum'")
        for name, buffer in loss.named_buffers():
            context.buffers[id(buffer)] = f"loss.{name}"
        if isinstance(loss, nn.MSELoss):
            return aten_losses.mse(context, prediction, target, reduction)
        if isinstance(loss, nn.BCEWithLogitsLoss):
            return aten_losses.bce(context, prediction, target, loss.weight, loss.pos_weight, reduction)
        options = (loss.weight, reduction, loss.ignore_index, loss.label_smoothing)
        return aten_losses.cross_entropy(context, prediction, target, *options)


_BRANCHES = ("cond", "while_loop", "map", "scan", "associative_scan")


def _require_static(torch: Any, node: Any) -> None:
    """SP1014: the operator makes control flow or Python numbers of data; SP1017: complex numbers."""
    what = "" if hasattr(node.target, "_schema") else str(node.target)
    if what in _BRANCHES or packet(node.target) in ("aten.item", "aten._local_scalar_dense"):
        told = f"torch.{what}" if what else "a Python number of a tensor (item, float)"
        fix = "sizes, branches and Python numbers may not depend on the data: use torch.where, or tensors"
        raise UserError("SP1014", f"node {node.name!r} makes {told} depend on the data", fix)
    value = node.meta.get("val")
    if isinstance(value, torch.Tensor) and value.dtype.is_complex:
        fix = "write it with real and imaginary parts"
        raise UserError("SP1017", f"node {node.name!r} ({packet(node.target)}) has complex numbers", fix)


def _tied(tensors: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The first name of every tensor that has several -> the others."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return {first: tuple(others) for first, *others in names.values() if others}


def _input_name(name: str) -> str:
    """Names of the wrapper's flattened arguments: `_labels`, `_inputs_0_0`, `_inputs_1_x`."""
    found = re.fullmatch(r"_inputs_0_(\d+)|_inputs_1_(.+)", name)
    if not found:
        return name.removeprefix("_")
    return found.group(2) or f"input_{found.group(1)}"
