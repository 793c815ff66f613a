"""Walks that go on from others note what they would have noted on their own, and pass few places."""

import random

import numpy as np
import pytest

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
    return all(np.array_equal(x, y) for x, y in zip(a, b, strict=True))


@pytest.mark.parametrize("seed", range(20))
def test_going_on_is_walking_anew(seed: int) -> None:
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


def test_few_places_are_passed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A chain whose values are read from the last to the first: one that is made again matters where it is read."""
    recipes = [Recipe((v - 1,) if v else (), (v,), (), 1, 0) for v in range(VALUES)]
    places = [Place(False, (v,), (), (), 0, 0, 0) for v in reversed(range(VALUES))]
    walks = Walks(np.arange(VALUES), places, recipes, [64] * VALUES)
    kept = walks.walk(bytearray(VALUES), None, 100)
    passed = []
    pass_by = _Notes.pass_by
    monkeypatch.setattr(
        _Notes, "pass_by", lambda self, number, *rest: passed.append(number) or pass_by(self, number, *rest)
    )
    way = bytearray(VALUES)
    way[4] = FRESH
    again = walks.walk(way, kept, 100)
    assert again is not None and again.value_of.tolist() == [*range(VALUES), 4]
    assert passed == [VALUES - 1 - 4]
