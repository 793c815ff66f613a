"""Real accounting of a step that recomputes: which bytes every node touches, recomputations included.

Everything counts: parameters, their gradients (until applied), momentum, masks, statistics, inputs and outputs. Values
that share bytes (views, results written over an input that nobody reads again) are one block, by the same rules as
pass *liveness*. Whether a block is in the fast pool between two accesses is for the tensor cache to say (footprints.py
counts lists of steps in which that is decided). Workspaces are not in it: they take what is left (workspace.py).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.graph.model import PERSISTENT, Graph, Node, Program
from planner.ops.base import Mode, op_named
from planner.ops.signature import signature_of
from planner.solve.superneurons.recompute import Step, original
from planner.solve.superneurons.tensor_cache import Access
from planner.units import Bytes, align

_ANY = Mode("any", "any", 1)
"""What may share bytes does not depend on how a node is sliced."""


@dataclass(frozen=True)
class BlockAccesses:
    accesses: tuple[Access, ...]
    """One per step, in order; values are blocks, named after the first value in them."""
    block: Mapping[str, str]
    """Value or copy -> the block that holds it."""
    sizes: Mapping[str, Bytes]
    """Of every block, rounded up to whole cache lines."""
    persistent: frozenset[str]
    """Blocks that outlive the training step: parameters, momentum, running statistics."""
    inputs: frozenset[str]


def block_accesses(graph: Graph, program: Program, steps: Sequence[Step]) -> BlockAccesses:
    """The blocks that each step touches. A recomputed node does not update running statistics again."""
    block = _blocks(graph, program, steps)
    accesses = []
    for step in steps:
        node = program.node[step.task]
        updates = () if step.before else node.updates
        reads = tuple(dict.fromkeys(block[v] for v in step.reads if v not in node.updates or not step.before))
        writes = tuple(dict.fromkeys(block[v] for v in (*_outputs(step, node), *updates)))
        accesses.append(Access(step.task, reads, writes))
    used = {b for a in accesses for b in a.touches}
    return BlockAccesses(
        tuple(accesses),
        block,
        {b: align(graph.value[original(b)].type.bytes) for b in used},
        frozenset(b for b in used if graph.value[original(b)].role in PERSISTENT),
        frozenset(b for b in used if b in program.inputs),
    )


def _outputs(step: Step, node: Node) -> tuple[str, ...]:
    return tuple(v for v in step.writes if v not in node.updates)


def _blocks(graph: Graph, program: Program, steps: Sequence[Step]) -> dict[str, str]:
    """Value or copy -> the block that holds it."""
    last_read = {v: position for position, step in enumerate(steps) for v in step.reads}
    last_read.update(dict.fromkeys(program.outputs, len(steps)))
    block = {v: v for step in steps for v in (*step.reads, *step.writes)}
    members: dict[str, list[str]] = {}
    untouchable = {v.id for v in graph.values if v.role in PERSISTENT} | set(program.inputs)
    for position, step in enumerate(steps):
        node = program.node[step.task]
        signature = signature_of(graph, node)
        op = op_named(node.op)
        view = op.alias(signature)
        read = dict(zip(node.inputs, step.reads, strict=False))
        written = {original(v): v for v in step.writes}
        for output, source in (view,) if view else op.inplace(signature, _ANY):
            out, inp = written.get(node.outputs[output]), read[node.inputs[source]]
            if out is None or block[out] != out:
                continue
            root = block[inp]
            inside = members.setdefault(root, [root])
            if not view and not _may_take_over(graph, root, inside, inp, out, position, last_read, untouchable, step):
                continue
            block[out] = root
            inside.append(out)
    return block


def _may_take_over(
    graph: Graph,
    root: str,
    inside: Sequence[str],
    inp: str,
    out: str,
    position: int,
    last_read: Mapping[str, int],
    untouchable: set[str],
    step: Step,
) -> bool:
    """Nobody reads what the block holds after this step, and the result is as large."""
    done = all(last_read.get(v, -1) < position + (v == inp) for v in inside)
    same = graph.value[original(out)].type.bytes == graph.value[original(inp)].type.bytes
    taken = any(v in step.writes for v in inside)
    return done and same and not taken and root not in untouchable and step.reads.count(inp) == 1
