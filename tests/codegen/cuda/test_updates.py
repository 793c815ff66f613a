"""Updates that one launch computes: as late as what they touch allows, and the same numbers."""

import re
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from codegen.cuda.updates import MOST, Span, order_together
from planner.zoo import build as build_zoo
from tests.codegen.cuda.plans import make, plan_for
from tests.codegen.cuda.test_null_device import assert_steps_agree, batch


def span(start: int, write: bool = False) -> Span:
    return Span(0, start, start + 10, write)


def test_updates_wait_for_each_other_until_something_touches_what_they_touch() -> None:
    spans = {
        "norm": [span(100, True)],
        "a": [span(0), span(1000, True)],
        "b": [span(20), span(1020, True)],
        "apart": [span(200, True)],
        "over a's gradient": [span(5, True)],
        "c": [span(40), span(1040, True)],
        "reads c's weight": [span(1040)],
    }
    order = ["norm", "a", "b", "apart", "over a's gradient", "c", "reads c's weight"]
    found = order_together(order, frozenset("abc"), spans)
    assert found == ["norm", "apart", "a", "b", "over a's gradient", "c", "reads c's weight"]


spans_of = st.lists(st.tuples(st.integers(0, 5), st.booleans()), min_size=1, max_size=3)


@given(nodes=st.lists(st.tuples(st.booleans(), spans_of), max_size=12))
def test_whoever_touches_the_same_keeps_its_place(nodes: list[tuple[bool, list[tuple[int, bool]]]]) -> None:
    names = [f"n{i}" for i in range(len(nodes))]
    spans = {n: [span(10 * at, write) for at, write in touched] for n, (_, touched) in zip(names, nodes, strict=True)}
    updates = frozenset(n for n, (update, _) in zip(names, nodes, strict=True) if update)
    found = order_together(names, updates, spans)
    assert sorted(found) == sorted(names)
    assert [n for n in found if n not in updates] == [n for n in names if n not in updates]
    for i, first in enumerate(names):
        for second in names[i + 1 :]:
            shared = any(a[:3] == b[:3] and (a.write or b.write) for a in spans[first] for b in spans[second])
            if shared and not (first in updates and second in updates):
                assert found.index(first) < found.index(second)


def test_no_more_than_one_launch_takes() -> None:
    names = [f"u{i}" for i in range(MOST + 1)]
    spans = {n: [span(100 * i)] for i, n in enumerate([*names, "end"])}
    found = order_together([*names[:MOST], "end", names[MOST]], frozenset(names), spans)
    assert found == ["end", *names] and len(found) == MOST + 2


def test_a_network_s_updates_in_few_launches(tmp_path: Path) -> None:
    """On the null device, which verifies that nobody writes what an update still reads."""
    graph = build_zoo("digits_cnn", batch=2)
    with make(plan_for(graph), graph, tmp_path)(seed=1, poison=True, null_device=True) as executor:
        assert_steps_agree(executor, 2)
        executor._native.log(executor._handle, True)
        executor.step(*batch(graph, 0)).wait()
        launches = [line for line in executor._native.lines(executor._handle) if re.search(r"updates \d+$", line)]
        count = sum(n.op == "sgd_update" for n in graph.program["train_step"].nodes)
        assert sum(int(line.rsplit(" ", 1)[1]) for line in launches) == count > 2 * len(launches) > 0
        nodes = [re.sub(r"s\d+ ", "", line) for line in executor._native.lines(executor._handle)]
        timed = list(executor.node_times(repetitions=1))
        assert timed == [n for n in nodes if n in set(timed)]  # every node by its own name, in the order of the step
