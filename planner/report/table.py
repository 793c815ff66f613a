"""A plan as plain text tables, at most 120 columns wide and the same on every machine."""

from planner.graph.model import Graph
from planner.plan.expand import expanded
from planner.plan.lifetimes import Block, blocks, in_first_pool, peak_place
from planner.plan.render import WIDTH, printable, shorten, text_table
from planner.plan.schema import Plan, ProgramPlan
from planner.plan.simulate import replay
from planner.report.events import co_running
from planner.units import format_bytes, format_ns


def plan_table(plan: Plan, graph: Graph, *, nodes: int = 25, values: int = 10) -> str:
    """The plan's summary, then per program the `nodes` most time-consuming nodes and the `values` largest blocks of
    memory at its peak."""
    graph = expanded(graph, plan)
    lines = [*_head(plan), "", *summary_lines(plan)]
    lines += [f"{p.name}: {co_running(replay(plan, p).rows()).text()}" for p in plan.programs]
    lines += [line for p in plan.programs for line in rewrite_lines(p, graph)]
    for program in plan.programs:
        lines += ["", *node_lines(program, graph, nodes)]
        lines += ["", *memory_lines(plan, program, graph, values)]
    return "\n".join(lines)


def _head(plan: Plan) -> list[str]:
    strategies = f", strategies {','.join(map(str, plan.strategies))}" if plan.strategies else ""
    cores = [str(lane.cpu) for lane in plan.lanes if lane.kind == "core"]
    streams = sum(lane.kind == "stream" for lane in plan.lanes)
    copying = len(plan.lanes) - len(cores) - streams
    where = f"{streams} streams" if streams else f"{len(cores)} lanes on processors {','.join(cores)}"
    beside = f", {copying} that copy between pools" if copying else ""
    text = [
        f"plan {plan.name} for {plan.target}: policy {plan.policy}{strategies}",
        f"  {where}{beside}",
    ]
    text += [
        f"  {p.name}: arena {format_bytes(p.arena)} of {format_bytes(p.capacity)} ({_share(p.arena, p.capacity)})"
        for p in plan.pools
    ]
    return [shorten(printable(line), WIDTH) for line in text]


def summary_lines(plan: Plan) -> list[str]:
    """One line per program: predicted time against its lower bound, memory, size of the schedule."""
    head = ("program", "predicted", "bound", "bound by", "gap", "busy", "peak", "nodes", "slices", "waits")
    rows = []
    for program in plan.programs:
        rows.append(
            (
                program.name,
                format_ns(program.predicted_ns),
                format_ns(program.bounds.best_ns),
                binding_bound(program),
                f"{100 * program.gap:.1f} %",
                _share(core_ns(program), program.predicted_ns * len(program.lanes)),
                format_bytes(program.peak_bytes),
                str(len(program.nodes)),
                str(sum(map(len, program.lanes))),
                str(sum(len(e.wait) for lane in program.lanes for e in lane)),
            )
        )
    return text_table(head, rows, left=(0, 3))


def rewrite_lines(program: ProgramPlan, graph: Graph) -> list[str]:
    """What runs besides the graph's own nodes. `graph`: expanded."""
    rewrite, planned = program.rewrite, program.node
    found = []
    if rewrite.recomputes:
        took = sum(planned[r.node].predicted_ns for r in rewrite.recomputes)
        distinct = len({r.of for r in rewrite.recomputes})
        found.append(
            f"{program.name}: {distinct} nodes run again, {len(rewrite.recomputes)} times in all, {format_ns(took)} "
            f"({_share(took, program.predicted_ns)})"
        )
        if program.least_again_ns:
            gap = _share(took - program.least_again_ns, program.predicted_ns)
            found.append(
                f"{program.name}: within this budget that takes {format_ns(program.least_again_ns)} or more, so at "
                f"most {gap} are left to gain"
            )
    if rewrite.transfers:
        moved = sum(graph.value[t.makes].type.bytes for t in rewrite.transfers)
        values = sum(t.kind == "offload" for t in rewrite.transfers)
        found.append(f"{program.name}: {values} values move between pools, {format_bytes(moved)} in all")
    return found


def binding_bound(program: ProgramPlan) -> str:
    """Which of the lower bounds is the tightest."""
    bounds = program.bounds
    named = (("path", bounds.critical_path_ns), ("work", bounds.work_ns), ("bandwidth", bounds.bandwidth_ns))
    return max(named, key=lambda item: item[1])[0]


def core_ns(program: ProgramPlan) -> int:
    """Lane time inside slices, all lanes together."""
    return sum(n.slices * n.predicted_ns for n in program.nodes)


def node_lines(program: ProgramPlan, graph: Graph, limit: int) -> list[str]:
    """Nodes by predicted time; ties in the order in which they start."""
    known = graph.program[program.name].node
    ranked = sorted(program.nodes, key=lambda n: -n.predicted_ns)
    rows = [
        (
            n.node,
            known[n.node].op if n.node in known else "",
            known[n.node].phase if n.node in known else "",
            n.mode.text() if n.stage_ns else "view",
            str(n.slices),
            format_ns(n.predicted_ns),
            _share(n.predicted_ns, program.predicted_ns),
            format_bytes(n.scratch_bytes) if n.scratch_bytes else "",
        )
        for n in ranked[:limit]
    ]
    head = ("node", "op", "phase", "mode", "slices", "time", "share", "scratch")
    lines = [
        printable(f"nodes of {program.name} by time"),
        *text_table(head, rows, left=(0, 1, 2, 3), indent=2, width=WIDTH),
    ]
    rest = ranked[limit:]
    if rest:
        time = sum(n.predicted_ns for n in rest)
        lines.append(f"  and {len(rest)} more, {format_ns(time)} together ({_share(time, program.predicted_ns)})")
    return lines


def memory_lines(plan: Plan, program: ProgramPlan, graph: Graph, limit: int) -> list[str]:
    """The largest blocks at the node where most bytes are in use."""
    found = in_first_pool(blocks(graph, plan, program.name), plan)
    place, most = peak_place(found)
    alive = sorted((b for b in found if b.first <= place <= b.last), key=lambda b: (-b.bytes, b.id))
    where = program.nodes[place].node if program.nodes else "nothing"
    rows = [
        (b.id, block_role(b, graph), format_bytes(b.bytes), _share(b.bytes, most), *lifetime_of(b, program))
        for b in alive[:limit]
    ]
    title = f"memory of {program.name} at its peak, {where}: {format_bytes(most)} in {len(alive)} blocks"
    head = ("block", "role", "bytes", "share", "from", "to")
    lines = [shorten(printable(title), WIDTH), *text_table(head, rows, left=(0, 1, 4, 5), indent=2, width=WIDTH)]
    if len(alive) > limit:
        rest = sum(b.bytes for b in alive[limit:])
        lines.append(f"  and {len(alive) - limit} more, {format_bytes(rest)} together ({_share(rest, most)})")
    return lines


def block_role(block: Block, graph: Graph) -> str:
    return graph.value[block.id].role.value if block.id in graph.value else "scratch"


def lifetime_of(block: Block, program: ProgramPlan) -> tuple[str, str]:
    """The nodes from which and to which a block is in use."""
    if block.always:
        return "always", ""
    return program.nodes[block.first].node, program.nodes[block.last].node


def _share(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f} %" if whole else ""
