"""The mock of cuDNN that computes convolutions takes no descriptor that cuDNN itself would not: both are asked, cuDNN
for a GPU that is only described."""

import contextlib
import ctypes
import re
from collections.abc import Iterator, Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import pytest

from codegen.cuda import toolchain
from tests.codegen.cuda.mocks import compile_mock
from tests.codegen.cuda.test_devices import needs_toolkit
from tests.codegen.cuda.test_engines import H200

pytestmark = needs_toolkit

Attribute = tuple[str, Sequence[Any]]
"""A type and values: numbers, the header's names, or those of other descriptors."""
Part = tuple[str, Mapping[str, Attribute]]
"""A descriptor's type and attributes."""
NUMBERS: dict[str, type] = {
    "INT64": ctypes.c_int64,
    "FLOAT": ctypes.c_float,
    "BOOLEAN": ctypes.c_bool,
    "CHAR": ctypes.c_char,
    "VOID_PTR": ctypes.c_void_p,
    "HANDLE": ctypes.c_void_p,
    "BACKEND_DESCRIPTOR": ctypes.c_void_p,
}
"""Of attribute types; the others are enumerations."""


def tensor(number: int, n: int, c: int, *sizes: int, virtual: bool = False) -> Part:
    """Channels-last: of images, whose sizes are rows and columns, or of volumes."""
    inner = [c * prod(sizes[i + 1 :]) for i in range(len(sizes))]
    return (
        "TENSOR",
        {
            "TENSOR_DATA_TYPE": ("DATA_TYPE", ["DATA_FLOAT"]),
            "TENSOR_DIMENSIONS": ("INT64", [n, c, *sizes]),
            "TENSOR_STRIDES": ("INT64", [c * prod(sizes), 1, *inner]),
            "TENSOR_UNIQUE_ID": ("INT64", [number]),
            "TENSOR_BYTE_ALIGNMENT": ("INT64", [16]),
            "TENSOR_IS_VIRTUAL": ("BOOLEAN", [virtual]),
        },
    )


def part(*names: str) -> Attribute:
    return ("BACKEND_DESCRIPTOR", names)


def operation(kind: str, short: str, x: str, w: str, y: str) -> Part:
    """One of the three; the result of the forward one is called `sum`, in the others it is an operand."""
    parts = {"CONV_DESC": "conv", x: "x", w: "w", y: "sum"}
    attributes = {f"OPERATION_CONVOLUTION_{short}_{name}": part(each) for name, each in parts.items()}
    return f"OPERATION_CONVOLUTION_{kind}", attributes


OPERATIONS = (
    operation("FORWARD", "FORWARD", "X", "W", "Y"),
    operation("BACKWARD_DATA", "BWD_DATA", "DX", "W", "DY"),
    operation("BACKWARD_FILTER", "BWD_FILTER", "X", "DW", "DY"),
)
GRAPH: dict[str, Part] = {
    "x": tensor(1, 32, 64, 56, 56),
    "w": tensor(2, 64, 64, 3, 3),
    "sum": tensor(3, 32, 64, 56, 56, virtual=True),
    "bias": tensor(4, 1, 64, 1, 1),
    "y": tensor(5, 32, 64, 56, 56),
    "conv": (
        "CONVOLUTION",
        {
            "CONVOLUTION_COMP_TYPE": ("DATA_TYPE", ["DATA_FLOAT"]),
            "CONVOLUTION_CONV_MODE": ("CONVOLUTION_MODE", ["CROSS_CORRELATION"]),
            "CONVOLUTION_SPATIAL_DIMS": ("INT64", [2]),
            "CONVOLUTION_PRE_PADDINGS": ("INT64", [1, 1]),
            "CONVOLUTION_POST_PADDINGS": ("INT64", [1, 1]),
            "CONVOLUTION_FILTER_STRIDES": ("INT64", [1, 1]),
            "CONVOLUTION_DILATIONS": ("INT64", [1, 1]),
        },
    ),
    "operation": OPERATIONS[0],
    "mode": (
        "POINTWISE",
        {
            "POINTWISE_MODE": ("POINTWISE_MODE", ["POINTWISE_ADD"]),
            "POINTWISE_MATH_PREC": ("DATA_TYPE", ["DATA_FLOAT"]),
        },
    ),
    "addition": (
        "OPERATION_POINTWISE",
        {
            "OPERATION_POINTWISE_PW_DESCRIPTOR": part("mode"),
            "OPERATION_POINTWISE_XDESC": part("sum"),
            "OPERATION_POINTWISE_BDESC": part("bias"),
            "OPERATION_POINTWISE_YDESC": part("y"),
        },
    ),
    "graph": ("OPERATIONGRAPH", {"OPERATIONGRAPH_OPS": part("operation", "addition")}),
}
GPU: dict[str, Part] = {"gpu": ("DEVICEPROP", {"DEVICEPROP_JSON_REPRESENTATION": ("CHAR", H200.encode() + b"\0")})}
HEURISTICS: dict[str, Part] = {
    "heuristics": (
        "ENGINEHEUR",
        {
            "ENGINEHEUR_OPERATION_GRAPH": part("graph"),
            "ENGINEHEUR_MODE": ("HEUR_MODE", ["HEUR_MODE_A"]),
            "ENGINEHEUR_DEVICEPROP": part("gpu"),
        },
    ),
}
PACK: dict[str, Part] = {
    "pack": (
        "VARIANT_PACK",
        {
            "VARIANT_PACK_UNIQUE_IDS": ("INT64", [1, 2, 4, 5]),
            "VARIANT_PACK_DATA_POINTERS": ("VOID_PTR", [256, 512, 768, 1024]),
            "VARIANT_PACK_WORKSPACE": ("VOID_PTR", [2048]),
        },
    )
}


class Cudnn:
    """cuDNN, or its mock."""

    def __init__(self, file: str | Path, mock: bool) -> None:
        self.library, self.mock = ctypes.CDLL(str(file)), mock
        folders = toolchain.libraries().includes
        header = next(f for folder in folders if (f := folder / "cudnn_graph.h").is_file()).read_text()
        found = re.findall(r"\bCUDNN_(\w+)(?:\s+CUDNN_DEPRECATED_ENUM)?\s*=\s*(\d+)", header)
        self.numbers = {name: int(value) for name, value in found}

    def create(self, kind: str) -> ctypes.c_void_p:
        made = ctypes.c_void_p()
        number = self.numbers[f"BACKEND_{kind}_DESCRIPTOR"]
        assert self.library.cudnnBackendCreateDescriptor(number, ctypes.byref(made)) == 0
        return made

    def destroy(self, made: ctypes.c_void_p) -> None:
        assert self.library.cudnnBackendDestroyDescriptor(made) == 0

    def array(self, kind: str, values: Sequence[Any], made: Mapping[str, ctypes.c_void_p]) -> Any:
        named = {**self.numbers, **{name: each.value for name, each in made.items()}}
        return (NUMBERS.get(kind, ctypes.c_int) * len(values))(*(named[v] if isinstance(v, str) else v for v in values))

    def set(self, into: ctypes.c_void_p, name: str, kind: str, array: Any) -> int:
        count, types = ctypes.c_int64(len(array)), self.numbers[f"TYPE_{kind}"]
        return int(self.library.cudnnBackendSetAttribute(into, self.numbers[f"ATTR_{name}"], types, count, array))

    def get(self, made: ctypes.c_void_p, name: str, kind: str, array: Any) -> int | None:
        """How many there are, at most as many as the array has room for; None: it was refused."""
        room, count, types = ctypes.c_int64(len(array)), ctypes.c_int64(-1), self.numbers[f"TYPE_{kind}"]
        given = (made, self.numbers[f"ATTR_{name}"], types, room, ctypes.byref(count), array)
        return count.value if self.library.cudnnBackendGetAttribute(*given) == 0 else None

    def finalize(self, made: ctypes.c_void_p) -> int:
        return int(self.library.cudnnBackendFinalize(made))

    @contextlib.contextmanager
    def made(self, parts: Mapping[str, Part]) -> Iterator[tuple[dict[str, ctypes.c_void_p], str]]:
        """Descriptors by their names, finalized as far as the one whose attributes were refused, and its name."""
        made: dict[str, ctypes.c_void_p] = {}
        refused = ""
        for name, (kind, attributes) in parts.items():
            made[name] = self.create(kind)
            settings = [(n, t, self.array(t, v, made)) for n, (t, v) in attributes.items()]
            if any([self.set(made[name], *each) for each in settings]) or self.finalize(made[name]):
                refused = name
                break
        try:
            yield made, refused
        finally:
            for each in made.values():
                self.destroy(each)


def mocked() -> Cudnn:
    return Cudnn(compile_mock("convolutions.cpp", "engines.cpp", "convolution.cpp").path, mock=True)


@pytest.fixture(scope="module", params=["mock", "cudnn"])
def cudnn(request: pytest.FixtureRequest) -> Cudnn:
    if request.param == "mock":
        return mocked()
    return Cudnn(next(f for f in toolchain.libraries().files if "cudnn" in f.name), mock=False)


def changed(parts: Mapping[str, Part], where: str, to: Attribute | Part | None) -> dict[str, Part]:
    """With one descriptor, or one attribute of one (`x.TENSOR_STRIDES`), set otherwise, or not at all."""
    name, _, attribute = where.partition(".")
    if not attribute:
        return {**parts, name: to}  # type: ignore[dict-item]
    kind, attributes = parts[name]
    kept = {n: a for n, a in attributes.items() if n != attribute}
    return {**parts, name: (kind, kept if to is None else {**kept, attribute: to})}


def integers(*values: int) -> Attribute:
    return ("INT64", values)


def resized(name: str, *sizes: tuple[int, int, int, int]) -> list[tuple[str, Part]]:
    number = list(GRAPH).index(name) + 1
    return [(name, tensor(number, *size, virtual=name == "sum")) for size in sizes]


CONV = ("SPATIAL_DIMS", "FILTER_STRIDES", "DILATIONS", "PRE_PADDINGS", "POST_PADDINGS")
MISSING = (
    *(f"x.TENSOR_{name}" for name in ("DIMENSIONS", "STRIDES", "BYTE_ALIGNMENT")),
    *(f"conv.CONVOLUTION_{name}" for name in CONV),
    *(f"operation.{name}" for name in OPERATIONS[0][1]),
    *(f"addition.OPERATION_POINTWISE_{name}" for name in ("XDESC", "BDESC", "YDESC")),
    "graph.OPERATIONGRAPH_OPS",
)
REFUSED = [
    *((name, None) for name in MISSING),
    ("x.TENSOR_UNIQUE_ID", ("FLOAT", [1.0])),
    ("x.TENSOR_UNIQUE_ID", integers(1, 2)),
    ("x.TENSOR_STRIDES", integers(64, 8, 1)),
    ("x.TENSOR_STRIDES", integers(56 * 56 * 64, 1, 56 * 64, 56)),
    ("w.TENSOR_STRIDES", integers(9 * 80, 1, 3 * 80, 80)),
    ("x.TENSOR_BYTE_ALIGNMENT", integers(2)),
    ("x.CONVOLUTION_SPATIAL_DIMS", integers(2)),
    ("conv.CONVOLUTION_SPATIAL_DIMS", integers(3)),
    ("conv.CONVOLUTION_PRE_PADDINGS", integers(-1, 0)),
    ("conv.CONVOLUTION_POST_PADDINGS", integers(0, -1)),
    ("conv.CONVOLUTION_POST_PADDINGS", integers(1, 1, 1)),
    ("conv.CONVOLUTION_FILTER_STRIDES", integers(0, 1)),
    ("conv.CONVOLUTION_FILTER_STRIDES", integers(1)),
    ("conv.CONVOLUTION_DILATIONS", integers(1, 0)),
    *resized("sum", (31, 64, 56, 56), (32, 65, 56, 56), (32, 64, 57, 56), (32, 64, 56, 55)),
    *resized("w", (64, 48, 3, 3), (65, 32, 3, 3), (64, 64, 5, 3)),
    ("sum.TENSOR_UNIQUE_ID", integers(5)),
]
"""By both."""
OVERLOOKED = [
    *((f"x.TENSOR_{name}", None) for name in ("DATA_TYPE", "UNIQUE_ID")),
    *((f"conv.CONVOLUTION_{name}", None) for name in ("COMP_TYPE", "CONV_MODE")),
    *((f"mode.POINTWISE_{name}", None) for name in ("MODE", "MATH_PREC")),
    ("addition.OPERATION_POINTWISE_PW_DESCRIPTOR", None),
    ("addition.OPERATION_POINTWISE_XDESC", part("x")),
    ("x.TENSOR_STRIDES", integers(0, 1, 56 * 64, 64)),
    ("x.TENSOR_BYTE_ALIGNMENT", integers(24)),
    *resized("bias", (1, 63, 1, 1)),
    *resized("y", (32, 64, 56, 55)),
    ("w.TENSOR_UNIQUE_ID", integers(1)),
    ("sum.TENSOR_IS_VIRTUAL", ("BOOLEAN", [False])),
    ("x.TENSOR_IS_VIRTUAL", ("BOOLEAN", [True])),
    ("graph.OPERATIONGRAPH_OPS", part("addition")),
]
"""By the mock alone: the documentation rules them out, but cuDNN 9.19 does not look, or goes on with something else."""
TAKEN = [
    ("x.TENSOR_IS_VIRTUAL", None),
    ("x.TENSOR_BYTE_ALIGNMENT", integers(32)),
    ("x.TENSOR_STRIDES", integers(56 * 56 * 80, 1, 56 * 80, 80)),
    *resized("w", (64, 16, 3, 3)),
    ("conv.CONVOLUTION_CONV_MODE", ("CONVOLUTION_MODE", ["CONVOLUTION"])),
    ("graph.OPERATIONGRAPH_OPS", part("addition", "operation")),
]


def test_what_is_refused(cudnn: Cudnn) -> None:
    for where, to in REFUSED + OVERLOOKED * cudnn.mock:
        with cudnn.made(changed(GRAPH, where, to)) as (_, refused):
            assert refused, (where, to)
    for where, to in TAKEN:
        with cudnn.made(changed(GRAPH, where, to)) as (_, refused):
            assert not refused, (where, to)


def test_every_operation_has_the_same_sizes(cudnn: Cudnn) -> None:
    for kind in OPERATIONS:
        alone = {name: GRAPH[name] for name in ("x", "w", "sum", "conv")}
        alone |= {"operation": kind, "graph": ("OPERATIONGRAPH", {"OPERATIONGRAPH_OPS": part("operation")})}
        alone = changed(alone, "sum.TENSOR_IS_VIRTUAL", None)
        with cudnn.made(alone) as (_, refused):
            assert not refused
        others = [(f"operation.{name}", None) for name in kind[1]]
        for where, to in (*others, *resized("sum", (32, 64, 57, 56)), *resized("x", (32, 64, 57, 56))):
            with cudnn.made(changed(alone, where, to)) as (_, refused):
                assert refused == "operation", (kind, where, to)


def test_when_attributes_are_set_and_read(cudnn: Cudnn) -> None:
    none, one, four = ((ctypes.c_int64 * count)() for count in (0, 1, 4))
    with cudnn.made({"x": GRAPH["x"]}) as (made, _):
        x = made["x"]
        assert cudnn.set(x, "TENSOR_UNIQUE_ID", "INT64", one) and cudnn.finalize(x)
        assert cudnn.get(x, "TENSOR_DIMENSIONS", "INT64", four) == 4 and list(four) == [32, 64, 56, 56]
        assert cudnn.get(x, "TENSOR_DIMENSIONS", "INT64", one) == 1 and one[0] == 32
        assert cudnn.get(x, "TENSOR_DIMENSIONS", "FLOAT", (ctypes.c_float * 4)()) is None
        assert cudnn.get(x, "CONVOLUTION_DILATIONS", "INT64", four) is None
    x, graph, operation = map(cudnn.create, ("TENSOR", "OPERATIONGRAPH", OPERATIONS[0][0]))
    assert cudnn.get(x, "TENSOR_DIMENSIONS", "INT64", four) is None
    assert cudnn.set(x, "TENSOR_UNIQUE_ID", "INT64", none) and not cudnn.set(x, "TENSOR_UNIQUE_ID", "INT64", one)
    unfinalized = (ctypes.c_void_p * 1)(operation)
    assert cudnn.set(graph, "OPERATIONGRAPH_OPS", "BACKEND_DESCRIPTOR", unfinalized)
    for each in (x, graph, operation):
        cudnn.destroy(each)


def chosen(cudnn: Cudnn, heuristics: ctypes.c_void_p) -> tuple[int, list[tuple[int, int]]]:
    """The first engine that is offered with knobs, and those."""

    def filled(made: ctypes.c_void_p, name: str, kind: str, most: int) -> list[ctypes.c_void_p]:
        parts = [cudnn.create(kind) for _ in range(most)]
        count = cudnn.get(made, name, "BACKEND_DESCRIPTOR", (ctypes.c_void_p * most)(*(p.value for p in parts)))
        assert count is not None
        kept.extend(parts)
        return parts[:count]

    def read(made: ctypes.c_void_p, name: str, kind: str) -> int:
        value = (NUMBERS.get(kind, ctypes.c_int) * 1)()
        assert cudnn.get(made, name, kind, value) == 1
        return int(value[0])

    kept: list[ctypes.c_void_p] = []
    found = []
    for config in filled(heuristics, "ENGINEHEUR_RESULTS", "ENGINECFG", 20):
        (engine,) = filled(config, "ENGINECFG_ENGINE", "ENGINE", 1)
        index = read(engine, "ENGINE_GLOBAL_INDEX", "INT64")
        knobs = filled(config, "ENGINECFG_KNOB_CHOICES", "KNOB_CHOICE", cudnn.numbers["KNOB_TYPE_COUNTS"])
        names = (("KNOB_CHOICE_KNOB_TYPE", "KNOB_TYPE"), ("KNOB_CHOICE_KNOB_VALUE", "INT64"))
        found.append((index, [(read(k, *names[0]), read(k, *names[1])) for k in knobs]))
    for each in kept:
        cudnn.destroy(each)
    return next((index, knobs) for index, knobs in found if len(knobs) > 1)


def plan(index: int, knobs: Sequence[tuple[int, int]]) -> dict[str, Part]:
    choices: dict[str, Part] = {
        f"knob{i}": (
            "KNOB_CHOICE",
            {"KNOB_CHOICE_KNOB_TYPE": ("KNOB_TYPE", [kind]), "KNOB_CHOICE_KNOB_VALUE": integers(value)},
        )
        for i, (kind, value) in enumerate(knobs)
    }
    engine = {
        "ENGINE_OPERATION_GRAPH": part("graph"),
        "ENGINE_GLOBAL_INDEX": integers(index),
        "ENGINE_DEVICEPROP": part("gpu"),
    }
    config = {"ENGINECFG_ENGINE": part("engine"), "ENGINECFG_KNOB_CHOICES": part(*choices)}
    planned = {"EXECUTION_PLAN_ENGINE_CONFIG": part("config"), "EXECUTION_PLAN_DEVICEPROP": part("gpu")}
    return {
        **{"engine": ("ENGINE", engine), **choices, "config": ("ENGINECFG", config)},
        **{"plan": ("EXECUTION_PLAN", planned), **PACK},
    }


def test_engines_are_made_again_from_their_names(cudnn: Cudnn) -> None:
    graphless = changed({**GRAPH, **GPU, **HEURISTICS}, "heuristics.ENGINEHEUR_OPERATION_GRAPH", None)
    with cudnn.made(graphless) as (_, refused):
        assert refused == "heuristics"
    with cudnn.made({**GRAPH, **GPU, **HEURISTICS}) as (made, refused):
        assert not refused
        index, knobs = chosen(cudnn, made["heuristics"])
    kind, value = knobs[0]
    whole = {**GRAPH, **GPU, **plan(index, knobs)}
    with cudnn.made(whole) as (made, refused):
        assert not refused
        assert cudnn.get(made["plan"], "EXECUTION_PLAN_WORKSPACE_SIZE", "INT64", (ctypes.c_int64 * 1)()) == 1
    for where, to in (
        ("engine.ENGINE_GLOBAL_INDEX", integers(9999)),
        ("engine.ENGINE_GLOBAL_INDEX", integers(-1)),
        ("engine.ENGINE_GLOBAL_INDEX", None),
        ("engine.ENGINE_OPERATION_GRAPH", None),
        ("pack.VARIANT_PACK_UNIQUE_IDS", integers(1, 2, 4)),
        ("pack.VARIANT_PACK_UNIQUE_IDS", None),
        ("pack.VARIANT_PACK_DATA_POINTERS", None),
    ):
        with cudnn.made(changed(whole, where, to)) as (_, refused):
            assert refused == where.split(".")[0], (where, to)
    for others in ([(kind, 9999)], [(33, 1)], [(kind, value), (kind, value)]):
        with cudnn.made({**GRAPH, **GPU, **plan(index, others)}) as (_, refused):
            assert refused == "config", others


def test_a_handle_that_is_gone() -> None:
    """By the mock alone: cuDNN makes handles for GPUs that are there."""
    cudnn, handle = mocked(), ctypes.c_void_p()
    assert cudnn.library.cudnnCreate(ctypes.byref(handle)) == 0
    graph = changed(GRAPH, "graph.OPERATIONGRAPH_HANDLE", ("HANDLE", [handle.value]))
    with cudnn.made(graph) as (_, refused):
        assert not refused
    assert cudnn.library.cudnnSetStream(handle, None) == 0 and cudnn.library.cudnnDestroy(handle) == 0
    with cudnn.made(graph) as (_, refused):
        assert refused == "graph"
    assert cudnn.library.cudnnSetStream(handle, None) and cudnn.library.cudnnDestroy(handle)


def test_the_older_interface(cudnn: Cudnn) -> None:
    library, layout, number = cudnn.library, cudnn.numbers["TENSOR_NHWC"], cudnn.numbers["DATA_FLOAT"]
    x, w, conv = (ctypes.c_void_p() for _ in range(3))
    for name, made in (("Tensor", x), ("Filter", w), ("Convolution", conv)):
        assert library[f"cudnnCreate{name}Descriptor"](ctypes.byref(made)) == 0
    for dims, fine in (((2, 8, 9, 6), True), ((0, 8, 9, 6), False), ((2, 8, -9, 6), False)):
        assert (library.cudnnSetTensor4dDescriptor(x, layout, number, *dims) == 0) == fine
        assert (library.cudnnSetFilter4dDescriptor(w, number, layout, *dims) == 0) == fine
    for fine, *numbers in ((True, 2, 1, 2, 3, 2, 1), (False, -1, 0, 1, 1, 1, 1), (False, 0, 0, 0, 1, 1, 1)):
        assert (library.cudnnSetConvolution2dDescriptor(conv, *numbers, 1, number) == 0) == fine
    assert [library.cudnnSetConvolutionGroupCount(conv, n) == 0 for n in (0, -1, 3)] == [False, False, True]
    assert [library.cudnnSetConvolutionMathType(conv, n) == 0 for n in (0, 3, 9)] == [True, True, False]
    for name, made in (("Tensor", x), ("Filter", w), ("Convolution", conv)):
        assert library[f"cudnnDestroy{name}Descriptor"](made) == 0
