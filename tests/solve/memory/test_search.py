"""A search that leaves out what a budget has no use for."""

import random

import pytest

from planner.graph.model import Graph
from planner.solve.memory.frontier import search_of
from planner.solve.memory.states import State
from planner.solve.rewriting import calm
from planner.zoo import build
from tests.graphs import random_net
from tests.solve.test_budget import one_pool


def states_of(graph: Graph, most: float) -> list[State]:
    rewriter = one_pool(graph)
    return search_of(rewriter.setting, calm(graph, rewriter.schedules)).run((), most)


def graph_of(name: str) -> Graph:
    return build(name, batch=2) if name == "resnet18" else random_net(random.Random(int(name)), nodes=24)


@pytest.mark.parametrize("name", ["1", "2", "3", "resnet18"])
def test_where_nothing_fits_the_smallest_are_found_all_the_same(name: str) -> None:
    graph = graph_of(name)
    every, smallest = states_of(graph, 2**60), states_of(graph, 1000)
    assert smallest[-1].peak == every[-1].peak
    assert len(smallest) < len(every)
