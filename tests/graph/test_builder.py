"""The builder: names, layouts, evaluation mode, roles."""

import numpy as np
import pytest

from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.dependencies import dependencies
from planner.graph.model import DType, Init, Layout, Role, TensorType
from planner.graph.optimizer import Optimizer
from planner.graph.text import validate
from tests.interpreter import draw_values, run_program

CL = Layout.CHANNELS_LAST


def image(b, *shape, layout=CL):
    return b.input("x", TensorType(shape=shape, layout=layout))


def labels(b, count):
    return b.input("labels", TensorType(shape=(count,), dtype=DType.INT64))


def test_node_ids_are_unique():
    b = GraphBuilder("g")
    x = image(b, 2, 3, 4, 4)
    assert layers.relu(b, x, name="relu") == "relu.y"
    assert layers.relu(b, x, name="relu") == "relu_1.y"


def test_value_twice():
    b = GraphBuilder("g")
    b.parameter("w", (3,), Init(kind="zeros"))
    with pytest.raises(UserError, match="SP1004"):
        b.parameter("w", (3,), Init(kind="zeros"))


def test_loss_must_be_one_element():
    b = GraphBuilder("g")
    y = layers.linear(b, b.input("x", TensorType(shape=(2, 3))), 4, name="fc")
    with pytest.raises(UserError, match="SP1005"):
        b.finish(y, y, Optimizer())


def test_loss_must_depend_on_a_parameter():
    b = GraphBuilder("g")
    x, target = (b.input(n, TensorType(shape=(2, 3))) for n in ("x", "target"))
    loss = layers.mse(b, x, target)
    with pytest.raises(UserError, match="SP1006"):
        b.finish(loss, x, Optimizer())


def test_row_major_images_are_converted_once():
    b = GraphBuilder("g")
    x = image(b, 2, 3, 6, 6, layout=Layout.ROW_MAJOR)
    layers.conv2d(b, x, 4, 3, name="a")
    layers.conv2d(b, x, 4, 3, name="b")
    assert [n.op for n in b.nodes] == ["convert_layout", "conv2d", "conv2d"]


def test_operands_take_the_layout_of_the_larger():
    b = GraphBuilder("g")
    x = image(b, 2, 3, 6, 6)
    scale = b.parameter("scale", (1, 3, 1, 1), Init(kind="ones"))
    y = layers.mul(b, scale, x, name="mul")
    assert b.type(y).layout is CL
    assert b.type(b.nodes[-1].inputs[0]).layout is CL


def test_one_pixel_images_flatten_without_a_copy():
    from planner.ops import op_named
    from planner.ops.base import Signature

    b = GraphBuilder("g")
    x = layers.global_avg_pool(b, image(b, 2, 3, 6, 6), name="pool")
    layers.flatten(b, x, name="flat")
    assert [n.op for n in b.nodes] == ["adaptive_avg_pool2d", "convert_layout", "reshape"]
    for node in b.nodes[1:]:
        types = tuple(b.type(v) for v in node.inputs)
        signature = Signature(node.op, node.attrs, types, tuple(b.type(v) for v in node.outputs))
        assert op_named(node.op).alias(signature) == (0, 0)


def classifier(optimizer=None, p=0.5):
    b = GraphBuilder("net")
    x = image(b, 4, 3, 8, 8)
    x = layers.batch_norm(b, layers.conv2d(b, x, 6, 3, padding=1, name="conv"), name="bn")
    x = layers.max_pool(b, layers.relu(b, x, name="relu"), 2, 2, name="pool")
    x = layers.dropout(b, layers.flatten(b, x, name="flat"), p, name="drop")
    logits = layers.linear(b, x, 5, name="fc")
    loss = layers.cross_entropy(b, logits, labels(b, 4))
    return b.finish(loss, logits, optimizer or Optimizer(lr=0.1))


def test_evaluation_mode():
    graph = classifier()
    predict = graph.program["predict"]
    assert [n.op for n in predict.nodes if n.op != "convert_layout"] == [
        "conv2d",
        "batch_norm_inference",
        "max_pool2d_inference",
        "reshape",
        "linear",
    ]
    assert predict.inputs == ("x",)
    assert graph.value[predict.outputs[0]].role is Role.OUTPUT
    train = graph.program["train_step"]
    assert train.inputs == ("x", "labels")
    assert {n.op for n in train.nodes} >= {"dropout", "dropout_backward", "max_pool2d_backward", "sgd_update"}
    assert graph.value["pool.argmax"].role is Role.SAVED
    assert graph.value["drop.mask"].type.dtype is DType.UINT8


def test_evaluation_of_dropout_at_the_end():
    b = GraphBuilder("net")
    x = b.input("x", TensorType(shape=(4, 3)))
    y = layers.dropout(b, layers.linear(b, x, 5, name="fc"), name="drop")
    graph = b.finish_inference(y)
    assert [n.op for n in graph.program["predict"].nodes] == ["linear"]


@pytest.mark.parametrize("detached", [False, True])
def test_a_prediction_may_be_an_input(detached):
    b = GraphBuilder("net")
    x, seen = (b.input(n, TensorType(shape=(4, 3))) for n in ("x", "seen"))
    y = layers.linear(b, x, 3, name="fc")
    graph = b.finish(layers.mse(b, y, seen), b.op("detach", [seen])[0] if detached else seen, Optimizer())
    validate(graph)
    assert (graph.program["predict"].inputs, graph.program["predict"].outputs) == (("seen",), ("seen",))


def test_batch_norm_without_running_statistics_keeps_those_of_the_batch():
    b = GraphBuilder("net")
    x = b.input("x", TensorType(shape=(8, 3)))
    scale, shift = (b.parameter(n, (3,), Init(kind="ones")) for n in ("scale", "shift"))
    y = b.op("batch_norm", [x, scale, shift], name="bn")[0]
    graph = b.finish_inference(y)
    held = run_program(graph, "predict", draw_values(graph, np.random.default_rng(0)))
    np.testing.assert_allclose(held[graph.program["predict"].outputs[0]].mean(0), 1.0)


@pytest.mark.parametrize(
    ("optimizer", "op"),
    [
        (Optimizer(kind="sgd", momentum=0.9), "sgd_update"),
        (Optimizer(kind="adam"), "adam_update"),
        (Optimizer(kind="adamw"), "adam_update"),
    ],
)
def test_one_update_per_parameter(optimizer, op):
    graph = classifier(optimizer)
    updates = [n for n in graph.program["train_step"].nodes if n.phase == "update"]
    assert {n.updates[0] for n in updates} == {v.id for v in graph.values if v.role is Role.PARAMETER}
    assert {n.op for n in updates} == {op}
    order = dependencies(graph, graph.program["train_step"])
    readers = [n.id for n in graph.program["train_step"].nodes if "fc.weight" in n.inputs]
    assert set(readers) <= set(order["fc.weight.update"])


def bag(optimizer, twice=False, tied=False):
    b = GraphBuilder("net")
    ids = b.input("ids", TensorType(shape=(6,), dtype=DType.INT64))
    x = layers.embedding(b, ids, 11, 8, padding_index=2, name="table")
    if twice:
        x = layers.add(b, x, b.op("embedding", ["table.weight", ids], name="again")[0], name="both")
    logits = b.op("linear", [x, "table.weight"], name="tied")[0] if tied else layers.linear(b, x, 11, name="fc")
    loss = layers.cross_entropy(b, logits, labels(b, 6))
    return b.finish(loss, logits, optimizer)


def test_sparse_update_of_embeddings():
    graph = bag(Optimizer(lr=0.5))
    train = graph.program["train_step"]
    node = train.node["table.weight.update"]
    assert node.op == "embedding_sgd_update"
    assert node.updates == ("table.weight",)
    assert "embedding_backward" not in {n.op for n in train.nodes}
    rng = np.random.default_rng(0)
    values = draw_values(graph, rng) | {"ids": np.array([1, 1, 2, 3, 9, 1]), "labels": rng.integers(0, 11, 6)}
    after = run_program(graph, "train_step", values)
    dense = run_program(
        bag(Optimizer(lr=0.5, momentum=1e-300)),
        "train_step",
        values
        | {
            "table.weight.momentum": 0 * values["table.weight"],
            "fc.weight.momentum": 0 * values["fc.weight"],
            "fc.bias.momentum": 0 * values["fc.bias"],
        },
    )
    np.testing.assert_allclose(after["table.weight"], dense["table.weight"])
    np.testing.assert_array_equal(after["table.weight"][2], values["table.weight"][2])


@pytest.mark.parametrize(
    "graph",
    [
        bag(Optimizer(momentum=0.9)),
        bag(Optimizer(weight_decay=0.1)),
        bag(Optimizer(kind="adam")),
        bag(Optimizer(), twice=True),
        bag(Optimizer(), tied=True),
    ],
    ids=["momentum", "decay", "adam", "read twice", "tied"],
)
def test_dense_update_of_embeddings(graph):
    assert graph.program["train_step"].node["table.weight.update"].op != "embedding_sgd_update"


def test_parameters_have_pytorch_names():
    graph = classifier()
    assert {v.name for v in graph.values if v.name} == {
        "conv.weight",
        "conv.bias",
        "bn.weight",
        "bn.bias",
        "bn.running_mean",
        "bn.running_var",
        "fc.weight",
        "fc.bias",
    }
    bound = graph.value["conv.weight"].init
    assert bound.kind == "uniform"
    assert bound.value == pytest.approx(27**-0.5)


def test_frozen_parameters_have_no_update():
    b = GraphBuilder("net")
    x = b.input("x", TensorType(shape=(4, 3)))
    w = b.parameter("w", (2, 3), Init(kind="ones"), trainable=False)
    y = layers.linear(b, b.op("linear", [x, w], name="frozen")[0], 2, name="fc")
    graph = b.finish(layers.cross_entropy(b, y, labels(b, 4)), y, Optimizer())
    assert "w.update" not in graph.program["train_step"].node
    assert not [n for n in graph.program["train_step"].nodes if n.op == "linear_backward_data"]


def two_objectives(**claims):
    """y = a x; the first loss trains a on mse(y, 0), the second b on mse(b y', 1) with y' from the updated a."""
    b = GraphBuilder("g")
    x, zero, one = (b.input(n, TensorType(shape=(1,))) for n in ("x", "zero", "one"))
    for name in "ab":
        b.parameter(name, (1,), Init(kind="ones"))
    y = layers.mul(b, "a", x, name="first")
    b.objective(layers.mse(b, y, zero, name="loss_a"), Optimizer(lr=0.25), ["a"])
    again = layers.mul(b, "a", x, name="second")
    loss = layers.mse(b, layers.mul(b, "b", again, name="third"), one, name="loss_b")
    return b.finish(loss, again, Optimizer(lr=0.5), **claims)


def test_later_objectives_see_updated_parameters():
    graph = two_objectives()
    program = graph.program["train_step"]
    assert program.outputs == ("loss_a.loss", "loss_b.loss")
    given = {"x": np.ones(1), "zero": np.zeros(1), "one": np.ones(1), "a": np.ones(1), "b": np.ones(1)}
    held = run_program(graph, "train_step", given)
    assert held["loss_a.loss"] == 1 and held["a"] == 1 - 0.25 * 2  # d a^2 / d a = 2
    assert held["loss_b.loss"] == 0.25 and held["b"] == 1 - 0.5 * 2 * (0.5 - 1) * 0.5
    assert "a.update" in dependencies(graph, program)["second"]


def test_two_objectives_cannot_train_the_same_parameter():
    with pytest.raises(UserError, match="SP1022"):
        two_objectives(parameters=["a", "b"])


def test_shared_layers_have_one_set_of_parameters():
    b = GraphBuilder("g")
    x = b.input("x", TensorType(shape=(2, 3)))
    y = layers.linear(b, x, 3, name="fc")
    with b.sharing():
        z = layers.linear(b, y, 3, name="fc")
        with pytest.raises(UserError, match="SP1004"):
            layers.linear(b, z, 4, name="fc")
    with pytest.raises(UserError, match="SP1004"):
        layers.linear(b, z, 3, name="fc")
    assert sorted(v for v in b.values if b.values[v].role is Role.PARAMETER) == ["fc.bias", "fc.weight"]
    graph = b.finish(layers.mse(b, z, x), z, Optimizer())
    assert [n.op for n in graph.program["train_step"].nodes].count("sgd_update") == 2


def test_carried_states_change_at_the_end_of_a_step():
    b = GraphBuilder("g")
    x, target = (b.input(n, TensorType(shape=(3,))) for n in ("x", "target"))
    state = b.state("s", (3,), Init(kind="zeros"))
    w = b.parameter("w", (3,), Init(kind="ones"))
    y = layers.add(b, layers.mul(b, w, state, name="product"), x, name="y")
    b.carry(state, y)
    graph = b.finish(layers.mse(b, y, target, reduction="sum"), y, Optimizer(lr=1.0))
    assert not [n for n in graph.program["predict"].nodes if n.updates]
    given = {"x": np.full(3, 2.0), "target": np.zeros(3), "s": np.full(3, 5.0), "w": np.ones(3)}
    held = run_program(graph, "train_step", given)
    assert (held["s"] == 7).all() and (held["w"] == 1 - 2 * 7 * 5).all()
