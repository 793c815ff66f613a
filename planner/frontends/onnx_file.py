"""Reading .onnx files from anywhere: each way in which one can be unusable is one error that names the node, tensor or
input. What comes out is a model that the importer takes: weights are initializers, sizes are fixed.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from planner.errors import UserError
from planner.ops.base import Array

OLDEST, NEWEST = 6, 23
"""ai.onnx opsets whose operators TVM's importer knows."""
OLDEST_IR = 3
OPEN = "its result has the open shape"
"""How a problem with a node begins whose sizes depend on data."""
SUPPORTED = (
    "Abs", "Add", "Atan", "AveragePool", "BatchNormalization", "Cast", "Clip", "Concat", "Constant", "ConstantOfShape",
    "Conv", "ConvTranspose", "Cos", "DepthToSpace", "Div", "Dropout", "Elu", "Erf", "Exp", "Expand", "Flatten",
    "Gather", "Gelu", "Gemm", "GlobalAveragePool", "GlobalMaxPool", "HardSigmoid", "HardSwish", "Identity", "LRN",
    "LayerNormalization", "LeakyRelu", "Log", "LogSoftmax", "MatMul", "Max", "MaxPool", "Mean", "Min", "Mul", "Neg",
    "PRelu", "Pad", "Pow", "Reciprocal", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean",
    "ReduceMin", "ReduceSum", "ReduceSumSquare", "Relu", "Reshape", "Selu", "Shape", "Sigmoid", "Sign", "Sin", "Slice",
    "Softmax", "Softplus", "Softsign", "SpaceToDepth", "Split", "Sqrt", "Squeeze", "Sub", "Sum", "Tan", "Tanh", "Tile",
    "Transpose", "Unsqueeze",
)  # fmt: skip
"""Operators with at least one form that lowers; what messages suggest."""


class ModelFile(NamedTuple):
    model: Any
    """An onnx.ModelProto without initializers, whose inputs have fixed sizes."""
    arrays: dict[str, Array]
    """The initializers that its nodes read. Those that a node of the file fills with one number are views of it."""

    @property
    def shapes(self) -> dict[str, list[int]]:
        """Input name -> shape."""
        return {i.name: [d.dim_value for d in i.type.tensor_type.shape.dim] for i in self.model.graph.input}

    @property
    def opset(self) -> int:
        return opset_of(self.model)


def read_model(file: Path, batch: int | None) -> ModelFile:
    """The file, with its external data.

    batch: the first dimension of every input from now on. Errors: SP1012 (onnx is missing), SP1019 (not a readable
    model), SP1031 (opset), SP1032 (external data), SP1011 and SP1014 (open sizes).
    """
    try:
        import onnx
    except ImportError as error:
        fix = "pip install 'apache-tvm==0.27.*' onnx"
        raise UserError("SP1012", f"reading ONNX models needs {error.name}", fix) from error
    try:
        model = onnx.load(os.fspath(file), load_external_data=False)
        if not model.graph.node:
            raise ValueError("it has no nodes")
        _require_text(model)
        _require_versions(file, model)
        _require_external(file, model)
        onnx.load_external_data_for_model(model, os.fspath(file.parent))
        arrays = _arrays(file, model)
        _require_order(file, model)
    except UserError:
        raise
    except FileNotFoundError as error:
        raise UserError("SP1019", f"there is no file {file.name!r}", "check the path") from error
    except Exception as error:
        raise UserError(
            "SP1019", f"{file.name} is no valid ONNX model: {first_line(error)}", "export it again"
        ) from error
    found = ModelFile(model, _without_constants(file, model, arrays))
    _fix_sizes(file, found, batch)
    return found


def opset_of(model: Any) -> int:
    return max((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), default=1)


def name_of(node: Any) -> str:
    """How messages and layers call a node: by its name, else by its first output."""
    found: str = node.name or next((o for o in node.output if o), node.op_type)
    return found


def first_line(error: Exception) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return (lines or [type(error).__name__])[0][:200]


def _require_text(model: Any) -> None:
    """Names that are no UTF-8 text arrive as bytes."""
    graph = model.graph
    named = (*graph.node, *graph.initializer, *graph.input, *graph.output)
    names = [x.name for x in named] + [v for n in graph.node for v in (n.op_type, n.domain, *n.input, *n.output)]
    wrong = next((name for name in names if not isinstance(name, str)), None)
    if wrong is not None:
        raise ValueError(f"the name {wrong[:80]!r} is not UTF-8 text")


def _require_versions(file: Path, model: Any) -> None:
    opset = opset_of(model)
    if not OLDEST <= opset <= NEWEST:
        first = model.graph.node[0]
        raise UserError(
            "SP1031",
            f"{file.name} uses opset {opset} (from node {name_of(first)!r}, {first.op_type}, on); "
            f"opsets {OLDEST} to {NEWEST} are supported",
            f"export with opset_version={min(max(opset, 18), NEWEST)}, or convert it with onnx.version_converter",
        )
    own = [o.version for o in model.opset_import if o.domain in ("", "ai.onnx")]
    if len(own) > 1:
        told = f"{file.name} names {len(own)} opsets of the standard operators"
        raise UserError("SP1031", told, "export it again with one opset_version")
    if model.ir_version < OLDEST_IR:
        problem = f"{file.name} has IR version {model.ir_version}; {OLDEST_IR} is the oldest that is supported"
        raise UserError("SP1031", problem, "export it again with a current version")


# -- external data ---------------------------------------------------------------------------------------------
def _require_external(file: Path, model: Any) -> None:
    """Every tensor that lies in another file is there, whole, and not outside of the model's folder."""
    folder = Path(os.path.realpath(file.parent))
    for tensor, node in _tensors(model):
        if not tensor.external_data:
            continue
        what = f"tensor {tensor.name!r}" + (f" of node {node!r}" if node else "")
        entries = {e.key: e.value for e in tensor.external_data}
        place = Path(os.path.realpath(folder / entries.get("location", "")))
        fix = f"keep {entries.get('location', 'it')!r} beside {file.name}, or save the model as one file"
        if not place.is_relative_to(folder) or place == folder:
            raise UserError("SP1032", f"{what} lies outside of the model's folder", "save the model as one file")
        if not place.is_file():
            raise UserError("SP1032", f"{what} is to be in {entries['location']!r}, which is not there", fix)
        try:
            end = int(entries.get("offset", 0)) + int(entries.get("length", 0))
        except ValueError as error:
            raise UserError("SP1032", f"{what} has no readable place: {entries}", "export it again") from error
        if place.stat().st_size < end:
            raise UserError("SP1032", f"{what} needs {end} bytes of {entries['location']!r}, which is shorter", fix)


def _tensors(model: Any) -> Iterator[tuple[Any, str]]:
    """(tensor, the first node that reads it)."""
    reader = {v: name_of(n) for n in reversed(model.graph.node) for v in n.input}
    for tensor in model.graph.initializer:
        yield tensor, reader.get(tensor.name, "")
    for node in model.graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t, name_of(node)


def _arrays(file: Path, model: Any) -> dict[str, Array]:
    """The initializers; every one has as many bytes as its shape says."""
    from onnx import numpy_helper

    found = {}
    for tensor, node in _tensors(model):
        try:
            if any(size < 0 for size in tensor.dims):
                raise ValueError(f"it has the shape {tuple(tensor.dims)}")
            found[tensor.name] = numpy_helper.to_array(tensor)
        except Exception as error:
            what = f"tensor {tensor.name!r}" + (f" of node {node!r}" if node else "")
            problem = f"{file.name}: {what} cannot be read: {first_line(error)}"
            raise UserError("SP1019", problem, "export the model again") from error
    return {i.name: found[i.name] for i in model.graph.initializer}


def _require_order(file: Path, model: Any) -> None:
    """Every node makes something, and reads what was made before it."""
    graph = model.graph
    for what, listed in (("initializer", graph.initializer), ("input", graph.input)):
        names = [value.name for value in listed]
        twice = next((name for name in names if not name or names.count(name) > 1), None)
        if twice is not None:
            problem = f"{file.name}: {names.count(twice)} of its {what}s are called {twice!r}"
            raise UserError("SP1019", problem, "export the model again")
    made = {"", *(i.name for i in graph.initializer), *(i.name for i in graph.input)}
    if graph.sparse_initializer:
        problem = f"{file.name}: the initializer {graph.sparse_initializer[0].values.name!r} is sparse"
        raise UserError("SP1019", problem, "export the model with dense tensors")
    for node in graph.node:
        missing = next((v for v in node.input if v not in made), None)
        if missing is not None:
            problem = (
                f"{file.name}: node {name_of(node)!r} ({node.op_type}) reads {missing!r}, which nothing makes before"
            )
            raise UserError("SP1019", problem, "export the model again")
        if not node.output:
            problem = f"{file.name}: node {name_of(node)!r} ({node.op_type}) makes nothing"
            raise UserError("SP1019", problem, "export the model again")
        again = next((v for v in node.output if v in made and v), None)
        if again is not None:
            problem = f"{file.name}: node {name_of(node)!r} ({node.op_type}) makes {again!r}, which is there already"
            raise UserError("SP1019", problem, "export the model again")
        made.update(node.output)
    missing = next((o.name for o in graph.output if o.name not in made), None)
    if missing is not None:
        raise UserError("SP1019", f"{file.name}: nothing makes the output {missing!r}", "export the model again")


# -- nodes -----------------------------------------------------------------------------------------------------
PER_DIMENSION = {"kernel_shape": 1, "strides": 1, "dilations": 1, "output_padding": 1, "pads": 2}
"""Attributes of convolutions and pools -> how many numbers each dimension of an image has in them."""
LONG = ("starts", "ends", "value_int", "value_ints")
"""Attributes that may hold more than 32 bits; importers cut others off."""


def misfit(node: Any, version: int, arrays: dict[str, Array]) -> str:
    """What is wrong with a node of a standard operator, whatever the importer would make of it. It leaves unread what
    it does not ask for, as inputs and attributes that the operator does not have, or the kernels that convolutions
    state, as it knows their weights. Empty: nothing, or no standard operator."""
    import onnx

    if node.domain not in ("", "ai.onnx") or not onnx.defs.has(node.op_type, version):
        return ""
    context = onnx.checker.C.CheckerContext()
    context.ir_version, context.opset_imports = onnx.IR_VERSION, {"": version, "ai.onnx": version}
    try:
        onnx.checker.check_node(node, context)
    except onnx.checker.ValidationError as error:
        return first_line(error)
    numbers = {a.name: tuple(a.ints) or (a.i,) for a in node.attribute if a.ints or a.type == a.INT}
    for name, found in numbers.items():
        if name not in LONG and not all(-(2**31) <= n < 2**31 for n in found):
            return f"its {name} of {found} is beyond 32 bits"
    convolves = node.op_type in ("Conv", "ConvTranspose")
    if not convolves and not node.op_type.endswith("Pool"):
        return ""
    weights = arrays.get(node.input[1]) if convolves else None
    kernel = weights.shape[2:] if weights is not None else numbers.get("kernel_shape", ())
    for name, each in PER_DIMENSION.items():
        if kernel and name in numbers and len(numbers[name]) != each * len(kernel):
            return f"its {name} of {numbers[name]} does not fit a kernel of {kernel}"
    if numbers.get("kernel_shape", kernel) != kernel:
        return f"its kernel_shape of {numbers['kernel_shape']} is not that of its weights, {kernel}"
    return ""


# -- weights ---------------------------------------------------------------------------------------------------
def _without_constants(file: Path, model: Any, arrays: dict[str, Array]) -> dict[str, Array]:
    """Weights made by Constant, or by ConstantOfShape from a constant shape, are initializers like the others: both
    leave the model, and the list of inputs, where older versions also had them."""
    graph, arrays = model.graph, dict(arrays)
    for node in graph.node:
        try:
            made = _constant_of(node, arrays)
        except Exception as error:  # no input, no number, a shape of fractions or below 0
            problem = f"{file.name}: node {name_of(node)!r} ({node.op_type}) cannot be read: {first_line(error)}"
            raise UserError("SP1019", problem, "export the model again") from error
        if made is not None:
            arrays[node.output[0]] = made
    for field, drop in (
        (graph.node, [n.output[0] in arrays for n in graph.node]),
        (graph.input, [i.name in arrays for i in graph.input]),
    ):
        for position in reversed([i for i, dropped in enumerate(drop) if dropped]):
            del field[position]
    del graph.initializer[:]
    read = {v for n in graph.node for v in n.input} | {o.name for o in graph.output}
    return {name: array for name, array in arrays.items() if name in read}


def _constant_of(node: Any, arrays: dict[str, Array]) -> Array | None:
    """What a node makes that depends on no input of the model; None of others."""
    from onnx import numpy_helper

    if node.op_type == "ConstantOfShape" and node.input[0] in arrays:
        value = next((numpy_helper.to_array(a.t) for a in node.attribute), np.zeros(1, np.float32))
        shape = tuple(int(d) for d in arrays[node.input[0]])
        return np.broadcast_to(value.reshape(-1)[0], shape)
    if node.op_type != "Constant" or not node.attribute:
        return None
    held = node.attribute[0]
    if held.HasField("t"):
        number: Array = numpy_helper.to_array(held.t)
        return number
    numbers: dict[str, tuple[Any, type]] = {
        "value_float": (held.f, np.float32),
        "value_floats": (held.floats, np.float32),
        "value_int": (held.i, np.int64),
        "value_ints": (held.ints, np.int64),
    }
    return np.array(*numbers[held.name]) if held.name in numbers else None


# -- sizes -----------------------------------------------------------------------------------------------------
def _fix_sizes(file: Path, found: ModelFile, batch: int | None) -> None:
    model, before = found.model, set()
    if not model.graph.node:
        raise UserError("SP1019", f"{file.name} has no nodes but constants", "export the part that depends on data")
    for value in model.graph.input:
        if not value.type.HasField("tensor_type"):
            raise UserError(
                "SP1019", f"input {value.name!r} of {file.name} is no tensor", "export with tensors as inputs"
            )
        if not value.type.tensor_type.HasField("shape"):
            problem = f"input {value.name!r} leaves its number of dimensions open"
            raise UserError("SP1014", problem, "export the model with fixed sizes")
        dims = value.type.tensor_type.shape.dim
        if dims and batch is not None:
            before.add(dims[0].dim_value)
            dims[0].Clear()
            dims[0].dim_value = batch
        if dims and dims[0].dim_value < 1:
            raise UserError("SP1011", f"input {value.name!r} leaves its batch open", "give --batch (batch=...)")
        for position, dim in enumerate(dims):
            if dim.dim_value < 1:
                called = f" ({dim.dim_param!r})" if dim.dim_param else ""
                reader = next((name_of(n) for n in model.graph.node if value.name in n.input), "none")
                raise UserError(
                    "SP1014",
                    f"input {value.name!r}, read by node {reader!r}, leaves dimension {position}{called} open",
                    "export the model with fixed sizes",
                )
    if batch is not None and before - {batch, 0}:
        _follow_batch(found, before)


def _follow_batch(found: ModelFile, before: set[int]) -> None:
    """Reshapes to the batch that the file was exported with keep the first dimension instead (0 in ONNX)."""
    for node in found.model.graph.node:
        name = node.input[1] if node.op_type == "Reshape" and len(node.input) > 1 else ""
        shape = found.arrays.get(name)
        if shape is None or shape.ndim != 1 or shape.size < 2 or shape.dtype != np.int64:
            continue
        if node.input[0] not in found.arrays and int(shape[0]) in before:
            found.arrays[name] = np.concatenate([[0], shape[1:]]).astype(np.int64)
