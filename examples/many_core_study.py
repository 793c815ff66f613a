"""Concurrency control on this machine, measured: for a machine with many cores, within ten minutes.

python examples/many_core_study.py [--network resnet50 ...] [--seconds 600] [--lanes N] [--torch] -o results.json

For every network: times the kernels and the pairs that plans run side by side; plans each policy, set of strategies and
uniform setting (inter-op x intra-op); builds and runs the plans, steps in turn so that a machine that slows down slows
all; counts the nodes that run at once at every event, as planned and as traced (figure 4). Then the 26 embeddings of
wide & deep as a parallel operator, executors beside each other and beside PyTorch, and how well hill climbing predicts
the counts that it skips (table V; table IV for regressions).

Everything goes into one file, written after every part, so that a run that is cut off leaves what it has; what the time
did not suffice for is named there (`left_out`). Beside every measured time stands the predicted one.
"""

import argparse
import json
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from ablation import has_smt, ways
from performance_model_study import table_4, table_5
from side_by_side_study import study as side_by_side

from codegen.build import build as compile_folder
from codegen.contender import WAYS, Contender, Failed, Work
from codegen.cpu.emit import emit
from codegen.load import executor_class
from codegen.pairs import profile_pairs
from codegen.profile import profile
from codegen.steps import random_inputs, spread, timed
from codegen.tracing import rows_of
from planner.artefact import write_text
from planner.console import script
from planner.costs.table import CostTable
from planner.graph.model import Graph, Node
from planner.ops.signature import signature_of
from planner.plan.schema import Plan
from planner.plan.simulate import replay
from planner.report.events import Row, co_running, events, node_spans
from planner.solve.options import ParallelOps, Pins, PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.model import Target
from planner.zoo import build

NETWORKS = ("resnet50", "dcgan", "inception_v3", "lstm")
STEPS = 7
SHARES = {"networks": 0.7, "parallel operators": 0.08, "side by side": 0.07, "interpolation": 0.15}
"""Of the time."""
LEAST_S = 40.0
"""Of the last parts none is begun later than that before the end: building alone takes as long on two cores."""
SLOWEST = 6
"""Kernels per network of which every slice count is timed: those that take most of the step."""


class Clock:
    """How much of a part's time is left."""

    def __init__(self, seconds: float) -> None:
        self._end = time.monotonic() + seconds

    @property
    def left(self) -> float:
        return self._end - time.monotonic()


def candidates(lanes: int, smt: bool) -> dict[str, PlanOptions]:
    """Name -> options: what figure 3 compares, and every uniform pair (inter-op x intra-op) on these lanes."""
    found = ways(lanes, smt)
    intra = lanes // 2
    while intra:
        uniform = {"policy": "liu", "lanes": lanes, "uniform": intra}
        found[f"uniform 1 x {intra}"] = PlanOptions(**uniform)
        found[f"uniform {lanes // intra} x {intra}"] = PlanOptions(strategies=(3,), **uniform)
        intra //= 2
    return found


def plans_of(
    graph: Graph, target: Target, table: CostTable, lanes: int, smt: bool
) -> tuple[dict[str, Plan], dict[str, str]]:
    """Different plans in the order in which they matter, and for each name that is no plan of its own, whose it is."""
    made = {n: make_plan(graph, target, table, options) for n, options in candidates(lanes, smt).items()}
    uniform = sorted((n for n in made if n.startswith("uniform")), key=lambda n: made[n].programs[0].predicted_ns)
    order = ["auto", "sequential", *uniform[:2], *(n for n in made if n not in uniform), *uniform[2:]]
    plans: dict[str, Plan] = {}
    same: dict[str, str] = {}
    for name in dict.fromkeys(order):
        twin = next((n for n, p in plans.items() if p.programs == made[name].programs), None)
        if twin is None:
            plans[name] = made[name]
        else:
            same[name] = twin
    return plans, same


def measure(
    graph: Graph, target: Target, plans: Mapping[str, Plan], folder: Path, torch: bool, clock: Clock
) -> tuple[list[dict[str, Any]], list[str], dict[str, Any]]:
    """One row per plan that there was time for, the names of the others, and figure 4 of `auto`."""
    inputs, times = random_inputs(graph), {name: list[float]() for name in plans}
    rows: list[dict[str, Any]] = []
    left_out: list[str] = []
    figure: dict[str, Any] = {}
    with ExitStack() as stack:
        executors: dict[str, Any] = {}
        longest = 0.0
        reserve = 0.4 if torch else 0.1  # of the time, for what comes after building
        total = clock.left
        for number, (name, plan) in enumerate(plans.items()):
            if name not in ("auto", "sequential") and clock.left < reserve * total + longest:
                left_out.append(name)
                continue
            begun = time.monotonic()
            emit(plan, graph, target, folder / f"plan{number}")
            compile_folder(folder / f"plan{number}")
            executors[name] = stack.enter_context(executor_class(folder / f"plan{number}")(seed=0))
            longest = max(longest, time.monotonic() - begun)
        for step in range(STEPS + 2):
            for name, executor in executors.items():
                begun_ns = time.perf_counter_ns()
                executor.step(*inputs)
                if step > 1:
                    times[name].append(float(time.perf_counter_ns() - begun_ns))
        for name, executor in executors.items():
            executor.trace()
            executor.step(*inputs)
            traced = rows_of(executor.trace_events())
            executor.trace(on=False)
            rows.append(
                {
                    "plan": name,
                    "ms": median(times[name]) / 1e6,
                    "spread": spread(times[name]),
                    "predicted_ms": plans[name].program["train_step"].predicted_ns / 1e6,
                    "arena_bytes": plans[name].pools[0].arena,
                    "co_running": co_running(traced).text(),
                }
            )
            if name == "auto":
                planned = replay(plans[name], plans[name].program["train_step"]).rows()
                figure = {"planned": counts(planned), "measured": counts(traced)}
        if torch:
            found, missed = against_torch(
                graph, inputs, executors["auto"].state_dict(), len(plans["auto"].lanes), clock
            )
            rows, left_out = rows + found, left_out + missed
    return rows, left_out, figure


def counts(rows: Sequence[Row]) -> list[int]:
    """Nodes that run after every event."""
    return [event.running for event in events(rows)]


def against_torch(
    graph: Graph, inputs: list[Any], state: dict[str, Any], lanes: int, clock: Clock
) -> tuple[list[dict[str, Any]], list[str]]:
    """PyTorch's steps, as many ways as there is time for, and what is left out: preparing the next one takes at most as
    long as compiling."""
    rows: list[dict[str, Any]] = []
    failed: list[str] = []
    for number, way in enumerate(WAYS, 1):
        begun = time.monotonic()
        try:
            with Contender(way, Work(graph, inputs, state, lanes)) as contender:
                took = contender.timed(STEPS)
            rows.append({"plan": f"torch {way}", "ms": median(took) / 1e6, "spread": spread(took)})
        except Failed as reason:
            failed.append(f"torch {way}: {reason}")
        if number < len(WAYS) and clock.left < 2 * (time.monotonic() - begun):
            return rows, [*failed, "further ways of PyTorch"]
    return rows, failed


def network_study(
    name: str, batch: int | None, target: Target, lanes: int, seconds: float, torch: bool, table: CostTable | None
) -> tuple[dict[str, Any], CostTable]:
    graph, clock = build(name, batch), Clock(seconds)
    table = profile([graph], target, table, lanes=lanes, budget_s=0.25 * seconds)
    table = profile_pairs([graph], target, table, options=PlanOptions(lanes=lanes), budget_s=0.1 * seconds)
    plans, same = plans_of(graph, target, table, lanes, has_smt(target))
    with tempfile.TemporaryDirectory(prefix="stepplan-study-") as folder:
        rows, left_out, figure = measure(graph, target, plans, Path(folder), torch, clock)
    ours = {row["plan"]: row["ms"] for row in rows}
    ours |= {n: ours[other] for n, other in same.items() if other in ours}
    summary: dict[str, Any] = {"network": graph.name, "seconds": seconds - clock.left, "rows": rows}
    summary |= {"same_plan_as": same, "left_out": left_out, "figure_4": figure}
    summary["figure_3"] = {n: ours["sequential"] / ours[n] for n in ways(lanes, has_smt(target)) if n in ours}
    summary["auto_over_sequential"] = ours["sequential"] / ours["auto"]
    uniform = {k: v for k, v in ours.items() if k.startswith("uniform") or k == "sequential"}
    best = min(uniform, key=lambda k: uniform[k])
    return summary | {"best_uniform": best, "auto_over_best_uniform": uniform[best] / ours["auto"]}, table


def parallel_operators(
    batch: int | None, target: Target, lanes: int, seconds: float, table: CostTable
) -> tuple[dict[str, Any], CostTable]:
    """Wide & deep: its embeddings one after the other, each on one lane or as many as are best, and side by side."""
    graph = build("wide_deep", batch)
    table = profile([graph], target, table, lanes=lanes, budget_s=0.3 * seconds)
    embeddings = [n.id for n in graph.program["train_step"].nodes if n.op == "embedding"]
    one = PlanOptions(policy="liu", strategies=(1,), lanes=lanes)
    options = {
        "one lane each, one after the other": one.model_copy(
            update={"pins": Pins(slices=dict.fromkeys(embeddings, 1))}
        ),
        "one after the other": one,
        "parallel operators": one.model_copy(update={"parallel_ops": ParallelOps()}),
    }
    rows, inputs = [], random_inputs(graph)
    with tempfile.TemporaryDirectory(prefix="stepplan-study-") as folder:
        for number, (name, wanted) in enumerate(options.items()):
            plan = make_plan(graph, target, table, wanted)
            emit(plan, graph, target, Path(folder) / str(number))
            compile_folder(Path(folder) / str(number))
            with executor_class(Path(folder) / str(number))(seed=0) as executor:
                took = list(timed(lambda executor=executor: executor.step(*inputs), STEPS + 2))[2:]
                executor.trace()
                for _ in range(STEPS):
                    executor.step(*inputs)
                spans = [node_spans(rows_of([run])) for run in executor.trace_events()]
            busy = [covered([s[n] for n in embeddings]) for s in spans]
            rows.append(
                {
                    "plan": name,
                    "step_ms": median(took) / 1e6,
                    "embeddings_us": median(busy) / 1e3,
                }
            )
    return {"network": graph.name, "embeddings": len(embeddings), "published": 3.7, "rows": rows}, table


def covered(spans: Sequence[tuple[float, float]]) -> float:
    """ns during which at least one of them runs."""
    total, reached = 0.0, float("-inf")
    for start, end in sorted(spans):
        total += max(0.0, end - max(start, reached))
        reached = max(reached, end)
    return total


def interpolation(graphs: Mapping[str, Graph], target: Target, lanes: int, seconds: float, table: CostTable) -> Any:
    """Tables IV and V from the slowest kernels of every network, every slice count timed."""
    chosen = {name: slowest(graph, table) for name, graph in graphs.items()}
    every = profile(list(chosen.values()), target, None, lanes=lanes, every_count=True, budget_s=seconds)
    found = {"table_5": table_5(every, chosen), "table_4": table_4(every, chosen, list(chosen)[-1])}
    return found | ({} if found["table_5"] else {"note": "these cores leave no count to predict"})


def slowest(graph: Graph, table: CostTable) -> Graph:
    """A graph of the nodes that take most of the step, one per signature."""
    program, share = graph.program["train_step"], dict[str, float]()
    first: dict[str, Node] = {}
    for node in program.nodes:
        signature = signature_of(graph, node)
        times = [sum(e.cold_ns) for e in table.modes(signature.text)]
        if times:
            first.setdefault(signature.text, node)
            share[signature.text] = share.get(signature.text, 0.0) + min(times)
    kept = sorted(share, key=lambda text: -share[text])[:SLOWEST]
    nodes = tuple(first[text] for text in kept)
    return graph.model_copy(update={"programs": (program.model_copy(update={"nodes": nodes}),)})


def lines_of(summary: Mapping[str, Any]) -> list[str]:
    lines = [f"{summary['network']}, {summary['seconds']:.0f} s"]
    for row in summary["rows"]:
        predicted = f", predicted {row['predicted_ms']:.3f}" if "predicted_ms" in row else ""
        lines.append(f"  {row['plan']:18} {row['ms']:10.3f} ms (spread {row['spread']:.1%}){predicted}")
        if "co_running" in row:
            lines.append(f"{'':20} {row['co_running']}")
    lines += [f"  {k} is the same plan as {v}" for k, v in summary["same_plan_as"].items()]
    lines += [f"  left out: {', '.join(summary['left_out'])}"] if summary["left_out"] else []
    lines += [f"  {k} {summary[k]:.3f}" for k in ("auto_over_sequential", "auto_over_best_uniform") if k in summary]
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", action="append", help="default: " + ", ".join(NETWORKS))
    parser.add_argument("--batch", type=int, help="default: each network's own")
    parser.add_argument("--seconds", type=float, default=600.0, help="for everything, roughly")
    parser.add_argument("--lanes", type=int, help="default: one per core")
    parser.add_argument("--torch", action="store_true", help="PyTorch eager and compiled as well")
    parser.add_argument("-o", "--out", type=Path, default=Path("many_core.json"))
    chosen = parser.parse_args(arguments)
    target, clock = detect(measure=True), Clock(chosen.seconds)
    lanes, names = chosen.lanes or target.physical_cores, chosen.network or NETWORKS
    document: dict[str, Any] = {"target": target.model_dump(mode="json"), "lanes": lanes, "networks": []}
    table: CostTable | None = None
    for number, name in enumerate(names):
        # What one network leaves goes to the next ones.
        part = max(10.0, (clock.left - (1 - SHARES["networks"]) * chosen.seconds) / (len(names) - number))
        summary, table = network_study(name, chosen.batch, target, lanes, part, chosen.torch, table)
        document["networks"].append(summary)
        write_text(chosen.out, json.dumps(document, indent=1))
        print("\n".join(lines_of(summary)), flush=True)
    assert table is not None

    def embeddings(seconds: float) -> Any:
        return parallel_operators(chosen.batch, target, lanes, seconds, table)[0]

    def beside(seconds: float) -> Any:
        return side_by_side(build("digits_cnn"), target, seconds / 8, chosen.torch)

    def climbing(seconds: float) -> Any:
        return interpolation({n: build(n, chosen.batch) for n in names}, target, lanes, seconds / 2, table)

    document["left_out"] = []
    for part_name, run in (("interpolation", climbing), ("side by side", beside), ("parallel operators", embeddings)):
        seconds = SHARES[part_name] * chosen.seconds
        if clock.left < max(0.5 * seconds, LEAST_S):
            document["left_out"].append(part_name)
            continue
        document[part_name] = run(seconds)
        write_text(chosen.out, json.dumps(document, indent=1))
        print(f"{part_name}: {json.dumps(document[part_name])}", flush=True)
    measured = ("bandwidth", "thread_bandwidth", "smt_gain", "sync_ns", "launch_ns", "handoff_ns", "flops")
    document["machine"] = {name: getattr(table, name) for name in measured}
    document["machine"]["smt_gain_measured"] = has_smt(target)
    document["seconds"] = chosen.seconds - clock.left
    write_text(chosen.out, json.dumps(document, indent=1))
    print(f"machine: {json.dumps(document['machine'])}; {document['seconds']:.0f} s in all", flush=True)


if __name__ == "__main__":
    script(main)
