"""Why a node runs as it does: its mode against every alternative in the cost table, and what holds it up."""

from collections.abc import Mapping

from planner.costs.residency import stage_times
from planner.costs.table import CostEntry, CostTable
from planner.graph.dependencies import dependencies
from planner.graph.model import Frozen, Graph
from planner.ops.base import op_named
from planner.ops.signature import signature_of
from planner.plan.crossing import crossing_ns, planned_crossing
from planner.plan.render import counted, field, percent, printable, shorten, signed, text_table
from planner.plan.schema import Crossed, NodePlan, Plan, ProgramPlan, parse_slice, parse_wait
from planner.plan.simulate import Timeline
from planner.units import format_bytes, format_ns


class Alternative(Frozen):
    """One entry of the cost table, at the warmth that the plan assumes for this node."""

    mode: str
    slices: int
    here_ns: int
    warm_ns: int
    cold_ns: int
    source: str
    chosen: bool
    fits: bool
    """Whether the plan has as many lanes."""


class Rate(Frozen):
    """How much per second, and the measured peak of what it runs on (0 when there is none)."""

    per_second: float
    peak: float

    @property
    def share(self) -> float:
        return self.per_second / self.peak if self.peak else 0.0


class NodeExplanation(Frozen):
    node: str
    program: str
    op: str
    phase: str
    origin: str
    signature: str
    mode: str
    slices: int
    stage_ns: tuple[int, ...]
    crossing_ns: int
    """Part of that which is due to bytes in other lanes' caches. Alternatives are compared without it."""
    crossed: tuple[Crossed, ...]
    share: float
    """Of the step's predicted time, 0..1; nodes that run side by side add up to more than 1."""
    reasons: tuple[str, ...]
    alternatives: tuple[Alternative, ...]
    flops: Rate
    bandwidth: Rate
    start_ns: int
    end_ns: int
    lanes: tuple[int, ...]
    needs: tuple[str, ...]
    """Nodes whose results it needs, by the graph."""
    beside: tuple[str, ...]
    """Nodes that the replay runs at the same time, the longest overlap first, with their measured slow-downs."""
    apart: tuple[str, ...]
    """Nodes that would have lost beside it."""
    waits: dict[str, int]
    """Node -> how many of its slices it waits for; what lane order implies is not in here."""
    held_ns: int
    """The longest that one of its slices kept a free lane waiting, for other nodes or for its own earlier stage."""
    scratch_bytes: int
    scratch_offset: int
    facts: dict[str, int]

    def lines(self) -> list[str]:
        where = f", from {self.origin}" if self.origin and self.origin != self.node else ""
        lines = [printable(f"node {self.node}: {self.op} in {self.program}, {self.phase}{where}")]

        def say(what: str, text: str) -> None:
            lines.extend(field(what, text))

        say("signature", self.signature)
        total = sum(self.stage_ns)
        if self.stage_ns:
            stages = " + ".join(format_ns(t) for t in self.stage_ns)
            whole = f" = {format_ns(total)}" if len(self.stage_ns) > 1 else ""
            say("runs", f"{self.mode}, {stages}{whole}, {100 * self.share:.1f} % of the step")
        if self.crossing_ns:
            fetched, reclaimed = (sum(getattr(c, what) for c in self.crossed) for what in ("fetched", "reclaimed"))
            found = [f"{format_bytes(fetched)} that another lane wrote last"] if fetched else []
            found += [f"writing over {format_bytes(reclaimed)} that another lane read"] if reclaimed else []
            say("crossing", f"{format_ns(self.crossing_ns)} of it, for {' and '.join(found)}")
        for reason in self.reasons:
            say("because", reason)
        if self.stage_ns:
            say("speed", f"{_rate(self.flops, 'FLOP/s')}; {_rate(self.bandwidth, 'B/s')}")
            lanes = ",".join(map(str, self.lanes))
            say("when", f"{format_ns(self.start_ns)} .. {format_ns(self.end_ns)} of the step, on lanes {lanes}")
        if self.beside:
            say("beside", ", ".join(self.beside))
        if self.apart:
            say("not beside", ", ".join(self.apart) + ": together they would get less done")
        say("needs", ", ".join(self.needs) or "nothing that this program computes")
        if self.stage_ns:
            waits = ", ".join(f"{n} ({counted(c, 'slice')})" for n, c in self.waits.items())
            held = f"; a lane idles up to {format_ns(self.held_ns)}" if self.held_ns else ""
            say("waits for", (waits or "no slice of another node: lane order is enough") + held)
        if self.scratch_bytes:
            facts = "".join(f", {k} {v}" for k, v in sorted(self.facts.items()))
            say("scratch", f"{format_bytes(self.scratch_bytes)} at offset {self.scratch_offset}{facts}")
        if self.alternatives:
            lines += ["", *text_table(*self._table(total - self.crossing_ns), left=(0, 1), indent=2)]
        return lines

    def _table(self, total: int) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
        head = ("mode", "", "here", "against chosen", "warm", "cold", "source")
        rows: list[tuple[str, ...]] = [
            (
                a.mode,
                "chosen" if a.chosen else "" if a.fits else "too few lanes",
                format_ns(a.here_ns),
                "" if a.chosen else percent(total, a.here_ns),
                format_ns(a.warm_ns),
                format_ns(a.cold_ns),
                a.source,
            )
            for a in self.alternatives
        ]
        return head, rows


def _rate(rate: Rate, unit: str) -> str:
    text = f"{rate.per_second / 1e9:.3g} G{unit}"
    return text + (f", {100 * rate.share:.0f} % of the measured {rate.peak / 1e9:.3g}" if rate.peak else "")


def explain_node(
    name: str, program: ProgramPlan, graph: Graph, plan: Plan, costs: CostTable | None, timeline: Timeline
) -> NodeExplanation:
    """One node of one program. `timeline`: the program's replay."""
    graph_program = graph.program[program.name]
    node, chosen = graph_program.node[name], program.node[name]
    signature, op = signature_of(graph, node), op_named(node.op)
    crossing = sum(crossing_ns(chosen, planned_crossing(plan)))
    total = chosen.predicted_ns
    alternatives = _alternatives(signature.text, chosen, total - crossing, len(plan.lanes), costs)
    second = total / 1e9
    flops = op.flops(signature) / second if second else 0.0
    moved = op.bytes_moved(signature) / second if second else 0.0
    rows = [i for i, s in enumerate(timeline.slices) if s.rpartition("/")[0] == name]
    waits, held = _waits(name, program, timeline)
    return NodeExplanation(
        node=name,
        program=program.name,
        op=node.op,
        phase=node.phase,
        origin=node.origin,
        signature=signature.text,
        mode=chosen.mode.text(),
        slices=chosen.slices,
        stage_ns=chosen.stage_ns,
        crossing_ns=crossing,
        crossed=chosen.crossed,
        share=total / program.predicted_ns if program.predicted_ns else 0.0,
        reasons=_reasons(name, chosen, total - crossing, alternatives, program, graph, plan, costs),
        alternatives=alternatives,
        flops=Rate(per_second=flops, peak=costs.flops * chosen.slices if costs else 0.0),
        bandwidth=Rate(per_second=moved, peak=costs.bandwidth if costs else 0.0),
        start_ns=round(min((float(timeline.start_ns[i]) for i in rows), default=0.0)),
        end_ns=round(max((float(timeline.end_ns[i]) for i in rows), default=0.0)),
        lanes=tuple(sorted({int(timeline.lane[i]) for i in rows})),
        beside=_beside(name, program, timeline),
        apart=_apart(name, program),
        needs=dependencies(graph, graph_program)[name],
        waits=waits,
        held_ns=held,
        scratch_bytes=chosen.scratch_bytes,
        scratch_offset=chosen.scratch_offset,
        facts=chosen.facts,
    )


def _alternatives(
    signature: str, chosen: NodePlan, alone_ns: int, lanes: int, costs: CostTable | None
) -> tuple[Alternative, ...]:
    """Every measured mode, the fastest first. How cold a node's operands are is read off the chosen entry, which takes
    `alone_ns` without what other lanes' caches cost."""
    entries = costs.modes(signature) if costs else ()
    own = next((e for e in entries if e.mode == chosen.mode), None)
    cold = _coldness(own, alone_ns) if own else 0.0
    found = [
        Alternative(
            mode=e.mode.text() + ("" if e.affinity == "compact" else f" {e.affinity}"),
            slices=e.slices,
            here_ns=sum(stage_times(e, cold)),
            warm_ns=round(sum(e.warm_ns)),
            cold_ns=round(sum(e.cold_ns)),
            source=e.source,
            chosen=e is own,
            fits=e.slices <= lanes,
        )
        for e in entries
    ]
    return tuple(sorted(found, key=lambda a: (a.here_ns, not a.chosen, a.slices, a.mode)))


def _coldness(entry: CostEntry, predicted: int) -> float:
    """The share of cold operands, 0..1, at which the entry takes the predicted time."""
    warm, cold = sum(entry.warm_ns), sum(max(w, c) for w, c in zip(entry.warm_ns, entry.cold_ns, strict=True))
    return min(1.0, max(0.0, (predicted - warm) / (cold - warm))) if cold > warm else 0.0


def _reasons(
    name: str,
    chosen: NodePlan,
    alone_ns: int,
    alternatives: tuple[Alternative, ...],
    program: ProgramPlan,
    graph: Graph,
    plan: Plan,
    costs: CostTable | None,
) -> tuple[str, ...]:
    """Which constraint binds, the strongest first."""
    if not chosen.stage_ns:
        return ("it is another view of the same bytes: nothing runs",)
    if costs is None:
        return ("name the cost table (--costs) to compare with the alternatives",)
    usable = [a for a in alternatives if a.fits]
    if not any(a.chosen for a in usable):
        return ("the cost table has no such mode: the plan was made from another one, or edited",)
    best = min(usable, key=lambda a: (a.here_ns, not a.chosen))
    # Rounding of the warmth may turn a tie around: a nanosecond per stage is none.
    optimal = best.chosen or alone_ns - best.here_ns <= len(chosen.stage_ns)
    if len(usable) == 1:
        reasons = ["it is the only measured mode" + (" that fits the lanes" if len(alternatives) > 1 else "")]
    elif optimal:
        reasons = [f"it is the fastest of {len(usable)} measured modes"]
    else:
        lost = alone_ns - best.here_ns
        price = f"{best.mode} would take {format_ns(lost)} less"
        reasons = [f"{_constraint(name, chosen, program, graph, plan)}; {price}"]
    beyond = [a for a in alternatives if not a.fits and a.here_ns < min(best.here_ns, alone_ns)]
    if beyond:
        faster = min(beyond, key=lambda a: a.here_ns)
        change = signed(format_ns(alone_ns - faster.here_ns), faster.here_ns - alone_ns)
        reasons.append(f"the plan has {len(plan.lanes)} lanes; {faster.mode} would change its time by {change}")
    return tuple(reasons)


def _constraint(name: str, chosen: NodePlan, program: ProgramPlan, graph: Graph, plan: Plan) -> str:
    """What kept a node from its own fastest mode."""
    for group in program.parallel:
        if name in group.nodes:
            return f"it runs whole on one lane, as one of {len(group.nodes)} siblings of a parallel {group.op}"
    if plan.policy == "sequential":
        return "policy sequential gives every node all lanes, or as many as it can use"
    op_of: Mapping[str, str] = {n.id: n.op for n in graph.program[program.name].nodes}
    op = op_of[name]
    peers = [n for n in program.nodes if op_of.get(n.node) == op and n.slices == chosen.slices]
    leader = max(peers, key=lambda n: (n.predicted_ns, n.node))
    if 2 in plan.strategies and leader.node != name:
        leader_name = shorten(leader.node, 60)
        return f"strategy 2 gives every {op} {chosen.slices} slices, the best count of {leader_name}"
    if 3 in plan.strategies:
        return "strategy 3 leaves lanes to nodes that run beside it"
    return "the count was pinned, or the plan was edited"


SHOWN_BESIDE = 5


def _apart(name: str, program: ProgramPlan) -> tuple[str, ...]:
    """The nodes that interference kept away from this one."""
    refused = [s for s in program.slowdowns if s.refused and name in (s.node, s.beside)]
    return tuple(f"{s.beside if s.node == name else s.node} ({s.factor:.2f}x)" for s in refused)


def _beside(name: str, program: ProgramPlan, timeline: Timeline) -> tuple[str, ...]:
    """The nodes that overlap longest with this one, and how much they slow it down where that was measured."""
    spans: dict[str, tuple[float, float]] = {}
    for row, slice_ in enumerate(timeline.slices):
        node = parse_slice(slice_)[0]
        start, end = float(timeline.start_ns[row]), float(timeline.end_ns[row])
        known = spans.get(node, (start, end))
        spans[node] = (min(start, known[0]), max(end, known[1]))
    if name not in spans:
        return ()
    start, end = spans.pop(name)
    overlap = {n: min(e, end) - max(s, start) for n, (s, e) in spans.items()}
    slow = {s.beside: f" ({s.factor:.2f}x)" for s in program.slowdowns if s.node == name and not s.refused}
    longest = sorted((n for n, o in overlap.items() if o > 0), key=lambda n: (-overlap[n], n))[:SHOWN_BESIDE]
    return tuple(f"{n} for {format_ns(round(overlap[n]))}{slow.get(n, '')}" for n in longest)


def _waits(name: str, program: ProgramPlan, timeline: Timeline) -> tuple[dict[str, int], int]:
    """The listed waits by node, and the longest time that a lane was free but its next slice, of this node, was
    not ready."""
    slices: set[str] = set()
    held = 0.0
    for lane in program.lanes:
        before = 0.0
        for entry in lane:
            row = timeline.index[entry.run]
            if parse_slice(entry.run)[0] == name:
                slices.update(w for w in entry.wait if parse_wait(w)[0] != name)
                held = max(held, float(timeline.start_ns[row]) - before)
            before = float(timeline.end_ns[row])
    counts: dict[str, int] = {}
    for wait in sorted(slices):
        node, _, index = parse_wait(wait)
        counts[node] = counts.get(node, 0) + (program.node[node].slices if index is None else 1)
    return counts, round(held)
