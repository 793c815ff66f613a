"""Why a value stays in memory, is made again or moves: what the plan decided, and what that costs and frees."""

from planner.graph.model import Node, Program, Value
from planner.ops.base import op_named
from planner.plan.expand import RECOMPUTE, TRANSFER
from planner.plan.schema import ProgramPlan
from planner.units import format_bytes, format_ns


def memory_decisions(value: Value, plan: ProgramPlan, program: Program) -> list[str]:
    """`program`: expanded. Empty where the program's forward part does not make the value."""
    instance = _instance(value, plan, program)
    if instance:
        return [instance]
    maker = next((n for n in program.nodes if n.phase == "forward" and value.id in n.outputs), None)
    if maker is None:
        return []
    found = []
    for entry in plan.rewrite.recomputes:
        copy = program.node[entry.node]
        made = dict(zip(maker.outputs, copy.outputs, strict=False)).get(value.id) if entry.of == maker.id else None
        readers = _readers(program, made) if made else ""
        if made and readers:
            took = format_ns(plan.node[entry.node].predicted_ns)
            found.append(f"made again by {entry.node} ({copy.op}, {took}) for {readers}")
    for transfer in plan.rewrite.transfers:
        if transfer.value == value.id and transfer.kind == "offload":
            took = format_ns(plan.node[transfer.node].predicted_ns)
            found.append(f"moved to {transfer.to_pool} by {transfer.node} ({took} on the link)")
            for back in plan.rewrite.transfers:
                if back.value == transfer.makes:
                    found.append(f"moved back by {back.node} for {_readers(program, back.makes)}")
    if found:
        gap = f"its {format_bytes(value.type.bytes)} are free from {_last_forward(value, program)} on until then"
        return [*found, gap]
    return [_kept(value, maker, plan, program)]


def _kept(value: Value, maker: Node, plan: ProgramPlan, program: Program) -> str:
    late = [n for n in program.nodes if n.phase != "forward" and value.id in n.reads]
    if not late:
        return "only the forward pass reads it: nothing to decide"
    if op_named(maker.op).again(maker) is None:
        return f"kept: {maker.op} cannot run again"
    took = plan.node[maker.id].predicted_ns
    rate = took / max(1, value.type.bytes) * 2**20
    return (
        f"kept until {late[-1].id}: making it again would take {format_ns(took)}, {format_ns(round(rate))} per MiB, "
        "and the budget leaves room for it"
    )


def _instance(value: Value, plan: ProgramPlan, program: Program) -> str:
    maker = next((n for n in program.nodes if value.id in n.outputs and n.phase in (RECOMPUTE, TRANSFER)), None)
    if maker is None:
        return ""
    of = {r.node: r.of for r in plan.rewrite.recomputes}.get(maker.id)
    what = f"a result of {of} once more" if of else f"a copy of {maker.inputs[0]}"
    return f"{what}, for {_readers(program, value.id) or 'nobody'}"


def _readers(program: Program, value: str) -> str:
    return ", ".join(n.id for n in program.nodes if value in n.reads)


def _last_forward(value: Value, program: Program) -> str:
    readers = [n.id for n in program.nodes if value.id in (*n.reads, *n.writes)]
    return readers[-1]
