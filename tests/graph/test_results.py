"""What a module returns, as graph.json says it: one line, and nothing where nothing need be said."""

import json
import re
from typing import Any

import pytest

from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.results import is_plain, tensors
from planner.graph.text import graph_text, parse_graph
from tests.graphs import small_net

HEADS = {"kind": "dict", "context": ["a", "b"], "parts": ["float32", {"constant": None}]}


def test_a_tensor_or_a_tuple_of_several_need_not_be_told() -> None:
    assert is_plain("float32") and is_plain({"kind": "tuple", "parts": ["float32", "float32"]})
    for told in ("bool", HEADS, {"kind": "tuple", "parts": ["float32"]}, {"kind": "list", "parts": ["float32"] * 2}):
        assert not is_plain(told)
    assert not is_plain({"kind": "tuple", "parts": ["float32", "int64"]})


def told(results: Any) -> Graph:
    graph = small_net()
    return graph.model_copy(
        update={"programs": tuple(p.model_copy(update={"results": results}) for p in graph.programs)}
    )


def test_one_line_of_graph_json() -> None:
    plain, text = graph_text(small_net()), graph_text(told(HEADS))
    added = [line for line in text.splitlines() if line not in plain.splitlines() and '"outputs"' not in line]
    assert (
        added == ['   "results": {"context": ["a", "b"], "kind": "dict", "parts": ["float32", {"constant": null}]}'] * 2
    )
    read = parse_graph(json.loads(text))
    assert graph_text(read) == text and read.program["predict"].results == HEADS
    assert list(tensors(HEADS)) == ["float32"]
    assert parse_graph(json.loads(plain)).program["predict"].results is None


def test_arguments_of_graph_json() -> None:
    arguments = {"use_cache": False, "sizes.0": 1, "rate": 1.0, "way": {"text": "<Way.SUM: 1>"}, "mask": None}
    graph = small_net()
    programs = tuple(p.model_copy(update={"arguments": arguments}) for p in graph.programs)
    text = graph_text(graph.model_copy(update={"programs": programs}))
    read = parse_graph(json.loads(text))
    assert graph_text(read) == text
    assert [line for line in text.splitlines() if "arguments" in line and "use_cache" in line]
    found = read.program["predict"].arguments
    assert (
        found == arguments
        and found is not None
        and [type(x) for x in found.values()] == [type(arguments[k]) for k in found]
    )
    document = json.loads(text)
    document["programs"][0]["arguments"] = {"sizes": [1]}
    with pytest.raises(UserError, match=r"SP1008: the graph is malformed at programs\[train_step\].arguments"):
        parse_graph(document)


WRONG: list[Any] = [
    *(3, ["float32"], {"constant": [1]}, {"kind": "list"}, {"kind": 1, "parts": []}),
    {"kind": "list", "parts": ["float32"], "more": 1},
    {"kind": "list", "parts": [None]},
    {"kind": "list", "parts": ["nn"]},
]


@pytest.mark.parametrize("wrong", WRONG)
def test_no_structure(wrong: Any) -> None:
    document = json.loads(graph_text(told(HEADS)))
    document["programs"][0]["results"] = wrong
    with pytest.raises(UserError, match=r"SP1008: the graph is malformed at programs\[train_step\].results"):
        parse_graph(document)


def test_as_many_tensors_as_the_program_makes() -> None:
    problem = re.escape("SP1009: the results of train_step name 2 tensors, it makes 1")
    with pytest.raises(UserError, match=problem):
        parse_graph(json.loads(graph_text(told({"kind": "list", "parts": ["float32", "float32"]}))))
