"""One exported PyTorch program into a graph builder: inputs, parameters, operators through the tables of the modules
aten_*, and the loss behind them."""

import difflib
import inspect
import operator
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from planner.errors import InternalError, UserError
from planner.frontends import (
    aten_attention,
    aten_bags,
    aten_borders,
    aten_complex,
    aten_complex_functions,
    aten_ctc,
    aten_elementwise,
    aten_functions,
    aten_grid,
    aten_layers,
    aten_losses,
    aten_math,
    aten_matrices,
    aten_order,
    aten_picks,
    aten_random,
    aten_recurrent,
    aten_reductions,
    aten_resize,
    aten_segments,
    aten_shapes,
    aten_spectra,
    aten_volumes,
)
from planner.frontends.aten import HANDLERS, Context, Unsupported, dtype_error, packet
from planner.frontends.aten import call as call_real
from planner.frontends.coverage import Coverage
from planner.frontends.naming import loss_prefix
from planner.frontends.torch_buffers import (
    carry,
    changed_buffers,
    contents,
    is_batch_norm,
    moving_statistics,
    require_changeable,
)
from planner.frontends.torch_loss import CALLERS, Loss
from planner.frontends.torch_places import located_error, place_of
from planner.frontends.torch_results import is_tensor, user_outputs
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Role, unsupported
from planner.graph.optimizer import Optimizer
from planner.ops.base import Array

__all__ = [
    "CaptureOptions", "Lowering", "aten_attention", "aten_bags", "aten_borders", "aten_complex",
    "aten_complex_functions", "aten_ctc", "aten_elementwise", "aten_functions", "aten_grid", "aten_layers",
    "aten_losses", "aten_math", "aten_matrices", "aten_order", "aten_picks", "aten_random", "aten_recurrent",
    "aten_reductions", "aten_resize", "aten_segments", "aten_shapes", "aten_spectra", "aten_volumes",
]  # fmt: skip


@dataclass(frozen=True)
class CaptureOptions:
    """How a module is captured, besides its example inputs.

    labels: an example batch of labels; needed where `loss` is a callable. The graph's input is called `labels`.
    optimizer: None is SGD with momentum 0.9 and the learning rate 0.1. name: of the graph; None: the module's.
    fuse: merge neighbouring nodes. keep: values that stay values of the graph (GraphBuilder.finish). clip_norm: what
    the norm of all gradients is scaled down to where it is larger, as torch.nn.utils.clip_grad_norm_ does.
    accumulate: gradients of several batches may be added up before a step (GraphBuilder.finish). evaluation: example
    arguments in evaluation mode, where the module is called with others there: without labels of its own loss.
    """

    loss: Loss = "cross_entropy"
    labels: Any = None
    optimizer: Optimizer | None = None
    name: str | None = None
    fuse: bool = True
    keep: tuple[str, ...] = ()
    clip_norm: float | None = None
    accumulate: bool = False
    evaluation: Any = None


class Lowering:
    """One exported program into one builder."""

    def __init__(self, torch: Any, builder: GraphBuilder, module: Any, loss: Loss, wrapped: bool) -> None:
        self.torch, self.module, self.wrapped, self.loss = torch, module, wrapped, loss
        self.loss_module = loss if isinstance(loss, torch.nn.Module) else None
        self.context = Context(builder, torch)
        self.context.gradients_of_inputs = self.loss == CALLERS
        self.values: dict[Any, Any] = {}
        self.coverage = Coverage()
        self._parameters: dict[int, str] = {}
        """id of a parameter's tensor -> value"""
        self._inputs: dict[str, str] = {}
        """Name of an exported input -> value"""

    def evaluation(self) -> "Lowering":
        """A lowering of the same module in evaluation mode, with the same parameters, states and inputs, into a builder
        of its own."""
        made = Lowering(self.torch, self.context.b, self.module, self.loss, self.wrapped)
        made.context = self.context.evaluation()
        made._parameters, made._inputs = self._parameters, self._inputs
        return made

    def run(self, program: Any) -> tuple[list[str], str]:
        """Lower everything. Returns (predictions, loss); the loss is empty where it is still to be appended."""
        self._check_outputs(program)
        self.lower(program)
        self.coverage.require_complete()
        self.carry_buffers(program)
        return self.results(program)

    def results(self, program: Any) -> tuple[list[str], str]:
        """(predictions, loss) of a lowered program. With loss=None, the first of several results is the loss."""
        found = [self._result(node) for argument, node in user_outputs(program) if is_tensor(argument)]
        with_loss = self.wrapped and not self.context.evaluating
        if with_loss or (self.loss is None and len(found) > 1):
            return found[1:], found[0]
        return found, ""

    def _result(self, node: Any) -> str:
        """SP1015: it is complex."""
        value = node.meta.get("val")
        if isinstance(value, self.torch.Tensor) and value.is_complex():
            fix = "return torch.view_as_real(...) of them"
            raise UserError("SP1015", f"the module returns complex numbers ({node.name!r})", fix)
        return self.context.val(self.values[node])

    def lower(self, program: Any) -> None:
        """All operators into the builder and into `coverage`; what nobody lowers leaves a stand-in behind, so that the
        operators after it are looked at too."""
        self._placeholders(program)
        for node in program.graph.nodes:
            if node.op == "call_function":
                self._call(node)

    def _check_outputs(self, program: Any) -> None:
        evaluating = self.context.evaluating
        several = self.wrapped or evaluating or self.loss in (None, CALLERS)
        tensors = sum(is_tensor(argument) for argument, _ in user_outputs(program))
        if self.wrapped and not evaluating:
            tensors -= 1  # the loss
        if tensors < 1 or (tensors > 1 and not several):
            what = f"{tensors} tensors" if tensors else "something that is no tensor"
            ways = "pass the loss as a function of all that it returns, or loss='caller' to keep a loop of your own"
            fix = "return a tensor of floats" if several else f"{ways}, or let it return the prediction only"
            raise UserError("SP1015", f"the module returns {what}, not one", fix)
        never = "change it only if self.training" if evaluating else ""
        if self.loss == CALLERS:
            never = "capture the module with its loss: buffers change at a step's end, and the caller's is not known"
        saved = self.module.state_dict()
        require_changeable(self.torch, program, self._plain, self._buffers(), saved, never)

    def carry_buffers(self, program: Any) -> None:
        """What a lowered program leaves in buffers, they have when a step is over."""
        buffers = self._buffers()
        for target, node in changed_buffers(program).items():
            self.context.name = f"{self._plain(target)}.next"
            carry(self.context, buffers[self._plain(target)], self.values[node])

    # -- parameters, buffers, inputs ---------------------------------------------------------------------------
    def _plain(self, target: str) -> str:
        """The name within the module, or the loss: the wrapper that computes both adds `model.` and `loss.`."""
        if not self.wrapped:
            return target
        part, _, name = target.partition(".")
        return name if part == "model" else loss_prefix(self.module) + name

    def _placeholders(self, program: Any) -> None:
        parameters, buffers = self._tensors("named_parameters"), self._buffers()
        self.context.aliases = _tied(parameters) | _tied(buffers)
        self.context.saved = frozenset(self.module.state_dict())
        self.context.carried |= {id(buffers[self._plain(target)]) for target in changed_buffers(program)}
        self.context.statistics |= {id(buffers[self._plain(target)]) for target in moving_statistics(program)}
        first = self._parameters
        nodes = {n.name: n for n in program.graph.nodes if n.op == "placeholder"}
        for spec in program.graph_signature.input_specs:
            kind, node = spec.kind.name, nodes.get(spec.arg.name)
            if kind == "PARAMETER":
                name, tensor = self._plain(spec.target), parameters[self._plain(spec.target)]
                name = next(n for n, t in parameters.items() if t is tensor)  # tied: the first name
                if id(tensor) in self.context.carried:  # training writes to it
                    self.values[node] = self.context.state(tensor)
                    continue
                if not (tensor.requires_grad or tensor.is_floating_point() or tensor.is_complex()):
                    self.values[node] = tensor  # a number or a mask that is held as a parameter
                    continue
                if id(tensor) not in first:
                    first[id(tensor)] = self._parameter(name, tensor)
                found = first[id(tensor)]
                self.context.name = name
                self.values[node] = aten_complex.of_pairs(self.context, found) if tensor.is_complex() else found
            elif kind == "BUFFER":
                tensor = buffers[self._plain(spec.target)]
                self.context.buffers[id(tensor)] = next(n for n, t in buffers.items() if t is tensor)
                self.values[node] = self.context.state(tensor) if id(tensor) in self.context.carried else tensor
            elif kind == "CONSTANT_TENSOR":
                self.values[node] = program.constants[spec.target]
            elif kind == "USER_INPUT":
                self.values[node] = self._input(node, spec)
            elif node is not None:  # tokens, which order what has side effects
                self.values[node] = None

    def _buffers(self) -> dict[str, Any]:
        """With parameters that are not trained, which are buffers where forward writes to them."""
        frozen = {n: p for n, p in self._tensors("named_parameters").items() if not p.requires_grad}
        return self._tensors("named_buffers") | frozen

    def _tensors(self, method: str) -> dict[str, Any]:
        found = dict(getattr(self.module, method)(remove_duplicate=False))
        if self.loss_module is not None:
            prefix = loss_prefix(self.module)
            found.update({f"{prefix}{k}": t for k, t in getattr(self.loss_module, method)(remove_duplicate=False)})
        return found

    def _parameter(self, name: str, tensor: Any) -> str:
        """A value that starts from the tensor; of complex numbers their pairs."""
        pairs = tensor.dtype is self.torch.complex64
        real = self.torch.view_as_real(tensor) if pairs else tensor
        data = self._data(name, real, (self.torch.float32,))
        return self.context.stored(name, data, Role.PARAMETER, bool(tensor.requires_grad), pairs=pairs)

    def _data(self, name: str, tensor: Any, kinds: Sequence[Any]) -> Array:
        if tensor.dtype not in kinds:
            raise dtype_error(f"parameter {name!r}", tensor.dtype)
        data: Array = tensor.detach().cpu().contiguous().numpy().copy()
        return data

    def _input(self, node: Any, spec: Any) -> Any:
        if type(spec.arg).__name__ != "TensorArgument":
            return getattr(spec.arg, "value", None)
        value, torch = node.meta["val"], self.torch
        kinds = {
            torch.float32: DType.FLOAT32,
            torch.int64: DType.INT64,
            torch.bool: DType.UINT8,
            torch.uint8: DType.UINT8,
        }
        name = node.name.removeprefix("_") if not self.wrapped else _input_name(node.name, self.module)
        if value.dtype not in kinds:
            raise dtype_error(f"input {name!r}", value.dtype)
        if 0 in value.shape:
            what = f"the example input {name!r} has the shape {tuple(value.shape)}"
            raise UserError("SP1011", what, "pass one of at least one element: shapes are part of a plan")
        if node.name not in self._inputs and not self.context.evaluating:
            self._inputs[node.name] = self.context.input(name, value.shape, kinds[value.dtype])
        given = self._inputs.get(node.name, "")
        known = self.context.b.type(given) if given else None
        if known is None or (known.shape, known.dtype) != (tuple(value.shape), kinds[value.dtype]):
            fix = "give evaluation mode some of the tensors that training has, or all, in the same shapes and types"
            raise UserError("SP1018", f"training has no input {name!r} of the shape {tuple(value.shape)}", fix)
        if value.dtype is not torch.bool:
            return given
        self.context.name = name
        return self.context.floating(given)

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
            for source in node.all_input_nodes:
                if self.values[source] is None and isinstance(source.meta.get("val"), self.torch.Tensor):
                    maker = source.args[0] if source.target is operator.getitem else source
                    raise Unsupported(f"what {packet(maker.target)} computes beside its first result")
            if not hasattr(node.target, "_schema"):
                raise Unsupported("")
            value = node.meta.get("val")
            empty = isinstance(value, self.torch.Tensor) and 0 in value.shape
            result = self.torch.empty(value.shape, dtype=value.dtype) if empty else self._lowered(node)
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

    def _lowered(self, node: Any) -> Any:
        """What becomes of an operator. Arguments that its handler was not written for are unsupported."""
        args, named = self._resolve(node.args), self._resolve(node.kwargs)
        if not is_batch_norm(node):
            args, named = contents(self.context, args), contents(self.context, named)
        call = call_real
        if aten_complex.is_complex(self.context, node, (*args, *named.values())):
            call = aten_complex.call
        try:
            return call(self.context, node, args, named)
        except (TypeError, ValueError, IndexError, KeyError, RuntimeError) as error:
            told = str(error).splitlines() or [repr(error)]
            raise Unsupported(f"these arguments ({told[0][:100]})") from error

    def _stand_in(self, node: Any) -> Any:
        """Values of the shapes that an operator without a handler would have had."""

        def stand_in(value: Any) -> Any:
            if isinstance(value, list | tuple):
                return [stand_in(v) for v in value]
            if not isinstance(value, self.torch.Tensor):
                return None
            whole = not value.dtype.is_floating_point and value.dtype is not self.torch.bool
            name = self.context.fresh(f"unsupported.{node.name}")
            return self.context.input(
                name, tuple(max(d, 1) for d in value.shape), DType.INT64 if whole else DType.FLOAT32
            )

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
        alone = type(module).__module__.startswith("torch.nn") and not list(module.children())
        return path if path and alone else f"{path}.{packet_name}" if path else packet_name

    def _unsupported(self, node: Any, detail: str) -> UserError:
        name = packet(node.target)
        if name in HANDLERS:
            nearest = f"{name} without {detail}" if detail else name
            return unsupported(node.name, f"{name} with {detail}" if detail else name, nearest, place_of(node))
        near = difflib.get_close_matches(name, HANDLERS, 1, 0.0)[0]
        return unsupported(node.name, name, near, place_of(node))


_BRANCHES = ("cond", "while_loop", "map", "scan", "associative_scan")


def _require_static(torch: Any, node: Any) -> None:
    """SP1014: the operator makes control flow or Python numbers of data."""
    what = "" if hasattr(node.target, "_schema") else str(node.target)
    if what in _BRANCHES or packet(node.target) in ("aten.item", "aten._local_scalar_dense"):
        told = f"torch.{what}" if what else "a Python number of a tensor (item, float)"
        fix = "sizes, branches and Python numbers may not depend on the data: use torch.where, or tensors"
        raise UserError("SP1014", f"node {node.name!r} makes {told} depend on the data", fix)


def _tied(tensors: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The first name of every tensor that has several -> the others."""
    names: dict[int, list[str]] = {}
    for name, tensor in tensors.items():
        names.setdefault(id(tensor), []).append(name)
    return {first: tuple(others) for first, *others in names.values() if others}


def _input_name(name: str, module: Any) -> str:
    """Of the wrapper's flattened arguments, `_labels`, `_inputs_0_0` and `_inputs_1_x`, as `forward` has them."""
    found = re.fullmatch(r"_inputs_(?:0_(\d+)(.*)|1_(.+))", name)
    if not found:
        return name.removeprefix("_")
    return found[3] or f"{_positional(module, int(found[1]))}{found[2]}"


def _positional(module: Any, place: int) -> str:
    parameters = list(inspect.signature(module.forward).parameters.values())
    for number, parameter in enumerate(parameters[: place + 1]):
        if parameter.kind is parameter.VAR_POSITIONAL:
            return f"{parameter.name}_{place - number}"
    return parameters[place].name
