"""Convolutions of volumes: what is asked of cuDNN, computed and refused as its headers and documentation say; and a
network that trains on the null device, and is compiled for a GPU."""

import ctypes
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from codegen.build import build
from codegen.cpu.shapes import CONV_KINDS
from codegen.cuda import toolchain
from codegen.cuda.facts import facts, has_bias
from codegen.cuda.profile import profile
from codegen.emit import emit
from codegen.initial import with_drawn_data
from codegen.native import native_module
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.graph.precision import full_precision, mixed_precision
from planner.ops.base import Op, Sample, op_named, round_bfloat16
from planner.ops.conv3d import Conv3dAttrs, Conv3dGradAttrs
from planner.ops.device import device_mode
from planner.ops.signature import signature_of
from tests.codegen.cuda.mocks import compile_mock, read
from tests.codegen.cuda.plans import NULL, gpu, make, plan_for
from tests.codegen.cuda.test_convolutions import FILES, Asked, by_every_way
from tests.codegen.cuda.test_convolutions import directions as directions_of
from tests.codegen.cuda.test_descriptors import GRAPH, Cudnn, Part, changed, integers, mocked, tensor
from tests.codegen.cuda.test_devices import needs_toolkit
from tests.codegen.cuda.test_null_device import assert_steps_agree, batch
from tests.codegen.plans import in_bfloat16
from tests.graphs import NORMAL, classifier
from tests.interpreter import run_program
from tests.runtime.build import Library

RNG = np.random.default_rng()
FORWARD, DATA, WEIGHTS = (op_named(f"conv3d{ending}") for ending in ("", "_backward_data", "_backward_weights"))


# -- cuDNN -----------------------------------------------------------------------------------------------------
@pytest.fixture(scope="module")
def library() -> Library:
    return compile_mock(*FILES)


def conv(
    volumes: int,
    channels: int,
    sizes: tuple[int, int, int],
    filters: int,
    taps: tuple[int, int, int],
    *,
    bias: bool = False,
    low: bool = False,
    groups: int = 1,
    **attrs: Any,
) -> Sample:
    """`sizes`, `taps`: depths, rows and columns of the data and of the weights."""
    x = TensorType(shape=(volumes * sizes[0], channels, *sizes[1:]), layout=Layout.CHANNELS_LAST)
    w = TensorType(shape=(filters, channels // groups, taps[0] * taps[1], taps[2]))
    types = (x, w, TensorType(shape=(filters,))) if bias else (x, w)
    sample = Sample(Conv3dAttrs(depth=sizes[0], kernel_depth=taps[0], groups=groups, **attrs), types)
    return in_bfloat16(FORWARD, sample) if low else sample


def directions(sample: Sample) -> list[tuple[Op, Sample]]:
    return directions_of(sample, (FORWARD, DATA, WEIGHTS), Conv3dGradAttrs)


def cubes(**more: Any) -> Sample:
    """Padded to have as many results."""
    same: dict[str, Any] = {"padding": (1, 1, 1, 1), "depth_padding": (1, 1)}
    return conv(2, 4, (3, 5, 4), 4, (3, 3, 3), **{**same, **more})


def random_volumes(low: bool) -> Sample:
    def some(least: int, most: int, count: int) -> list[int]:
        return [int(n) for n in RNG.integers(least, most + 1, count)]

    groups, (inputs, outputs) = int(RNG.choice((1, 2, 5))), some(1, 3, 2)
    taps, strides, dilations, pads, more = (some(*r) for r in ((1, 3, 3), (1, 3, 3), (1, 2, 3), (0, 2, 6), (0, 2, 3)))
    reach = [d * (t - 1) + 1 for d, t in zip(dilations, taps, strict=True)]
    sizes = [max(1, r - p - q) + m for r, p, q, m in zip(reach, pads[::2], pads[1::2], more, strict=True)]
    return conv(
        some(1, 2, 1)[0],
        groups * inputs,
        (sizes[0], sizes[1], sizes[2]),
        groups * outputs,
        (taps[0], taps[1], taps[2]),
        bias=bool(RNG.integers(2)),
        low=low,
        groups=groups,
        stride=(strides[1], strides[2]),
        dilation=(dilations[1], dilations[2]),
        padding=tuple(pads[2:]),
        depth_stride=strides[0],
        depth_dilation=dilations[0],
        depth_padding=(pads[0], pads[1]),
    )


@needs_toolkit
@pytest.mark.parametrize("low", [False, True])
def test_random_volumes(library: Library, low: bool) -> None:
    for _ in range(12):
        for op, sample in directions(random_volumes(low)):
            try:
                by_every_way(library, op, sample)
            except AssertionError:
                print(op.name, sample)
                raise


@needs_toolkit
def test_what_is_offered(library: Library) -> None:
    """Engines alone: no copies with more channels, no product, and nothing of the older interface."""
    exact = ["engine_4.2_2.17_3", "engine_4.2_1", "engine_0", "engine_8"]
    wide = ["engine_2.2_1", *exact[:2], "engine_3", "engine_0", "engine_6", "engine_7", "engine_8"]
    one_tap = conv(2, 4, (4, 5, 4), 4, (1, 1, 1), depth_stride=2)
    for sample in (cubes(), one_tap):
        for op, each in directions(sample):
            asked = Asked(library, op, each)
            assert asked.of_volumes and asked.candidates() == exact and asked.candidates(tf32=True) == wide
            assert Asked(library, op, in_bfloat16(op, each)).candidates() == wide
            assert {t.name for t in asked.measured()} == set(exact)
    asked = Asked(library, FORWARD, cubes(bias=True))
    assert asked.candidates() == [*(f"biased_{name}" for name in exact), *exact]
    of_images = "SP1857: cuDNN's algorithms with names are asked for convolutions of images, not of volumes"
    assert {asked.by(name) for name in asked.algorithms()} == {of_images}
    for name in ("wide8_engine_0", "fold16_engine_0"):
        assert asked.by(name) == f"SP1857: cuDNN does not compute this convolution by {name}"
    assert Asked(library, FORWARD, one_tap).by("product_0.1.2.3.4.5.6.7.8").startswith("SP1857: cuBLASLt does not")


@needs_toolkit
@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize(
    "padding",
    [
        {"depth_padding": (1, 0)},
        {"depth_padding": (0, 2)},
        {"padding": (1, 1, 0, 1)},
        {"padding": (2, 0, 1, 1), "depth_padding": (0, 1)},
    ],
    ids=["in front", "behind", "right", "top and behind"],
)
def test_padding_on_one_side(library: Library, padding: dict[str, Any], low: bool) -> None:
    """Of the first volume, too, results are compared with what is computed without the library."""
    for op, sample in directions(cubes(low=low, **padding)):
        asked = Asked(library, op, sample)
        found = {t.name for t in asked.measured()}
        for name in found:
            asked.agrees(name)
        assert len(found) >= 3 and "engine_8" in asked.candidates() and ("engine_8" in found) is (op is not WEIGHTS)
    alike = Asked(library, *directions(cubes(low=low))[2])
    assert "engine_8" in {t.name for t in alike.measured()}


@needs_toolkit
def test_depths_that_no_window_reaches(library: Library) -> None:
    """There is nothing to pad behind them; and a single depth that is padded is no image."""
    apart = conv(2, 4, (7, 4, 5), 6, (3, 2, 2), depth_stride=3, depth_padding=(1, 0))
    above = conv(2, 4, (1, 4, 5), 6, (1, 2, 2), depth_stride=3, depth_padding=(1, 1))
    for sample in (apart, above):
        assert Asked(library, FORWARD, sample).of_volumes
        for op, each in directions(sample):
            by_every_way(library, op, each)


@needs_toolkit
def test_one_depth_is_an_image(library: Library) -> None:
    """The library has more engines for those; but not where windows are on padding alone."""
    images: list[tuple[Op, Sample]] = [(op, s) for op in map(op_named, CONV_KINDS) for s in op.samples()]
    alone = conv(2, 4, (1, 5, 4), 4, (1, 3, 3))
    padded = conv(2, 4, (1, 5, 4), 4, (1, 3, 3), depth_stride=3, depth_padding=(1, 1))
    for op, sample in (*images, (FORWARD, alone), (FORWARD, padded)):
        asked = Asked(library, op, sample)
        deep = "3d" in op.name and sample is not alone
        assert library("of_volumes", asked.fields, result=ctypes.c_int64) == asked.of_volumes == deep


@needs_toolkit
def test_a_bias_is_added_before_the_sum_is_rounded(library: Library) -> None:
    asked = Asked(library, FORWARD, conv(2, 32, (4, 7, 6), 32, (3, 3, 3), bias=True, low=True))
    want, differ = round_bfloat16(asked.want), {}
    for name in asked.candidates():
        asked.agrees(name)
        differ[name] = np.mean(np.moveaxis(read(asked.out), -1, 1) != want)
    assert {name.startswith("biased_") for name in differ} == {True, False}
    assert all((share < 0.002) == name.startswith("biased_") for name, share in differ.items())


def volumes_graph() -> dict[str, Part]:
    """test_descriptors.py's graph, of volumes."""
    whole, numbers = (8, 64, 8, 28, 28), {"FILTER_STRIDES": 1, "DILATIONS": 1, "PRE_PADDINGS": 1, "POST_PADDINGS": 1}
    kind, attributes = GRAPH["conv"]
    each = {f"CONVOLUTION_{name}": integers(n, n, n) for name, n in numbers.items()}
    return {
        **GRAPH,
        "x": tensor(1, *whole),
        "w": tensor(2, 64, 64, 3, 3, 3),
        "sum": tensor(3, *whole, virtual=True),
        "bias": tensor(4, 1, 64, 1, 1, 1),
        "y": tensor(5, *whole),
        "conv": (kind, {**attributes, "CONVOLUTION_SPATIAL_DIMS": integers(3), **each}),
    }


REFUSED = [
    ("conv.CONVOLUTION_SPATIAL_DIMS", integers(2)),
    ("conv.CONVOLUTION_PRE_PADDINGS", integers(1, 1)),
    ("conv.CONVOLUTION_POST_PADDINGS", integers(-1, 1, 1)),
    ("conv.CONVOLUTION_FILTER_STRIDES", integers(0, 1, 1)),
    ("conv.CONVOLUTION_DILATIONS", integers(0, 1, 1)),
    ("conv", GRAPH["conv"]),
    ("x", tensor(1, 8, 64, 28, 28)),
    ("x", tensor(1, 8, 64, 9, 28, 28)),
    ("w", tensor(2, 64, 64, 3, 3)),
    ("w", tensor(2, 64, 64, 5, 3, 3)),
    ("sum", tensor(3, 8, 64, 7, 28, 28, virtual=True)),
    ("x.TENSOR_STRIDES", integers(8 * 28 * 28 * 64, 1, 27 * 28 * 64, 28 * 64, 64)),
]
"""By both."""
UNEVEN = {"PRE_PADDINGS": integers(2, 1, 1), "POST_PADDINGS": integers(0, 1, 1)}
"""As many results."""


@needs_toolkit
@pytest.mark.parametrize("mock", [True, False], ids=["mock", "cudnn"])
def test_what_is_refused(mock: bool) -> None:
    cudnn = mocked() if mock else Cudnn(next(f for f in toolchain.libraries().files if "cudnn" in f.name), mock=False)
    whole = volumes_graph()
    for where, to in REFUSED:
        with cudnn.made(changed(whole, where, to)) as (_, refused):
            assert refused, (where, to)
    kind, attributes = whole["conv"]
    uneven = (kind, {**attributes, **{f"CONVOLUTION_{name}": to for name, to in UNEVEN.items()}})
    for where, taken in (("w", tensor(2, 64, 16, 3, 3, 3)), ("conv", uneven)):
        with cudnn.made(changed(whole, where, taken)) as (_, refused):
            assert not refused, where


# -- plans -----------------------------------------------------------------------------------------------------
def network() -> Graph:
    """Convolutions, one transposed and one whose windows are depths alone, a norm and a pool of volumes."""
    net = nn.Sequential(
        nn.Conv3d(2, 8, 3, padding=1),
        nn.BatchNorm3d(8),
        nn.ReLU(),
        nn.MaxPool3d(2),
        nn.ConvTranspose3d(8, 4, 2, 2),
        nn.ReLU(),
        nn.Conv3d(4, 4, (3, 1, 1), (2, 1, 1), (1, 0, 0), bias=False),
        nn.Flatten(),
        nn.Linear(4 * 2 * 6 * 4, 5),
    )
    optimizer = Optimizer(lr=0.1, momentum=0.9, weight_decay=1e-3)
    options = CaptureOptions(optimizer=optimizer, name="volumes")
    return with_drawn_data(capture_module(net, torch.randn(3, 2, 4, 6, 4), options)[0])


def test_a_network_trains(tmp_path: Path) -> None:
    graph = network()
    assert {n.op for n in graph.program["train_step"].nodes if "3d" in n.op} == {
        *("conv3d", "conv3d_backward_data", "conv3d_backward_weights", "conv_transpose3d")
    }
    with make(plan_for(graph, 2), graph, tmp_path)(seed=1, poison=True, null_device=NULL) as executor:
        executor.delays(2)
        assert_steps_agree(executor)


def test_a_network_trains_in_bfloat16(tmp_path: Path) -> None:
    """Gradients of weights, which cuDNN rounds, are read by a reshape: from there on they are float32."""
    full = network()
    graph = mixed_precision(full)
    assert full_precision(graph) == full
    program = graph.program["train_step"]
    for node in program.nodes:
        if node.op == "conv3d_backward_weights":
            (reader,) = (n for n in program.nodes if node.outputs[0] in n.inputs)
            assert graph.value[node.outputs[0]].type.dtype is DType.BFLOAT16 and reader.op == "cast"
    data = batch(graph)
    with make(plan_for(graph, 2), graph, tmp_path)(seed=3, poison=True, null_device=NULL) as executor:
        state = executor.state_dict()
        held = {v.id: np.asarray(state[v.name], np.float64) for v in graph.values if v.name}
        exact = [v.astype(np.float64) if v.dtype == np.float32 else v for v in data]
        want = run_program(graph, "train_step", held | dict(zip(program.inputs, exact, strict=True)))
        _, gradients = executor.gradients(*data)
        for node in program.nodes:
            if node.op == "sgd_update":
                expected = want[node.inputs[0]]
                off = np.linalg.norm(gradients[graph.value[node.updates[0]].name] - expected)
                assert off < 0.01 * np.linalg.norm(expected), node.id
        losses = [float(executor.step(*data)) for _ in range(4)]
        assert losses[0] == pytest.approx(float(want[program.outputs[0]]), rel=2e-3) and losses[-1] < losses[0]


@needs_toolkit
def test_compiles_and_links_for_a_gpu(tmp_path: Path) -> None:
    graph = mixed_precision(network())
    emit(plan_for(graph, 2), graph, gpu(), tmp_path)
    build(tmp_path, flags=("-Wall", "-Wextra"))
    assert not native_module(tmp_path).null_device


def test_profiling_asks_for_volumes() -> None:
    """A dry run: every convolution gets what the null device has for it."""
    table = profile([network()], gpu(), null_device=True, own_kernels=False, brief=True)
    found = {e.implementation for e in table.entries if e.signature.startswith(("conv3d", "conv_transpose3d"))}
    assert found == {"plain"}


@pytest.mark.parametrize("low", [False, True])
def test_weights_are_turned_by_each_convolution(low: bool) -> None:
    """Plans store them plain, also where they are parameters as they are; in bfloat16 they come turned."""
    b = GraphBuilder("direct")
    x = b.input("x", TensorType(shape=(6, 4, 5, 4), layout=Layout.CHANNELS_LAST))
    weights, bias = b.parameter("w", (8, 4, 9, 3), NORMAL), b.parameter("b", (8,), NORMAL)
    attrs = Conv3dAttrs(depth=3, kernel_depth=3, padding=(1, 1, 1, 1), depth_padding=(1, 1))
    graph = classifier(b, b.op("conv3d", [x, weights, bias], attrs, name="conv")[0])
    graph = mixed_precision(graph) if low else graph
    plan = plan_for(graph)
    assert not any(p.layout for p in plan.placements)
    program = graph.program["train_step"]
    signature = signature_of(graph, program.node["conv"])
    assert has_bias(signature)
    turned = 4 * 8 * 4 * 27
    assert facts(signature, device_mode(FORWARD)) == {"packed_bytes": 2 * 8 if low else turned}
    gradient = next(n for n in program.nodes if n.op == "conv3d_backward_weights")
    found = facts(signature_of(graph, gradient), device_mode(WEIGHTS))
    assert found == {"packed_bytes": turned // 2 if low else turned, "partial_bytes": 8 * 8}
