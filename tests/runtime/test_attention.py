"""The attention kernels at random sizes against PyTorch in float64, as compiled for processors with and without
AVX-512, and with tile registers, and what they touch."""

import subprocess
from pathlib import Path

import numpy as np
import pytest
import torch

from codegen.build import SANITIZED, bfloat16_flags
from planner.graph.model import DType, TensorType
from planner.ops.attention import AttentionBackward, AttentionForward
from planner.ops.attention_base import AttentionAttrs
from planner.ops.base import Signature
from planner.ops.dropout import factors
from planner.ops.head_views import HeadView
from planner.target.detect import detect
from tests.runtime.build import RUNTIME, Library, compile_library, shared_object

SOURCE, KERNELS = Path(__file__).parent / "attention.cpp", RUNTIME / "attention.cpp"
PAIRS = bfloat16_flags(detect())
TILES = ("-include", str(Path(__file__).parent / "emulated_tiles.hpp"))


@pytest.fixture(scope="module", params=["native", "x86-64-v3", "tiles"])
def library(request: pytest.FixtureRequest) -> Library:
    """`tiles`: pairs of bfloat16 numbers are multiplied in tile registers, which are emulated; where a processor has
    them, `native` is with them, too."""
    if request.param == "native":
        return compile_library(SOURCE, PAIRS, [shared_object(KERNELS, flags=PAIRS)])
    return compile_library(SOURCE, ("-march=x86-64-v3", *(TILES if request.param == "tiles" else ())), [KERNELS])


DRAW = {"seed": 5, "stream": 7, "step": 3}
"""As attention.cpp."""


def draw(seed: int) -> tuple[np.random.Generator, int, tuple[int, ...], float, bool]:
    """A generator, units, a shape (heads, queries, keys, width, width of values, causal), a scale, whether masked."""
    numbers = np.random.default_rng(seed)
    most_keys = 700 if seed % 4 == 0 else 130
    sizes = tuple(int(numbers.integers(1, most + 1)) for most in (3, 150, most_keys, 70, 70))
    scale = float(numbers.choice([0.3, 1.0, -0.2]))
    return numbers, int(numbers.integers(1, 3)), (*sizes, int(numbers.integers(2))), scale, bool(numbers.integers(2))


UNTOUCHED = -96.0


def some_view(numbers: np.random.Generator, shape: tuple[int, ...]) -> HeadView:
    """Matrices [batch, heads, rows, width] in a random order, with something between them or not."""
    steps, step = {}, shape[-1]
    for axis in numbers.permutation(3):
        step += int(numbers.integers(3) == 0) * int(numbers.integers(40))
        steps[axis] = step
        step *= shape[axis]
    return HeadView(shape, int(numbers.integers(3)), *(steps[axis] for axis in range(3)))


def room(view: HeadView) -> int:
    """How many elements a tensor with such a view has at least."""
    return view.element(*(extent - 1 for extent in view.sizes[:3])) + view.sizes[3]


def bits(x: np.ndarray) -> np.ndarray:
    """The upper halves; `x` has no more digits."""
    return (x.view(np.uint32) >> 16).astype(np.uint16)


def number(x: np.ndarray) -> np.ndarray:
    return (x.astype(np.uint32) << 16).view(np.float32)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.parametrize("element", ["float32", "bfloat16"])
def test_random_shapes(library: Library, element: str, seed: int) -> None:
    numbers, units, shape, scale, masked = draw(seed)
    heads, queries, keys, width, value_width, causal = shape
    low = element == "bfloat16"

    def random(*sizes: int) -> np.ndarray:
        drawn = torch.tensor(numbers.standard_normal(sizes).astype(np.float32))
        return (drawn.bfloat16() if low else drawn).float().numpy()

    q, dy = random(units, heads, queries, width), random(units, heads, queries, value_width)
    k, v = random(units, keys, width), random(units, keys, value_width)
    mask = numbers.standard_normal((units, heads, queries, keys)).astype(np.float32) if masked else None
    if mask is not None:
        mask[:, :, -1] = np.finfo(np.float32).min / 2  # shut, but for what is next to nothing: all weigh the same

    added = np.zeros((units, heads, queries, keys), np.float32) if mask is None else mask
    qs, ks, vs, masks = (torch.tensor(x, dtype=torch.float64, requires_grad=True) for x in (q, k, v, added))
    scores = scale * (qs @ ks[:, None].transpose(-1, -2)) + masks
    if causal:
        scores = scores.masked_fill(~torch.ones(queries, keys, dtype=torch.bool).tril(), -torch.inf)
    dropout = float(numbers.choice([0.0, 0.1, 0.6, 1.0]))
    left = factors(**DRAW, p=float(np.float32(dropout)), shape=(units, heads, queries, keys))
    y = (scores.softmax(-1) * torch.tensor(left)) @ vs[:, None]
    y.backward(torch.tensor(dy, dtype=torch.float64))

    places = [some_view(numbers, x.shape if x.ndim == 4 else (units, 1, *x.shape[1:])) for x in (q, k, v, dy)]
    views = np.array([(p.shape[1], *p[1:]) for p in places], np.int64)
    given, found = [], []
    for x, place in zip((q, k, v, dy), places, strict=True):
        tensor = np.full(room(place), np.nan, np.float32)
        place.of(tensor)[...] = x.reshape(place.shape)
        given.append(bits(tensor) if low else tensor)
        found.append(bits(np.full_like(tensor, UNTOUCHED)) if low else np.full_like(tensor, UNTOUCHED))
    dmask = np.zeros(added.shape, np.float32)
    shape_array = np.array(shape, np.int64)
    given[3:] = [mask, given[3]]
    results = [found[3], *found[:3]]
    library(f"attention_{element}", shape_array, views, units, scale, dropout, *given, *results, dmask)
    found = []
    for result, place, x in zip(results, [places[3], *places[:3]], (dy, q, k, v), strict=True):
        tensor = number(result) if low else result
        found.append(place.of(tensor).reshape(x.shape).copy())
        place.of(tensor)[...] = UNTOUCHED
        assert (tensor == UNTOUCHED).all(), "something between the rows"
    found.append(dmask)
    truths = (y, qs.grad, ks.grad, vs.grad, masks.grad)
    for name, got, want in zip(("y", "dq", "dk", "dv", "dmask"), found, truths, strict=True):
        assert want is not None
        truth = want.detach().numpy()
        wrong = np.linalg.norm(got - truth) / max(1e-3, np.linalg.norm(truth))
        assert wrong < (2**-7 if low else 1e-5), name


def test_plans_reserve_what_kernels_take(library: Library) -> None:
    for seed in range(60):
        _, units, (heads, queries, keys, width, value_width, causal), scale, _ = draw(seed)
        floats = np.zeros(4, np.int64)
        library("attention_scratch", np.array((heads, queries, keys, width, value_width, causal), np.int64), floats)
        planned = []
        ends = ((heads, queries, width), (1, keys, width), (1, keys, value_width), (heads, queries, value_width))
        attrs, sums = AttentionAttrs(scale=scale, causal=bool(causal)), TensorType(shape=(units, heads, queries))
        for dtype in (DType.FLOAT32, DType.BFLOAT16):
            q, k, v, y = (TensorType(shape=(units, *end), dtype=dtype) for end in ends)
            planned.append(AttentionForward().floats(Signature("attention", attrs, (q, k, v), (y, sums, sums))))
            inputs = (y, q, k, v, y, sums, sums)
            planned.append(AttentionBackward().floats(Signature("attention_backward", attrs, inputs, (q, k, v))))
        assert planned == floats.tolist()


def test_nothing_beyond_the_operands_is_touched(tmp_path: Path) -> None:
    """By the sanitizers of addresses and undefined behaviour, in a process of its own: floats in vectors, pairs in
    tiles."""
    program = tmp_path / "program"
    flags = ["-std=c++20", *SANITIZED, "-march=x86-64-v3", "-fopenmp", "-DSTEPPLAN_SANITIZED", *TILES]
    flags += ["-fsanitize=address,undefined", "-fno-sanitize-recover", f"-I{RUNTIME}"]
    subprocess.run(["g++", *flags, str(SOURCE), str(KERNELS), "-o", str(program)], check=True)
    done = subprocess.run([str(program)], capture_output=True, text=True, check=False)
    assert done.stdout == "clean\n", done.stderr[-3000:]
