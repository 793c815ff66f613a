"""Walks that go on from others note what they would have noted on their own, and pass few places."""

import random

import numpy as np
import pytest

from planner.solve.memory import walks as module
from planner.solve.memory.walks import FRESH, KEEP, MOVE, OWN, SHARE, Place, Recipe, Walk, Walks, _Notes

VALUES = 12


def drawn(rng: random.Random) -> Walks:
    """Values made from earlier ones, some of them two at a time; places that read some, late ones first."""
    recipes = []
    for value in range(VALUES):
        sources = tuple(sorted(rng.sample(range(value), min(value, rng.randrange(3)))))
        twin = recipes[-1].makes[0] if recipes and rng.random() < 0.2 else None
        if twin is not None and len(recipes[-1].makes) == 1 and twin not in sources:
            recipes[-1] = recipes[-1]._replace(makes=(twin, value))
            recipes.append(recipes[-1])
        else:
            recipes.append(Recipe(sources, (value,), sources[:1], rng.randrange(9), rng.randrange(9)))
    places = []
    for value in reversed(range(VALUES)):
        reads = tuple(sorted({value, rng.randrange(VALUES)}))
        forward = rng.random() < 0.1
        makes = (value,) if forward else ()
        places.append(Place(forward, reads, makes, reads[:1], *(rng.randrange(99) for _ in range(3))))
    return Walks(np.arange(VALUES), places, recipes, [64] * VALUES)


def same(a: Walk | None, b: Walk | None) -> bool:
    if a is None or b is None:
        return a is b
    noted = zip(a.noted, b.noted, strict=True)
    return a.way == b.way and a.settled == b.settled and all(np.array_equal(x, y) for x, y in noted)


@pytest.mark.parametrize("short", (0, module.SHORT))
@pytest.mark.parametrize("seed", range(20))
def test_going_on_is_walking_anew(seed: int, short: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHORT", short)
    rng = random.Random(seed)
    walks = drawn(rng)
    way = bytearray(VALUES)
    near = walks.walk(way, None, 200)
    for _ in range(60):
        way = bytearray(way)
        for value in rng.sample(range(VALUES), rng.choice((1, 1, 1, 2, 5))):
            way[value] = rng.choice((KEEP, SHARE, OWN, FRESH, MOVE))
        anew = walks.walk(way, None, 200)
        assert same(walks.walk(way, near, 200), anew)
        near = anew or near


class _Chain:
    """Values of which each is made from the one before; places read them from the last to the first, two times."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        recipes = [Recipe((v - 1,) if v else (), (v,), (), 1, 0) for v in range(VALUES)]
        places = [Place(False, (v,), (), (), 0, 0, 0) for v in (*reversed(range(VALUES)), *reversed(range(VALUES)))]
        self._walks = Walks(np.arange(VALUES), places, recipes, [64] * VALUES)
        self._passed: list[int] = []
        self._near: Walk | None = None
        self._way = bytearray(VALUES)
        pass_by = _Notes.pass_by
        monkeypatch.setattr(module, "SHORT", 0)
        monkeypatch.setattr(
            _Notes, "pass_by", lambda notes, number, *rest: self._passed.append(number) or pass_by(notes, number, *rest)
        )

    def passed(self, value: int, decision: int) -> list[int]:
        """Places that are passed by anew where one decision is another one."""
        self._way = bytearray(self._way)
        self._way[value] = decision
        anew = self._walks.walk(self._way, None, 1000)
        del self._passed[:]
        found = self._walks.walk(self._way, self._near, 1000)
        assert found is not None and same(found, anew)
        self._near = found
        return self._passed


def test_few_places_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, last = _Chain(monkeypatch), VALUES - 1
    assert chain.passed(4, KEEP) == [*range(2 * VALUES)]
    assert chain.passed(4, FRESH) == [last - 4, VALUES + last - 4]
    assert chain.passed(6, FRESH) == [last - 6, VALUES + last - 6]
    assert chain.passed(5, FRESH) == [last - 6, last - 5, VALUES + last - 6, VALUES + last - 5]


def test_what_stays_changes_no_place_before_the_next_that_needs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    chain, last = _Chain(monkeypatch), VALUES - 1
    for value in (4, 5, 6):
        chain.passed(value, FRESH)
    # 4 is made for 6 first, then for 5, and read itself after that.
    assert chain.passed(4, OWN) == [VALUES + last - 6, VALUES + last - 5, VALUES + last - 4]
    assert chain.passed(4, SHARE) == [last - 5, last - 4]
    assert chain.passed(4, FRESH) == [last - 5, last - 4, VALUES + last - 6, VALUES + last - 5, VALUES + last - 4]
