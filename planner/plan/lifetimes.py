"""From when to when each block of a plan's arena is in use, in places of a program's order.

Reports and explanations read memory from here: a value with everything that takes over its bytes in place is one
block, a node's scratch is another. Places are indices into `ProgramPlan.nodes`.
"""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from planner.graph.model import PERSISTENT, Graph
from planner.plan.schema import Plan


class Block(NamedTuple):
    """Bytes [offset, offset + bytes) of a pool, in use from place `first` to place `last`, both included."""

    id: str
    """The value that owns the bytes, or `scratch:<node>`."""
    pool: str
    offset: int
    bytes: int
    first: int
    last: int
    always: bool
    """Kept over all programs: parameters, states and inputs."""
    members: tuple[str, ...]
    """All values that use the bytes, the owner first; empty for scratch."""

    @property
    def end(self) -> int:
        return self.offset + self.bytes

    def meets(self, other: "Block") -> bool:
        """Whether the two have a byte in common."""
        return self.pool == other.pool and self.offset < other.end and other.offset < self.end


def owner(plan: Plan, value: str) -> str:
    """The value whose bytes `value` uses; itself when it has its own. A circle in a broken plan ends somewhere."""
    return end_of_chain(value, _shared(plan), {})


def owners(plan: Plan) -> Mapping[str, str]:
    """`owner` of every value that the plan places."""
    found: dict[str, str] = {}
    for value in plan.placement:
        end_of_chain(value, _shared(plan), found)
    return found


def _shared(plan: Plan) -> Callable[[str], str]:
    return lambda value: plan.placement[value].shares if value in plan.placement else ""


def end_of_chain(value: str, following: Callable[[str], str], known: dict[str, str]) -> str:
    """What is left when `following` is followed to its end (""), or once around a circle. `known`: ends found before,
    to which those of all on the way are added: thousands in a row may take over the same bytes."""
    passed = {value: None}
    while value not in known and (then := following(value)) and then not in passed:
        value = then
        passed[value] = None
    end = known.get(value, value)
    known.update(dict.fromkeys(passed, end))
    return end


def blocks(graph: Graph, plan: Plan, program: str) -> tuple[Block, ...]:
    """All blocks of one program, in the order in which they come into use; ties by id."""
    order = [n.node for n in plan.program[program].nodes]
    known, roots = graph.program[program].node, owners(plan)
    first: dict[str, int] = {}
    last: dict[str, int] = {}
    members: dict[str, dict[str, None]] = {}
    kept = {v.id for v in graph.values if v.role in PERSISTENT} | {v for p in graph.programs for v in p.inputs}
    for place, name in enumerate(order):
        node = known.get(name)
        for value in (*node.reads, *node.writes) if node else ():
            root = roots.get(value, value)
            members.setdefault(root, {root: None})[value] = None
            first.setdefault(root, place)
            last[root] = place
    for value in (*graph.program[program].outputs, *(v for v in plan.keep if roots.get(v, v) in first)):
        last[roots.get(value, value)] = max(0, len(order) - 1)
    found = []
    for value, placement in plan.placement.items():
        if placement.shares or not (value in first or value in kept):
            continue
        always = value in kept
        begin, end = (0, max(0, len(order) - 1)) if always else (first[value], last[value])
        used = tuple(members.get(value, {value: None}))
        found.append(Block(value, placement.pool, placement.offset, placement.bytes, begin, end, always, used))
    pool = plan.pools[0].name if plan.pools else ""
    for place, node_plan in enumerate(plan.program[program].nodes):
        if node_plan.scratch_bytes:
            name = f"scratch:{node_plan.node}"
            offset, size = node_plan.scratch_offset, node_plan.scratch_bytes
            found.append(Block(name, pool, offset, size, place, place, False, ()))
    return tuple(sorted(found, key=lambda b: (b.first, b.id)))


def in_first_pool(found: tuple[Block, ...], plan: Plan) -> tuple[Block, ...]:
    """Those in the pool in which nodes run."""
    return tuple(b for b in found if b.pool == plan.pools[0].name) if plan.pools else found


def peak_place(found: tuple[Block, ...]) -> tuple[int, int]:
    """(place, bytes) where the blocks' sizes add up to the most; the first such place. (0, 0) without blocks."""
    changes: dict[int, int] = {}
    for block in found:
        changes[block.first] = changes.get(block.first, 0) + block.bytes
        changes[block.last + 1] = changes.get(block.last + 1, 0) - block.bytes
    alive = most = where = 0
    for place in sorted(changes):
        alive += changes[place]
        if alive > most:
            most, where = alive, place
    return where, most
