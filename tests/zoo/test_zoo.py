"""The zoo against its PyTorch twins: names, shapes, losses, gradients."""

from math import prod
from pathlib import Path

import numpy as np
import pytest
import torch

from planner.errors import UserError
from planner.graph.model import DType, Graph, Layout, Role
from planner.graph.optimizer import Optimizer
from planner.graph.text import graph_text, validate
from planner.zoo import NETWORKS, build
from tests.interpreter import run_program
from tests.zoo.published import LOGITS, NAMES, SIZES, contents, digest, image
from tests.zoo.torch_models import MODELS, DigitsCnn, Mlp, ResNet

SMALLEST = {"mlp": 28, "digits_cnn": 8, "alexnet": 64, "alexnet_lrn": 227, "vgg16": 32}
"""An image size that keeps a test quick; 32 for the others."""

PARAMETERS = {
    "alexnet": 61_100_840,
    "vgg16": 138_357_544,
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "resnet152": 60_192_808,
}

PUBLISHED_COUNTS = {
    "inception_v3": 23_834_568,
    "inception_v4": 42_679_816,
    "densenet121": 7_978_856,
    "dcgan": 3_576_704 + 2_765_568,
    "dcgan_discriminator": 2_765_568,
    "gpt2": 124_439_808,
    "lstm": 10_000 * 200 + 2 * (2 * 200 * 800 + 2 * 800) + 200 * 10_000 + 10_000,
}
"""torchvision's, timm's, PyTorch's DCGAN example's, transformers' GPT-2's, nn.LSTM's. Zaremba et al. have one bias per
layer where nn.LSTM has two."""


def named(graph: Graph, role: Role) -> dict[str, tuple[int, ...]]:
    return {v.name: v.type.shape for v in graph.values if v.role is role and v.name}


@pytest.mark.parametrize("name", MODELS)
def test_names_and_shapes_equal_the_twins(name: str) -> None:
    graph = build(name, 2, image_size=SMALLEST.get(name, 32))
    validate(graph)
    with torch.device("meta"):
        module = MODELS[name]()
    assert named(graph, Role.PARAMETER) == {k: tuple(p.shape) for k, p in module.named_parameters()}
    states = {k: tuple(b.shape) for k, b in module.named_buffers() if not k.endswith("num_batches_tracked")}
    momenta = {f"{k}.momentum" for k in named(graph, Role.PARAMETER)}
    assert {k: s for k, s in named(graph, Role.STATE).items() if k not in momenta} == states
    if name in PARAMETERS:
        assert sum(prod(s) for s in named(graph, Role.PARAMETER).values()) == PARAMETERS[name]


OTHER_INPUTS = {
    "dcgan": ("images", "noise"),
    "dcgan_generator": ("noise",),
    "dcgan_discriminator": ("images", "fakes"),
    "gpt2": ("tokens", "targets"),
    "lstm": ("tokens", "targets"),
    "wide_deep": ("wide", "categories", "dense", "labels"),
}


@pytest.mark.parametrize("name", NETWORKS)
def test_every_network_has_a_twin_and_documented_inputs(name: str) -> None:
    assert name in MODELS or name in NAMES or name in OTHER_INPUTS
    graph = build(name, 3)
    validate(graph)
    assert graph.name == f"{name}_b3"
    if name in OTHER_INPUTS:
        assert graph.program["train_step"].inputs == OTHER_INPUTS[name]
        return
    size = NETWORKS[name].sizes.image_size
    assert graph.program["train_step"].inputs == ("images", "labels")
    assert graph.program["predict"].inputs == ("images",)
    images, labels = graph.value["images"].type, graph.value["labels"].type
    assert images.shape[0] == 3 and images.shape[2:] == (size, size) and images.layout is Layout.CHANNELS_LAST
    assert labels.shape == (3,) and labels.dtype is DType.INT64


@pytest.mark.parametrize("name", PUBLISHED_COUNTS)
def test_as_many_parameters_as_published(name: str) -> None:
    assert sum(prod(s) for s in named(build(name), Role.PARAMETER).values()) == PUBLISHED_COUNTS[name]


@pytest.mark.parametrize("name", NAMES)
def test_computes_what_published_implementations_compute(name: str) -> None:
    graph = build(name, 2, image_size=SIZES[name])
    shapes = named(graph, Role.PARAMETER) | named(graph, Role.STATE)
    shapes = {k: s for k, s in shapes.items() if not k.endswith(".momentum")}
    assert digest(shapes.items()) == NAMES[name]
    values = {k: contents(k, s) for k, s in shapes.items()} | {"images": image(SIZES[name])}
    program = graph.program["predict"]
    logits = run_program(graph, "predict", values)[program.outputs[0]]
    np.testing.assert_allclose(logits[:, :3], LOGITS[name], rtol=1e-9)


def loss_and_gradients(graph: Graph, module: torch.nn.Module, classes: int) -> None:
    """The graph's loss and every gradient (an update with lr 1 moves a parameter by it) equal the module's."""
    rng = np.random.default_rng(0)
    module = module.double().train()
    images = rng.standard_normal(graph.value["images"].type.shape)
    labels = rng.integers(0, classes, graph.value["labels"].type.shape)
    values = {k: v.detach().numpy().copy() for k, v in module.state_dict().items()}
    results = run_program(graph, "train_step", {**values, "images": images, "labels": labels})
    loss = torch.nn.functional.cross_entropy(module(torch.from_numpy(images)), torch.from_numpy(labels))
    loss.backward()
    assert np.allclose(results[graph.program["train_step"].outputs[0]], loss.item(), rtol=1e-9)
    for name, parameter in module.named_parameters():
        moved = values[name] - results[name]
        assert np.allclose(moved, parameter.grad.numpy(), rtol=1e-6, atol=1e-9), name
    for name, buffer in module.named_buffers():
        if not name.endswith("num_batches_tracked"):
            assert np.allclose(results[name], buffer.numpy(), rtol=1e-9), name


@pytest.mark.parametrize("fuse", [True, False])
def test_digits_cnn_computes_what_its_twin_computes(fuse: bool) -> None:
    graph = build("digits_cnn", 3, optimizer=Optimizer(lr=1.0), fuse=fuse)
    loss_and_gradients(graph, DigitsCnn(), 10)


def test_mlp_computes_what_its_twin_computes() -> None:
    loss_and_gradients(build("mlp", 4, image_size=6, optimizer=Optimizer(lr=1.0)), Mlp(36), 10)


@pytest.mark.parametrize("bottleneck", [True, False])
def test_resnet_computes_what_its_twin_computes(bottleneck: bool) -> None:
    name, counts = ("resnet_1_2_1_1", (1, 2, 1, 1)) if bottleneck else ("resnet18", (2, 2, 2, 2))
    graph = build(name, 2, image_size=32, classes=7, optimizer=Optimizer(lr=1.0))
    torch.manual_seed(0)
    loss_and_gradients(graph, ResNet(counts, bottleneck, 7), 7)


def test_alexnet_lrn_has_the_published_sizes() -> None:
    graph = build("alexnet_lrn", 200)
    nodes = graph.program["predict"].nodes
    shapes = {n.origin: graph.value[n.outputs[0]].type.shape[1:] for n in nodes}
    assert shapes["conv1"] == (96, 55, 55) and shapes["lrn1"] == (96, 55, 55) and shapes["pool1"] == (96, 27, 27)
    assert shapes["conv2"] == (256, 27, 27) and shapes["pool5"] == (256, 6, 6) and shapes["fc6"] == (4096,)


def test_fused_resnets_keep_only_what_gradients_need() -> None:
    """53 batch norms: 33 with relu, 16 with the addition and relu, 4 on shortcuts."""
    graph = build("resnet50", 2, image_size=32)
    ops = [n.op for n in graph.program["train_step"].nodes if n.phase == "forward"]
    assert ops.count("conv2d") == 53 and ops.count("batch_norm") == 53
    assert ops.count("relu") == 0 and ops.count("add") == 0
    plain = build("resnet50", 2, image_size=32, fuse=False)
    ops = [n.op for n in plain.program["train_step"].nodes if n.phase == "forward"]
    assert ops.count("relu") == 49 and ops.count("add") == 16


def test_the_same_name_gives_the_same_bytes() -> None:
    assert graph_text(build("resnet18", 2)) == graph_text(build("resnet18", 2))
    assert graph_text(build("resnet18", 2)) != graph_text(build("resnet18", 3))


def test_deep_resnets_by_their_counts() -> None:
    graph = build("resnet_6_32_10_6", 1, image_size=32)
    convs = sum(n.op == "conv2d" for n in graph.program["train_step"].nodes if n.phase == "forward")
    shortcuts, classifier = 4, 1
    depth = convs - shortcuts + classifier
    assert depth == 3 * (6 + 32 + 10 + 6) + 2


@pytest.mark.parametrize("name", ["resnet5", "resnet_3_4_6", "resnet_0_1_1_1", "RESNET50", "", "vgg", "mine.net"])
def test_unknown_names_list_near_ones(name: str) -> None:
    with pytest.raises(UserError, match="SP1010") as caught:
        build(name)
    assert name != "resnet5" or "resnet50" in caught.value.fix
    assert name != "mine.net" or "package.module:factory" in caught.value.fix


def test_every_network_is_documented() -> None:
    documented = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    assert all(f"`{name}`" in documented for name in NETWORKS)


def test_sizes_that_a_network_has_not_are_refused() -> None:
    for name, arguments in (("lstm", {"image_size": 64}), ("dcgan", {"classes": 3}), ("wide_deep", {"image_size": 1})):
        with pytest.raises(UserError, match="SP1011"):
            build(name, **arguments)


@pytest.mark.parametrize("arguments", [{"batch": 0}, {"batch": -1}, {"image_size": 0}, {"classes": 0}])
def test_sizes_below_one_are_refused(arguments: dict[str, int]) -> None:
    with pytest.raises(UserError, match="SP1011"):
        build("mlp", **arguments)


def test_images_that_are_too_small_name_the_layer() -> None:
    with pytest.raises(UserError, match="SP1002") as caught:
        build("alexnet_lrn", 1, image_size=16)
    assert "pool" in caught.value.problem
