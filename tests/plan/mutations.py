"""Random damage to plans: what a careless edit, or a wrong solver, could do."""

import random
from collections.abc import Callable, Sequence
from typing import Any

from planner.plan.schema import Entry, NodePlan, Plan, ProgramPlan

Lanes = list[list[Entry]]


def edit_program(plan: Plan, program: str, **changes: Any) -> Plan:
    programs = tuple(p.model_copy(update=changes) if p.name == program else p for p in plan.programs)
    return plan.model_copy(update={"programs": programs})


def edit_node(plan: Plan, program: str, name: str, **changes: Any) -> Plan:
    nodes = tuple(n.model_copy(update=changes) if n.node == name else n for n in plan.program[program].nodes)
    return edit_program(plan, program, nodes=nodes)


def edit_value(plan: Plan, name: str, **changes: Any) -> Plan:
    placements = tuple(p.model_copy(update=changes) if p.value == name else p for p in plan.placements)
    return plan.model_copy(update={"placements": placements})


def edit_pool(plan: Plan, **changes: Any) -> Plan:
    return plan.model_copy(update={"pools": (plan.pools[0].model_copy(update=changes), *plan.pools[1:])})


def edit_lanes(plan: Plan, program: str, lanes: Sequence[Sequence[Entry]]) -> Plan:
    return edit_program(plan, program, lanes=tuple(tuple(lane) for lane in lanes))


def lanes_of(plan: Plan, program: str) -> Lanes:
    return [list(lane) for lane in plan.program[program].lanes]


def find(lanes: Lanes, run: str) -> tuple[int, int]:
    return next((i, j) for i, lane in enumerate(lanes) for j, entry in enumerate(lane) if entry.run == run)


# -- order -----------------------------------------------------------------------------------------------------------
def drop_wait(plan: Plan, rng: random.Random) -> Plan:
    program, lanes = _pick(plan, rng)
    spots = [(i, j) for i, lane in enumerate(lanes) for j, e in enumerate(lane) if e.wait]
    if not spots:
        return plan
    i, j = rng.choice(spots)
    gone = rng.choice(lanes[i][j].wait)
    lanes[i][j] = lanes[i][j].model_copy(update={"wait": tuple(w for w in lanes[i][j].wait if w != gone)})
    return edit_lanes(plan, program.name, lanes)


def drop_waits(plan: Plan, rng: random.Random) -> Plan:
    """All waits of one slice: lane order alone must do."""
    program, lanes = _pick(plan, rng)
    lane = rng.choice(lanes)
    if lane:
        at = rng.randrange(len(lane))
        lane[at] = lane[at].model_copy(update={"wait": ()})
    return edit_lanes(plan, program.name, lanes)


def add_wait(plan: Plan, rng: random.Random) -> Plan:
    program, lanes = _pick(plan, rng)
    entries = [e.run for lane in lanes for e in lane]
    lane = rng.choice(lanes)
    if lane:
        at = rng.randrange(len(lane))
        lane[at] = lane[at].model_copy(update={"wait": (*lane[at].wait, rng.choice(entries))})
    return edit_lanes(plan, program.name, lanes)


def swap_entries(plan: Plan, rng: random.Random) -> Plan:
    program, lanes = _pick(plan, rng)
    lane = rng.choice(lanes)
    if len(lane) > 1:
        i = rng.randrange(len(lane) - 1)
        j = i + 1 if rng.random() < 0.7 else rng.randrange(len(lane))
        lane[i], lane[j] = lane[j], lane[i]
    return edit_lanes(plan, program.name, lanes)


def move_entry(plan: Plan, rng: random.Random) -> Plan:
    program, lanes = _pick(plan, rng)
    source, target = rng.choice(lanes), rng.choice(lanes)
    if source:
        at = rng.randrange(len(source))
        entry = source.pop(at)
        target.insert(min(len(target), at + rng.randint(-1, 1)) if rng.random() < 0.7 else len(target), entry)
    return edit_lanes(plan, program.name, lanes)


# -- memory ----------------------------------------------------------------------------------------------------------
def overlap_values(plan: Plan, rng: random.Random) -> Plan:
    a, b = rng.choice(plan.placements), rng.choice(plan.placements)
    offset = max(0, b.offset + rng.choice([0, 0, 64, -64, 128]))
    return edit_value(plan, a.value, offset=min(offset, max(0, plan.pools[0].arena - a.bytes) // 64 * 64))


def move_scratch(plan: Plan, rng: random.Random) -> Plan:
    program = rng.choice(plan.programs)
    nodes = [n for n in program.nodes if n.scratch_bytes]
    if not nodes:
        return plan
    node = rng.choice(nodes)
    offset = rng.choice(plan.placements).offset
    return edit_node(
        plan, program.name, node.node, scratch_offset=min(offset, plan.pools[0].arena - node.scratch_bytes)
    )


def reshare(plan: Plan, rng: random.Random) -> Plan:
    placement = rng.choice(plan.placements)
    other = rng.choice(plan.placements)
    kind = rng.randrange(3)
    if kind == 0:
        return edit_value(plan, placement.value, shares="")
    if kind == 1:
        return edit_value(plan, placement.value, shares=other.value)
    return edit_value(plan, placement.value, shares=other.value, offset=other.offset)


# -- completeness ----------------------------------------------------------------------------------------------------
def shrink_arena(plan: Plan, rng: random.Random) -> Plan:
    return edit_pool(plan, arena=max(0, plan.pools[0].arena - rng.choice([64, 4096])))


def change_slices(plan: Plan, rng: random.Random) -> Plan:
    program = rng.choice(plan.programs)
    node: NodePlan = rng.choice(program.nodes)
    return edit_node(plan, program.name, node.node, slices=rng.choice([1, 2, 3, node.slices + 1, 10**30]))


def drop_entry(plan: Plan, rng: random.Random) -> Plan:
    program, lanes = _pick(plan, rng)
    lane = rng.choice(lanes)
    if lane:
        lane.pop(rng.randrange(len(lane)))
    return edit_lanes(plan, program.name, lanes)


def repeat_entry(plan: Plan, rng: random.Random) -> Plan:
    program, lanes = _pick(plan, rng)
    source, target = rng.choice(lanes), rng.choice(lanes)
    if source:
        target.insert(rng.randint(0, len(target)), rng.choice(source))
    return edit_lanes(plan, program.name, lanes)


def rename(plan: Plan, rng: random.Random) -> Plan:
    """A name that is nobody's, in a random place."""
    name = rng.choice(["", "x/0#99999999999999999999", "\N{SNOWMAN}/\n", "a" * 5000, "conv1/0#-1", "conv1/0#00"])
    program, lanes = _pick(plan, rng)
    kind = rng.randrange(5)
    if kind == 0 and lanes[0]:
        lanes[0][0] = Entry(run=name)
    elif kind == 1 and lanes[0]:
        lanes[0][-1] = lanes[0][-1].model_copy(update={"wait": (name,)})
    elif kind == 2:
        return edit_value(plan, rng.choice(plan.placements).value, value=name)
    elif kind == 3:
        return edit_node(plan, program.name, rng.choice(program.nodes).node, node=name)
    else:
        return edit_value(plan, rng.choice(plan.placements).value, pool=name)
    return edit_lanes(plan, program.name, lanes)


def absurd_number(plan: Plan, rng: random.Random) -> Plan:
    number = rng.choice([2**31, 2**60, 2**63, 2**64 + 64, 10**300])
    program = rng.choice(plan.programs)
    node = rng.choice(program.nodes)
    kind = rng.randrange(8)
    if kind == 0:
        return edit_pool(plan, arena=number, capacity=number)
    if kind == 1:
        return edit_value(plan, rng.choice(plan.placements).value, offset=number)
    if kind == 2:
        return edit_value(plan, rng.choice(plan.placements).value, bytes=number)
    if kind == 3:
        return edit_node(plan, program.name, node.node, scratch_offset=number, scratch_bytes=number)
    if kind == 4:
        return edit_node(plan, program.name, node.node, facts={"packed_bytes": rng.choice([number, -1])})
    if kind == 5:
        return edit_program(plan, program.name, peak_bytes=number)
    if kind == 6:
        return plan.model_copy(update={"lanes": tuple(x.model_copy(update={"cpu": number}) for x in plan.lanes)})
    return edit_node(plan, program.name, node.node, stage_ns=(number,) * rng.randint(0, 3))


def _pick(plan: Plan, rng: random.Random) -> tuple[ProgramPlan, Lanes]:
    program = rng.choice(plan.programs)
    return program, lanes_of(plan, program.name)


Mutation = Callable[[Plan, random.Random], Plan]
ORDER: tuple[Mutation, ...] = (drop_wait, drop_waits, add_wait, swap_entries, move_entry)
MEMORY: tuple[Mutation, ...] = (overlap_values, move_scratch, reshare)
REST: tuple[Mutation, ...] = (shrink_arena, change_slices, drop_entry, repeat_entry, rename, absurd_number)
