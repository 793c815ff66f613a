"""ONNX inference models -> training graphs, through TVM Relax. The only module of the planner that touches TVM.

TVM's importer handles ONNX's versions and corner cases; its function is read here into plain `Call` records, which
`relax_ops` lowers: batch norm goes back to training mode, a loss on new `labels` is appended, and initializers that
layers use become parameters under their ONNX names.
"""

import logging
import os
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.frontends.emitter import identifier
from planner.frontends.relax_ops import Call, Function, Ref, lower
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.ops.base import Array


def capture_onnx(
    path: Path | str,
    *,
    batch: int | None = None,
    loss: str = "cross_entropy",
    optimizer: Optimizer | None = None,
    name: str | None = None,
    fuse: bool = True,
) -> tuple[Graph, dict[str, Array]]:
    """The training graph of an .onnx file and its weights by initializer name.

    batch: replaces the first dimension of every input; needed where the file leaves it open. Errors: SP1012 (TVM or
    onnx is missing), SP1014 (another dimension is open), SP1016 (loss), SP1019 (not a readable model), SP1001.
    """
    if loss not in ("cross_entropy", "mse"):
        raise UserError("SP1016", f"unknown loss {loss!r}", "use 'cross_entropy' or 'mse'")
    file = Path(path)
    model, from_onnx, relax = _load(file)
    shapes = _input_shapes(model, batch)
    with warnings.catch_warnings(), _quiet():
        warnings.simplefilter("ignore")
        try:
            module = from_onnx(model, shape_dict=shapes, keep_params_in_input=True)
        except Exception as error:
            raise _import_error(error, file) from error
    first = next(iter(shapes.values()), [1])
    builder = GraphBuilder(identifier(name or f"{file.stem}_b{first[0] if first else 1}"))
    emitter, prediction, value = lower(_read(relax, module["main"]), builder, loss)
    graph = builder.finish(value, prediction, optimizer or Optimizer(lr=0.1, momentum=0.9), fuse=fuse)
    kept = {v.name for v in graph.values}
    return graph, {k: w for k, w in emitter.weights.items() if k in kept}


# -- loading ---------------------------------------------------------------------------------------------------
def _load(file: Path) -> tuple[Any, Any, Any]:
    try:
        import onnx
        from tvm import relax
        from tvm.relax.frontend.onnx import from_onnx
    except ImportError as error:
        fix = "pip install 'apache-tvm==0.27.*' onnx"
        raise UserError("SP1012", f"reading ONNX models needs {error.name}", fix) from error
    try:
        model = onnx.load(os.fspath(file))
        if not model.graph.node:
            raise ValueError("it has no nodes")
    except FileNotFoundError as error:
        raise UserError("SP1019", f"there is no file {file.name!r}", "check the path") from error
    except Exception as error:
        problem = (str(error).strip().splitlines() or ["unreadable"])[0][:200]
        raise UserError("SP1019", f"{file.name} is no valid ONNX model: {problem}", "export it again") from error
    return model, from_onnx, relax


def _input_shapes(model: Any, batch: int | None) -> dict[str, list[int]]:
    initial = {i.name for i in model.graph.initializer}
    shapes = {}
    for value in model.graph.input:
        if value.name in initial:
            continue
        dims = [d.dim_value for d in value.type.tensor_type.shape.dim]
        if dims and batch is not None:
            dims[0] = batch
        if dims and dims[0] < 1:
            raise UserError("SP1011", f"input {value.name!r} leaves its batch open", "give --batch (batch=...)")
        if any(d < 1 for d in dims):
            raise UserError("SP1014", f"input {value.name!r} has open dimensions", "export the model with fixed sizes")
        shapes[value.name] = dims
    return shapes


def _import_error(error: Exception, file: Path) -> UserError:
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    found = re.search(r"not supported for frontend ONNX: (.+)", lines[-1])
    if found:
        return UserError("SP1001", f"{file.name} uses unsupported op {found.group(1)}", "replace it before exporting")
    text = re.sub(r"(/[\w.\-]+)+/", "", lines[-1])[:200]
    return UserError("SP1019", f"TVM cannot import {file.name}: {text}", "check the batch, or export with fixed shapes")


@contextmanager
def _quiet() -> Iterator[None]:
    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(previous)


# -- reading Relax ---------------------------------------------------------------------------------------------
def _read(relax: Any, function: Any) -> Function:
    count = int(function.attrs["num_input"]) if function.attrs else len(function.params)
    inputs = {p.name: (_shape(p.ty), str(p.ty.dtype)) for p in function.params[:count]}
    data = function.attrs["params"] if function.attrs and "params" in function.attrs else []
    weights = {p.name: np.asarray(d.numpy()) for p, d in zip(function.params[count:], data, strict=True)}
    names: dict[Any, str] = {p: p.name for p in function.params}
    calls = []
    for block in function.body.blocks:
        for binding in block.bindings:
            names[binding.var] = f"%{len(names)}"
            calls.append(_call(relax, names, binding))
    return Function(inputs, weights, calls, _argument(relax, names, function.body.body))


def _call(relax: Any, names: dict[Any, str], binding: Any) -> Call:
    value, type_ = binding.value, binding.var.ty
    target, shape = names[binding.var], _shape(type_)
    dtype = str(getattr(type_, "dtype", "") or "")
    if type(value).__name__ == "TupleGetItem":
        source = _argument(relax, names, value.tuple_value)
        return Call(target, "getitem", [source, int(value.index)], {}, shape, dtype)
    if not isinstance(value, relax.Call):
        return Call(target, "same", [_argument(relax, names, value)], {}, shape, dtype)
    op = value.op.name.removeprefix("relax.") if hasattr(value.op, "name") else str(value.op)
    arguments = [_argument(relax, names, a) for a in value.args]
    if op == "call_tir":  # maximum, minimum and pad arrive as generated functions
        op = re.sub(r"\d+$", "", f"tir.{value.args[0].name_hint}")
        arguments = list(arguments[1])
    return Call(target, op, arguments, _attributes(value.attrs), shape, dtype)


def _shape(type_: Any) -> tuple[int, ...]:
    shape = getattr(type_, "shape", None)
    values = getattr(shape, "values", None)
    if shape is None or values is None:
        return ()
    try:
        return tuple(int(d) for d in values)
    except TypeError as error:
        raise UserError("SP1014", f"a value has the open shape {shape}", "export with fixed sizes") from error


def _argument(relax: Any, names: dict[Any, str], argument: Any) -> Any:
    """A reference, an array, numbers, or a list of these."""
    if argument in names:
        return Ref(names[argument])
    if hasattr(getattr(argument, "value", None), "numpy"):
        return np.asarray(argument.value.numpy())
    if type(argument).__name__ == "ShapeExpr":
        return [_plain(d) for d in argument.values]
    if hasattr(argument, "fields"):
        return [_argument(relax, names, a) for a in argument.fields]
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
