"""Few channels as cells of neighbours and back, on the null device: what folded.cpp has a GPU do."""

from pathlib import Path

import numpy as np
import pytest

from tests.runtime.build import RUNTIME, Library, compile_library

QUIET = ("-Wno-unknown-pragmas", "-Wno-restrict", "-Wno-attributes")
RNG = np.random.default_rng()


@pytest.fixture(scope="module")
def kernels() -> Library:
    folder = RUNTIME / "cuda"
    flags = ("-DSTEPPLAN_NULL_DEVICE", f"-I{folder}", f"-I{RUNTIME}", "-O1", *QUIET)
    return compile_library(Path(__file__).parent / "folds.cpp", flags, [folder / "block_null.cpp"])


def in_cells(x: np.ndarray, side: int, shift: tuple[int, int], channels: int) -> np.ndarray:
    """By padding, and axes that change places."""
    (n, h, w, c), (top, left) = x.shape, shift
    high, wide = -(-(h + top) // side), -(-(w + left) // side)
    padded = np.pad(x, ((0, 0), (top, high * side - h - top), (left, wide * side - w - left), (0, 0)))
    cells = (
        padded.reshape(n, high, side, wide, side, c).transpose(0, 1, 3, 2, 4, 5).reshape(n, high, wide, side * side * c)
    )
    return np.pad(cells, ((0, 0), (0, 0), (0, 0), (0, channels - cells.shape[-1])))


@pytest.mark.parametrize("low", [False, True])
@pytest.mark.parametrize(("side", "shift"), [(1, (0, 0)), (2, (0, 0)), (2, (1, 0)), (2, (1, 1))])
def test_there_and_back(kernels: Library, low: bool, side: int, shift: tuple[int, int]) -> None:
    for channels in (1, 2, 3):
        dtype = np.uint16 if low else np.uint32  # bits: nothing is computed
        x = RNG.integers(1, 2**14, (3, *RNG.integers(2, 9, 2), channels)).astype(dtype)
        pack = 8 if low else 4
        wanted = in_cells(x, side, shift, -(-side * side * channels // pack) * pack)
        room = np.full(wanted.nbytes + 16, 0xFF, np.uint8)
        cells = room[-room.ctypes.data % 16 :][: wanted.nbytes].view(dtype).reshape(wanted.shape)
        back = np.full_like(x, 0xFFFF)
        fold = np.array([*x.shape, side, *shift, *wanted.shape[1:]], np.int64)
        kernels("folded", fold, low, x, cells, back)
        assert np.array_equal(cells, wanted)
        assert np.array_equal(back, x)
