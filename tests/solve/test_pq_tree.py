"""PQ-trees against all permutations that they must stand for."""

import random
from collections.abc import Iterator
from itertools import permutations, product

import pytest

from planner.solve.pq_tree import NotSideBySideError, Tree, any_order, can_gather, clusters, gathered, leaves


def orders(tree: Tree) -> Iterator[tuple[int, ...]]:
    if isinstance(tree, int):
        yield (tree,)
        return
    kind, children = tree
    for arranged in permutations(children) if kind == "any" else (children, children[::-1]):
        for parts in product(*(list(orders(child)) for child in arranged)):
            yield tuple(leaf for part in parts for leaf in part)


def side_by_side(order: tuple[int, ...], group: set[int]) -> bool:
    places = [i for i, leaf in enumerate(order) if leaf in group]
    return places[-1] - places[0] == len(places) - 1


def with_instead(order: tuple[int, ...], group: set[int], instead: int) -> tuple[int, ...]:
    first = min(order.index(leaf) for leaf in group)
    return tuple(instead if i == first else leaf for i, leaf in enumerate(order) if leaf not in group or i == first)


@pytest.mark.parametrize("seed", range(40))
def test_gathering_keeps_exactly_the_orders_that_have_the_group_side_by_side(seed: int) -> None:
    rng = random.Random(seed)
    tree, fresh = any_order(range(6)), 6
    while len(leaves(tree)) > 2:
        group = set(rng.sample(leaves(tree), rng.randint(1, min(3, len(leaves(tree))))))
        expected = {with_instead(o, group, fresh) for o in orders(tree) if side_by_side(o, group)}
        assert can_gather(tree, group) == bool(expected)
        if not expected:
            with pytest.raises(NotSideBySideError):
                gathered(tree, group, fresh)
            break
        tree = gathered(tree, group, fresh)
        assert set(orders(tree)) == expected
        if rng.random() < 0.7:  # blocks begin where one ended
            pair = any_order((fresh + 1, fresh + 2))
            tree = gathered(tree, {fresh}, pair)
            fresh += 2
        fresh += 1
        if len(leaves(tree)) > 7:
            break


def test_clusters_lie_side_by_side_in_every_order() -> None:
    tree = gathered(any_order((1, 2, 3, 4, 5)), {1, 2}, any_order((6, 7)))
    assert sorted(map(sorted, clusters(tree, {6, 7, 3, 4}))) == [[3], [4], [6, 7]]
    assert sorted(map(sorted, clusters(tree, {6, 3}))) == [[3], [6]]
