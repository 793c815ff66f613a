"""Pass *sync*: the waits that make a schedule right under every timing.

Stages are visited in schedule order with everything their slices read and write (touched.py says what a slice must
come after). Vector clocks (clocks.py) then drop every wait that lane order or another wait already implies: the
transitive reduction. Waits for all slices of a stage are written as one, `node/stage#*`.
"""

from collections.abc import Mapping

from planner.graph.model import Graph
from planner.ops.base import op_named
from planner.ops.signature import signature_of
from planner.plan.schema import Entry, slice_name
from planner.solve.clocks import Clocks
from planner.solve.liveness import Liveness, scratch_id
from planner.solve.schedule import Schedule
from planner.solve.touched import Arena, Touched, touches_of


def lane_programs(
    graph: Graph, schedule: Schedule, live: Liveness, offsets: Mapping[str, int], lanes: int
) -> tuple[tuple[Entry, ...], ...]:
    """What every lane runs, stage after stage of node after node, with the waits that are needed."""
    clocks = Clocks(lanes)
    arena = Arena(graph, live, offsets)
    entries: list[list[Entry]] = [[] for _ in range(lanes)]
    for node in schedule.order:
        choice, places = schedule.choices[node.id], schedule.lanes[node.id]
        if not choice.stage_ns:
            continue
        signature = signature_of(graph, node)
        touches = touches_of(op_named(node.op), signature, choice.mode, len(choice.stage_ns), choice.facts)
        operands = {f"in{i}": v for i, v in enumerate(node.inputs)}
        operands |= {f"out{i}": v for i, v in enumerate(node.outputs)}
        operands |= {f"up{i}": v for i, v in enumerate(node.updates)}
        scratch = arena.open_scratch(scratch_id(schedule.program, node.id), touches.scratch)
        for stage, parts in enumerate(touches.stages):
            touched: list[Touched] = []
            for part in parts:
                value = operands.get(part.operand)
                block = scratch[part.operand] if value is None else arena.block(value)
                touched.append((block, part, 0 if value is None else graph.value[value].type.dtype.itemsize))
            needed = arena.needed(touched, clocks.certain(places), len(places))
            added, waits = clocks.add(f"{node.id}/{stage}", places, needed)
            for touch in touched:
                arena.record(touch, added)
            for index, lane in enumerate(places):
                entries[lane].append(Entry(run=slice_name(node.id, stage, index), wait=waits[index]))
    return tuple(map(tuple, entries))
