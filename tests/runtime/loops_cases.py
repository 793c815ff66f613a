"""What the tests of the loop kernels share: poisoned outputs, slices in shuffled order, comparison."""

from collections.abc import Sequence

import numpy as np
import torch

from planner.graph.model import TensorType
from planner.ops.base import Attrs, Mode, Signature, op_named, scratch_bytes

SLICES = [1, 2, 3, 5]


def poisoned(*shape) -> np.ndarray:
    return np.full(shape, np.nan, np.float32)


def tensor(array) -> torch.Tensor:
    """In float64, with a gradient."""
    return torch.tensor(array, dtype=torch.float64, requires_grad=True)


def scratch(op: str, attrs: Attrs, shapes: Sequence[tuple[int, ...]], slices: int) -> np.ndarray:
    """As many bytes as a plan reserves for a node with inputs of these shapes: NaN, aligned to 64 bytes, with a guard
    behind them that check_guard looks at."""
    known, inputs = op_named(op), tuple(TensorType(shape=shape) for shape in shapes)
    signature = Signature(op, attrs, inputs, known.infer(attrs, inputs))
    size = scratch_bytes(known.scratch(signature, Mode("loops", "rows", slices), {}))
    raw = np.full(size + 128, 0xFF, np.uint8)
    start = -raw.ctypes.data % 64
    return raw[start : start + size + 64]


def check_guard(block: np.ndarray) -> None:
    assert (block[-64:] == 0xFF).all(), "a kernel wrote beyond its scratch"


def cut(n: int, slices: int, s: int) -> tuple[int, int]:
    """What slice s covers of n."""
    return n * s // slices, n * (s + 1) // slices


def run_slices(slices: int, *stages) -> None:
    """Every stage runs all its slices, in an order that changes from stage to stage."""
    order = np.random.default_rng(slices)
    for stage in stages:
        for s in order.permutation(slices):
            stage(int(s))


def assert_close(actual, expected, tolerance: float) -> None:
    """Relative distance in the Euclidean norm."""
    expected = np.asarray(expected.detach() if hasattr(expected, "detach") else expected, np.float64)
    actual = np.asarray(actual, np.float64).reshape(expected.shape)
    assert np.isfinite(actual).all()
    distance = np.linalg.norm(actual - expected) / max(np.linalg.norm(expected), 1e-30)
    assert distance <= tolerance, distance
