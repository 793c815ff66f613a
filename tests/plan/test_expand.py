"""The meaning of rewrites: where added nodes stand, what they read, and what makes no sense."""

import pytest

from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.text import validate
from planner.plan.expand import expand, offload_names, prefetch_names
from planner.plan.schema import Read, Recompute, Rewrite, Transfer
from tests.graphs import small_net

AGAIN = Recompute(node="bn1.recompute", of="bn1", makes=("bn1.y.recompute",))
CONV_AGAIN = Recompute(node="conv1.recompute", of="conv1", makes=("conv1.y.recompute",))


def nodes(graph: Graph) -> list[str]:
    return [n.id for n in graph.program["train_step"].nodes]


def moved(value: str) -> tuple[Transfer, Transfer]:
    away, there = offload_names(value)
    back, here = prefetch_names(value)
    return (
        Transfer(node=away, kind="offload", value=value, makes=there, from_pool="dram", to_pool="disk"),
        Transfer(node=back, kind="prefetch", value=there, makes=here, from_pool="disk", to_pool="dram"),
    )


def test_nothing_to_rewrite_is_the_graph_itself() -> None:
    graph = small_net()
    assert expand(graph, {"train_step": Rewrite()}) is graph


def test_a_recomputation_comes_before_its_first_reader() -> None:
    graph = small_net()
    rewrite = Rewrite(
        recomputes=(AGAIN,), reads=(Read(node="conv2.backward_weights", value="bn1.y", instance="bn1.y.recompute"),)
    )
    larger = expand(graph, {"train_step": rewrite})
    validate(larger)
    order = nodes(larger)
    assert order.index("bn1.recompute") == order.index("conv2.backward_weights") - 1
    assert [n for n in order if n != "bn1.recompute"] == nodes(graph)
    copy = larger.program["train_step"].node["bn1.recompute"]
    assert copy.op == "batch_norm_apply" and not copy.updates
    assert copy.inputs == ("conv1.y", "bn1.weight", "bn1.bias", "bn1.mean", "bn1.inv_std")
    assert larger.program["train_step"].node["conv2.backward_weights"].inputs[0] == "bn1.y.recompute"


def test_an_offload_follows_its_value_and_a_prefetch_comes_before_its_reader() -> None:
    graph = small_net()
    rewrite = Rewrite(
        transfers=moved("conv1.y"),
        reads=(Read(node="bn1.backward", value="conv1.y", instance="conv1.y.back"),),
    )
    larger = expand(graph, {"train_step": rewrite})
    validate(larger)
    order = nodes(larger)
    assert order.index("conv1.y.offload") == order.index("conv1") + 1
    assert order.index("conv1.y.prefetch") == order.index("bn1.backward") - 1
    assert larger.value["conv1.y.back"].type == graph.value["conv1.y"].type


def test_transfers_stand_in_any_order() -> None:
    """Also those of values that move twice."""
    graph = small_net()
    first, there = moved("conv1.y")
    second, back = (
        t.model_copy(update={"node": f"{t.node}.2", "value": value, "makes": f"{t.makes}.2"})
        for t, value in ((first, "conv1.y.back"), (there, "conv1.y.away.2"))
    )
    reads = (Read(node="bn1.backward", value="conv1.y", instance="conv1.y.back.2"),)
    for transfers in ((first, there, second, back), (back, second, there, first), (second, back, first, there)):
        larger = expand(graph, {"train_step": Rewrite(transfers=transfers, reads=reads)})
        validate(larger)
        assert [n for n in nodes(larger) if n not in nodes(graph)] == [first.node, there.node, second.node, back.node]


def test_copies_of_each_other_make_no_sense() -> None:
    first, there = moved("conv1.y")
    circle = (first.model_copy(update={"value": "conv1.y.back"}), there)
    with pytest.raises(UserError, match=r"SP1434: .*copies conv1.y.away, which does not exist"):
        expand(small_net(), {"train_step": Rewrite(transfers=circle)})


def test_a_chain_reads_its_own_instances() -> None:
    graph = small_net()
    rewrite = Rewrite(
        recomputes=(AGAIN, CONV_AGAIN),
        reads=(
            Read(node="bn1.recompute", value="conv1.y", instance="conv1.y.recompute"),
            Read(node="conv2.backward_weights", value="bn1.y", instance="bn1.y.recompute"),
            Read(node="bn1.backward", value="conv1.y", instance="conv1.y.recompute"),
        ),
    )
    order = nodes(expand(graph, {"train_step": rewrite}))
    at = order.index("conv2.backward_weights")
    assert order[at - 2 : at] == ["conv1.recompute", "bn1.recompute"]


def test_what_reads_a_parameter_comes_before_its_update() -> None:
    """The last node of the program reads a recomputed convolution: it must run before conv1.weight changes."""
    graph = small_net()
    train = graph.program["train_step"]
    moved_up = [n for n in train.nodes if n.id == "conv1.weight.update"]
    nodes_ = tuple([n for n in train.nodes if n.id != "bn1.backward" and n not in moved_up] + moved_up)
    late = train.node["bn1.backward"]
    graph = graph.model_copy(update={"programs": (train.model_copy(update={"nodes": (*nodes_, late)}),)})
    rewrite = Rewrite(
        recomputes=(CONV_AGAIN,),
        reads=(Read(node="bn1.backward", value="conv1.y", instance="conv1.y.recompute"),),
    )
    order = nodes(expand(graph, {"train_step": rewrite}))
    assert order.index("conv1.recompute") == order.index("conv1.weight.update") - 1


@pytest.mark.parametrize(
    ("rewrite", "told"),
    [
        (Rewrite(recomputes=(AGAIN.model_copy(update={"of": "nobody"}),)), "no node of the program"),
        (Rewrite(recomputes=(AGAIN.model_copy(update={"node": "conv1"}),)), "two nodes conv1"),
        (Rewrite(recomputes=(AGAIN.model_copy(update={"makes": ("conv1.y",)}),)), "made twice"),
        (Rewrite(recomputes=(AGAIN.model_copy(update={"makes": ("a", "b")}),)), "makes 2 values"),
        (Rewrite(recomputes=(AGAIN.model_copy(update={"makes": ("a b",)}),)), "is not an id"),
        (Rewrite(recomputes=(AGAIN.model_copy(update={"node": ""}),)), "is not an id"),
        (Rewrite(transfers=(moved("conv1.y")[0].model_copy(update={"node": "a b"}),)), "is not an id"),
        (Rewrite(recomputes=(AGAIN.model_copy(update={"of": "conv1.weight.update"}),)), "changes values in place"),
        (Rewrite(recomputes=(AGAIN,), reads=(Read(node="nobody", value="a", instance=AGAIN.makes[0]),)), "is no node"),
        (Rewrite(recomputes=(AGAIN,), reads=(Read(node="conv1", value="bn1.y", instance="x"),)), "made by nothing"),
        (
            Rewrite(recomputes=(AGAIN,), reads=(Read(node="conv1", value="bn1.y", instance=AGAIN.makes[0]),)),
            "does not read bn1.y",
        ),
        (
            Rewrite(recomputes=(AGAIN,), reads=(Read(node="bn1.recompute", value="conv1.y", instance=AGAIN.makes[0]),)),
            "need each other",
        ),
        (Rewrite(transfers=(moved("conv1.y")[1],)), "does not exist"),
    ],
)
def test_rewrites_that_make_no_sense(rewrite: Rewrite, told: str) -> None:
    with pytest.raises(UserError, match="SP1434") as error:
        expand(small_net(), {"train_step": rewrite})
    assert told in error.value.problem
