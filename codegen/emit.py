"""`stepplan emit`: the sources of an executor for whatever its target is."""

from pathlib import Path

from planner.graph.model import Graph
from planner.plan.schema import Plan
from planner.target.model import Target


def rendered(plan: Plan, graph: Graph, target: Target) -> dict[str, str]:
    """File name -> text of what `emit` writes, of a plan that was checked before."""
    if target.gpus:
        from codegen.cuda.emit import sources

        return sources(plan, graph, target)
    from codegen.cpu.emit import sources as sources_cpu

    return sources_cpu(plan, graph, target)


def emit(plan: Plan, graph: Graph, target: Target, out: Path | str) -> tuple[Path, ...]:
    """Write the executor's sources into folder `out`; returns the files. A plan that `check` rejects is refused.

    SP1501 to SP1505, SP1517: see codegen/cpu/emit.py and codegen/cuda/emit.py.
    """
    if target.gpus:
        from codegen.cuda.emit import emit as emit_cuda

        return emit_cuda(plan, graph, target, out)
    from codegen.cpu.emit import emit as emit_cpu

    return emit_cpu(plan, graph, target, out)
