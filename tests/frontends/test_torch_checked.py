"""What a branch is for: where one side only checks, the other is taken; all others are left alone."""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from planner.frontends.torch_checked import unchecked
from tests.frontends import checked


class NoCheck(Exception):
    pass


class Asked:
    """Its truth is what `unchecked` says at the place where it is asked."""

    def __bool__(self) -> bool:
        found = unchecked(sys._getframe(1))
        if found is None:
            raise NoCheck
        return found

    def __contains__(self, x: int) -> "Asked":  # type: ignore[override]
        return self

    def any(self) -> "Asked":
        return self


@pytest.mark.parametrize("check", checked.CHECKS, ids=lambda check: check.__name__)
def test_forward_goes_on_past_a_check(check: Callable[[Any], None]) -> None:
    check(Asked())


@pytest.mark.parametrize("branch", checked.OTHERS, ids=lambda branch: branch.__name__)
def test_other_branches_are_left_alone(branch: Callable[[Any], Any]) -> None:
    with pytest.raises(NoCheck):
        branch(Asked())


def test_what_has_no_source_is_no_check() -> None:
    names: dict[str, Any] = {}
    exec("def check(x):\n    assert x\n", names)
    with pytest.raises(NoCheck):
        names["check"](Asked())
