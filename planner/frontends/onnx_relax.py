"""ONNX inference models -> training graphs, through TVM Relax.

TVM's importer handles ONNX's versions and corner cases (`tvm_onnx` and `tvm_operators`, the only modules of the planner
that touch TVM); its function arrives here as plain `Call` records, which `relax_ops` lowers: batch norm goes back to
training mode, a loss on new `labels` is appended, and initializers that layers use become parameters under their ONNX
names.
"""

import difflib
from collections.abc import Sequence
from pathlib import Path

from planner.errors import UserError
from planner.frontends import relax_layers  # noqa: F401  (enters its operators)
from planner.frontends.naming import identifier
from planner.frontends.onnx_file import OPEN, SUPPORTED, ModelFile, name_of, read_model
from planner.frontends.relax_ops import Failure, Function, Lowering
from planner.graph.builder import GraphBuilder
from planner.graph.model import Graph
from planner.graph.optimizer import Optimizer
from planner.ops.base import Array

LOSSES = ("cross_entropy", "mse")


def capture_onnx(
    path: Path | str,
    *,
    batch: int | None = None,
    loss: str = "cross_entropy",
    optimizer: Optimizer | None = None,
    name: str | None = None,
    fuse: bool = True,
    keep: Sequence[str] = (),
    clip_norm: float | None = None,
    accumulate: bool = False,
) -> tuple[Graph, dict[str, Array]]:
    """The training graph of an .onnx file and its weights by initializer name.

    batch: replaces the first dimension of every input; needed where the file leaves it open. keep, clip_norm,
    accumulate: as in `GraphBuilder.finish`. Errors: SP1012 (TVM or onnx is missing), SP1016 (loss), SP1001 (names every
    node with an unsupported operator), those of `read_model`.
    """
    if loss not in LOSSES:
        raise UserError("SP1016", f"unknown loss {loss!r}", "use 'cross_entropy' or 'mse'")
    lowering, prediction = _lowered(Path(path), batch, name)
    value = lowering.append_loss(prediction, loss)
    optimizer = optimizer or Optimizer(lr=0.1, momentum=0.9)
    graph = lowering.e.b.finish(
        value, prediction, optimizer, fuse=fuse, keep=keep, clip_norm=clip_norm, accumulate=accumulate
    )
    return graph, _weights(lowering, graph)


def predict_onnx(
    path: Path | str, *, batch: int | None = None, name: str | None = None
) -> tuple[Graph, dict[str, Array]]:
    """As `capture_onnx`, but with the program `predict` alone: models without anything to train."""
    lowering, prediction = _lowered(Path(path), batch, name)
    graph = lowering.e.b.finish_inference(prediction)
    return graph, _weights(lowering, graph)


def _lowered(file: Path, batch: int | None, name: str | None) -> tuple[Lowering, str]:
    read = read_model(file, batch)
    order = [name_of(n) for n in read.model.graph.node]
    function = _imported(read)
    first = next(iter(function.inputs.values()), ((1,), ""))[0]
    lowering = Lowering(function, GraphBuilder(identifier(name or f"{file.stem}_b{first[0] if first else 1}")))
    prediction = lowering.run()
    failures = {f.node: f for f in (*lowering.failures, *function.failures)}
    if failures:
        raise _unsupported(file, sorted(failures.values(), key=lambda f: order.index(f.node)))
    return lowering, prediction


def _imported(read: ModelFile) -> Function:
    try:
        from planner.frontends.tvm_onnx import relax_function
    except ImportError as error:
        fix = "pip install 'apache-tvm==0.27.*' onnx"
        raise UserError("SP1012", f"reading ONNX models needs {error.name}", fix) from error
    return relax_function(read)


def _weights(lowering: Lowering, graph: Graph) -> dict[str, Array]:
    kept = {v.name for v in graph.values}
    return {k: w for k, w in lowering.e.weights.items() if k in kept}


def _unsupported(file: Path, failures: Sequence[Failure]) -> UserError:
    """SP1001 that lists every node that stepplan cannot lower."""
    lines = [f"{len(failures)} nodes of {file.name} cannot be lowered:" if failures[1:] else f"{file.name}:"]
    for f in failures[:50]:
        near = [] if f.op in SUPPORTED else difflib.get_close_matches(f.op, SUPPORTED, 1, 0.0)
        nearest = f" (nearest supported: {near[0]})" if near else ""
        lines.append(f"  node {f.node!r}: {f.op}: {f.problem}{nearest}")
    if len(failures) > 50:
        ops = sorted({f.op for f in failures[50:]})
        lines.append(f"  and {len(failures) - 50} more, with {', '.join(ops)}")
    if all(f.problem.startswith(OPEN) for f in failures):
        return UserError("SP1014", "\n".join(lines), "export with fixed sizes")
    return UserError("SP1001", "\n".join(lines), "replace or correct these operators before exporting")
