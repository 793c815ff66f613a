"""What a plan really does, by brute force: the judges that tests of `check` compare it with.

`fault` executes a program slice by slice in random legal orders on memory in which every byte remembers who wrote
it last, and looks whether every read finds what the graph means. `unsafe` compares all pairs of accesses under the
transitive closure of lane order and waits, byte by byte or by hulls.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from planner.graph.model import PERSISTENT, Graph, Program
from planner.ops.base import op_named
from planner.plan.schema import Plan, ProgramPlan
from tests.plan.reference import Touch, roots_of, signature_of, touches_of

NOBODY = -1


@dataclass
class Bytes:
    """One access with the exact bytes of the arena that it touches."""

    touch: Touch
    where: np.ndarray
    base: int
    """Where its tensor starts."""


def program_bytes(graph: Graph, plan: Plan, program: ProgramPlan) -> list[Bytes]:
    """All accesses in the graph's order: by node, stage and slice."""
    meaning = graph.program[program.name]
    found: list[Bytes] = []
    for planned in program.nodes:
        touches = touches_of(graph, meaning, planned, plan)
        shares: dict[str, int] = {}
        for t in touches:
            if "/" in t.tensor:
                shares[t.tensor] = max(shares.get(t.tensor, 1), t.access.hull[1])
        for t in touches:
            access = t.access
            if "/" in t.tensor:
                lo, hi = (t.lo + (t.hi - t.lo) * edge // shares[t.tensor] for edge in access.hull)
                found.append(Bytes(t, np.arange(lo, hi), t.lo))
                continue
            base = t.lo - access.hull[0] * t.itemsize
            rows = np.arange(*access.rows)[:, None] * access.width + np.arange(*access.cols)[None, :]
            where = base + (rows.reshape(-1, 1) * t.itemsize + np.arange(t.itemsize)[None, :]).ravel()
            found.append(Bytes(t, where, base))
    return sorted(found, key=lambda b: (b.touch.node, b.touch.stage))


def predecessors(program: ProgramPlan) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for lane in program.lanes:
        for index, entry in enumerate(lane):
            waited = [w for name in entry.wait for w in program.waited(name)]
            found[entry.run] = [*waited, *([lane[index - 1].run] if index else [])]
    return found


def fault(graph: Graph, plan: Plan, rng: random.Random, runs: int) -> str:
    """A wrong read (or a wrong result) that some legal order leads to; empty when none was found."""
    for program in plan.programs:
        accesses = program_bytes(graph, plan, program)
        numbers = {name: i for i, name in enumerate(predecessors(program))}
        expected, final = _expected(graph, graph.program[program.name], plan, accesses, numbers)
        start = _start(graph, graph.program[program.name], plan)
        # An arena may be larger than any memory: only what is touched is held.
        touched = [a.where for a in accesses] + [where for where, _ in (*final.values(), *start)]
        used = np.unique(np.concatenate([np.empty(0, np.int64), *touched]))
        spots = [np.searchsorted(used, a.where) for a in accesses]
        by_slice: dict[str, list[int]] = {name: [] for name in numbers}
        for index, access in enumerate(accesses):
            by_slice[access.touch.slice].append(index)
        for _ in range(runs):
            memory = np.full(used.size, NOBODY)
            for where, writer in start:
                memory[np.searchsorted(used, where)] = writer
            for name in legal_order(program, rng):
                for index in by_slice[name]:
                    if index in expected:
                        want = expected[index]
                        if (memory[spots[index]] != want)[want != NOBODY].any():
                            return f"{name} reads wrong bytes of {accesses[index].touch.tensor}"
                for index in by_slice[name]:
                    if accesses[index].touch.write:
                        memory[spots[index]] = numbers[name]
            for value, (where, want) in final.items():
                if (memory[np.searchsorted(used, where)] != want).any():
                    return f"{value} is wrong at the end of {program.name}"
    return ""


def _values(graph: Graph, program: Program) -> list[str]:
    """What is there when a program starts."""
    return sorted({v.id for v in graph.values if v.role in PERSISTENT} | set(program.inputs))


def _start(graph: Graph, program: Program, plan: Plan) -> list[tuple[np.ndarray, int]]:
    """Where values lie when a program starts, and a writer of each one's own."""
    return [
        (plan.placement[value].offset + np.arange(graph.value[value].type.bytes), -2 - index)
        for index, value in enumerate(_values(graph, program))
        if value in plan.placement
    ]


def _expected(
    graph: Graph, program: Program, plan: Plan, accesses: list[Bytes], numbers: dict[str, int]
) -> tuple[dict[int, np.ndarray], dict[str, tuple[np.ndarray, np.ndarray]]]:
    """Who should have written the bytes of every read, and of what is left at the end: the graph's meaning, with
    memory of its own for every tensor."""
    roots = roots_of(graph, program)
    tensors: dict[str, np.ndarray] = {}
    for index, value in enumerate(_values(graph, program)):
        tensors[value] = np.full(graph.value[value].type.bytes, -2 - index)
    expected: dict[int, np.ndarray] = {}
    stages: dict[tuple[int, int], list[int]] = {}
    for index, access in enumerate(accesses):
        stages.setdefault((access.touch.node, access.touch.stage), []).append(index)
    for members in stages.values():
        for index in members:
            access = accesses[index]
            name = access.touch.tensor
            if name not in tensors:
                size = graph.value[name].type.bytes if name in graph.value else access.touch.hi - access.touch.lo
                tensors[name] = np.full(size, NOBODY)
            if not access.touch.write or access.touch.operand.startswith("up"):
                expected[index] = tensors[name][access.where - access.base].copy()
        for index in members:
            if accesses[index].touch.write:
                access = accesses[index]
                tensors[access.touch.tensor][access.where - access.base] = numbers[access.touch.slice]
    final = {}
    for value in {*_values(graph, program), *program.outputs}:
        root = roots.get(value, value)
        if root in tensors and value in plan.placement:
            where = plan.placement[value].offset + np.arange(graph.value[root].type.bytes)
            final[value] = (where, tensors[root])
    return expected, final


def legal_order(program: ProgramPlan, rng: random.Random) -> Iterator[str]:
    """A random order that the plan allows: a random slice is put off as long as possible, or hurried, or every
    lane has a speed of its own."""
    needs = predecessors(program)
    blocked = {name: len(before) for name, before in needs.items()}
    followers: dict[str, list[str]] = {name: [] for name in needs}
    for name, before in needs.items():
        for other in before:
            followers[other].append(name)
    kind = rng.choice(["late", "early", "speeds"])
    victim = rng.choice(list(needs)) if needs else ""
    hurried: set[str] = set()
    if kind == "early":
        todo = [victim]
        while todo:
            name = todo.pop()
            if name not in hurried:
                hurried.add(name)
                todo += needs[name]
    speed = {name: rng.random() ** 3 for name in needs}
    if kind == "speeds":
        speed = {e.run: s for lane in program.lanes for s in [rng.random() ** 3] for e in lane}
    ready = [name for name, count in blocked.items() if not count]
    while ready:
        if kind == "late":
            pool = [n for n in ready if n != victim] or ready
        else:
            pool = [n for n in ready if n in hurried] or ready
        name = rng.choices(pool, [speed[n] + 1e-9 for n in pool])[0]
        ready.remove(name)
        yield name
        for follower in followers[name]:
            blocked[follower] -= 1
            if not blocked[follower]:
                ready.append(follower)


def closure(program: ProgramPlan) -> dict[str, set[str]] | None:
    """slice -> every slice that must be over before it starts; None when some wait for each other."""
    needs = predecessors(program)
    done: dict[str, set[str]] = {}
    while len(done) < len(needs):
        ready = [n for n in needs if n not in done and all(p in done for p in needs[n])]
        if not ready:
            return None
        for name in ready:
            done[name] = set(needs[name]).union(*(done[p] for p in needs[name]))
    return done


def unsafe(graph: Graph, plan: Plan, exact: bool) -> bool:
    """Whether some pair of accesses that meet is not ordered, or in the wrong order, or outputs do not survive.

    `exact`: pairs meet when they have a byte in common; else when their hulls do (of one tensor: `overlaps`). The
    first is what is necessary, the second what may be asked for at most.
    """
    return any(_unsafe(graph, plan, program, exact) for program in plan.programs)


def _unsafe(graph: Graph, plan: Plan, program: ProgramPlan, exact: bool) -> bool:
    known = closure(program)
    if known is None:
        return True
    meaning = graph.program[program.name]
    roots = roots_of(graph, meaning)
    keep = {v.id for v in graph.values if v.role in PERSISTENT} | {v for p in graph.programs for v in p.inputs}
    outputs = {roots.get(v, v) for v in program_outputs(graph, program)}
    groups: dict[str, list[Bytes]] = {}
    for access in program_bytes(graph, plan, program):
        groups.setdefault(access.touch.tensor, []).append(access)
    names = list(groups)
    for position, name in enumerate(names):
        if any(
            (a.touch.stage, a.touch.node) != (b.touch.stage, b.touch.node)
            and (a.touch.write or b.touch.write)
            and _meet(a, b, exact)
            and a.touch.slice not in known[b.touch.slice]
            for i, a in enumerate(groups[name])
            for b in groups[name][i + 1 :]
        ):
            return True
        for other in names[:position]:
            if roots.get(name, name) in keep or roots.get(other, other) in keep:
                continue
            forward = _in_turn(graph, plan, meaning, groups[other], groups[name], known, outputs, exact)
            if not forward and not _in_turn(graph, plan, meaning, groups[name], groups[other], known, outputs, exact):
                return True
    return False


def program_outputs(graph: Graph, program: ProgramPlan) -> tuple[str, ...]:
    return graph.program[program.name].outputs


def _meet(a: Bytes, b: Bytes, exact: bool) -> bool:
    if a.touch.tensor == b.touch.tensor and not exact:
        return a.touch.access.overlaps(b.touch.access)
    if a.touch.hi <= b.touch.lo or b.touch.hi <= a.touch.lo:
        return False
    scratch = "/" in a.touch.tensor + b.touch.tensor
    if a.touch.tensor != b.touch.tensor and (scratch or not exact):
        return True
    return len(np.intersect1d(a.where, b.where, assume_unique=True)) > 0


def _in_turn(
    graph: Graph,
    plan: Plan,
    program: Program,
    first: list[Bytes],
    second: list[Bytes],
    known: dict[str, set[str]],
    outputs: set[str],
    exact: bool,
) -> bool:
    for a in first:
        for b in second:
            if not (a.touch.write or b.touch.write) or not _meet(a, b, exact):
                continue
            if a.touch.tensor in outputs:
                return False
            if a.touch.slice not in known[b.touch.slice] and not _allowed(graph, plan, program, a.touch, b.touch):
                return False
    return True


def _allowed(graph: Graph, plan: Plan, program: Program, a: Touch, b: Touch) -> bool:
    """One slice reads `a` and writes `b` over it, as the op and the plan say."""
    if a.slice != b.slice or a.write or not b.write or (a.operand[:2], b.operand[:3]) != ("in", "out"):
        return False
    node = program.nodes[a.node]
    planned = plan.program[program.name].node[node.id]
    output, source = int(b.operand[3:]), int(a.operand[2:])
    pairs = op_named(node.op).inplace(signature_of(graph, node), planned.mode)
    shares, roots = plan.placement[node.outputs[output]].shares, roots_of(graph, program)
    same = roots.get(node.inputs[source], node.inputs[source]) == roots.get(shares, shares)
    return same and (output, source) in pairs and any(o == output and node.inputs[i] == shares for o, i in pairs)
