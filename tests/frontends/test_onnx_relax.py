"""ONNX models, captured, compute what PyTorch computes from the same weights; other files say what is wrong."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper
from torch import Tensor
from torch.nn import functional as F

from planner.capturing import Captured, capture
from planner.errors import UserError
from planner.frontends.onnx_relax import capture_onnx
from planner.graph.model import Role
from planner.graph.optimizer import Optimizer
from planner.graph.text import validate
from tests.interpreter import run_program

Weights = dict[str, np.ndarray]
N = helper.make_node
RNG = np.random.default_rng(0)


def save(
    path: Path,
    nodes: Sequence[Any],
    shape: Sequence[int | str],
    weights: Weights,
    kind: int = TensorProto.FLOAT,
    output: str = "y",
    opset: int = 17,
) -> Path:
    stored = [
        numpy_helper.from_array(w if w.dtype.kind == "i" else w.astype(np.float32), k) for k, w in weights.items()
    ]
    given = next((v for n in nodes for v in n.input if v.startswith("x.")), "x")
    inputs = [helper.make_tensor_value_info(given, kind, shape)]
    outputs = [helper.make_tensor_value_info(output, TensorProto.FLOAT, None)]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)]), path)
    return path


def normal(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape)


CNN_WEIGHTS: Weights = {
    "conv1.weight": normal(4, 3, 3, 3),
    "conv1.bias": normal(4),
    "bn1.weight": normal(4),
    "bn1.bias": normal(4),
    "bn1.running_mean": np.zeros(4),
    "bn1.running_var": np.ones(4),
    "fc.weight": normal(5, 4),
    "fc.bias": normal(5),
}
CNN = [
    N("Conv", ["x", "conv1.weight", "conv1.bias"], ["c"], pads=[1, 1, 1, 1], strides=[2, 2]),
    N(
        "BatchNormalization",
        ["c", "bn1.weight", "bn1.bias", "bn1.running_mean", "bn1.running_var"],
        ["n"],
        epsilon=1e-3,
    ),
    N("Relu", ["n"], ["r"]),
    N("MaxPool", ["r"], ["p"], kernel_shape=[2, 2], strides=[2, 2], pads=[0, 0, 1, 1]),
    N("GlobalAveragePool", ["p"], ["g"]),
    N("Flatten", ["g"], ["f"]),
    N("Gemm", ["f", "fc.weight", "fc.bias"], ["o"], transB=1),
    N("Softmax", ["o"], ["y"], axis=1),
]


def cnn(x: Tensor, w: dict[str, Tensor]) -> Tensor:
    y = F.conv2d(x, w["conv1.weight"], w["conv1.bias"], stride=2, padding=1)
    y = torch.relu(F.batch_norm(y, None, None, w["bn1.weight"], w["bn1.bias"], True, 0.1, 1e-3))
    y = F.max_pool2d(F.pad(y, (0, 1, 0, 1), value=float("-inf")), 2, 2)
    return F.linear(y.mean((2, 3)), w["fc.weight"], w["fc.bias"])


def agree(
    captured: Captured, x: np.ndarray, reference: Callable[[Tensor, dict[str, Tensor]], Tensor], loss: str
) -> None:
    graph = captured.graph
    validate(graph)
    by_name = {v.name: v for v in graph.values if v.name}
    values = {v.id: captured.weights[v.name].astype(np.float64) for v in by_name.values() if v.name in captured.weights}
    tensors = {
        k: torch.tensor(values[v.id], requires_grad=v.role is Role.PARAMETER)
        for k, v in by_name.items()
        if v.id in values
    }
    prediction = reference(torch.from_numpy(x), tensors)
    type_ = graph.value["labels"].type
    assert loss != "mse" or type_.shape == prediction.shape
    rng = np.random.default_rng(1)
    labels = rng.integers(0, prediction.shape[1], type_.shape) if loss == "cross_entropy" else rng.random(type_.shape)
    expected = (F.cross_entropy if loss == "cross_entropy" else F.mse_loss)(prediction, torch.from_numpy(labels))
    expected.backward()
    given = graph.program["train_step"].inputs[0]
    results = run_program(graph, "train_step", {**values, given: x, "labels": labels})
    np.testing.assert_allclose(results[graph.program["train_step"].outputs[0]], expected.item(), rtol=1e-6)
    trained = [v for v in by_name.values() if v.role is Role.PARAMETER]
    assert trained
    for value in trained:
        gradient = tensors[value.name].grad
        assert gradient is not None, value.name
        moved = values[value.id] - results[value.id]
        np.testing.assert_allclose(moved, gradient.numpy(), rtol=1e-5, atol=1e-8, err_msg=value.name)


def open_model(path: Path, batch: int | None = None, loss: str = "cross_entropy") -> Captured:
    return capture(str(path), batch=batch, loss=loss, optimizer=Optimizer(lr=1.0))


def test_a_convolutional_network(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", CNN, ["N", 3, 8, 8], CNN_WEIGHTS)
    captured = open_model(path, batch=3)
    graph = captured.graph
    assert graph.name == "net_b3" and set(captured.weights) == set(CNN_WEIGHTS)
    assert {v.name for v in graph.values if v.role is Role.STATE} == {"bn1.running_mean", "bn1.running_var"}
    nodes = {n.id: n for n in graph.program["train_step"].nodes}
    assert nodes["conv1"].inputs == ("x", "conv1.weight", "conv1.bias")
    assert nodes["bn1"].updates == ("bn1.running_mean", "bn1.running_var") and nodes["bn1"].attrs.momentum == 0.1
    assert any(n.op == "linear" and len(n.inputs) == 3 for n in nodes.values())
    agree(captured, normal(3, 3, 8, 8), cnn, "cross_entropy")
    assert graph.program["predict"].nodes[-1].op == "softmax"


def test_element_wise_and_shape_operators(tmp_path: Path) -> None:
    nodes = [
        N("AveragePool", ["x"], ["a"], kernel_shape=[2, 2], strides=[2, 2]),
        N("Clip", ["a", "low", "high"], ["b"]),
        N("Mul", ["b", "half"], ["c"]),
        N("Concat", ["c", "b"], ["d"], axis=1),
        N("Reshape", ["d", "shape"], ["e"]),
        N("MatMul", ["e", "w"], ["f"]),
        N("Add", ["f", "b1"], ["g"]),
        N("LeakyRelu", ["g"], ["h"], alpha=0.2),
        N("Transpose", ["h"], ["i"], perm=[1, 0]),
        N("Transpose", ["i"], ["j"], perm=[1, 0]),
        N("Split", ["j", "sizes"], ["k", "l"], axis=1),
        N("Sub", ["k", "offset"], ["m"]),
        N("Slice", ["l", "start", "stop", "axis"], ["n"]),
        N("Concat", ["m", "n"], ["o"], axis=1),
        N("ReduceMean", ["o"], ["q"], axes=[1], keepdims=1),
        N("Add", ["o", "q"], ["r"]),
        N("Sigmoid", ["r"], ["s"]),
        N("Pow", ["s", "two"], ["y"]),
    ]
    weights: Weights = {
        "low": np.array(-0.5), "high": np.array(0.6), "half": np.array(0.5), "two": np.array(2.0),
        "shape": np.array([2, -1]), "w": normal(72, 5), "b1": normal(5), "sizes": np.array([2, 3]),
        "offset": normal(2), "start": np.array([1]), "stop": np.array([3]), "axis": np.array([1]),
    }  # fmt: skip

    def reference(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        a = F.avg_pool2d(x, 2)
        b = a.clamp(-0.5, float(np.float32(0.6)))
        h = F.leaky_relu(torch.cat([b / 2, b], 1).reshape(2, -1) @ w["w"] + w["b1"], float(np.float32(0.2)))
        o = torch.cat([h[:, :2] - torch.from_numpy(weights["offset"].astype(np.float32)), h[:, 3:5]], 1)
        return torch.sigmoid(o + o.mean(1, keepdim=True)) ** 2

    captured = open_model(save(tmp_path / "net.onnx", nodes, [2, 4, 6, 6], weights), loss="mse")
    assert {v.name for v in captured.graph.values if v.role is Role.PARAMETER} == {"w", "b1"}
    agree(captured, normal(2, 4, 6, 6), reference, "mse")


def test_embedding_and_layer_norm(tmp_path: Path) -> None:
    nodes = [
        N("Gather", ["table", "x"], ["e"], axis=0),
        N("LayerNormalization", ["e", "g", "b"], ["n"], axis=-1),
        N("ReduceMean", ["n"], ["m"], axes=[1], keepdims=0),
        N("MatMul", ["m", "w"], ["y"]),
    ]
    weights: Weights = {"table": normal(7, 4), "g": normal(4), "b": normal(4), "w": normal(4, 3)}

    def reference(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        return F.layer_norm(w["table"][x], (4,), w["g"], w["b"]).mean(1) @ w["w"]

    captured = open_model(save(tmp_path / "net.onnx", nodes, [2, 3], weights, TensorProto.INT64))
    assert any(n.op == "embedding" for n in captured.graph.program["train_step"].nodes)
    agree(captured, RNG.integers(0, 7, (2, 3)), reference, "cross_entropy")


def test_residual_blocks(tmp_path: Path) -> None:
    nodes = [
        N("Conv", ["x", "w1"], ["a"], pads=[1, 1, 1, 1], group=1),
        N("Relu", ["a"], ["b"]),
        N("Conv", ["b", "w2", "b2"], ["c"], pads=[1, 1, 1, 1], group=2),
        N("Add", ["c", "b"], ["d"]),
        N("GlobalMaxPool", ["d"], ["e"]),
        N("Flatten", ["e"], ["y"]),
    ]
    weights: Weights = {"w1": normal(4, 2, 3, 3), "w2": normal(4, 2, 3, 3), "b2": normal(4)}

    def reference(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        b = torch.relu(F.conv2d(x, w["w1"], padding=1))
        return (F.conv2d(b, w["w2"], w["b2"], padding=1, groups=2) + b).amax((2, 3))

    agree(
        open_model(save(tmp_path / "net.onnx", nodes, [2, 2, 5, 5], weights)),
        normal(2, 2, 5, 5),
        reference,
        "cross_entropy",
    )


def test_volumes(tmp_path: Path) -> None:
    nodes = [
        N("Conv", ["x", "w1", "b1"], ["a"], pads=[1, 0, 1, 1, 2, 0], strides=[1, 2, 1]),
        N("BatchNormalization", ["a", "g", "b", "m", "v"], ["n"], epsilon=1e-5),
        N("Relu", ["n"], ["r"]),
        N("MaxPool", ["r"], ["p"], kernel_shape=[2, 3, 2], strides=[2, 1, 1], pads=[0, 1, 0, 0, 1, 1]),
        N("ConvTranspose", ["p", "w2"], ["t"], strides=[2, 1, 2], pads=[0, 1, 0, 0, 0, 0]),
        N("AveragePool", ["t"], ["q"], kernel_shape=[2, 2, 3], strides=[2, 2, 2]),
        N("GlobalAveragePool", ["q"], ["e"]),
        N("Flatten", ["e"], ["y"]),
    ]
    statistics = {"g": normal(4), "b": normal(4), "m": normal(4), "v": np.abs(normal(4))}
    weights: Weights = {"w1": normal(4, 2, 3, 3, 2), "b1": normal(4), "w2": normal(4, 3, 2, 2, 3), **statistics}

    def reference(x: Tensor, w: dict[str, Tensor]) -> Tensor:
        a = F.conv3d(F.pad(x, (1, 0, 0, 2, 1, 1)), w["w1"], w["b1"], stride=(1, 2, 1))
        r = torch.relu(F.batch_norm(a, None, None, w["g"], w["b"], True))
        p = F.max_pool3d(F.pad(r, (0, 1, 1, 1)), (2, 3, 2), (2, 1, 1))
        t = F.conv_transpose3d(p, w["w2"], stride=(2, 1, 2))[:, :, :, 1:]
        return F.avg_pool3d(t, (2, 2, 3), 2).mean((2, 3, 4))

    captured = open_model(save(tmp_path / "net.onnx", nodes, [2, 2, 4, 8, 6], weights))
    agree(captured, normal(2, 2, 4, 8, 6), reference, "cross_entropy")


def ones(*shape: int) -> np.ndarray:
    return np.array(shape)


def same(x: Tensor, w: Tensor, upper: bool) -> Tensor:
    """A convolution by 3 x 2 windows in steps of 2, of images of 5 x 5."""
    left = 1 - int(upper)
    return F.conv2d(F.pad(x, (left, 1 - left, 1, 1)), w, stride=2).flatten(1)


SQUARE = {"w": normal(4, 4)}
KERNEL = {"w": normal(2, 3, 3, 2)}
Reference = Callable[[Tensor, dict[str, Tensor]], Tensor]
FORMS: dict[str, tuple[list[Any], list[int], Weights, Reference, int]] = {
    "a transposition that changes nothing": (
        [N("Transpose", ["w"], ["t"], perm=[0, 1]), N("MatMul", ["x", "t"], ["y"])],
        [3, 4], SQUARE, lambda x, w: x @ w["w"], 17,
    ),
    "a matrix and its own transposed one": (
        [N("Transpose", ["w"], ["t"]), N("MatMul", ["t", "t"], ["u"]), N("MatMul", ["x", "u"], ["y"])],
        [3, 4], SQUARE, lambda x, w: x @ w["w"].T @ w["w"].T, 17,
    ),
    "a vector by a transposed matrix": (
        [N("Transpose", ["w"], ["t"]), N("MatMul", ["x", "t"], ["v"]), N("Unsqueeze", ["v", "a"], ["y"])],
        [4], {**SQUARE, "a": ones(0)}, lambda x, w: (x @ w["w"].T)[None], 17,
    ),
    "a number of more dimensions": (
        [N("Mul", ["x", "w"], ["a"]), N("Add", ["a", "c"], ["b"]), N("Max", ["b", "d"], ["y"])],
        [4], {"w": normal(4), "c": np.full((1, 1), 0.5), "d": np.zeros((1, 1, 1))},
        lambda x, w: (x * w["w"] + 0.5).clamp(min=0)[None, None], 17,
    ),
    "names that differ by a prefix": (
        [N("MatMul", ["x", "onnx::w"], ["a"]), N("MatMul", ["a", "w"], ["y"])],
        [3, 4], {"onnx::w": normal(4, 4), **SQUARE}, lambda x, w: x @ w["onnx::w"] @ w["w"], 17,
    ),
    "a constant called like a result, but for a prefix": (
        [N("MatMul", ["x", "w"], ["a"]), N("Reshape", ["a", "onnx::a"], ["b"]), N("Add", ["b", "a"], ["y"])],
        [3, 4], {**SQUARE, "onnx::a": ones(3, 4)}, lambda x, w: 2 * x @ w["w"], 17,
    ),
    "a weight called like the input, but for a dot": (
        [N("MatMul", ["x.0", "x_0"], ["y"])], [3, 4], {"x_0": normal(4, 4)}, lambda x, w: x @ w["x_0"], 17,
    ),
    "names as the reader gives them": (
        [N("MatMul", ["x", "%2"], ["a"]), N("MatMul", ["a", "%3"], ["y"])],
        [3, 4], {"%2": normal(4, 4), "%3": normal(4, 4)}, lambda x, w: x @ w["%2"] @ w["%3"], 17,
    ),
    "parts of different sizes": (
        [N("MatMul", ["x", "w"], ["m"]), N("Split", ["m"], ["a", "b"], axis=1, num_outputs=2),
         N("Concat", ["b", "a"], ["c"], axis=1), N("Split", ["c"], ["y"], axis=1, num_outputs=1)],
        [3, 4], {"w": normal(4, 5)}, lambda x, w: (x @ w["w"])[:, [3, 4, 0, 1, 2]], 18,
    ),
    "constant indices": (
        [N("MatMul", ["x", "w"], ["m"]), N("Gather", ["m", "i"], ["a"], axis=1), N("Gather", ["m", "j"], ["b"], axis=1),
         N("Add", ["a", "b"], ["y"])],
        [3, 4], {**SQUARE, "i": ones(-1, 0), "j": np.array([[2]], np.int32)},
        lambda x, w: (x @ w["w"])[:, [3, 0]] + (x @ w["w"])[:, 2:3, None], 17,
    ),
    "a shape put together": (
        [N("MatMul", ["x", "w"], ["m"]), N("Shape", ["m"], ["s"]), N("Gather", ["s", "i"], ["g"]),
         N("Unsqueeze", ["g", "z"], ["u"]), N("Concat", ["u", "r"], ["t"], axis=0), N("Reshape", ["m", "t"], ["a"]),
         N("Shape", ["a"], ["v"]), N("Expand", ["p", "v"], ["b"]), N("Add", ["a", "b"], ["y"])],
        [3, 2, 4], {**SQUARE, "i": np.array(0), "z": ones(0), "r": ones(-1), "p": normal(1, 8)},
        lambda x, w: (x @ w["w"]).reshape(3, 8) + w["p"], 17,
    ),
    "constants in other forms": (
        [N("Constant", [], ["c"], value_floats=[1.0, 2.0, 3.0, 4.0]), N("Constant", [], ["s"], value_ints=[2, 6]),
         N("Constant", [], ["h"], value_float=0.5), N("Constant", [], ["i"], value_int=1),
         N("Cast", ["x"], ["f"], to=1), N("Mul", ["f", "c"], ["a"]), N("Mul", ["a", "h"], ["b"]),
         N("Reshape", ["b", "s"], ["d"]), N("Gather", ["d", "i"], ["e"]), N("Unsqueeze", ["e", "i"], ["y"])],
        [3, 4], {}, lambda x, w: (x * w["c"] / 2).reshape(2, 6)[1][:, None], 17,
    ),
    "as many pixels as before, the odd one behind": (
        [N("Conv", ["x", "w"], ["c"], auto_pad="SAME_UPPER", strides=[2, 2]), N("Flatten", ["c"], ["y"])],
        [2, 3, 5, 5], KERNEL, lambda x, w: same(x, w["w"], True), 17,
    ),
    "as many pixels as before, the odd one in front": (
        [N("Conv", ["x", "w"], ["c"], auto_pad="SAME_LOWER", strides=[2, 2]), N("Flatten", ["c"], ["y"])],
        [2, 3, 5, 5], KERNEL, lambda x, w: same(x, w["w"], False), 17,
    ),
    "the length of nothing": (
        [N("MatMul", ["x", "w"], ["m"]), N("Sub", ["m", "m"], ["z"]), N("Concat", ["m", "z"], ["c"], axis=0),
         N("ReduceL2", ["c"], ["y"], axes=[1])],
        [3, 4], SQUARE, lambda x, w: torch.cat([(x @ w["w"]).norm(dim=1), torch.zeros(3)])[:, None], 17,
    ),
    "operands that are told where they belong": (
        [N("Mul", ["x", "w"], ["a"], broadcast=1, axis=0), N("Add", ["a", "b"], ["y"], broadcast=1, axis=1)],
        [4, 4, 4], {"w": normal(4), "b": normal(4)},
        lambda x, w: x * w["w"][:, None, None] + w["b"][:, None], 6,
    ),
    "a whole number as the exponent": (
        [N("Mul", ["x", "w"], ["a"]), N("Pow", ["a", "e"], ["y"])],
        [3, 4], {"w": normal(4), "e": np.array(3)}, lambda x, w: (x * w["w"]) ** 3, 17,
    ),
    "an exponent for every element, and a number's powers": (
        [N("Sigmoid", ["x"], ["s"]), N("Pow", ["s", "w"], ["a"]), N("Pow", ["h", "a"], ["y"])],
        [3, 4], {"w": normal(4), "h": np.array(0.5)}, lambda x, w: 0.5 ** torch.sigmoid(x) ** w["w"], 17,
    ),
    "axes that are padded": (
        [N("Mul", ["x", "w"], ["a"]), N("Pad", ["a", "p", "", "i"], ["y"])],
        [3, 4], {"w": normal(4), "p": ones(1, 2), "i": ones(-1)}, lambda x, w: F.pad(x * w["w"], (1, 2)), 18,
    ),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_forms_that_say_the_same_otherwise(form: str, tmp_path: Path) -> None:
    nodes, shape, weights, reference, opset = FORMS[form]
    path = save(tmp_path / "net.onnx", nodes, shape, weights, opset=opset)
    agree(open_model(path, loss="mse"), normal(*shape), reference, "mse")


def test_a_dropout_whose_rate_is_an_input(tmp_path: Path) -> None:
    nodes = [N("MatMul", ["x", "w"], ["m"]), N("Dropout", ["m", "r", "t"], ["y", "mask"], name="drop")]
    path = save(tmp_path / "net.onnx", nodes, [3, 4], {**SQUARE, "r": np.array(0.25), "t": np.array(1)})
    dropped = [n for n in open_model(path).graph.program["train_step"].nodes if n.op == "dropout"]
    assert [n.attrs.p for n in dropped] == [0.25]


def test_the_same_file_gives_the_same_graph(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", CNN, ["N", 3, 8, 8], CNN_WEIGHTS)
    assert open_model(path, 2).graph == open_model(path, 2).graph


def test_unsupported_operators(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", [N("Asinh", ["x"], ["y"])], [2, 4], {})
    with pytest.raises(UserError, match=r"(?s)SP1001.*node 'y': Asinh"):
        capture_onnx(path)
    path = save(tmp_path / "net.onnx", [N("Bogus", ["x"], ["y"], domain="own")], [2, 4], {})
    with pytest.raises(UserError, match=r"(?s)SP1001.*Bogus.*'own'"):
        capture_onnx(path)


def test_files_that_are_no_models(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="SP1019"):
        capture_onnx(tmp_path / "missing.onnx")
    (tmp_path / "text.onnx").write_text("not a model")
    with pytest.raises(UserError, match="SP1019") as caught:
        capture_onnx(tmp_path / "text.onnx")
    assert str(tmp_path) not in str(caught.value)


def test_open_dimensions_and_losses(tmp_path: Path) -> None:
    path = save(tmp_path / "net.onnx", CNN, ["N", 3, 8, 8], CNN_WEIGHTS)
    with pytest.raises(UserError, match="SP1011"):
        capture_onnx(path)
    with pytest.raises(UserError, match="SP1016"):
        capture_onnx(path, batch=2, loss="hinge")
    with pytest.raises(UserError, match="SP1014"):
        capture_onnx(save(tmp_path / "open.onnx", CNN, ["N", 3, "H", "W"], CNN_WEIGHTS), batch=2)
    dense = [N("Relu", ["x"], ["y"])]
    with pytest.raises(UserError, match="SP1016"):
        capture_onnx(save(tmp_path / "dense.onnx", dense, [2, 3, 4], {}))
