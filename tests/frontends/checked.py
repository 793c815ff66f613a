"""Branches for tests: pytest compiles assertions of files of tests into others."""

import sys
from typing import Any

import torch
from torch import Tensor


def asserted(x: Any) -> None:
    assert x, "a text"


def asserted_over_lines(x: Any) -> None:
    assert (
        x.any()
    ), "a text"  # fmt: skip


def asserted_not(x: Any) -> None:
    assert not x.any()


def asserted_of_several(x: Any) -> None:
    assert all(x for _ in range(2)) and (len("ab") == 2 or x)


def asserted_bool(x: Any) -> None:
    assert not bool(x) and not any([x, x])


def asserted_absent(x: Any) -> None:
    assert 1 not in x
    if 1 in x:
        raise ValueError


def raised(x: Any) -> None:
    if x.any():
        text = "made of several"
        raise ValueError(text)


def raised_otherwise(x: Any) -> None:
    if len("ab") == 3:
        raise AssertionError
    elif not (x and x):
        raise ValueError
    else:
        assert x


def raised_within(x: Any) -> None:
    def inner() -> None:
        for _ in range(2):
            if x or x:
                raise ValueError

    inner()


def printed(x: Any) -> None:
    if x:
        print("a text")
        sys.stderr.warning("a text")  # type: ignore[attr-defined]
        sys.rank_zero_warn("a text")  # type: ignore[attr-defined]


def stopped(x: Any) -> None:
    if x:
        import pdb

        pdb.set_trace()


CHECKS = [
    asserted,
    asserted_over_lines,
    asserted_not,
    asserted_of_several,
    asserted_bool,
    asserted_absent,
    raised,
    raised_otherwise,
    raised_within,
    printed,
    stopped,
]


def chosen(x: Any) -> int:
    return 1 if x else 2


def left(x: Any) -> int:
    if x:
        return 1
    return 2


def computed(x: Any) -> int:
    y = 1
    if x:
        y = 2
    return y


def computed_and_told(x: Any) -> int:
    y = [1]
    if x:
        print(y)
        y.append(2)
    return len(y)


def repeated(x: Any) -> None:
    while x:
        raise ValueError


def denied(x: Any) -> bool:
    return not x


def chosen_within(x: Any) -> None:
    assert 1 if x else 0


OTHERS = [chosen, left, computed, computed_and_told, repeated, denied, chosen_within]


def checked(y: Tensor, labels: Tensor) -> Tensor:
    """The mean square; it checks in four places."""
    assert torch.isfinite(y).all() and labels.min().item() >= 0, "not finite"
    if not (y.abs() < 1e6).all():
        raise ValueError(f"too large: {y.abs().max():.2f}")
    torch._assert(torch.allclose(y, y), "not equal")
    if 77.0 in y or torch.is_nonzero(y.sum() * 0):
        print("a text")
    return y.square().mean()
