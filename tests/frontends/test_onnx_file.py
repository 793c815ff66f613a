"""Files that cannot be used: one error each, with a stable code, that names the node, tensor or input."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from planner.errors import UserError
from planner.frontends.onnx_relax import capture_onnx

N = helper.make_node
WEIGHT = np.ones((4, 4), np.float32)
PRODUCT = [N("MatMul", ["x", "w"], ["y"], name="mm")]


def told(
    folder: Path,
    nodes: Sequence[Any],
    shape: Sequence[int | str] = (2, 4),
    weights: dict[str, np.ndarray] | None = None,
    opset: int = 17,
    change: Callable[[ModelProto], None] = lambda model: None,
) -> UserError:
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    stored = [numpy_helper.from_array(w, k) for k, w in (weights or {}).items()]
    graph = helper.make_graph(nodes, "net", inputs, outputs, stored)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    change(model)
    (folder / "net.onnx").write_bytes(model.SerializeToString())
    with pytest.raises(UserError) as caught:
        capture_onnx(folder / "net.onnx", loss="mse")
    assert str(folder) not in str(caught.value)
    return caught.value


def test_all_unsupported_nodes_are_named(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    branch = helper.make_graph([N("Relu", ["x"], ["t"])], "branch", [], [helper.make_empty_tensor_value_info("t")])
    nodes = [
        N("MatMul", ["x", "w"], ["a"]),
        N("Asinh", ["a"], ["b"], name="first"),
        N("Ceil", ["b"], ["c"]),
        N("NonZero", ["c"], ["d"]),
        N("Foo", ["d"], ["e"], domain="own"),
        N("Hardmax", ["a"], ["f"], name="last"),
        N("If", ["yes"], ["g"], then_branch=branch, else_branch=branch, name="choice"),
        N("Relu", ["g"], ["y"]),
    ]
    error = told(tmp_path, nodes, weights={"w": WEIGHT, "yes": np.array(True)})
    lines = error.problem.splitlines()
    assert error.code == "SP1001" and lines[0] == "6 nodes of net.onnx cannot be lowered:"
    places = ["'first': Asinh", "'c': Ceil", "'d': NonZero", "'e': Foo", "'last': Hardmax", "'choice': If"]
    assert all(place in line for place, line in zip(places, lines[1:], strict=True)), lines
    assert "nearest supported: " in lines[1] and "domain 'own'" in lines[4] and "control flow" in lines[6]
    assert capfd.readouterr() == ("", "")


def test_sizes_that_depend_on_data(tmp_path: Path) -> None:
    error = told(tmp_path, [N("NonZero", ["x"], ["i"], name="where"), N("Cast", ["i"], ["y"], to=1)])
    assert error.code in ("SP1014", "SP1001") and "'where'" in error.problem


@pytest.mark.parametrize("opset", [3, 28])
def test_opsets_out_of_range(tmp_path: Path, opset: int) -> None:
    error = told(tmp_path, [N("Relu", ["x"], ["y"], name="r")], opset=opset)
    assert error.code == "SP1031" and f"opset {opset}" in error.problem and "'r'" in error.problem


def test_an_old_format(tmp_path: Path) -> None:
    def age(model: ModelProto) -> None:
        model.ir_version = 2

    assert told(tmp_path, PRODUCT, weights={"w": WEIGHT}, change=age).code == "SP1031"


def external(**entries: str) -> Callable[[ModelProto], None]:
    def change(model: ModelProto) -> None:
        tensor = model.graph.initializer[0]
        tensor.ClearField("raw_data")
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in entries.items():
            tensor.external_data.add(key=key, value=value)

    return change


@pytest.mark.parametrize(
    ("entries", "problem"),
    [
        ({"location": "w.bin"}, "not there"),
        ({"location": "../../etc/passwd"}, "outside"),
        ({"location": "/etc/passwd"}, "outside"),
        ({"location": "net.onnx", "offset": "0", "length": "999999"}, "shorter"),
        ({"location": "net.onnx", "offset": "much"}, "no readable place"),
    ],
)
def test_external_data(tmp_path: Path, entries: dict[str, str], problem: str) -> None:
    (tmp_path / "net.onnx").write_text("")  # the model's own file is there when its tensors are looked for
    error = told(tmp_path, PRODUCT, weights={"w": WEIGHT}, change=external(**entries))
    assert error.code == "SP1032" and "tensor 'w' of node 'mm'" in error.problem and problem in error.problem


def test_external_data_that_is_there(tmp_path: Path) -> None:
    (tmp_path / "w.bin").write_bytes(WEIGHT.tobytes())
    inputs = [helper.make_tensor_value_info("x", TensorProto.FLOAT, [2, 4])]
    outputs = [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)]
    graph = helper.make_graph(PRODUCT, "net", inputs, outputs, [numpy_helper.from_array(WEIGHT, "w")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)])
    external(location="w.bin")(model)
    (tmp_path / "net.onnx").write_bytes(model.SerializeToString())
    assert (capture_onnx(tmp_path / "net.onnx", loss="mse")[1]["w"] == WEIGHT).all()


def test_damaged_files(tmp_path: Path) -> None:
    def cut(model: ModelProto) -> None:
        model.graph.initializer[0].raw_data = b"abcd"

    error = told(tmp_path, PRODUCT, weights={"w": WEIGHT}, change=cut)
    assert error.code == "SP1019" and "tensor 'w' of node 'mm'" in error.problem

    def turn(model: ModelProto) -> None:
        model.graph.initializer[0].dims[0] = -1

    error = told(tmp_path, PRODUCT, weights={"w": WEIGHT}, change=turn)
    assert error.code == "SP1019" and "tensor 'w' of node 'mm'" in error.problem
    error = told(tmp_path, [N("Relu", ["z"], ["y"], name="r")])
    assert error.code == "SP1019" and "node 'r' (Relu) reads 'z'" in error.problem
    error = told(tmp_path, [N("Relu", ["x"], ["z"], name="r")])
    assert error.code == "SP1019" and "output 'y'" in error.problem


@pytest.mark.parametrize("field", ["initializer", "input"])
def test_names_that_are_there_twice(field: str, tmp_path: Path) -> None:
    def double(model: ModelProto) -> None:
        listed = getattr(model.graph, field)
        listed.append(listed[0])

    error = told(tmp_path, PRODUCT, weights={"w": WEIGHT}, change=double)
    assert error.code == "SP1019" and f"2 of its {field}s are called" in error.problem


def test_two_opsets_of_one_domain(tmp_path: Path) -> None:
    def add(model: ModelProto) -> None:
        model.opset_import.append(helper.make_opsetid("", 13))

    assert told(tmp_path, PRODUCT, weights={"w": WEIGHT}, change=add).code == "SP1031"


def test_a_model_of_constants(tmp_path: Path) -> None:
    error = told(tmp_path, [N("Constant", [], ["y"], value=numpy_helper.from_array(WEIGHT))])
    assert error.code == "SP1019" and "no nodes but constants" in error.problem


def test_sparse_weights_and_open_ranks(tmp_path: Path) -> None:
    def thin(model: ModelProto) -> None:
        places = numpy_helper.from_array(np.array([0, 5]), "places")
        number = numpy_helper.from_array(np.ones(2, np.float32), "w")
        model.graph.sparse_initializer.append(helper.make_sparse_tensor(number, places, [4, 4]))

    def forget(model: ModelProto) -> None:
        model.graph.input[0].type.tensor_type.ClearField("shape")

    error = told(tmp_path, PRODUCT, change=thin)
    assert error.code == "SP1019" and "'w' is sparse" in error.problem
    error = told(tmp_path, PRODUCT, weights={"w": WEIGHT}, change=forget)
    assert error.code == "SP1014" and "'x' leaves its number of dimensions open" in error.problem


def test_open_sizes(tmp_path: Path) -> None:
    error = told(tmp_path, [N("Relu", ["x"], ["y"], name="r")], shape=[2, "T"])
    assert error.code == "SP1014" and "'x', read by node 'r', leaves dimension 1 ('T') open" in error.problem


def test_shapes_that_do_not_fit(tmp_path: Path) -> None:
    error = told(tmp_path, PRODUCT, weights={"w": np.ones((5, 4), np.float32)})
    assert error.code == "SP1001" and "node 'mm': MatMul" in error.problem


FILLED = numpy_helper.from_array(np.full(1, 0.5, np.float32))
ADDED = N("Add", ["x", "c"], ["y"])
MALFORMED: dict[str, tuple[list[Any], np.ndarray, str]] = {
    "no shape": ([N("ConstantOfShape", [], ["c"], name="fill", value=FILLED), ADDED], WEIGHT, "node 'fill'"),
    "a shape below 0": ([N("ConstantOfShape", ["w"], ["c"], name="fill"), ADDED], np.array([2, -4]), "node 'fill'"),
    "a shape of fractions": (
        [N("ConstantOfShape", ["w"], ["c"], name="fill"), ADDED],
        np.array([np.nan], np.float32),
        "node 'fill'",
    ),
    "a table as a shape": ([N("ConstantOfShape", ["w"], ["c"], name="fill"), ADDED], WEIGHT, "node 'fill'"),
    "a filling without numbers": (
        [N("ConstantOfShape", ["w"], ["c"], name="fill", value=7), ADDED],
        np.array([2, 4]),
        "node 'fill'",
    ),
    "a result that is there already": (
        [N("Relu", ["x"], ["x"], name="again"), N("Relu", ["x"], ["y"])],
        WEIGHT,
        "'again' (Relu) makes 'x', which is there already",
    ),
    "nothing made": (
        [N("Relu", ["x"], [], name="idle"), N("Relu", ["x"], ["y"])],
        WEIGHT,
        "'idle' (Relu) makes nothing",
    ),
}


@pytest.mark.parametrize("what", MALFORMED)
def test_nodes_that_make_no_sense(what: str, tmp_path: Path) -> None:
    nodes, weight, words = MALFORMED[what]
    error = told(tmp_path, nodes, weights={"w": weight})
    assert error.code == "SP1019" and words in error.problem


def test_names_that_are_no_text(tmp_path: Path) -> None:
    told(tmp_path, [N("Asinh", ["x"], ["y"], name="named")])
    file = tmp_path / "net.onnx"
    file.write_bytes(file.read_bytes().replace(b"named", b"na\xffed"))
    with pytest.raises(UserError, match=r"SP1019: net\.onnx is no valid ONNX model: .*is not UTF-8"):
        capture_onnx(file, loss="mse")


KERNEL = np.ones((4, 4, 1, 1), np.float32)
ILL: dict[str, tuple[Any, np.ndarray]] = {
    "an attribute is missing": (N("LRN", ["x"], ["y"], name="ill"), WEIGHT),
    "another kernel than the weights'": (N("Conv", ["x", "w"], ["y"], name="ill", kernel_shape=[3, 3]), KERNEL),
    "strides of one dimension": (N("Conv", ["x", "w"], ["y"], name="ill", strides=[1]), KERNEL),
    "pads of one side": (N("MaxPool", ["x"], ["y"], name="ill", kernel_shape=[2, 2], pads=[1, 1]), WEIGHT),
    "an attribute that the operator does not have": (N("Relu", ["x"], ["y"], name="ill", axis=1), WEIGHT),
    "an attribute of another type": (N("Softmax", ["x"], ["y"], name="ill", axis=1.5), WEIGHT),
    "an axis beyond 32 bits": (N("Softmax", ["x"], ["y"], name="ill", axis=2**40), WEIGHT),
    "inputs that the operator does not have": (N("Relu", ["x", "w"], ["y"], name="ill"), WEIGHT),
    "images in a Gemm": (N("Gemm", ["x", "x"], ["y"], name="ill"), WEIGHT),
    "an input is missing": (N("PRelu", ["x"], ["y"], name="ill"), WEIGHT),
    "an input of a list is left out": (N("Concat", ["x", "x", ""], ["y"], name="ill", axis=1), WEIGHT),
    "a result that only some importers make": (
        N("LayerNormalization", ["x", "v"], ["z", "y"], name="ill"),
        WEIGHT,
    ),
    "an index beyond the last": (N("Gather", ["x", "i"], ["y"], name="ill"), WEIGHT),
    "windows of two channels": (N("LRN", ["x"], ["y"], name="ill", size=2), WEIGHT),
    "padding by what is computed": (N("Pad", ["x", "p", "x"], ["y"], name="ill"), WEIGHT),
    "a momentum beyond 1": (
        N("BatchNormalization", ["x", "w", "w", "w", "w"], ["y"], name="ill", momentum=float("nan")),
        np.ones(4, np.float32),
    ),
}


@pytest.mark.parametrize("what", ILL)
def test_nodes_whose_parts_do_not_fit(what: str, tmp_path: Path) -> None:
    """Neither what reads nor what lowers a node, nor TVM, stumbles over them."""
    node, weight = ILL[what]
    weights = {"w": weight, "v": WEIGHT[0], "i": np.array([2]), "p": np.ones(8, np.int64)}
    error = told(tmp_path, [node], shape=(2, 4, 4, 4) if node.op_type != "Concat" else (2, 4), weights=weights)
    assert error.code == "SP1001" and f"node 'ill': {node.op_type}: " in error.problem


def test_running_statistics_that_are_computed(tmp_path: Path) -> None:
    nodes = [N("Neg", ["v"], ["m"]), N("BatchNormalization", ["x", "v", "v", "m", "v"], ["y"], name="ill")]
    error = told(tmp_path, nodes, weights={"v": WEIGHT[0]})
    assert error.code == "SP1001" and "node 'ill': BatchNormalization: running statistics that" in error.problem


def test_a_shape_of_fractions_with_another_batch(tmp_path: Path) -> None:
    told(tmp_path, [N("Reshape", ["x", "w"], ["y"], name="ill")], weights={"w": np.array([np.nan, 4], np.float32)})
    with pytest.raises(UserError, match=r"SP1001: .*\s.*node 'ill': Reshape: "):
        capture_onnx(tmp_path / "net.onnx", loss="mse", batch=3)
