"""Two executors in one process, and one beside PyTorch's own threads: each on its half of the cores, timed alone and
beside the other.

python examples/side_by_side_study.py [--network digits_cnn] [--batch N] [--seconds 5] [--json]

The bar: no deadlock (a watchdog ends the study), and nobody more than 15 % slower than alone. Costs are modelled:
nothing is profiled, and what is compared is the same executor with itself.
"""

import argparse
import faulthandler
import json
import os
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from statistics import median
from typing import Any

from codegen.build import build as compile_folder
from codegen.contender import WARM_STEPS, WAYS
from codegen.cpu.emit import emit
from codegen.facts import facts
from codegen.load import executor_class
from codegen.steps import random_inputs
from planner.console import script
from planner.costs.model import modelled_costs
from planner.graph.model import Graph
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.detect import detect
from planner.target.model import Target
from planner.zoo import build

BAR = 1.15
ROUNDS = 3
"""Alone and together in turn, so that a machine that slows down slows both."""
PATIENCE_S = 120
"""Beyond the time of a phase: whoever still waits then is stuck."""


def halves(target: Target) -> tuple[Target, Target]:
    """The first and the second half of the cores. No core is in both."""
    cores = target.cpu.cores
    middle = len(cores) // 2
    return tuple(
        target.model_copy(update={"cpu": target.cpu.model_copy(update={"cores": part})})
        for part in (cores[:middle], cores[middle : 2 * middle])
    )  # type: ignore[return-value]


def executor(graph: Graph, target: Target, folder: Path) -> Any:
    costs = modelled_costs(graph, target, facts)
    emit(make_plan(graph, target, costs, PlanOptions(policy="sequential")), graph, target, folder)
    compile_folder(folder)
    return executor_class(folder)(seed=0)


def together(steps: Sequence[Callable[[], object]], seconds: float) -> list[float]:
    """Median seconds of each one's steps while all of them repeat in threads of their own."""
    times: list[list[float]] = [[] for _ in steps]
    start, failed = threading.Barrier(len(steps)), list[BaseException]()

    def loop(number: int) -> None:
        try:
            steps[number]()
            start.wait(PATIENCE_S)
            end = time.perf_counter() + seconds
            while (begun := time.perf_counter()) < end:
                steps[number]()
                times[number].append(time.perf_counter() - begun)
        except BaseException as error:
            failed.append(error)
            raise

    threads = [threading.Thread(target=loop, args=(i,), daemon=True) for i in range(len(steps))]
    faulthandler.dump_traceback_later(seconds + PATIENCE_S, exit=True)
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    faulthandler.cancel_dump_traceback_later()
    if failed:
        raise failed[0]
    return [median(t) for t in times]


def compare(names: Sequence[str], steps: Sequence[Callable[[], object]], seconds: float) -> list[dict[str, Any]]:
    """Each alone and all together, in turn; the medians of the ratios."""
    alone: list[list[float]] = [[] for _ in steps]
    beside: list[list[float]] = [[] for _ in steps]
    part = seconds / ROUNDS
    for _ in range(ROUNDS):
        for number, step in enumerate(steps):
            alone[number] += together([step], part)
        for number, took in enumerate(together(steps, part)):
            beside[number].append(took)
    return [
        {
            "who": name,
            "alone_ms": round(1e3 * median(a), 3),
            "beside_ms": round(1e3 * median(b), 3),
            "ratio": round(median(y / x for x, y in zip(a, b, strict=True)), 3),
        }
        for name, a, b in zip(names, alone, beside, strict=True)
    ]


def pinned(step: Callable[[], object], cpus: set[int]) -> Callable[[], object]:
    """The step, its calling thread kept to some processors: PyTorch's workers inherit that when they start."""

    def run() -> object:
        os.sched_setaffinity(0, cpus)
        return step()

    return run


def study(graph: Graph, target: Target, seconds: float, torch: bool) -> dict[str, Any]:
    first, second = halves(target)
    inputs = random_inputs(graph)
    found: dict[str, Any] = {"network": graph.name, "cores_each": len(first.cpu.cores)}
    everywhere = os.sched_getaffinity(0)
    with ExitStack() as stack, tempfile.TemporaryDirectory(prefix="stepplan-beside-") as folder:
        one = stack.enter_context(executor(graph, first, Path(folder) / "one"))
        two = stack.enter_context(executor(graph, second, Path(folder) / "two"))
        found["two_executors"] = compare(
            ("first executor", "second executor"),
            (lambda: one.step(*inputs), lambda: two.step(*inputs)),
            seconds,
        )
        if torch:
            from codegen.torch_steps import prepare

            theirs = {core.cpus[0] for core in second.cpu.cores}
            os.sched_setaffinity(0, theirs)  # its pool starts on these
            eager = prepare(graph, inputs, one.state_dict(), len(theirs), WAYS[0])
            for _ in range(WARM_STEPS):
                eager()
            os.sched_setaffinity(0, everywhere)
            names = ("executor", "PyTorch eager")
            found["beside_torch"] = compare(names, (lambda: one.step(*inputs), pinned(eager, theirs)), seconds)
    return found


def lines_of(found: dict[str, Any]) -> list[str]:
    lines = [f"{found['network']}, {found['cores_each']} cores each"]
    for part in ("two_executors", "beside_torch"):
        for row in found.get(part, ()):
            verdict = "" if row["ratio"] <= BAR else f", misses {BAR}"
            lines.append(
                f"  {part}: {row['who']:16} alone {row['alone_ms']:.3f} ms, beside {row['beside_ms']:.3f} ms,"
                f" {row['ratio']:.3f}x{verdict}"
            )
    return lines


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--network", default="digits_cnn")
    parser.add_argument("--batch", type=int)
    parser.add_argument("--seconds", type=float, default=5.0, help="for each of them, alone and beside")
    parser.add_argument("--no-torch", action="store_true")
    parser.add_argument("--json", action="store_true")
    chosen = parser.parse_args(arguments)
    target = detect(measure=True)
    if target.physical_cores < 2:
        sys.exit("two halves need two cores")
    found = study(build(chosen.network, chosen.batch), target, chosen.seconds, not chosen.no_torch)
    print(json.dumps(found) if chosen.json else "\n".join(lines_of(found)))


if __name__ == "__main__":
    script(main)
