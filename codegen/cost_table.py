"""A target's cost table, however its times can be had: measured on processors, measured on a GPU, or modelled."""

import os
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import codegen.cuda.facts
import codegen.facts
from codegen.cuda.pairs import profile_pairs as profile_gpu_pairs
from codegen.cuda.profile import profile as profile_gpu
from codegen.measure import Progress
from codegen.pairs import profile_pairs
from codegen.profile import profile, to_visit
from planner.costs.model import modelled_costs, modelled_facts
from planner.costs.table import CostTable, started
from planner.errors import UserError
from planner.graph.model import DType, Graph
from planner.ops.base import Facts, Mode, Signature, op_named
from planner.solve.options import PlanOptions
from planner.target.detect import detect
from planner.target.model import Target


def fill(
    graphs: Sequence[Graph],
    target: Target,
    table: CostTable | None = None,
    *,
    modelled: bool = False,
    tf32: bool = False,
    pairs: bool = True,
    interval: int | None = None,
    options: PlanOptions | None = None,
    budget_s: float | None = None,
    progress: Progress = lambda what, done, total: None,
    save: Callable[[CostTable], None] = lambda table: None,
) -> CostTable:
    """Whatever `table` lacks of the graphs' signatures; `save` gets what is there so far, and the end of it.

    `modelled`: from FLOPs, bytes and the target file instead of running anything, for a machine that is not at hand.
    `tf32`: on a GPU, let matrix units round operands to 10 bits. `pairs`: time nodes side by side, on a GPU where
    `options` ask for several streams. `interval`, `options`, `budget_s`: on processors, see profile and profile_pairs.
    SP1204, SP1603, SP1804, and what the chosen way raises.
    """
    if tf32 and not target.gpus:
        raise UserError("SP1804", f"TF32 is a format of GPUs, and target {target.name} has none", "leave --tf32 out")
    if modelled:
        table = with_modelled(graphs, target, table)
    elif target.gpus:
        table = profile_gpu(graphs, target, table, tf32=tf32, progress=progress, save=save)
        if pairs and options and (options.lanes or 1) > 1:
            table = profile_gpu_pairs(graphs, target, table, lanes=options.lanes or 1, progress=progress, save=save)
    else:
        if to_visit(graphs, started(table, target), len(target.lanes(None))):
            _require_at_hand(target)
        table = profile(graphs, target, table, interval=interval, budget_s=budget_s, progress=progress, save=save)
        if pairs:
            table = profile_pairs(
                graphs, target, table, options=options, budget_s=budget_s, progress=progress, save=save
            )
    save(table)
    return table


def _require_at_hand(target: Target) -> None:
    """SP1603 where lanes would run on processors that this process cannot use: told before anything is compiled, and
    with what helps whoever plans for another machine."""

    def missing() -> list[int]:
        return [cpu for cpu in target.lanes(None) if not _usable(cpu)]

    with ThreadPoolExecutor(1) as thread:  # which is pinned instead of the caller's
        absent = thread.submit(missing).result()
    if absent:
        some = ", ".join(map(str, absent[:4])) + ", ..." * (len(absent) > 4)
        problem = f"target {target.name} has logical processors that this process may not use: {some}"
        fix = "profile on that machine, or pass --modelled to estimate its times; for this machine, stepplan detect"
        raise UserError("SP1603", problem, fix)


def _usable(cpu: int) -> bool:
    try:
        os.sched_setaffinity(0, {cpu})
    except OSError:
        return False
    return True


def with_modelled(graphs: Sequence[Graph], target: Target, table: CostTable | None) -> CostTable:
    """The table with an estimate for every signature that it lacks altogether. SP1204: it is another machine's."""
    table = started(table, target)
    facts = codegen.cuda.facts.facts if target.gpus else _sizes()
    for graph in graphs:
        guessed = modelled_costs(graph, target, facts).entries
        known = {e.signature for e in table.entries}
        table = table.with_entries(e for e in guessed if e.signature not in known)
    return table


def _sizes() -> Callable[[Signature, Mode], Facts]:
    """What the kernel library asks for, or, of kernels in bfloat16 where this processor has no instructions for them,
    about what it does: it describes only what it can run. An executor that needs other sizes says so (SP1605)."""
    if detect().bfloat16:
        return codegen.facts.facts

    def about(signature: Signature, mode: Mode) -> Facts:
        if any(t.dtype is DType.BFLOAT16 for t in (*signature.inputs, *signature.outputs)):
            return modelled_facts(op_named(signature.op), signature, mode)
        return codegen.facts.facts(signature, mode)

    return about
