"""One self-contained HTML page of a plan: summary, sortable node table, lanes over time, arena over steps.

The page loads nothing and may load nothing: its content policy forbids every request. Names come from files of
strangers; the template engine escapes whatever it prints, and control characters are escaped before that.
"""

from functools import cache
from pathlib import Path
from typing import Any

import jinja2

from planner.graph.model import Graph
from planner.plan.expand import expanded
from planner.plan.lifetimes import blocks, in_first_pool, peak_place
from planner.plan.render import printable
from planner.plan.schema import NodePlan, Plan, ProgramPlan
from planner.plan.simulate import replay
from planner.report.pictures import arena_picture, lane_picture
from planner.report.table import binding_bound, block_role, core_ns, lifetime_of
from planner.units import format_bytes, format_ns

_FOLDER = Path(__file__).resolve().parents[2] / "templates" / "report"


@cache
def environment() -> jinja2.Environment:
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_FOLDER),
        undefined=jinja2.StrictUndefined,
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda x: printable(x) if type(x) is str else x,
    )
    env.filters.update(time=format_ns, size=format_bytes)
    return env


def html_page(plan: Plan, graph: Graph, *, sync_ns: float = 200.0) -> str:
    """The page's text."""
    graph = expanded(graph, plan)
    programs = [_program(plan, p, graph, sync_ns) for p in plan.programs]
    return environment().get_template("page.html.j2").render(plan=plan, programs=programs)


def _program(plan: Plan, program: ProgramPlan, graph: Graph, sync_ns: float) -> dict[str, Any]:
    timeline = replay(plan, program, sync_ns=sync_ns)
    found = in_first_pool(blocks(graph, plan, program.name), plan)
    place, most = peak_place(found)
    alive = sorted((b for b in found if b.first <= place <= b.last), key=lambda b: (-b.bytes, b.id))
    capacity = program.predicted_ns * len(program.lanes)
    rows = [_row(n, position, program, graph) for position, n in enumerate(program.nodes)]
    return {
        "name": program.name,
        "plan": program,
        "binding": binding_bound(program),
        "busy": core_ns(program) / capacity if capacity else 0.0,
        "slices": sum(map(len, program.lanes)),
        "waits": timeline.waits,
        "nodes": rows,
        "origins": any(r["origin"] for r in rows),
        "lanes": lane_picture(program, graph, timeline),
        "arena": arena_picture(plan, program, graph, found),
        "peak_bytes": most,
        "peak_node": program.nodes[place].node if program.nodes else "",
        "top": [(b, block_role(b, graph), lifetime_of(b, program)) for b in alive[:20]],
    }


def _repeats(origin: str, node: str) -> bool:
    """Whether a node's name says where it comes from: `conv1.backward_data` comes from `conv1`."""
    return f"{node.removeprefix('predict.')}.".startswith(f"{origin}.")


def _row(node: NodePlan, position: int, program: ProgramPlan, graph: Graph) -> dict[str, Any]:
    known = graph.program[program.name].node.get(node.node)
    return {
        "position": position,
        "name": node.node,
        "op": known.op if known else "",
        "phase": known.phase if known else "",
        "origin": known.origin if known and not _repeats(known.origin, node.node) else "",
        "mode": node.mode.text() if node.stage_ns else "view",
        "slices": node.slices,
        "ns": node.predicted_ns,
        "share": node.predicted_ns / program.predicted_ns if program.predicted_ns else 0.0,
        "scratch": node.scratch_bytes,
    }
