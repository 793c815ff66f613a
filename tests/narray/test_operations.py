"""Every operation of lazy arrays, computed at once, against NumPy and PyTorch."""

from collections.abc import Iterator

import numpy as np
import pytest

from planner import narray as na
from planner.errors import UserError
from tests.narray.catalogue import CASES, DATA, require_near


@pytest.fixture(autouse=True)
def eager() -> Iterator[None]:
    yield na.start(dataflow=False).close()


@pytest.mark.parametrize("name", CASES)
def test_operation(name: str) -> None:
    values = {k: na.array(v, v.dtype) for k, v in DATA.items()}
    result = CASES[name][0](values)
    assert isinstance(result, na.NArray)
    require_near(result.to_numpy(), name)


def test_a_maximum_over_more_than_a_window() -> None:
    data = np.random.default_rng(0).standard_normal((3, 1000)).astype(np.float32)
    data[1] = -np.arange(1000)
    x = na.array(data)
    assert (x.max(1).to_numpy() == data.max(1)).all() and (x.argmax(1).to_numpy() == data.argmax(1)).all()


def test_equality_is_exact() -> None:
    tiny = np.float32(1e-45)
    values = np.array([0, tiny, -tiny, 1, np.nextafter(np.float32(1), np.float32(2)), 3e38], np.float32)
    same = na.equal(na.array(values).reshape(6, 1), na.array(values)).to_numpy()
    assert (same == np.eye(6)).all()


def test_making_arrays() -> None:
    assert (na.zeros((2, 3)).to_numpy() == 0).all() and (na.ones((2,)).to_numpy() == 1).all()
    assert na.full((2, 2), 7).sum().item() == 28
    drawn = na.normal((200, 50), 0.5, mean=1.0).to_numpy()
    assert abs(drawn.mean() - 1) < 0.02 and abs(drawn.std() - 0.5) < 0.02
    coins = na.bernoulli((200, 50), 0.25).to_numpy()
    assert set(np.unique(coins)) == {0, 1} and abs(coins.mean() - 0.25) < 0.02
    na.start(dataflow=False)
    assert (na.normal((200, 50), 0.5, mean=1.0).to_numpy() == drawn).all(), "the session's seed"
    source = np.zeros(3, np.float32)
    copied, shared = na.array(source), na.asarray(source)
    source[:] = 1
    assert copied.sum().item() == 0 and shared.sum().item() == 3
    assert na.array([1, 2]).dtype == np.float32 and na.array([1, 2], np.int64).dtype == np.int64
    with pytest.raises(UserError, match="SP1017"):
        na.array([1, 2], np.float64)


def test_arrays_as_numpy_sees_them() -> None:
    x = na.array(np.arange(6.0).reshape(2, 3), name="x")
    assert (x.shape, x.ndim, x.size, len(x)) == ((2, 3), 2, 6, 2)
    assert np.asarray(x).sum() == 15 and float(x.sum()) == 15 and int(x.max()) == 5 and bool(x[0, 1])
    assert [row.tolist() for row in x] == [[0, 1, 2], [3, 4, 5]]
    assert "x: f32[2,3]" in repr(x)
    with pytest.raises(ValueError, match="read-only"):
        x.to_numpy()[0, 0] = 1
    with pytest.raises(UserError, match="SP1021"):
        x.item()


def test_mistakes_are_told_where_they_are_written() -> None:
    x = na.array(np.zeros((2, 3)))
    with pytest.raises(UserError, match="SP1002"):
        x @ x
    with pytest.raises(UserError, match="SP1002"):
        x + na.array(np.zeros((4,)))
    with pytest.raises(UserError, match="SP1021"):
        x[[0, 1]]
    with pytest.raises(UserError, match="SP1021"):
        x[0, 0, 0]
    for index in (2, -3, (0, 3)):
        with pytest.raises(UserError, match=r"SP1021: index .* lies beyond the"):
            x[index]
    for wrong in (
        lambda: x.sum(2),
        lambda: x.mean((0, -3)),
        lambda: x.max(5),
        lambda: x.argmax(2),
        lambda: x.transpose(0, 2),
        lambda: na.softmax(x, 2),
        lambda: na.log_softmax(x, -3),
        lambda: na.softmax_backward(x, x, 2),
        lambda: na.concatenate([x, x], 2),
    ):
        with pytest.raises(UserError, match=r"SP1002: .* has no axis"):
            wrong()
    for empty in (lambda: na.array(np.zeros((0, 3))), lambda: x + np.zeros((0, 3)), lambda: na.concatenate([])):
        with pytest.raises(UserError, match=r"SP1002.*no (elements|arrays)"):
            empty()
    with pytest.raises(UserError, match="SP1021"):
        na.Recorder("other").input("x", (2, 3)) + x


def test_no_axes_are_none_of_them() -> None:
    x = na.array(np.arange(6.0).reshape(2, 3))
    assert all(y.to_numpy().tolist() == x.to_numpy().tolist() for y in (x.sum(()), x.mean(()), x.max(())))
