"""Nodes that one launch computes: next to each other where that takes no more bytes, and nothing else moves."""

import random
import re
from collections.abc import Sequence
from itertools import pairwise

import pytest

from planner.costs.model import modelled_costs
from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.dependencies import dependencies
from planner.graph.model import Graph, Node, TensorType
from planner.graph.optimizer import Optimizer
from planner.graph.precision import mixed_precision
from planner.ops.base import Mode, op_named
from planner.plan.check import check
from planner.plan.schema import Plan, parse_slice
from planner.solve.liveness import Liveness, liveness
from planner.solve.offsets import most_alive
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.solve.route import route
from planner.solve.schedule import Schedule, one_at_a_time
from planner.solve.threads import Choice
from planner.solve.together import together
from planner.target.text import load_target
from planner.zoo import build
from tests.graphs import NORMAL, classifier, conv, images, random_net, small_net

TRAIN = "train_step"


def plan_for(graph: Graph, **options: object) -> Plan:
    target = load_target("h200")
    return make_plan(graph, target, modelled_costs(graph, target), PlanOptions.model_validate(options))


def runs(plan: Plan, op: str, graph: Graph) -> list[int]:
    """How many nodes of the op stand next to each other in the lane's program, run by run."""
    found, before = [], ""
    ops = {n.id: n.op for n in graph.program[TRAIN].nodes}
    for entry in plan.program[TRAIN].lanes[0]:
        now = ops.get(parse_slice(entry.run)[0], "")
        if now == op:
            found += [1] if before != op else []
            found[-1] += before == op
        before = now
    return found


def scheduled(order: Sequence[Node]) -> Schedule:
    return one_at_a_time(TRAIN, order, {n.id: Choice(Mode("cuda", "whole", 1), {}, (1,)) for n in order})


def alive(graph: Graph, order: Sequence[Node], keep: frozenset[str] = frozenset()) -> Liveness:
    return liveness(graph, {TRAIN: scheduled(order)}, keep)


def moved(graph: Graph, order: Sequence[Node], share: float = 1.0) -> list[str]:
    return [n.id for n in together(graph, {TRAIN: scheduled(order)}, share=share)[TRAIN].order]


def chain(batch: int, sizes: Sequence[int]) -> tuple[Graph, list[Node]]:
    """Linear layers one after the other, and the order in which every update follows as soon as it may."""
    b = GraphBuilder("chain")
    x = b.input("x", TensorType(shape=(batch, sizes[0])))
    for i, (rows, columns) in enumerate(pairwise(sizes)):
        (x,) = b.op("linear", [x, b.parameter(f"w{i}", (columns, rows), NORMAL)], name=f"n{i}")
    (loss,) = b.op("mse_loss", [x, b.input("t", b.type(x))], name="loss")[:1]
    graph = b.finish(loss, x, Optimizer(lr=0.1))
    graph = graph.model_copy(update={"programs": (graph.program[TRAIN],)})
    return graph, list(route(graph, graph.program[TRAIN]))


def test_updates_wait_where_bytes_have_died() -> None:
    """Values of 64 x 4 floats, 1 KiB, die one after the other; a gradient takes 64 bytes."""
    graph, order = chain(64, [4, 4, 4, 4])
    assert [n.id for n in order][-6:] == [
        *("w2.update", "n1.backward_weights", "n1.backward_data"),
        *("w1.update", "n0.backward_weights", "w0.update"),
    ]
    assert moved(graph, order)[-6:] == [
        *("n1.backward_weights", "n1.backward_data", "n0.backward_weights"),
        *("w2.update", "w1.update", "w0.update"),
    ]


def test_no_update_waits_where_that_takes_more_bytes() -> None:
    """Gradients of 64 x 64 floats, 16 KiB, beside values of 4 x 64, 1 KiB: two at once are the most there is."""
    graph, order = chain(4, [64, 64, 64, 64])
    assert moved(graph, order) == [n.id for n in order]


def test_updates_wait_up_to_where_bytes_are_short() -> None:
    """Beside the gradient of w0, 48 KiB, none of the others, 16 KiB each, has a place: they run before it is made."""
    graph, order = chain(4, [192, 64, 64, 64])
    assert moved(graph, order)[-6:] == [
        *("n1.backward_weights", "n1.backward_data", "w2.update", "w1.update"),
        *("n0.backward_weights", "w0.update"),
    ]


def rounded(batch: int, sizes: Sequence[int]) -> tuple[Graph, list[Node]]:
    """The chain in bfloat16: every layer reads a working copy of its weights that is made in front of it."""
    graph = mixed_precision(chain(batch, sizes)[0])
    return graph, list(route(graph, graph.program[TRAIN]))


def test_working_copies_are_made_at_the_start_where_later_bytes_are_the_peak() -> None:
    graph, order = rounded(64, [4, 4, 4, 4])
    copies = ["w0.bf16", "w1.bf16", "w2.bf16"]
    assert [n.id for n in order][:6] == ["x.bf16", "w0.bf16", "n0", "w1.bf16", "n1", "w2.bf16"]
    assert moved(graph, order)[:3] == copies


def test_working_copies_stay_with_their_readers_where_bytes_are_short() -> None:
    """Nothing waits beyond a share of the peak that every node exceeds."""
    graph, order = rounded(64, [256, 256, 256, 256])
    assert moved(graph, order, share=0.01) == [n.id for n in order]


@pytest.mark.parametrize("mixed", [False, True])
@pytest.mark.parametrize("seed", range(20))
def test_any_order_keeps_its_peak_and_its_meaning(seed: int, mixed: bool) -> None:
    rng = random.Random(seed)
    graph = random_net(rng, nodes=rng.randint(2, 14))
    graph = mixed_precision(graph) if mixed else graph
    plan = plan_for(graph, policy="sequential")
    graph = graph.model_copy(update={"programs": (graph.program[TRAIN],)})
    node = graph.program[TRAIN].node
    order = [node[n.node] for n in plan.program[TRAIN].nodes]
    rng.shuffle(order)
    order = _sorted_by_need(graph, order)
    share = rng.choice([1.0, 0.97, 0.5])
    found = [node[n] for n in moved(graph, order, share)]
    assert sorted(n.id for n in found) == sorted(n.id for n in order)
    joint = {n.id for n in order if op_named(n.op).joint_launch}
    assert [n.id for n in found if n.id not in joint] == [n.id for n in order if n.id not in joint]
    place, needs = {n.id: i for i, n in enumerate(found)}, dependencies(graph, graph.program[TRAIN])
    assert all(place[other] < place[n.id] for n in found for other in needs[n.id])
    before, after = alive(graph, order), alive(graph, found)
    assert most_alive(after.blocks) <= most_alive(before.blocks)
    assert after.shares == before.shares


def _sorted_by_need(graph: Graph, order: list[Node]) -> list[Node]:
    """A random valid order."""
    needs, done, left = dependencies(graph, graph.program[TRAIN]), set[str](), list(order)
    found = []
    while left:
        node = next(n for n in left if all(d in done for d in needs[n.id]))
        left.remove(node)
        done.add(node.id)
        found.append(node)
    return found


def test_what_reads_a_weight_after_its_update_still_does() -> None:
    """A parameter whose updated value a later node of the step reads: the update may not wait beyond it."""
    graph, order = chain(64, [4, 4, 4])
    reader = Node(id="reader", op="linear", inputs=("x", "w0"), outputs=("seen",), phase="update")
    value = graph.value["n0.y"].model_copy(update={"id": "seen"})
    program = graph.program[TRAIN]
    wider = graph.model_copy(
        update={
            "values": (*graph.values, value),
            "programs": (program.model_copy(update={"nodes": (*program.nodes, reader)}),),
        }
    )
    found = moved(wider, [*order, reader])
    assert found[-1] == "reader"


def test_a_launch_takes_no_more_than_it_can() -> None:
    """70 biases of a few bytes, and a large image that is alive to the end: all wait, but 56 at most per launch."""
    b = GraphBuilder("many")
    x = images(b, batch=2, size=16)
    for i in range(35):
        x = conv(b, x, 4, f"c{i}", kernel=1, bias=True)
    graph = classifier(b, x)
    plan = plan_for(graph, policy="sequential")
    updates = sum(n.op == "sgd_update" for n in graph.program[TRAIN].nodes)
    found = runs(plan, "sgd_update", graph)
    assert sum(found) == updates == 72
    assert 56 in found and len(found) <= 4


@pytest.mark.parametrize(("network", "most"), [("resnet18", 5), ("dcgan_generator", 3)])
def test_a_plan_says_so_in_its_order_and_passes_the_check(network: str, most: int) -> None:
    graph = build(network, batch=8)
    plan = plan_for(graph, policy="sequential")
    op = "adam_update" if network.startswith("dcgan") else "sgd_update"
    nodes = [n for n in graph.program[TRAIN].nodes if n.op == op]
    found = runs(plan, op, graph)
    assert sum(found) == len(nodes) and len(found) <= most
    assert check(graph, plan, load_target("h200")) == []


def test_several_streams_and_processors_keep_their_order() -> None:
    graph = build("digits_cnn", batch=4)
    plan = plan_for(graph, policy="liu", strategies=(1, 3), lanes=2)
    assert plan.program[TRAIN].nodes
    assert max(runs(plan, "sgd_update", graph)) < 5


def least_budget(graph: Graph) -> int:
    with pytest.raises(UserError) as error:
        plan_for(graph, policy="sequential", memory_budget=1)
    return int(re.findall(r"is (\d+) bytes", error.value.fix)[0])


def test_a_plan_in_bfloat16_rounds_its_weights_in_few_launches() -> None:
    graph = mixed_precision(build("resnet18", batch=16))
    plan = plan_for(graph, policy="sequential")
    copies = [n for n in graph.program[TRAIN].nodes if n.op == "round_weights"]
    found = runs(plan, "round_weights", graph)
    assert sum(found) == len(copies) == 22 and len(found) <= 2
    assert check(graph, plan, load_target("h200")) == []


def test_under_a_budget_working_copies_may_be_made_again() -> None:
    """In front of the backward pass, from the master weights, which are there: the check proves that they are old."""
    graph = mixed_precision(build("resnet18", batch=1, image_size=32))
    free = plan_for(graph, policy="sequential").pools[0].arena
    copies = {n.id for n in graph.program[TRAIN].nodes if n.op == "round_weights"}
    plan = plan_for(graph, policy="sequential", memory_budget=free - 2**20)
    assert copies & {r.of for r in plan.program[TRAIN].rewrite.recomputes}
    assert check(graph, plan, load_target("h200")) == []


@pytest.mark.parametrize("mixed", [False, True])
def test_budgets_are_met_as_before_and_more_memory_is_never_slower(
    mixed: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = small_net(batch=64, size=32)
    graph = mixed_precision(graph) if mixed else graph
    free = plan_for(graph, policy="sequential").pools[0].arena
    least = least_budget(graph)
    budgets = [round(least + part * (free - least)) for part in (0.0, 0.1, 0.4, 0.8, 1.0)]
    plans = [plan_for(graph, policy="sequential", memory_budget=budget) for budget in budgets]
    times = [plan.program[TRAIN].predicted_ns for plan in plans]
    assert times == sorted(times, reverse=True)
    assert all(plan.pools[0].arena <= budget for plan, budget in zip(plans, budgets, strict=True))
    assert all(check(graph, plan, load_target("h200")) == [] for plan in plans)
    assert any(plan.program[TRAIN].rewrite.transfers for plan in plans)
    with monkeypatch.context() as patched:
        patched.setattr("planner.solve.assemble.SHARES", ())
        assert least_budget(graph) == least
        plain = [plan_for(graph, policy="sequential", memory_budget=budget) for budget in budgets]
        assert [plan.program[TRAIN].predicted_ns for plan in plain] == times
        assert [plan.pools[0].arena for plan in plain] == [plan.pools[0].arena for plan in plans]


def test_ops_that_share_launches_make_nothing_that_others_wait_for() -> None:
    assert {name: op_named(name).joint_launch for name in ("sgd_update", "adam_update", "round_weights", "conv2d")} == {
        "sgd_update": 56,
        "adam_update": 43,
        "round_weights": 64,
        "conv2d": 0,
    }
