"""Slow-downs of pairs of nodes on two streams of a GPU (Liu et al., table VII): plan, time the pairs that the plan runs
side by side, plan again; as codegen/pairs.py does on processors, whose rules for what a factor is hold here too."""

import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path

from codegen.build import build
from codegen.cuda.executor import CudaExecutor
from codegen.emit import emit
from codegen.initial import with_drawn_data
from codegen.load import executor_class
from codegen.pairs import MOST_COPIES, ROUNDS, PairTime, longest_overlaps
from planner.costs.table import Beside, CoRun, CostTable
from planner.graph.model import Graph
from planner.ops.base import Mode
from planner.ops.signature import signature_of
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target

REPETITIONS = 10
STREAMS = 2

Progress = Callable[[str, int, int], None]
Key = tuple[str, Mode]


def profile_pairs(
    graphs: Sequence[Graph],
    target: Target,
    table: CostTable,
    *,
    lanes: int = STREAMS,
    device: int = 0,
    null_device: bool = False,
    progress: Progress = lambda what, done, total: None,
    save: Callable[[CostTable], None] = lambda table: None,
) -> CostTable:
    """The table with the slow-downs of the pairs that plans of these graphs run on several streams."""
    options = PlanOptions(policy="liu", strategies=(1, 3), search=True, lanes=lanes)
    for _ in range(ROUNDS):
        measured: list[CoRun] = []
        for number, graph in enumerate(map(with_drawn_data, graphs)):
            progress("timing pairs", number, len(graphs))
            plan = make_plan(graph, target, table, options)
            wanted = longest_overlaps(graph, plan, table)
            if wanted:
                measured += _measure(graph, plan, target, wanted, device, null_device)
        if not measured:
            break
        table = table.with_coruns(measured)
        save(table)
    return table


def _measure(
    graph: Graph, plan: Plan, target: Target, wanted: Sequence[tuple[str, str, str]], device: int, null_device: bool
) -> list[CoRun]:
    found = []
    with tempfile.TemporaryDirectory(prefix="stepplan-pairs-") as folder:
        emit(plan, graph, target, folder)
        build(Path(folder), null_device=null_device)
        made = executor_class(folder)
        assert issubclass(made, CudaExecutor)
        with made(seed=0, device=device, null_device=null_device) as executor:
            for program, first, second in wanted:
                factors = time_pair(executor, program, first, second).factors
                one, other = (
                    _beside(graph, plan, program, node, factor)
                    for node, factor in zip((first, second), factors, strict=True)
                )
                found.append(CoRun(first=one, second=other))
    return found


def time_pair(
    executor: CudaExecutor, program: str, first: str, second: str, repetitions: int = REPETITIONS
) -> PairTime:
    """Two nodes of a program on two streams, on what the arena holds."""
    planned = executor.plan.program[program].node
    ratio = max(1, planned[first].predicted_ns) / max(1, planned[second].predicted_ns)
    copies = (max(1, min(MOST_COPIES, round(1 / ratio))), max(1, min(MOST_COPIES, round(ratio))))
    times = executor.pair_times(program, (first, second), copies, repetitions)
    return PairTime((times[0], times[1]), (times[2], times[3]), times[4])


def _beside(graph: Graph, plan: Plan, program: str, node: str, factor: float) -> Beside:
    mode = plan.program[program].node[node].mode
    signature = signature_of(graph, graph.program[program].node[node]).text
    return Beside(
        signature=signature,
        kernel=mode.kernel,
        dim=mode.dim,
        slices=mode.slices,
        implementation=mode.implementation,
        factor=factor,
    )
