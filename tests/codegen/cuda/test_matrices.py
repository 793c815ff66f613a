"""Which copies turn whole matrices, against NumPy."""

from itertools import permutations

import numpy as np

from codegen.cpu.shapes import dense, walk
from codegen.cuda.matrices import Matrices, turned
from planner.ops.strides import merge


def test_every_permutation_of_four_dimensions() -> None:
    """Those that swap two runs of neighbours, behind others that stay: what they make is that of turned matrices."""
    shape = (2, 3, 4, 5)
    x = np.arange(120).reshape(shape)
    count = 0
    for axes in permutations(range(4)):
        result = x.transpose(axes)
        own = dense(shape)
        walked, walks = walk(result.shape, tuple(own[a] for a in axes), dense(result.shape))
        found = turned(walked, walks[0])
        count += found is not None
        if found is not None:
            made = x.reshape(found).transpose(0, 2, 1)
            assert np.array_equal(made.reshape(-1), result.reshape(-1)), axes
        merged = merge(result.shape, tuple(own[a] for a in axes))[0]
        assert (found is not None) == (len(merged) == 2 or (len(merged) == 3 and axes[0] == 0)), axes
    assert count == 6


def test_what_is_no_matrix() -> None:
    assert turned((1, 1, 40, 17), (0, 0, 1, 40)) == Matrices(1, 17, 40)
    assert turned((40, 17), (1, 41)) is None, "rows with something between them"
    assert turned((8, 40, 17), (0, 1, 40)) is None, "one matrix again and again"
    assert turned((40,), (1,)) is None
