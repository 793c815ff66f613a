"""The models that the `onnx` package ships: what is computed is what the files come with, gradients are differences."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from planner.errors import UserError
from planner.frontends.onnx_relax import capture_onnx, predict_onnx
from planner.graph.model import DType, Graph, Role
from planner.graph.optimizer import Optimizer
from planner.graph.text import validate
from planner.ops.base import Array
from tests.interpreter import run_program

DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
LIGHT = sorted((DATA / "light").glob("*.onnx"))
SMALL = sorted(
    f.parent for g in ("simple", "pytorch-converted", "pytorch-operator") for f in (DATA / g).glob("*/model.onnx")
)

REFUSED = {
    "SP1001": """
        test_MaxPool2d_stride_padding_dilation test_ReflectionPad2d test_ReplicationPad2d test_expand_shape_model1
        test_expand_shape_model2 test_expand_shape_model3 test_expand_shape_model4 test_gradient_of_add
        test_gradient_of_add_and_mul test_operator_non_float_params test_operator_pad test_sequence_model1
        test_sequence_model2 test_sequence_model3 test_sequence_model6 test_shrink
        test_strnorm_model_monday_casesensintive_lower test_strnorm_model_monday_casesensintive_nochangecase
        test_strnorm_model_monday_casesensintive_upper test_strnorm_model_monday_empty_output
        test_strnorm_model_monday_insensintive_upper_twodim test_strnorm_model_nostopwords_nochangecase""",
    "SP1011": "test_sequence_model8",
    "SP1015": "test_operator_chunk test_operator_symbolic_override_nested",
    "SP1017": """
        test_operator_add_broadcast test_operator_add_size1_broadcast test_operator_add_size1_right_broadcast
        test_operator_add_size1_singleton_broadcast test_operator_addconstant test_sequence_model7""",
}
"""Three-dimensional layers, strings, sequences, control by data, float64, several results."""
REFUSED_BY = {name: code for code, names in REFUSED.items() for name in names.split()}


def stored(folder: Path, kind: str) -> list[Array]:
    files = sorted((folder / "test_data_set_0").glob(f"{kind}_*.pb"), key=lambda f: int(f.stem.split("_")[1]))
    return [numpy_helper.to_array(onnx.TensorProto.FromString(f.read_bytes())) for f in files]


def starts(graph: Graph, weights: dict[str, Array]) -> dict[str, Array]:
    return {
        v.id: weights[v.name].astype(np.float64 if v.type.dtype is DType.FLOAT32 else np.int64)
        for v in graph.values
        if v.name in weights
    }


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")
@pytest.mark.parametrize("folder", [f for f in SMALL if f.name not in REFUSED_BY], ids=lambda f: f.name)
def test_computes_what_the_file_comes_with(folder: Path, tmp_path: Path) -> None:
    graph, weights = predict_onnx(folder / "model.onnx")
    program = graph.program["predict"]
    given = stored(folder, "input")
    inputs = {n: a.astype(graph.value[n].type.dtype.value) for n, a in zip(program.inputs, given, strict=False)}
    (expected,) = stored(folder, "output")
    result = run_program(graph, "predict", {**starts(graph, weights), **inputs})[program.outputs[0]]
    np.testing.assert_allclose(result, expected, rtol=1e-3, atol=1e-5)
    require_gradients(folder / "model.onnx", given, tmp_path)


def require_gradients(file: Path, given: list[Array], tmp_path: Path) -> None:
    """The derivative of the loss along the gradient by every weight and float input is the gradient's square."""
    model = onnx.load(file)
    known = {i.name for i in model.graph.initializer}
    left = []
    for value, data in zip([i for i in model.graph.input if i.name not in known], given, strict=False):
        if data.dtype == np.float32 and data.size > 1:
            model.graph.initializer.append(numpy_helper.from_array(data, value.name))
        else:
            left.append(data)
    onnx.save(model, tmp_path / "trained.onnx")
    try:
        graph, weights = capture_onnx(tmp_path / "trained.onnx", loss="mse", optimizer=Optimizer(lr=1.0))
    except UserError as error:
        assert error.code in ("SP1006", "SP1001", "SP1015"), error  # arithmetic of constants is done at capture
        return
    validate(graph)
    program, start = graph.program["train_step"], starts(graph, weights)
    rest: dict[str, Array] = dict(zip([i for i in program.inputs if i != "labels"], left, strict=True))
    rng = np.random.default_rng(0)
    rest["labels"] = rng.standard_normal(graph.value["labels"].type.shape)
    after = run_program(graph, "train_step", {**start, **rest})
    trained = [v.id for v in graph.values if v.role is Role.PARAMETER and v.id in start]
    gradient = {v: start[v] - after[v] for v in trained}
    square = sum(float(np.sum(g * g)) for g in gradient.values())
    length = 1e-5 / max(np.sqrt(square), 1e-12)

    def loss_at(step: float) -> float:
        moved = {v: start[v] + step * gradient[v] for v in trained}
        return float(run_program(graph, "train_step", {**start, **moved, **rest})[program.outputs[0]])

    slope = (loss_at(length) - loss_at(-length)) / (2 * length)
    np.testing.assert_allclose(slope, square, rtol=2e-3, atol=1e-9)


@pytest.mark.parametrize("folder", [f for f in SMALL if f.name in REFUSED_BY], ids=lambda f: f.name)
def test_says_what_it_lacks(folder: Path) -> None:
    with pytest.raises(UserError) as caught:
        predict_onnx(folder / "model.onnx")
    assert caught.value.code == REFUSED_BY[folder.name]
    if caught.value.code == "SP1001":
        kinds = {n.op_type for n in onnx.load(folder / "model.onnx").graph.node}
        told = caught.value.problem.splitlines()[1:]
        assert told and all(any(f": {kind}: " in line for kind in kinds) for line in told)


NODES = {
    "light_bvlc_alexnet": 74, "light_densenet121": 2369, "light_inception_v1": 518, "light_inception_v2": 1355,
    "light_resnet50": 440, "light_shufflenet": 590, "light_squeezenet": 222, "light_vgg19": 151, "light_zfnet512": 70,
}  # fmt: skip


@pytest.mark.parametrize("file", LIGHT, ids=lambda f: f.stem)
def test_light_models(file: Path) -> None:
    """examples/onnx_study.py compares their losses and gradients with PyTorch."""
    graph, weights = capture_onnx(file, batch=2)
    assert len(graph.program["train_step"].nodes) == NODES[file.stem]
    trained = [v for v in graph.values if v.role is Role.PARAMETER]
    assert trained and all(weights[v.name].shape == v.type.shape for v in trained)
    assert graph.value["labels"].type.shape == (2,)
    if "softmax" in {n.op_type for n in onnx.load(file).graph.node}:
        assert "softmax" not in {n.op for n in graph.program["train_step"].nodes}
