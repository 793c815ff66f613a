"""Part of `check`: a rewritten program computes what the graph computes, bit for bit.

plan/expand.py says what a rewrite means; this says whether that is the graph. Every value of the expanded program gets
a meaning, a value of the graph in a version (parameters, states and views of them change when an update runs):

    expanded program                               meaning of what it makes
    conv1(x, w) -> y           node of the graph   (y, 0)        if x and w mean what conv1 reads in the graph
    conv1.recompute(x, w) -> y'                    (y, 0)        if it is conv1's op, reading what conv1 read
    y.offload(y) -> y.away, y.prefetch(...)        (y, 0)        a copy means what it copies

Every node of the graph must be there once, unchanged but for which instances it reads, and read by meaning what it
reads in the graph. That instances exist before they are read, wherever and whenever nodes run, is then the same as
for all values (check_dependencies.py, check_races.py on the expanded program).

A recomputation makes the same bits if it runs the same op in the same mode on the same bits. One other op is known
to: a batch norm's output is the same function of x, its scales and its saved statistics.
"""

from collections.abc import Callable, Mapping

from planner.graph.dependencies import view_roots
from planner.graph.model import Graph, Node, Program
from planner.malformed import shown
from planner.plan.check_structure import Slices
from planner.plan.findings import Report
from planner.plan.schema import Placement, Plan, ProgramPlan

Meaning = tuple[str, int]
"""(value of the graph, how many updates it has seen)"""

Wrong = Callable[[Node, str], None]

_MEETS = {"batch_norm": "batch_norm_apply"}
"""Op -> the op that makes its first output from its inputs, second and third output."""


def check_meaning(graph: Graph, expanded: Graph, plan: ProgramPlan, report: Report) -> None:
    """SP1435: a node of the expanded program does not compute what it stands for."""
    program, larger = graph.program[plan.name], expanded.program[plan.name]
    expected, roots = _meanings_read(graph, program), view_roots(expanded, larger)
    recomputes = {r.node: r.of for r in plan.rewrite.recomputes}
    transfers = {t.node: t for t in plan.rewrite.transfers}
    meaning: dict[str, Meaning] = {}
    versions: dict[str, int] = {}
    seen: set[str] = set()

    def found(node: Node) -> tuple[Meaning, ...]:
        return tuple(meant(v) for v in node.inputs)

    def meant(value: str) -> Meaning:
        is_, version = meaning.get(value, (value, 0))
        return is_, versions.get(roots[value], version)

    def wrong(node: Node, why: str) -> None:
        report.add("SP1435", program.name, f"{node.id} {why}")

    for node in larger.nodes:
        original = program.node.get(node.id)
        if original is not None:
            seen.add(node.id)
            if (node.op, node.attrs, node.outputs, node.updates) != _fixed(original):
                wrong(node, "is not the graph's node")
            _compare(node, found(node), expected[node.id], wrong)
            made: tuple[str, ...] = original.outputs
            for value in node.updates:
                versions[value] = versions.get(value, 0) + 1
        elif node.id in recomputes:
            original = program.node[recomputes[node.id]]
            wanted = expected[original.id]
            if _MEETS.get(original.op) == node.op:
                wanted = (*wanted, (original.outputs[1], 0), (original.outputs[2], 0))
                made = original.outputs[:1]
            else:
                made = original.outputs
                if node.op != original.op or original.updates:
                    wrong(node, f"cannot stand for {original.id}: it runs {node.op} for {original.op}")
            if node.attrs != original.attrs or node.updates or len(made) != len(node.outputs):
                wrong(node, f"is not {original.id} once more")
            _compare(node, found(node), wanted, wrong)
        elif node.id in transfers and node.op == transfers[node.id].kind and len(node.inputs) == 1:
            ((value, version),) = found(node)
            meaning.update(dict.fromkeys(node.outputs, (value, version)))
            continue
        else:
            wrong(node, "is neither a node of the graph nor one that the rewrite adds")
            continue
        for output, value in zip(node.outputs, made, strict=False):
            meaning[output] = (value, 0)
    for name in program.node:
        if name not in seen:
            report.add("SP1435", program.name, f"node {name} of the graph does not run")
    if (larger.inputs, larger.outputs) != (program.inputs, program.outputs):
        report.add("SP1435", program.name, "the program's inputs and outputs changed")


def _fixed(node: Node) -> tuple[object, ...]:
    return (node.op, node.attrs, node.outputs, node.updates)


def _compare(node: Node, found: tuple[Meaning, ...], wanted: tuple[Meaning, ...], wrong: Wrong) -> None:
    if len(found) != len(wanted):
        wrong(node, f"reads {len(found)} values instead of {len(wanted)}")
        return
    for value, (is_, version), (must, earlier) in zip(node.inputs, found, wanted, strict=True):
        if is_ != must:
            wrong(node, f"reads {value}, which is {shown(is_)}, for {must}")
        elif version != earlier:
            wrong(node, f"reads {value} after {version} updates instead of {earlier}")


def _meanings_read(graph: Graph, program: Program) -> dict[str, tuple[Meaning, ...]]:
    """node -> what it reads in the graph's own order."""
    versions: dict[str, int] = {}
    result, roots = {}, view_roots(graph, program)
    for node in program.nodes:
        result[node.id] = tuple((v, versions.get(roots[v], 0)) for v in node.inputs)
        for value in node.updates:
            versions[value] = versions.get(value, 0) + 1
    return result


def check_modes(slices: Slices, report: Report) -> None:
    """SP1435: a recomputation by the original's op must run in the original's mode, or it may round differently."""
    planned = slices.plan.node
    by_node = {p.node.id: p for p in slices.nodes}
    for entry in slices.plan.rewrite.recomputes:
        again, first = by_node.get(entry.node), by_node.get(entry.of)
        if again is None or first is None or again.node.op != first.node.op:
            continue
        a, b = planned[entry.node], planned[entry.of]
        if (a.mode, a.facts) != (b.mode, b.facts):
            message = f"{entry.node} runs as {shown(a.mode.text())}, but {entry.of} as {shown(b.mode.text())}"
            report.add("SP1435", slices.plan.name, message)


def check_pool_use(graph: Graph, plan: Plan, placements: Mapping[str, Placement], report: Report) -> None:
    """SP1436: transfers go where they say, and everything else happens in the first pool. `graph`: expanded."""
    first = plan.pools[0].name
    for program in plan.programs:
        moved = {t.node: t for t in program.rewrite.transfers}
        for transfer in moved.values():
            ends = (transfer.from_pool, transfer.to_pool)
            inside = transfer.from_pool if transfer.kind == "offload" else transfer.to_pool
            if ends[0] == ends[1] or inside != first or any(p not in plan.pool for p in ends):
                route = f"{shown(ends[0])} to {shown(ends[1])}"
                report.add("SP1436", program.name, f"{transfer.node} cannot {transfer.kind} from {route}")
            for value, pool in ((transfer.value, ends[0]), (transfer.makes, ends[1])):
                if placements[value].pool != pool:
                    message = f"{transfer.node}: {value} lies in {shown(placements[value].pool)}, not in {shown(pool)}"
                    report.add("SP1436", program.name, message)
        for node in graph.program[program.name].nodes:
            for value in (*node.reads, *node.writes):
                if node.id not in moved and placements[value].pool != first:
                    where = shown(placements[value].pool)
                    report.add("SP1436", program.name, f"{node.id} uses {value} in pool {where}")


def check_copy_lanes(plan: Plan, slices: Slices, report: Report) -> None:
    """SP1437: copy lanes run transfers and nothing else, and every link has one lane: a link carries one copy at a
    time."""
    copying = [lane.kind == "copy" for lane in plan.lanes]
    if len(copying) != len(slices.plan.lanes):
        return  # reported by check_lanes
    moved = {t.node: (t.from_pool, t.to_pool) for t in slices.plan.rewrite.transfers}
    lane_of: dict[tuple[str, str], int] = {}
    for planned in slices.nodes:
        link = moved.get(planned.node.id)
        numbers = range(planned.first, planned.first + planned.stages * planned.plan.slices)
        used = sorted({slices.lane[n] for n in numbers})
        name = planned.node.id
        if link is None:
            if any(copying[lane] for lane in used):
                report.add("SP1437", slices.plan.name, f"{name} runs on a copy lane but copies nothing between pools")
        elif len(used) != 1 or not copying[used[0]] or planned.plan.slices != 1:
            report.add("SP1437", slices.plan.name, f"{name} copies between pools, but not alone on a copy lane")
        elif lane_of.setdefault(link, used[0]) != used[0]:
            other = lane_of[link]
            report.add("SP1437", slices.plan.name, f"{name} on lane {used[0]} uses the link of lane {other}")
