"""TVM's ONNX importer as a source of plain records. With `tvm_operators`, all that touches TVM.

The importer is followed node by node: every result is bound to a variable that carries the node's number, so that each
call of the Relax function is known to belong to a node of the file. A node that TVM refuses is recorded and stood in
for by zeros of its inferred type, so that one error can name all of them; where that type is unknown, what depends on
the node is looked at by name only.
"""

import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx.onnx_frontend import ONNXGraphImporter, _get_convert_map

from planner.errors import UserError
from planner.frontends.onnx_file import OPEN, SUPPORTED, ModelFile, first_line, misfit, name_of
from planner.frontends.relax_ops import STAND_IN, Call, Failure, Function, Ref
from planner.frontends.tvm_operators import OWN, adjusted, old_slice
from planner.ops.base import Array

_MARK = "onnx_node_"
SMALL = 4096
"""Elements of the initializers that the importer may look into."""


def relax_function(file: ModelFile) -> Function:
    """The model as calls of Relax operators, and the nodes that TVM does not import."""
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        importer = _Importer(file)
        try:
            module = importer.from_onnx(file.model.graph, file.opset)
        except Exception as error:
            importer.refuse(_told(error))
            return Function({}, {}, [], [], tuple(importer.failures.values()))
        return _Reader(importer, module["main"]).read()


@contextmanager
def _quiet() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        with redirect_stdout(io.StringIO()):
            yield
    finally:
        logging.disable(previous)


def _told(error: Exception) -> str:
    """TVM's words, without folders and without how it describes its own operators and numbers."""
    text = re.sub(r'ir\.Op\(.*?name="relax\.([\w.]+)".*?support_level=\d+\)', r"\1", str(error))
    text = re.sub(r"T\.int64\((-?\d+)\)", r"\1", text)
    return re.sub(r"(/[\w.\-]+)+/", "", first_line(Exception(text or type(error).__name__)))


# -- importing -------------------------------------------------------------------------------------------------
_ONE_RESULT = ("BatchNormalization", "Dropout", "LayerNormalization", "MaxPool")
"""Operators of whose results TVM makes only the first."""
_REFUSED = {
    "If": "control flow that depends on data",
    "Loop": "control flow that depends on data",
    "Scan": "control flow that depends on data",
}


def _takes_any_number(op_name: str, version: int) -> bool:
    """Whether a standard operator's inputs are a list, none of which may be left out."""
    if not onnx.defs.has(op_name, version):
        return False
    last = onnx.defs.get_schema(op_name, version).inputs[-1:]
    return any(i.option == onnx.defs.OpSchema.FormalParameterOption.Variadic for i in last)


class _Importer(ONNXGraphImporter):  # type: ignore[misc]
    def __init__(self, file: ModelFile) -> None:
        super().__init__(file.shapes, {}, keep_params_in_input=True)
        self.file, model = file, file.model
        self.nodes = [(name_of(n), n.op_type) for n in model.graph.node]
        """(name, operator) of every node."""
        read = {v for n in model.graph.node for v in n.input if v} | {o.name for o in model.graph.output}
        self.made = {v for n in model.graph.node for v in n.output} | {i.name for i in model.graph.input}
        for node in model.graph.node:
            while node.op_type in _ONE_RESULT and node.output[1:] and node.output[-1] not in read:
                del node.output[-1]
            if node.op_type in _REFUSED:  # the importer would go into their branches
                node.domain, node.op_type = "refused", "Refused"
        self.version = file.opset
        self.weights: dict[str, Array] = {}
        """Parameter of the function -> initializer."""
        self.failures: dict[int, Failure] = {}
        self.attributes: dict[int, dict[str, Any]] = {}
        self.index = -1
        self._types: dict[str, Any] | None = None
        self._lost: set[str] = set()
        """Values of which nothing is known."""

    def _parse_graph_initializers(self, graph: Any) -> None:
        """Initializers are parameters; small ones are known to the importer as constants, too: shapes, bounds, axes."""
        for name, array in self.file.arrays.items():
            called = name.removeprefix("onnx::")
            called = name if called in self.file.arrays or called in self.made else called
            var = self._nodes[name] = self._new_var(called, shape=array.shape, dtype=array.dtype.name)
            self.weights[called] = array
            if array.size <= SMALL:
                self._params[called] = (var, tvm.runtime.tensor(np.ascontiguousarray(array)))
            else:
                self._inputs[name] = var

    def _sanitize_name(self, name: str) -> str:
        """Inputs keep clear of the initializers' names."""
        found: str = super()._sanitize_name(name)
        while found in self.weights:
            found = str(self._name_supply.fresh_name(found))
        return found

    def _check_for_unsupported_ops(self, graph: Any) -> None:
        """Operators are looked at one by one, where they can be named."""

    def _parse_value_proto(self, value_proto: Any) -> Any:
        """The importer asks for a node's name just before it converts the node."""
        if isinstance(value_proto, onnx.NodeProto):
            self.index += 1
            self.current = value_proto
        return super()._parse_value_proto(value_proto)

    def _convert_operator(self, op_name: str, inputs: Any, attrs: dict[str, Any], opset: int) -> Any:
        node, kind = self.current, self.nodes[self.index][1]
        try:
            if problem := misfit(node, self.version, self.file.arrays):
                raise NotImplementedError(problem)
            if kind in _REFUSED:
                raise NotImplementedError(_REFUSED[kind])
            if node.domain not in ("", "ai.onnx"):
                raise NotImplementedError(f"an operator of the domain {node.domain!r}")
            if kind in _ONE_RESULT and len(node.output) > 1:
                raise NotImplementedError(f"its result {node.output[-1]!r} is read, which is not the first")
            if any(i is None for i in inputs) and _takes_any_number(op_name, self.version):
                raise NotImplementedError("one of its inputs is left out")  # of which TVM would crash
            own = old_slice if op_name == "Slice" and opset < 10 else OWN.get(op_name)
            if own is None and op_name not in _get_convert_map():
                raise NotImplementedError("unknown to the importer")
            if self._lost.intersection(node.input):
                if kind not in SUPPORTED:
                    self.refuse("not supported")
                return self._stand_in()
            if own is not None:
                return self._bound(own(self, list(inputs), attrs))
            attrs = adjusted(self, op_name, inputs, attrs)
            if op_name == "Split" and len(node.output) == 1:
                return inputs[0]
            return self._bound(super()._convert_operator(op_name, inputs, attrs, self.version))
        except Exception as error:
            self.refuse(_told(error))
            return self._stand_in()

    def pass_on(self, op: str, data: list[Any], attributes: dict[str, Any], type_: Any) -> Any:
        """The node as a call of `onnx.<op>`, for `relax_layers`."""
        self.attributes[self.index] = {k: v for k, v in attributes.items() if k != "tvm_custom"}
        return relax.op.call_pure_packed(f"onnx.{op}", *data, ty_args=[type_])

    def constant(self, position: int) -> Any:
        """An input of the current node that is an initializer; None where there is none."""
        given = self.current.input
        name = given[position] if position < len(given) else ""
        return self.file.arrays.get(name)

    def refuse(self, problem: str) -> None:
        self.failures[max(0, self.index)] = Failure(*self.nodes[max(0, self.index)], problem)

    def _bound(self, result: Any) -> Any:
        if isinstance(result, relax.Tuple):
            return relax.Tuple([self._bound(f) for f in result.fields])
        values = getattr(getattr(getattr(result, "ty", None), "shape", None), "values", None) or ()
        if any(not isinstance(d, int) and not hasattr(d, "value") for d in values):
            raise NotImplementedError(f"{OPEN} {result.ty.shape}")
        if isinstance(result, relax.Call | relax.TupleGetItem):
            return self.bb.emit(result, f"{_MARK}{self.index}_")
        return result

    def _stand_in(self) -> Any:
        """Zeros for each result of the current node."""
        if self._types is None:
            self._types = _inferred(self.file)
        made = []
        for output in self.current.output:
            if output not in self._types:
                self._lost.add(output)
            shape, dtype = self._types.get(output, ([1], "float32"))
            made.append(self._bound(relax.op.call_pure_packed(STAND_IN, ty_args=[relax.TensorType(shape, dtype)])))
        return made[0] if len(made) == 1 else relax.Tuple(made)


def _inferred(file: ModelFile) -> dict[str, tuple[list[int], str]]:
    """(shape, dtype) of every value of which ONNX's own inference knows them."""
    found = {}
    model = onnx.ModelProto()
    model.CopyFrom(file.model)
    for name, array in file.arrays.items():
        kind = onnx.helper.np_dtype_to_tensor_dtype(array.dtype)
        model.graph.input.append(onnx.helper.make_tensor_value_info(name, kind, array.shape))
        if array.size <= SMALL:
            model.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    try:
        graph = onnx.shape_inference.infer_shapes(model, data_prop=True).graph
    except Exception:
        return {}
    for value in (*graph.value_info, *graph.output):
        tensor = value.type.tensor_type
        dims = [d.dim_value for d in tensor.shape.dim]
        if value.type.HasField("tensor_type") and tensor.HasField("shape") and all(d > 0 for d in dims):
            found[value.name] = (dims, onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type).name)
    return found


# -- reading ---------------------------------------------------------------------------------------------------
class _Reader:
    def __init__(self, importer: _Importer, function: Any) -> None:
        self.importer, self.function = importer, function
        self.names: dict[Any, str] = {p: p.name for p in function.params}
        self.mark = "%"
        while any(name.startswith(self.mark) for name in self.names.values()):
            self.mark += "%"

    def read(self) -> Function:
        function = self.function
        weights = self.importer.weights
        inputs = {p.name: (self._shape(p.ty), str(p.ty.dtype)) for p in function.params if p.name not in weights}
        bindings = [b for block in function.body.blocks for b in block.bindings]
        calls = [self._call(b, n) for b, n in zip(bindings, self._numbers(bindings), strict=True)]
        result = self._argument(function.body.body)
        return Function(inputs, weights, calls, result, tuple(self.importer.failures.values()))

    @staticmethod
    def _numbers(bindings: list[Any]) -> list[int]:
        """The node of every binding: the next one that carries a number, or else the one before."""
        numbers, last = [], -1
        for binding in reversed(bindings):
            found = re.match(_MARK + r"(\d+)_", getattr(binding.var, "name_hint", "") or binding.var.name)
            last = int(found[1]) if found else last
            numbers.append(last)
        return numbers[::-1]

    def _call(self, binding: Any, number: int) -> Call:
        value, type_ = binding.value, binding.var.ty
        target = self.names[binding.var] = f"{self.mark}{len(self.names)}"
        place = self.importer.nodes[number]
        shape, dtype = self._shape(type_, place), str(getattr(type_, "dtype", "") or "")
        if type(value).__name__ == "TupleGetItem":
            source = self._argument(value.tuple_value)
            return Call(target, "getitem", [source, int(value.index)], {}, shape, dtype, *place)
        if not isinstance(value, relax.Call):
            return Call(target, "same", [self._argument(value)], {}, shape, dtype, *place)
        op = value.op.name.removeprefix("relax.") if hasattr(value.op, "name") else str(value.op)
        if op == "call_pure_packed":
            own = str(value.args[0].global_symbol)
            attributes = {k: _plain(v) for k, v in self.importer.attributes.get(number, {}).items()}
            return Call(target, own, [self._argument(a) for a in value.args[1:]], attributes, shape, dtype, *place)
        arguments = [self._argument(a) for a in value.args]
        if op == "call_tir":  # maximum, minimum and pad arrive as generated functions
            op = re.sub(r"\d+$", "", f"tir.{value.args[0].name_hint}")
            arguments = list(arguments[1])
        return Call(target, op, arguments, _attributes(value.attrs), shape, dtype, *place)

    def _shape(self, type_: Any, place: tuple[str, str] = ("", "")) -> tuple[int, ...]:
        shape = getattr(type_, "shape", None)
        values = getattr(shape, "values", None)
        if shape is None or values is None:
            return ()
        try:
            return tuple(int(d) for d in values)
        except TypeError as error:
            if self.importer.failures:  # the error that names them comes first
                return ()
            raise UserError(
                "SP1014",
                f"node {place[0]!r} ({place[1]}) has a result of the open shape {shape}",
                "export with fixed sizes",
            ) from error

    def _argument(self, argument: Any) -> Any:
        """A reference, an array, numbers, or a list of these."""
        if argument in self.names:
            return Ref(self.names[argument])
        if hasattr(getattr(argument, "value", None), "numpy"):
            return np.asarray(argument.value.numpy())
        if type(argument).__name__ == "ShapeExpr":
            return [_plain(d) for d in argument.values]
        if hasattr(argument, "fields"):
            return [self._argument(a) for a in argument.fields]
        return _plain(argument)


def _attributes(attrs: Any) -> dict[str, Any]:
    if attrs is None:
        return {}
    names = (n for n in dir(attrs) if not n.startswith(("_", "get_")) and n not in ("id_", "is_", "same_as"))
    return {n: _plain(getattr(attrs, n)) for n in names}


def _plain(value: Any) -> Any:
    """TVM's numbers and arrays as Python's."""
    value = getattr(value, "value", value)
    value = value.item() if isinstance(value, np.generic) else value
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if hasattr(value, "__len__"):
        return [_plain(v) for v in value]
    return str(value)
