"""Liu et al.'s tables I to III and figures 3 and 4 on a modelled Knights Landing (Xeon Phi 7250, 68 cores).

python examples/liu_study.py [--network resnet50] [--json]

Nothing here was measured by us: operation times are MODELLED, calibrated to points that the paper prints, and plans
are timed by simulation. The model of a convolution is t(p) = a / p + b + c p on p threads, through the published best
time, best thread count and loss at 68 threads of table II (three input sizes per type, in between by size); everything
else is limited by bandwidth. Times are scaled so that one operation at a time on 68 threads takes what table I says.
"""

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from planner.console import script
from planner.costs.model import modelled_facts
from planner.costs.table import Beside, CoRun, CostEntry, CostTable
from planner.graph.model import Graph
from planner.ops.base import Mode, Op, Signature, op_named
from planner.ops.signature import signature_of
from planner.plan.schema import Plan
from planner.plan.simulate import replay
from planner.report.events import co_running
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target
from planner.target.text import load_target
from planner.zoo import build

CORES = 68


class Point(NamedTuple):
    """A row of table II: the best thread count, its time (ms per run) and the loss at 68 threads."""

    elements: int
    threads: int
    ms: float
    loss: float


SMALL, MIDDLE, LARGE = 32 * 8 * 8 * 384, 32 * 17 * 17 * 384, 32 * 8 * 8 * 2048
TABLE_2: Mapping[str, tuple[Point, ...]] = {
    "conv2d_backward_weights": (
        Point(SMALL, 26, 7.2, 0.173),
        Point(MIDDLE, 42, 11.1, 0.102),
        Point(LARGE, 68, 20.3, 0.0),
    ),
    "conv2d_backward_data": (
        Point(SMALL, 36, 5.8, 0.098),
        Point(MIDDLE, 56, 8.7, 0.023),
        Point(LARGE, 68, 19.6, 0.0),
    ),
    "conv2d": (Point(SMALL, 45, 4.7, 0.111), Point(MIDDLE, 63, 7.4, 0.035), Point(LARGE, 66, 14.8, 0.02)),
}
TABLE_3 = {"serial": 41.1, "hyper-threading 68+68": 39.9, "34+34": 29.8}
AT_34 = {"conv2d_backward_weights": 1.25, "conv2d_backward_data": 1.17}
"""How much longer table III's two operations take alone on 34 threads."""
TABLE_1 = {
    "resnet50": {(1, 34): 1414, (1, 68): 1382, (2, 34): 1088, (4, 34): 1169},
    "dcgan": {(1, 34): 484, (1, 68): 524, (2, 34): 411, (4, 34): 434},
}
"""(inter-op, intra-op) -> ms; the rows that put several threads on a core are left out, they are not modelled."""
FIGURE_3 = {
    "resnet50": {"1,2": 1.02, "3": 1.35, "4": 1.08, "all": 1.49},
    "dcgan": {"1,2": 1.12, "3": 1.15, "4": 1.04, "all": 1.34},
    "inception_v3": {"1,2": 1.02, "3": 1.07, "4": 1.07, "all": 1.17},
    "lstm": {"1,2": 1.14, "3": 1.25, "4": 1.0, "all": 1.43},
}
"""Published factors: strategies 1 and 2 over the recommendation, 3 over those, 4 over those, all together (where the
text gives no number, the product of the parts)."""
UNIFORM = ((1, 34), (1, 68), (2, 17), (2, 34), (4, 17), (8, 8), (17, 4), (34, 2), (68, 1))
"""(inter-op, intra-op): at most so many nodes at a time, each on so many threads."""
NETWORKS: Mapping[str, dict[str, int]] = {
    "resnet50": {"batch": 64, "image_size": 32},
    "dcgan": {"batch": 64},
    "inception_v3": {"batch": 16},
    "lstm": {"batch": 20},
}


class Curve(NamedTuple):
    """t(p) = a / p + b + c p, ns."""

    a: float
    b: float
    c: float

    def at(self, threads: int) -> float:
        return self.a / threads + self.b + self.c * threads


def curve(threads: float, ns: float, loss: float) -> Curve:
    """The curve with its least value `ns` at `threads`, and 1 + loss times that at 68 threads."""
    if threads >= CORES - 1:  # no loss to fit: nothing serial, and its optimum at all cores
        return Curve(ns * CORES / 2, 0.0, ns / 2 / CORES)
    c = loss * ns * CORES / (CORES - threads) ** 2
    c = min(c, ns / (2 * threads))  # the serial part is not negative
    return Curve(c * threads**2, ns - 2 * c * threads, c)


def convolution(op: str, elements: int) -> Curve:
    """Between the published sizes by powers of the size; beyond them in proportion to it, as many threads as its
    square root asks for."""
    points = TABLE_2[op]
    low, high = (points[0], points[1]) if elements < points[1].elements else (points[1], points[2])
    within = min(max(elements, points[0].elements), points[2].elements)
    share = math.log(within / low.elements) / math.log(high.elements / low.elements)
    threads = low.threads * (high.threads / low.threads) ** share
    ns = 1e6 * low.ms * (high.ms / low.ms) ** share * elements / within
    threads *= math.sqrt(elements / within)
    loss = max(0.0, low.loss + share * (high.loss - low.loss))
    return curve(min(float(CORES), max(2.0, threads)), ns, min(loss, 0.2))


def operation(op: Op, signature: Signature) -> Curve:
    if signature.op in TABLE_2:
        return convolution(signature.op, signature.inputs[0].elements)
    moved = op.bytes_moved(signature)
    threads = min(float(CORES), max(2.0, (moved / 2**16) ** 0.5))
    return curve(threads, 2000.0 + moved / 200.0 + op.flops(signature) / 400.0, 0.1)  # 200 GB/s, 400 GFLOP/s


def published_costs(graph: Graph, target: Target, scale: float = 1.0) -> CostTable:
    """A modelled table for every signature and every number of threads."""
    entries: dict[tuple[str, int], CostEntry] = {}
    for program in graph.programs:
        for node in program.nodes:
            signature, op = signature_of(graph, node), op_named(node.op)
            if op.alias(signature) is not None or (signature.text, 1) in entries:
                continue
            (kernel, dim), limit = max(op.dims(signature).items(), key=lambda d: (d[1], d[0]))
            shape = operation(op, signature)
            most = min(limit, CORES)
            for count in range(1, most + 1):
                mode = Mode(kernel, dim, count)
                facts = modelled_facts(op, signature, mode)
                stages = op.stage_count(signature, mode, facts)
                ns = round(scale * shape.at(count) / stages, 1)
                entries[signature.text, count] = CostEntry(
                    signature=signature.text,
                    kernel=kernel,
                    dim=dim,
                    slices=count,
                    warm_ns=(ns,) * stages,
                    cold_ns=(ns,) * stages,
                    facts=dict(facts),
                    source="modelled",
                )
    return CostTable(
        target=target.name,
        fingerprint=target.fingerprint(),
        entries=tuple(entries[k] for k in sorted(entries)),
        sync_ns=1000.0,
    )


def table_2() -> list[dict[str, Any]]:
    """Whether the curves go through the published points."""
    rows = []
    for op, points in TABLE_2.items():
        for point in points:
            found = convolution(op, point.elements)
            best = min(range(1, CORES + 1), key=found.at)
            loss = found.at(CORES) / found.at(best) - 1
            rows.append(
                {"op": op, "threads": (point.threads, best), "ms": (point.ms, round(found.at(best) / 1e6, 2))}
                | {"loss": (point.loss, round(loss, 3))}
            )
    return rows


def table_3() -> list[dict[str, Any]]:
    """The two convolutions of table III: their slow-down beside each other is the published 29.8 s against what the
    longer one takes alone on 34 threads; second threads by the published gain of 1.03."""
    alone = {op: points[2].ms for op, points in TABLE_2.items() if op in AT_34}
    halves = {op: alone[op] * AT_34[op] for op in alone}
    factor = TABLE_3["34+34"] / max(halves.values())
    serial = sum(alone.values())
    return [
        {"strategy": "serial", "published": TABLE_3["serial"], "modelled": round(serial, 1)},
        {
            "strategy": "hyper-threading",
            "published": TABLE_3["hyper-threading 68+68"],
            "modelled": round(serial / 1.03, 1),
        },
        {"strategy": "34+34", "published": TABLE_3["34+34"], "modelled": round(factor * max(halves.values()), 1)},
    ]


def slow_pairs(table: CostTable, graph: Graph) -> CostTable:
    """Table III's slow-down for convolution gradients of one layer side by side at about half of the cores."""
    factor = TABLE_3["34+34"] / (20.3 * AT_34["conv2d_backward_weights"])
    nodes = {n.id: n for p in graph.programs for n in p.nodes}
    pairs = []
    for name, node in nodes.items():
        other = nodes.get(name.removesuffix("backward_data") + "backward_weights")
        if node.op != "conv2d_backward_data" or other is None:
            continue
        keys = [signature_of(graph, n).text for n in (node, other)]
        for one in table.modes(keys[0]):
            for two in table.modes(keys[1]):
                if one.slices == two.slices:
                    both = sorted((one, two), key=lambda e: (e.signature, e.mode))
                    first, second = (_beside(e, factor) for e in both)
                    pairs.append(CoRun(first=first, second=second))
    return table.with_coruns(pairs)


def _beside(entry: CostEntry, factor: float) -> Beside:
    return Beside(
        signature=entry.signature, kernel=entry.kernel, dim=entry.dim, slices=entry.slices, factor=round(factor, 3)
    )


def step_ms(plan: Plan) -> float:
    return plan.programs[0].predicted_ns / 1e6


def study(name: str, target: Target) -> dict[str, Any]:
    """Table I, figure 3 and figure 4 of one network."""
    graph = build(name, **NETWORKS[name])
    graph = graph.model_copy(update={"programs": graph.programs[:1]})
    sequential = PlanOptions(policy="sequential")
    scale = 1.0
    if (1, 68) in TABLE_1.get(name, {}):
        scale = TABLE_1[name][1, 68] / step_ms(make_plan(graph, target, published_costs(graph, target), sequential))
    table = slow_pairs(published_costs(graph, target, scale), graph)
    uniform = {}
    for inter, intra in UNIFORM:
        options = PlanOptions(policy="liu", strategies=(3,), uniform=intra, lanes=inter * intra)
        uniform[f"{inter}x{intra}"] = round(step_ms(make_plan(graph, target, table, options)), 1)
    ways: dict[str, PlanOptions] = {"recommended": sequential}
    for strategies in ((1, 2), (1, 2, 3), (1, 2, 3, 4), (1, 3), (1, 3, 4)):
        ways[",".join(map(str, strategies))] = PlanOptions(policy="liu", strategies=strategies)
    ways["auto"] = PlanOptions()
    figure_3, figure_4 = {}, {}
    for way, options in ways.items():
        plan = make_plan(graph, target, table, options)
        figure_3[way] = round(step_ms(plan), 1)
        figure_4[way] = co_running(replay(plan, plan.programs[0], sync_ns=table.sync_ns).rows())._asdict()
    published = {f"{i}x{j}": ms for (i, j), ms in TABLE_1.get(name, {}).items()}
    return {
        "network": name,
        "modelled": True,
        "table_1_published_ms": published,
        "uniform_ms": uniform,
        "figure_3_ms": figure_3,
        "figure_3_published": FIGURE_3[name],
        "figure_4": figure_4,
    }


def lines_of(found: Mapping[str, Any]) -> list[str]:
    ms, published = found["figure_3_ms"], found["figure_3_published"]
    base = ms["recommended"]
    lines = [f"{found['network']} (modelled)"]
    for pair, time in found["uniform_ms"].items():
        told = found["table_1_published_ms"].get(pair)
        lines.append(f"  inter x intra {pair:7} {time:9.1f} ms" + (f", published {told}" if told else ""))
    for way, time in ms.items():
        events = found["figure_4"][way]
        lines.append(f"  {way:12} {time:9.1f} ms, {base / time:.2f}x, {events['mean']:.2f} nodes at once at an event")
    lines.append(f"  published factors: {', '.join(f'{k}: {v}' for k, v in published.items())}")
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", choices=sorted(NETWORKS), action="append")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    target = load_target("knl7250")
    document: dict[str, Any] = {"table_2": table_2(), "table_3": table_3(), "networks": []}
    if not chosen.json:
        print("everything below is modelled; (published, modelled)")
        for row in (*document["table_2"], *document["table_3"]):
            print("  " + ", ".join(f"{k} {v}" for k, v in row.items()))
    for name in chosen.network or NETWORKS:
        document["networks"].append(study(name, target))
        if not chosen.json:
            print("\n".join(lines_of(document["networks"][-1])), flush=True)
    if chosen.json:
        print(json.dumps(document))


if __name__ == "__main__":
    script(main)
