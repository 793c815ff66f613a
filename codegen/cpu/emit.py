"""From a checked plan to the sources of its executor.

Everything is rendered in memory first and then written file by file, atomically. The same plan, graph and target
give the same bytes. Only validated ids, numbers and escaped comment text reach a source file.
"""

from collections.abc import Mapping
from pathlib import Path

from codegen.cpu import sharing, tables
from codegen.cpu.render import environment, render_node
from codegen.cpu.view import NodeView
from planner.artefact import write_text
from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.text import graph_hash, graph_text
from planner.plan.expand import RECOMPUTE, TRANSFER, expanded
from planner.plan.schema import Plan
from planner.plan.text import plan_hash, plan_text
from planner.target.model import Target
from planner.target.text import target_hash, target_text

PHASES = ("forward", "backward", RECOMPUTE, TRANSFER, "update", "predict")
NODES = tuple(f"{phase}.cpp" for phase in PHASES)
TABLES = ("kernels.cpp", "lanes.cpp", "executor.cpp")
SOURCES = (*NODES, "chains.cu", *TABLES, "module.cpp")
HEADERS = ("values.hpp", "nodes.hpp", "kernels.hpp", "chains.hpp")
ARTEFACTS = ("plan.json", "graph.json", "target.toml")


def emit(plan: Plan, graph: Graph, target: Target, out: Path | str) -> tuple[Path, ...]:
    """Write the executor's sources into folder `out`; returns the files.

    A plan that `check` rejects is refused with its findings. SP1501: plan, graph and target do not belong together.
    SP1503, SP1504, SP1505: something in the plan or graph cannot stand in source text.
    """
    return write_sources(render(plan, graph, target), Path(out))


def emit_cases(plan: Plan, graph: Graph, target: Target, out: Path | str) -> tuple[Path, ...]:
    """As `emit`, for the profiler's own plans: any program names, and programs that share bytes on purpose."""
    require_together(plan, graph, target)
    return write_sources(sources(plan, graph, target), Path(out))


def write_sources(files: Mapping[str, str], folder: Path) -> tuple[Path, ...]:
    """Into the folder, without what an earlier plan left there."""
    for stale in (*SOURCES, *HEADERS):
        if stale not in files and (folder / stale).exists():
            (folder / stale).unlink()
    for name, text in files.items():
        write_text(folder / name, text)
    return tuple(folder / name for name in files)


def render(plan: Plan, graph: Graph, target: Target) -> dict[str, str]:
    """File name -> text, checked but not written."""
    require_emittable(plan, graph, target)
    return sources(plan, graph, target)


def require_emittable(plan: Plan, graph: Graph, target: Target) -> None:
    """What `emit` says it refuses."""
    from planner.plan.check import require_safe

    require_together(plan, graph, target)
    require_safe(graph, plan, target)
    if set(plan.program) - {"train_step", "predict"}:
        raise UserError("SP1502", f"cannot emit programs {sorted(plan.program)}", "use train_step and predict")


def sources(plan: Plan, captured: Graph, target: Target) -> dict[str, str]:
    """File name -> text, of a plan that was checked."""
    text, graph = plan_text(plan), expanded(captured, plan)
    model = tables.build(plan, graph, text)
    common = {"plan": plan, "graph": graph, "target": target, "model": model, "plan_hash": plan_hash(plan)}
    env = environment()

    def fill(template: str, **more: object) -> str:
        return env.get_template(f"cpu/{template}").render(**common, **more)

    files = {"plan.json": text, "graph.json": graph_text(captured), "target.toml": target_text(target)}
    files["values.hpp"] = fill("values.hpp.j2")
    phases = by_phase(model.views)
    found = sharing.files(env, phases)
    files["nodes.hpp"] = fill("nodes.hpp.j2", shared=[f for file in found.values() for f in file.shared])
    for phase, file in found.items():
        headers = sorted({h for view in phases[phase] for h in tables.headers_of(view)})
        files[f"{phase}.cpp"] = fill("phase.cpp.j2", phase=phase, file=file, headers=headers)
    library = [view for view in model.all_views if view.uses_library]
    made = [(view, render_node(env, view, "kernel")) for view in library]
    headers = sorted({h for view in library for h in tables.headers_of(view)})
    files["kernels.hpp"] = fill("kernels.hpp.j2", kernels=made, headers=headers)
    files["kernels.cpp"] = fill("kernels.cpp.j2", kernels=made)
    files["lanes.cpp"] = fill("lanes.cpp.j2")
    files["executor.cpp"] = fill("executor.cpp.j2")
    files["module.cpp"] = fill("module.cpp.j2")
    files["__init__.py"] = fill("__init__.py.j2")
    return files


def by_phase(views: Mapping[str, tuple[NodeView, ...]]) -> dict[str, list[NodeView]]:
    """File -> its nodes: the training step by phase, prediction in one file."""
    found: dict[str, list[NodeView]] = {}
    for program, nodes in views.items():
        for view in nodes:
            phase = program if program == "predict" else view.node.phase
            if phase not in PHASES:
                raise UserError("SP1502", f"node {view.id!r} has no phase {phase!r}", "use forward, backward or update")
            found.setdefault(phase, []).append(view)
    return found


def require_together(plan: Plan, graph: Graph, target: Target) -> None:
    for what, expected, actual in (
        ("graph", plan.graph_hash, graph_hash(graph)),
        ("target", plan.target_hash, target_hash(target)),
    ):
        if expected != actual:
            raise UserError("SP1501", f"the plan was made for another {what} ({expected}, not {actual})", "plan again")
