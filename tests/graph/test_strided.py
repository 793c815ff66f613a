"""Reshapes, permutations and parts of tensors as steps, against what NumPy makes of them."""

from math import prod

import numpy as np
import pytest

from planner.graph.strided import Strided, all_of
from planner.ops.head_views import HeadView


def offsets(seen: Strided) -> np.ndarray:
    found = np.array([seen.first])
    for dim in seen.dims:
        for extent, step in dim:
            found = (found[..., None] + step * np.arange(extent)).reshape(-1)
    return found.reshape(seen.shape)


def another_shape(rng: np.random.Generator, count: int) -> list[int]:
    shape = []
    while count > 1:
        factor = int(rng.choice([n for n in range(2, count + 1) if count % n == 0]))
        shape.append(factor)
        count //= factor
    shape.insert(int(rng.integers(len(shape) + 1)), 1)
    return shape


@pytest.mark.parametrize("seed", range(30))
def test_random_chains(seed: int) -> None:
    """What is known is right, and of a tensor nothing was moved in, everything is."""
    rng = np.random.default_rng([seed, *np.random.SeedSequence().generate_state(1)])
    for _ in range(40):
        x = np.arange(prod(shape := rng.integers(1, 6, rng.integers(1, 5)).tolist())).reshape(shape)
        seen, moved = all_of(shape), False
        for _ in range(4):
            kind, after = int(rng.integers(3)), None
            if kind == 0:
                axes = rng.permutation(x.ndim).tolist()
                x, after, moved = x.transpose(axes), seen.permuted(axes), True
            elif kind == 1:
                axis = int(rng.integers(x.ndim))
                start = int(rng.integers(x.shape[axis]))
                x = x.take(range(start, x.shape[axis]), axis)
                after, moved = seen.part(axis, start, x.shape[axis]), True
            else:
                wanted = another_shape(rng, x.size)
                x, after = x.reshape(wanted), seen.reshaped(wanted)
            if after is None:
                assert moved, "of a tensor as it is every shape is known"
                break
            seen = after
            assert np.array_equal(offsets(seen), x)


def test_heads_and_entries_that_are_one_dimension_for_a_while() -> None:
    """PyTorch's multi-head attention: [5 rows, 3 images, 2 x 4] as [5, 6, 4], turned, and as [3, 2, 5, 4]."""
    seen = all_of((5, 3, 8)).reshaped((5, 6, 4))
    assert seen is not None
    turned = seen.permuted((1, 0, 2)).reshaped((3, 2, 5, 4))
    assert turned is not None
    assert turned.heads() == HeadView((3, 2, 5, 4), 0, 8, 4, 24)


@pytest.mark.parametrize(
    "seen",
    [
        all_of((4, 5)),
        all_of((2, 3, 5, 4)).permuted((0, 1, 3, 2)),  # rows that are columns
        all_of((2, 6, 3, 5, 4)).permuted((1, 0, 2, 3, 4)),  # entries in two steps
    ],
)
def test_what_is_no_view_of_heads(seen: Strided) -> None:
    assert seen.heads() is None
