"""From a checked plan for a GPU to the sources of its executor; as codegen/cpu/emit.py, whose rules hold here too.

Nodes call kernels that are the same for every plan (templates/runtime/cuda) and are compiled once by nvcc. Only chains
of element-wise functions are a plan's own: `chains.cu`, written where there are any.
"""

from functools import cache
from pathlib import Path

import jinja2

from codegen.cpu.emit import by_phase, require_emittable, write_sources
from codegen.cpu.render import new_environment, render_node
from codegen.cpu.view import NodeView
from codegen.cuda import tables
from codegen.cuda.facts import chunks_of, differing
from codegen.cuda.launches import Launch, launch_of
from codegen.cuda.matrices import turned
from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.text import graph_text
from planner.plan.expand import expanded
from planner.plan.schema import Plan
from planner.plan.text import plan_hash, plan_text
from planner.target.model import Target
from planner.target.text import target_text

KIND = "cuda"


def emit(plan: Plan, graph: Graph, target: Target, out: Path | str) -> tuple[Path, ...]:
    """Write the executor's sources into folder `out`; returns the files. Refuses what codegen.cpu.emit refuses.

    SP1517: a node's sizes are not what its kernels need, or there is no such launch.
    """
    require_emittable(plan, graph, target)
    return write_sources(sources(plan, graph, target), Path(out))


def emit_cases(plan: Plan, graph: Graph, target: Target, out: Path | str) -> tuple[Path, ...]:
    """As `emit`, for tests: plans that are unsafe on purpose too."""
    return write_sources(sources(plan, graph, target), Path(out))


def sources(plan: Plan, captured: Graph, target: Target) -> dict[str, str]:
    """File name -> text."""
    text, graph = plan_text(plan), expanded(captured, plan)
    model = tables.build(plan, graph, text)
    for view in model.base.all_views:
        require_sizes(view)
    common = {"plan": plan, "graph": graph, "target": target, "model": model, "plan_hash": plan_hash(plan)}
    env = environment()

    def fill(template: str, **more: object) -> str:
        return env.get_template(f"{KIND}/{template}").render(**common, **more)

    files = {"plan.json": text, "graph.json": graph_text(captured), "target.toml": target_text(target)}
    files["values.hpp"] = env.get_template("cpu/values.hpp.j2").render(**{**common, "model": model.base})
    files["nodes.hpp"] = fill("nodes.hpp.j2")
    for phase, views in by_phase(model.views).items():
        bodies = [(view, render_node(env, view, kind=KIND)) for view in views]
        files[f"{phase}.cpp"] = fill("phase.cpp.j2", phase=phase, bodies=bodies)
    chains = tuple({v.chain.name: v.chain for v in model.base.all_views if v.op.family == "chain"}.values())
    if chains:
        files["chains.hpp"] = fill("chains.hpp.j2", chains=chains)
        files["chains.cu"] = fill("chains.cu.j2", chains=chains)
    library = [view for view in model.base.all_views if view.uses_library]
    made = [(view, render_node(env, view, "kernel", KIND)) for view in library]
    files["kernels.hpp"] = fill("kernels.hpp.j2", kernels=made)
    files["kernels.cpp"] = fill("kernels.cpp.j2", kernels=made)
    files["lanes.cpp"] = fill("lanes.cpp.j2")
    files["executor.cpp"] = fill("executor.cpp.j2")
    files["module.cpp"] = env.get_template("cpu/module.cpp.j2").render(**common)
    files["__init__.py"] = env.get_template("cpu/__init__.py.j2").render(**common)
    return files


@cache
def environment() -> jinja2.Environment:
    env = new_environment()
    env.filters["chunks"] = _chunks
    env.filters["launch"] = _launch
    env.globals["turned"] = turned
    return env


def _chunks(view: NodeView) -> int:
    return chunks_of(view.signature, view.facts["partial_bytes"])


def _launch(view: NodeView) -> Launch:
    return launch_of(view.id, view.mode.implementation) if view.mode.kernel == "cuda" else Launch()


def require_sizes(view: NodeView) -> None:
    """What a strange plan says about sizes must not lead kernels beyond their scratch. A library's workspace is looked
    at when the executor is made: only the GPU knows it."""
    for fact, stated, needed in differing(view.signature, view.mode, view.facts):
        raise UserError(
            "SP1517",
            f"node {view.id}: the plan says {fact} = {stated}, its kernels need {needed}",
            "profile and plan again: the cost table is of other kernels, or the plan was changed",
        )
