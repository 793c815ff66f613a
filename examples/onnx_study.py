"""The `onnx` package's light models, trained for one step: loss and gradients against PyTorch.

The light models are AlexNet, DenseNet-121, Inception 1 and 2, ResNet-50, ShuffleNet, SqueezeNet, VGG-19 and ZFNet-512,
with weights that their own nodes fill with one number. Each is captured, given random weights, planned from modelled
costs, built and run; PyTorch evaluates the same file node by node, in float64 (the truth) and in float32 (the measure).
Dropout is taken out of the files, so that both compute the same. That says whether the file was read rightly; as for
rounding, single choices of relu and max pool that it turns over make up most of what differs. So the captured graph is
also compared as in examples/truth_study.py, tensor by tensor with float64 that takes the same choices (`same branch`):
how many tensors are beyond twice PyTorch float32's own error, or 1e-5, the worst as a share of that, and the choices
that float64 would not have taken, the executor's and PyTorch float32's.

Exit status 1 where a loss, a tensor or a choice misses the bar on the same branch.
"""

import argparse
import gc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from onnx import numpy_helper
from torch import Tensor
from torch.nn import functional as F

from codegen.branches import decisive_values
from codegen.build import build
from codegen.cpu.emit import emit
from codegen.facts import facts
from codegen.load import executor_class
from codegen.steps import random_inputs
from codegen.truth import truth
from planner.capturing import Captured
from planner.console import one_of, positive, script
from planner.costs.model import modelled_costs
from planner.errors import InternalError, UserError
from planner.frontends.onnx_relax import capture_onnx
from planner.graph.model import Graph, Role
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect

LIGHT = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


HEAD = (
    f"{'model':23}{'seed':>11}{'nodes':>6}{'loss':>9}{'loss error':>12}{'gradient error':>16}{'PyTorch':>9}"
    f"{'same branch':>16}{'flips':>7}{'PyTorch':>9}  worst on the same branch"
)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = sorted(f.stem for f in LIGHT.glob("*.onnx"))
    parser.add_argument("models", nargs="*", default=known, type=one_of(known))
    parser.add_argument("--batch", type=positive, default=2)
    parser.add_argument("--seed", type=int, help="of weights and inputs; default: another one every time")
    parser.add_argument("--draws", type=int, default=1, help="seeds per model, counting up from the first")
    parser.add_argument("--out", type=Path, default=Path("generated"))
    options = parser.parse_args()
    first = options.seed if options.seed is not None else int(np.random.SeedSequence().generate_state(1)[0])
    right = True
    print(HEAD, flush=True)
    for name in options.models:
        file = without_dropout(LIGHT / f"{name}.onnx", options.out / f"{name}.onnx")
        captured, folder = built(file, options.batch, options.out)
        for seed in range(first, first + options.draws):
            right = study(name, file, randomised(captured, seed), folder, seed) and right
            gc.collect()
    return 0 if right else 1


def built(file: Path, batch: int, out: Path) -> tuple[Captured, Path]:
    """Chains may compute from views of parameters, which are others after the step: their relus could not be read back
    then (SP1304), and the model is captured without fusing."""
    for fuse in (True, False):
        captured = Captured(*capture_onnx(file, batch=batch, fuse=fuse))
        try:
            return captured, make(captured.graph, out)
        except UserError as error:
            if error.code != "SP1304" or not fuse:
                raise
    raise InternalError("not reached")


def make(graph: Graph, out: Path) -> Path:
    """Plan without measuring anything, emit and build."""
    target, options = detect(), PlanOptions(policy="sequential", keep=decisive_values(graph))
    folder = out / f"{graph.name}_study"
    emit(make_plan(graph, target, modelled_costs(graph, target, facts), options), graph, target, folder)
    build(folder)
    return folder


def study(name: str, file: Path, captured: Captured, folder: Path, seed: int) -> bool:
    """Prints one line. Returns whether everything is right on the same branch."""
    graph = captured.graph
    captured.write_weights(folder / "weights.npz")
    x, labels = random_inputs(graph, int(np.random.default_rng(seed).integers(0, 2**32)))  # those of `truth`
    with executor_class(folder)(pin=False) as executor:
        loss, gradients = executor.gradients(x, labels)
        verdict = truth(graph, executor, 1, seed)["executor"]
    truth_loss, exact = in_torch(file, captured, x, labels, torch.float64)
    loss_error = abs(loss - truth_loss) / abs(truth_loss)
    error = distance(gradients, exact)
    del gradients
    _, plain = in_torch(file, captured, x, labels, torch.float32)
    worst = max(verdict.rows, key=lambda row: row.ratio)
    branch = f"{sum(not row.ok for row in verdict.rows)} of {len(verdict.rows)}, {worst.ratio:.2f}"
    flips, theirs = sum(f.count for f in verdict.flips), sum(f.torch_count for f in verdict.flips)
    print(
        f"{name:23}{seed:11}{len(graph.program['train_step'].nodes):6}{truth_loss:9.5f}{loss_error:12.1e}{error:16.1e}"
        f"{distance(plain, exact):9.1e}{branch:>16}{flips:7}{theirs:9}"
        f"  {worst.kind} {worst.name}: {worst.error:.1e}, PyTorch {worst.torch_error:.1e}",
        flush=True,
    )
    return not verdict.wrong


def distance(found: dict[str, np.ndarray], truth: dict[str, np.ndarray]) -> float:
    """Of all gradients together, relative."""
    assert set(found) == set(truth), set(found) ^ set(truth)
    square = sum(float(np.sum((found[n].astype(np.float64) - t) ** 2)) for n, t in truth.items())
    return float(np.sqrt(square / sum(float(np.sum(t**2)) for t in truth.values())))


def without_dropout(file: Path, copy: Path) -> Path:
    model = onnx.load(file)
    for node in model.graph.node:
        for attribute in node.attribute:
            if node.op_type == "Dropout" and attribute.name == "ratio":
                attribute.f = 0.0
    copy.parent.mkdir(parents=True, exist_ok=True)
    onnx.save(model, copy)
    return copy


def randomised(captured: Captured, seed: int) -> Captured:
    """Weights like freshly initialised ones; scales and variances near 1."""
    rng, weights = np.random.default_rng(seed), {}
    kinds = {v.name: v for v in captured.graph.values if v.name}
    scales = {
        v for n in captured.graph.program["train_step"].nodes if n.op.startswith("batch_norm") for v in n.inputs[1:2]
    }
    for name, old in captured.weights.items():
        fan = int(np.prod(old.shape[1:])) if old.ndim > 1 else 1
        deviation = np.sqrt(2 / fan) if old.ndim > 1 else 0.1
        drawn = rng.standard_normal(old.shape, np.float32) * np.float32(deviation)
        near_one = old.ndim == 1 and (kinds[name].id in scales or kinds[name].role is Role.STATE)
        weights[name] = drawn + np.float32(near_one)
    return Captured(captured.graph, weights)


# -- the same file in PyTorch ----------------------------------------------------------------------------------
def in_torch(
    file: Path, captured: Captured, x: np.ndarray, labels: np.ndarray, dtype: torch.dtype
) -> tuple[float, dict[str, np.ndarray]]:
    """(loss, gradients by name) of the file, node by node, in training mode."""
    trained = {v.name for v in captured.graph.values if v.role is Role.PARAMETER}
    tensors = {n: torch.tensor(w).to(dtype).requires_grad_(n in trained) for n, w in captured.weights.items()}
    logits = evaluate(onnx.load(file), tensors, torch.tensor(x).to(dtype))
    loss = F.cross_entropy(logits, torch.tensor(labels))
    loss.backward()
    return float(loss.detach()), {n: tensors[n].grad.double().numpy() for n in trained}  # type: ignore[union-attr]


def evaluate(model: Any, tensors: dict[str, Tensor], x: Tensor) -> Tensor:
    """The logits: what goes into the softmax at the end, where there is one. `tensors`: the weights by safe name."""
    constants = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    given = next(i.name for i in model.graph.input if i.name not in constants)
    values: dict[str, Any] = {given: x}
    for node in model.graph.node:
        a = {t.name: onnx.helper.get_attribute_value(t) for t in node.attribute}
        if node.op_type in ("ConstantOfShape", "Softmax"):
            values[node.output[0]] = values.get(node.input[0])
            continue
        args = []
        for name in node.input:
            known = tensors.get(name.replace("/", "_"), values.get(name))
            args.append(known if known is not None else torch.from_numpy(np.array(constants[name])))
        values[node.output[0]] = TORCH[node.op_type](a, *args)
    logits: Tensor = values[model.graph.output[0].name]
    return logits.reshape(len(x), -1)


def _conv(a: dict[str, Any], x: Tensor, w: Tensor, b: Tensor | None = None) -> Tensor:
    x = F.pad(x, _sides(a))
    return F.conv2d(x, w, b, a.get("strides", 1), 0, a.get("dilations", 1), a.get("group", 1))


def _sides(a: dict[str, Any]) -> tuple[int, int, int, int]:
    top, left, bottom, right = a.get("pads", (0, 0, 0, 0))
    return (left, right, top, bottom)


def _max_pool(a: dict[str, Any], x: Tensor) -> Tensor:
    return F.max_pool2d(F.pad(x, _sides(a), value=float("-inf")), a["kernel_shape"], a.get("strides", 1))


def _average_pool(a: dict[str, Any], x: Tensor) -> Tensor:
    kernel, strides = a["kernel_shape"], a.get("strides", 1)
    summed = F.avg_pool2d(F.pad(x, _sides(a)), kernel, strides)
    if a.get("count_include_pad", 0):
        return summed
    return summed / F.avg_pool2d(F.pad(torch.ones_like(x), _sides(a)), kernel, strides)


def _batch_norm(a: dict[str, Any], x: Tensor, scale: Tensor, bias: Tensor, *statistics: Tensor) -> Tensor:
    return F.batch_norm(x, None, None, scale, bias, True, 0.1, a.get("epsilon", 1e-5))


def _gemm(a: dict[str, Any], x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return x @ (w.T if a.get("transB") else w) + b


def _unsqueeze(a: dict[str, Any], x: Tensor) -> Tensor:
    for axis in a["axes"]:
        x = x.unsqueeze(axis)
    return x


def _reshape(a: dict[str, Any], x: Tensor, shape: Tensor) -> Tensor:
    """Of weights to the shape, of data to that shape with its own batch."""
    sizes = shape.tolist()
    return x.reshape(sizes) if int(np.prod(sizes)) == x.numel() else x.reshape(x.shape[0], *sizes[1:])


TORCH: dict[str, Callable[..., Tensor]] = {
    "Conv": _conv, "MaxPool": _max_pool, "AveragePool": _average_pool, "BatchNormalization": _batch_norm,
    "Gemm": _gemm, "Unsqueeze": _unsqueeze, "Reshape": _reshape, "Relu": lambda a, x: torch.relu(x),
    "LRN": lambda a, x: F.local_response_norm(x, a["size"], a["alpha"], a["beta"], a.get("bias", 1.0)),
    "Dropout": lambda a, x: x, "Mul": lambda a, x, y: x * y, "Add": lambda a, x, y: x + y,
    "Sum": lambda a, *xs: sum(xs[1:], xs[0]), "Concat": lambda a, *xs: torch.cat(xs, a["axis"]),
    "GlobalAveragePool": lambda a, x: x.mean((2, 3), keepdim=True), "Transpose": lambda a, x: x.permute(a["perm"]),
}  # fmt: skip


if __name__ == "__main__":
    script(main)
