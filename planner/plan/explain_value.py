"""Why a value lies where it lies, how long it lives and who uses its bytes before and after it."""

from planner.graph.model import PERSISTENT, Frozen, Graph, Value
from planner.plan.explain_memory import memory_decisions
from planner.plan.lifetimes import Block, blocks, owners
from planner.plan.render import field, printable
from planner.plan.schema import Plan
from planner.plan.simulate import Timeline
from planner.units import format_bytes, format_ns


class Life(Frozen):
    """A value's life within one program; places count the program's nodes from 0."""

    program: str
    writer: str
    """The first node that writes it; empty when it is there from the start."""
    readers: tuple[str, ...]
    """In order; the last one decides how long it lives, unless `reason` says otherwise."""
    first: int
    last: int
    nodes: int
    start_ns: int
    end_ns: int
    reason: str
    before: tuple[str, ...]
    """Whose bytes these were just before."""
    after: tuple[str, ...]


class ValueExplanation(Frozen):
    value: str
    name: str
    type: str
    role: str
    bytes: int
    gradient_of: str
    pool: str
    layout: str = ""
    """How a convolution's weights are stored; empty: plainly."""
    offset: int
    owner: str
    """The value whose bytes it uses; itself when it has its own."""
    shared_with: tuple[str, ...]
    """Other values on the same bytes in place, while it lives."""
    lives: tuple[Life, ...]
    decisions: tuple[str, ...] = ()
    """Whether it stays, is made again or moves, and at what price; empty for what is no result of a forward node."""

    def lines(self) -> list[str]:
        target = f", gradient of {self.gradient_of}" if self.gradient_of else ""
        lines = [printable(f"value {self.value}: {self.role} {self.type}, {format_bytes(self.bytes)}{target}")]

        def say(what: str, text: str) -> None:
            lines.extend(field(what, text))

        if self.pool:
            stored = f", stored as {self.layout}" if self.layout else ""
            say("lies", f"in {self.pool} at {self.offset} .. {self.offset + self.bytes}{stored}")
        else:
            say("lies", "nowhere: no program of this plan uses it")
        if self.owner != self.value:
            say("shares", f"the bytes of {self.owner}, in place")
        if self.shared_with:
            say("in place", ", ".join(self.shared_with))
        for decision in self.decisions:
            say("memory", decision)
        for life in self.lives:
            lines.append(f"  in {printable(life.program)}:")
            say("  from", life.writer or "the start")
            say("  read by", ", ".join(life.readers) or "nobody")
            span = f"nodes {life.first} .. {life.last} of {life.nodes}"
            say("  lives", f"{span}, {format_ns(life.start_ns)} .. {format_ns(life.end_ns)}")
            say("  because", life.reason)
            say("  before", ", ".join(life.before) or "nobody used these bytes")
            say("  after", ", ".join(life.after) or "nobody uses these bytes")
        return lines


def explain_value(name: str, graph: Graph, plan: Plan, timelines: dict[str, Timeline]) -> ValueExplanation:
    """`timelines`: the replay of every program."""
    value = graph.value[name]
    placement = plan.placement.get(name)
    roots = owners(plan)
    root = roots.get(name, name)
    sharing = [v for v in plan.placement if v != name and roots[v] == root]
    lives = [_life(value, root, program, graph, plan, timelines[program]) for program in plan.program]
    return ValueExplanation(
        value=name,
        name=value.name,
        type=value.type.text(),
        role=value.role.value,
        bytes=value.type.bytes,
        gradient_of=value.gradient_of,
        pool=placement.pool if placement else "",
        layout=placement.layout if placement else "",
        offset=placement.offset if placement else 0,
        owner=root,
        shared_with=tuple(sharing),
        lives=tuple(life for life in lives if life),
        decisions=tuple(d for p in plan.programs for d in memory_decisions(value, p, graph.program[p.name])),
    )


def _life(value: Value, root: str, program: str, graph: Graph, plan: Plan, timeline: Timeline) -> Life | None:
    """None where the program does not touch the value."""
    known = graph.program[program].node
    order = [n.node for n in plan.program[program].nodes]
    touching = [n for n in order if n in known and value.id in (*known[n].reads, *known[n].writes)]
    if not touching:
        return None
    writer = next((n for n in touching if value.id in known[n].outputs), "")
    readers = tuple(n for n in touching if value.id in known[n].reads)
    found = blocks(graph, plan, program)
    block = next((b for b in found if b.id == root), None)
    first, last = (block.first, block.last) if block else (0, 0)
    names = set(order[first : last + 1])
    rows = [i for i, s in enumerate(timeline.slices) if s.rpartition("/")[0] in names]
    before, after = _neighbours(block, found) if block else ((), ())
    return Life(
        program=program,
        writer=writer,
        readers=readers,
        first=first,
        last=last,
        nodes=len(order),
        start_ns=round(min((float(timeline.start_ns[i]) for i in rows), default=0.0)),
        end_ns=round(max((float(timeline.end_ns[i]) for i in rows), default=0.0)),
        reason=_reason(value, root, program, graph, plan, order, first, last, readers),
        before=before,
        after=after,
    )


def _reason(
    value: Value,
    root: str,
    program: str,
    graph: Graph,
    plan: Plan,
    order: list[str],
    first: int,
    last: int,
    readers: tuple[str, ...],
) -> str:
    if value.role in PERSISTENT:
        return f"a {value.role.value} keeps its bytes over all programs"
    if any(root in p.inputs for p in graph.programs):
        return "inputs keep their bytes: whoever calls fills them between steps"
    if value.id in graph.program[program].outputs:
        return f"{program} returns it"
    if value.id in plan.keep:
        return "the plan keeps it until the end (--keep)"
    final = order[last]
    node = graph.program[program].node[final]
    if value.id not in (*node.reads, *node.writes):
        return f"a value that took over its bytes is needed until {final} ({node.op})"
    if not readers:
        return f"nobody reads it: {final} ({node.op}) writes it and its bytes are free again"
    gap = last - first
    far = f", {gap} nodes after it was made" if gap > 1 else ""
    return f"{final} ({node.op}, {node.phase}) is the last to read it{far}"


def _neighbours(block: Block, found: tuple[Block, ...]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """The blocks that held any of these bytes last before, and first after."""
    others = [b for b in found if b.id != block.id and b.meets(block)]
    earlier = sorted((b for b in others if b.last < block.first), key=lambda b: (-b.last, b.offset))
    later = sorted((b for b in others if b.first > block.last), key=lambda b: (b.first, b.offset))
    return _direct(block, earlier), _direct(block, later)


def _direct(block: Block, ranked: list[Block]) -> tuple[str, ...]:
    """Those of `ranked`, nearest in time first, of which at least one byte is not covered by a nearer one."""
    bare = [(block.offset, block.end)]
    found = []
    for other in ranked:
        rest = []
        for lo, hi in bare:
            if other.offset < hi and lo < other.end:
                rest += [(a, b) for a, b in ((lo, other.offset), (other.end, hi)) if a < b]
            else:
                rest.append((lo, hi))
        if rest != bare:
            found.append(other.id)
        bare = rest
    return tuple(found)
