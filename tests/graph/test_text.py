"""graph.json: round trip, canonical bytes, and malformed input."""

import copy
import json
import re
import subprocess
import sys

import pytest

from planner.errors import UserError
from planner.graph.text import graph_hash, graph_text, parse_graph, read_graph, write_graph
from tests.graph.test_builder import classifier
from tests.graph.test_fuse import residual_net


@pytest.fixture
def document():
    return json.loads(graph_text(classifier()))


def test_round_trip(tmp_path):
    for graph in (classifier(), residual_net(True)):
        write_graph(graph, tmp_path / "graph.json")
        again = read_graph(tmp_path / "graph.json")
        assert again == graph
        assert graph_text(again) == graph_text(graph)
        assert graph_hash(again) == graph_hash(graph)


def test_same_bytes_under_every_hash_seed():
    code = (
        "from tests.graph.test_builder import classifier; from planner.graph.text import graph_hash;"
        "print(graph_hash(classifier()))"
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", code], env={"PYTHONHASHSEED": str(seed)}, capture_output=True, text=True, check=True
        ).stdout
        for seed in (0, 1)
    }
    assert len(found) == 1


def test_one_entry_per_line():
    text = graph_text(classifier())
    assert sum('"id"' in line for line in text.splitlines()) == text.count('"id"')


def nodes(document):
    return document["programs"][0]["nodes"]


def find(document, op):
    return next(n for n in nodes(document) if n["op"] == op)


def set_attr(document, op, name, value):
    find(document, op).setdefault("attrs", {})[name] = value


MISTAKES = {
    "schema": ("SP1007", lambda d: d.update(schema=99)),
    "no values": ("SP1008", lambda d: d.pop("values")),
    "values of another type": ("SP1008", lambda d: d.update(values=3)),
    "negative size": ("SP1008", lambda d: d["values"][0]["type"].update(shape=[-1])),
    "unknown field": ("SP1008", lambda d: d["values"][0].update(extra=1)),
    "bad id": ("SP1008", lambda d: d["values"][0].update(id='x"; rm -rf')),
    "unknown op": ("SP1003", lambda d: nodes(d)[0].update(op="konv2d")),
    "unknown attribute": ("SP1008", lambda d: set_attr(d, "conv2d", "extra", 1)),
    "attribute of another type": ("SP1008", lambda d: set_attr(d, "conv2d", "stride", "two")),
    "size in quotes": ("SP1008", lambda d: d["values"][0]["type"].update(shape=["4"])),
    "attribute in quotes": ("SP1008", lambda d: set_attr(d, "conv2d", "stride", ["1", 1])),
    "rate in quotes": ("SP1008", lambda d: d.update(lr="0.1")),
    "unknown value": ("SP1009", lambda d: nodes(d)[0].update(inputs=["nothing", "conv.weight", "conv.bias"])),
    "value twice": ("SP1009", lambda d: d["values"].append(copy.deepcopy(d["values"][0]))),
    "node twice": ("SP1009", lambda d: nodes(d).append(copy.deepcopy(nodes(d)[0]))),
    "read before written": ("SP1009", lambda d: nodes(d).reverse()),
    "output of another type": ("SP1009", lambda d: set_attr(d, "max_pool2d", "stride", [1, 1])),
    "wrong layout": ("SP1009", lambda d: next(v for v in d["values"] if v["id"] == "x")["type"].pop("layout")),
    "shapes that do not fit": ("SP1002", lambda d: set_attr(d, "conv2d", "groups", 2)),
    "too few inputs": ("SP1002", lambda d: find(d, "linear").update(inputs=["flat.y"])),
    "too many inputs": ("SP1002", lambda d: find(d, "max_pool2d").update(inputs=["conv.y", "conv.y"])),
    "mask of another type": ("SP1002", lambda d: find(d, "dropout_backward").update(inputs=["flat.y", "flat.y"])),
    "labels of another type": ("SP1002", lambda d: find(d, "cross_entropy").update(inputs=["fc.y", "fc.bias"])),
    "update of another shape": ("SP1002", lambda d: find(d, "sgd_update").update(updates=["conv.bias"])),
    "update of an activation": ("SP1009", lambda d: find(d, "sgd_update").update(updates=["fc.y"])),
    "fewer outputs": ("SP1009", lambda d: find(d, "batch_norm").update(outputs=["relu.y"])),
    "gradient of another shape": ("SP1002", lambda d: set_attr(d, "conv2d_backward_weights", "shape", [6, 3, 5, 5])),
    "impossible stride": ("SP1002", lambda d: set_attr(d, "conv2d", "stride", [0, 1])),
    "unknown output": ("SP1009", lambda d: d["programs"][0].update(outputs=["nothing"])),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_malformed(document, mistake):
    code, spoil = MISTAKES[mistake]
    spoil(document)
    with pytest.raises(UserError) as caught:
        parse_graph(document)
    assert caught.value.code == code, caught.value


TOLD = {
    "programs[train_step].nodes[conv].op": lambda d: nodes(d)[0].pop("op"),
    "programs[train_step].nodes[conv].attrs.stride": lambda d: set_attr(d, "conv2d", "stride", "two"),
    "programs[train_step].nodes[conv].inputs": lambda d: nodes(d)[0].update(inputs=1),
    "programs[train_step].nodes[3]": lambda d: nodes(d).insert(3, None),
    "programs[train_step].outputs": lambda d: d["programs"][0].pop("outputs"),
    "programs[train_step].more": lambda d: d["programs"][0].update(more=1),
    "programs[1]": lambda d: d["programs"].insert(1, []),
    "values[conv.y].role": lambda d: next(v for v in d["values"] if v["id"] == "conv.y").update(role="nothing"),
    "values": lambda d: d.pop("values"),
    "lr": lambda d: d.update(lr="0.1"),
}


@pytest.mark.parametrize("where", TOLD)
def test_malformed_entries_are_named(document, where):
    TOLD[where](document)
    with pytest.raises(UserError, match="SP1008") as caught:
        parse_graph(document)
    assert re.search(rf"(lacks|at|field) {re.escape(where)}(:|$)", caught.value.problem), caught.value


CONTRADICTIONS = {
    "two values have the same id 'x'": lambda d: d["values"].append({**d["values"][0]}),
    "makes f32[4,6,7,7]cl and u8[4,6,7,7]cl, but its outputs are f32[4,6,4,4]cl and u8[4,6,4,4]cl": lambda d: set_attr(
        d, "max_pool2d", "stride", [1, 1]
    ),
    "'x' is an input of predict, but its role is activation": lambda d: d["values"][0].update(role="activation"),
    "writes 'conv.y', whose role is input": lambda d: next(v for v in d["values"] if v["id"] == "conv.y").update(
        role="input"
    ),
    "'conv.y' is an input of predict, but": lambda d: d["programs"][1]["inputs"].append("conv.y"),
}


@pytest.mark.parametrize("told", CONTRADICTIONS)
def test_contradictions_are_told(document, told):
    CONTRADICTIONS[told](document)
    with pytest.raises(UserError, match="SP1009") as caught:
        parse_graph(document)
    assert told in caught.value.problem


@pytest.mark.parametrize("text", ["", "{", "[]", "nonsense", '{"schema": 1'])
def test_not_json(tmp_path, text):
    (tmp_path / "graph.json").write_text(text)
    with pytest.raises(UserError, match="SP1701"):
        read_graph(tmp_path / "graph.json")


def test_missing_file(tmp_path):
    with pytest.raises(UserError, match="SP1701"):
        read_graph(tmp_path / "graph.json")


def bn_reads(document, value):
    bn = find(document, "batch_norm")
    bn["inputs"] = [value, *bn["inputs"][1:]]


ORDERS = {
    "reversed": (lambda d: nodes(d).reverse(), ("before it is written by", "move '")),
    "no writer": (
        lambda d: nodes(d).remove(find(d, "conv2d")),
        ("node 'bn' reads 'conv.y' before it is written: no node of train_step writes it",),
    ),
    "itself": (lambda d: bn_reads(d, "relu.y"), ("no order would do: bn needs bn",)),
    "a circle": (
        lambda d: bn_reads(d, "pool.y"),
        ("node 'bn' reads 'pool.y' before it is written, and no order would do: bn needs pool needs bn", "remove one"),
    ),
}


@pytest.mark.parametrize("name", ORDERS)
def test_what_is_read_too_early_is_told(document, name):
    spoil, words = ORDERS[name]
    spoil(document)
    with pytest.raises(UserError) as caught:
        parse_graph(document)
    assert caught.value.code == "SP1009" and all(w in str(caught.value) for w in words), caught.value


def test_a_long_circle_is_cut_short(document):
    """Forty activations behind the batch norm, which reads the last one."""
    value = next(v for v in document["values"] if v["id"] == "relu.y")
    for i in range(40):
        document["values"].append({**value, "id": f"chain{i}.y"})
        before = f"chain{i - 1}.y" if i else "relu.y"
        nodes(document).append({"id": f"chain{i}", "op": "relu", "inputs": [before], "outputs": [f"chain{i}.y"]})
    bn_reads(document, "chain39.y")
    with pytest.raises(UserError, match=r"bn needs chain39 needs .* needs chain30 needs 30 more nodes needs bn"):
        parse_graph(document)
