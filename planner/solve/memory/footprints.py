"""How much memory a list of steps needs and what its extra work costs, quickly: thousands of lists are tried.

The same rules as liveness.py (in place, views, scratch for one step) on bare ids, for one program in which nodes run
one after the other. What the plan really needs is then found by liveness and packing.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from planner.graph.model import PERSISTENT, Graph, Program
from planner.ops.base import op_named, scratch_bytes
from planner.ops.device import running
from planner.ops.signature import signature_of
from planner.solve.memory.steps import Material, Step
from planner.solve.schedule import Schedule
from planner.units import align


@dataclass(frozen=True)
class Footprint:
    alive: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Bytes of the first pool in use at every step."""
    extra_ns: float
    """Time of what runs besides the graph's own nodes."""
    again_ns: float
    """The same without copies."""
    scratch: np.ndarray[tuple[int], np.dtype[np.int64]]
    """The part of `alive` that is scratch."""

    @property
    def peak(self) -> int:
        return int(self.alive.max())

    def above(self, level: float) -> float:
        """Bytes above `level`, added up over the steps."""
        return float(np.maximum(self.alive - level, 0).sum())


Found = tuple[list[Step], Footprint]
"""Steps, and what they need."""


class Anyway(NamedTuple):
    """Bytes in use whatever is decided, for every node of the graph."""

    before: np.ndarray[tuple[int], np.dtype[np.int64]]
    """Just before it: what it finds."""
    during: np.ndarray[tuple[int], np.dtype[np.int64]]


class Footprints:
    """What is the same for all decisions about one program."""

    def __init__(
        self,
        graph: Graph,
        program: Program,
        schedule: Schedule,
        material: Material,
        again_ns: Mapping[str, float],
        copy_ns_per_byte: float = 0.0,
        keep: Sequence[str] = (),
    ) -> None:
        """`again_ns`: forward node -> time of running it again. `copy_ns_per_byte`: what a byte costs that is moved."""
        self._material, self._again_ns, self.copy_ns_per_byte = material, again_ns, copy_ns_per_byte
        self._size = {v.id: align(v.type.bytes) for v in graph.values}
        self._untouchable = {v.id for v in graph.values if v.role in PERSISTENT} | set(program.inputs)
        self._ends = {*program.outputs, *keep}
        whole = self._untouchable | {v for p in graph.programs for v in p.inputs}
        self.always = sum(self._size[v] for v in whole)
        """Bytes of what is in memory all the time, whatever is decided."""
        self._whole = whole
        self._scratch: dict[str, int] = {}
        self._inplace: dict[str, tuple[tuple[int, int], ...]] = {}
        self._alias: dict[str, tuple[int, int]] = {}
        for node in schedule.order:
            signature, op = signature_of(graph, node), op_named(node.op)
            choice = schedule.choices[node.id]
            alias = op.alias(signature)
            if alias is not None:
                self._alias[node.id] = alias
                continue
            runs = running(op, choice.mode)
            self._scratch[node.id] = scratch_bytes(runs.scratch(signature, choice.mode, choice.facts))
            self._inplace[node.id] = tuple(op.inplace(signature, choice.mode))
        # Another op may stand in for a node that runs again (batch_norm_apply): its own in-place rule, no scratch.
        self._again_inplace: dict[str, tuple[tuple[int, int], ...]] = {}
        known = {n.id: n for n in material.order}
        self._outputs = {n.id: n.outputs for n in material.order}
        for name, again in material.again.items():
            if again.op == known[name].op:
                continue
            types = graph.types(again.inputs)
            op = op_named(again.op)
            signature = signature_of(graph, known[name]).__class__(again.op, again.attrs, types, types[:1])
            self._again_inplace[name] = tuple(op.inplace(signature, schedule.choices[name].mode))
        views = {node: (alias,) for node, alias in self._alias.items()}
        self._pairs = {
            "node": {**self._inplace, **views},
            "recompute": {**self._inplace, **self._again_inplace, **views},
        }
        """kind of step -> node -> (output, input) that are or may be the same bytes"""

    def of(self, found: Sequence[Step]) -> Footprint:
        size = self._size.copy()
        last: dict[str, int] = {}
        first: dict[str, int] = {}
        again = copied = 0.0
        count, away = len(found), set()
        scratch = [0] * (count + 1)
        sharing: list[tuple[int, Step, tuple[tuple[int, int], ...]]] = []
        for at, step in enumerate(found):
            _, of, kind, inputs, outputs = step
            for value in inputs:
                last[value] = at
            for value in outputs:
                if value not in first:
                    first[value] = at
                last[value] = at
            if kind == "node":
                scratch[at] = self._scratch.get(of, 0)
            elif kind == "recompute":
                again += self._again_ns[of]
                scratch[at] = self.scratch_again(of)
                for instance, value in zip(outputs, self._outputs[of], strict=False):
                    size[instance] = size[value]
            else:
                size[outputs[0]] = size[of]
                copied += self.copy_ns_per_byte * size[of]
                if kind == "offload":
                    away.add(outputs[0])
                continue
            if pairs := self._pairs[kind].get(of):
                sharing.append((at, step, pairs))
        last.update(dict.fromkeys(self._ends, count))
        root: dict[str, str] = {}
        until = dict(last)
        for at, step, pairs in sharing:
            self._share(step, pairs, at, root, until, last, size)
        change = [0] * (count + 2)
        for value, at in first.items():
            if value not in root and value not in self._whole and value not in away:
                bytes_ = size[value]
                change[at] += bytes_
                change[until[value] + 1] -= bytes_
        needed = np.array(scratch, np.int64)
        alive = np.cumsum(np.array(change[:-1], np.int64)) + needed + self.always
        return Footprint(alive, again + copied, again, needed)

    def step_ns(self, step: Step) -> float:
        """Time of what runs besides the graph's own nodes; a prefetch's includes that of the copy before it."""
        if step.kind == "recompute":
            return self._again_ns[step.of]
        return 2 * self.copy_ns_per_byte * self._size[step.of] if step.kind == "prefetch" else 0.0

    def size(self, value: str) -> int:
        return self._size[value]

    def is_view(self, node: str) -> bool:
        return node in self._alias

    def inplace(self, node: str) -> tuple[tuple[int, int], ...]:
        """(output, input) pairs of a node of the graph that may be the same bytes."""
        return self._inplace.get(node, ())

    def inplace_again(self, node: str) -> tuple[tuple[int, int], ...]:
        """The same where it runs again."""
        return self._again_inplace.get(node, self.inplace(node))

    def scratch_again(self, node: str) -> int:
        """Bytes of scratch where a node runs again."""
        return 0 if node in self._again_inplace else self._scratch.get(node, 0)

    def anyway(self, without: Collection[str]) -> Anyway:
        """Bytes in use at every node of the graph, `without` some values."""
        order = self._material.order
        found = [Step(n.id, n.id, "node", n.reads, n.writes) for n in order]
        first: dict[str, int] = {}
        last: dict[str, int] = {}
        for at, step in enumerate(found):
            for value in (*step.inputs, *step.outputs):
                last[value] = at
            for value in step.outputs:
                first.setdefault(value, at)
        for value in self._ends:
            last[value] = len(found)
        root: dict[str, str] = {v: v for v in without}
        until = dict(last) | dict.fromkeys(without, len(found) + 1)  # they are nobody's to overwrite here
        for at, step in enumerate(found):
            self._share(step, self._pairs["node"].get(step.of, ()), at, root, until, last, self._size)
        before, during = np.zeros(len(found) + 2, np.int64), np.zeros(len(found) + 2, np.int64)
        for value, at in first.items():
            if value not in root and value not in self._whole:
                before[at + 1] += self._size[value]
                before[until[value] + 1] -= self._size[value]
                during[at] += self._size[value]
                during[until[value] + 1] -= self._size[value]
        scratch = np.array([self._scratch.get(n.id, 0) for n in order], np.int64)
        return Anyway(
            np.cumsum(before)[: len(found)] + self.always, np.cumsum(during)[: len(found)] + self.always + scratch
        )

    def guess(self, value: str, way: str) -> float:
        """ns per byte of dropping one value, alone."""
        if way == "move":
            return 2 * self.copy_ns_per_byte
        return self._again_ns[self._material.producer[value]] / self._size[value]

    def _share(
        self,
        step: Step,
        pairs: Sequence[tuple[int, int]],
        at: int,
        root: dict[str, str],
        until: dict[str, int],
        last: Mapping[str, int],
        size: Mapping[str, int],
    ) -> None:
        """Views, and outputs in place of inputs that nobody needs any more."""
        view = step.of in self._alias
        taken: set[str] = set()
        for output, source in pairs:
            if output >= len(step.outputs):
                continue
            out, value = step.outputs[output], step.inputs[source]
            owner = root.get(value, value)
            if not view:
                free = until.get(owner, at) <= at and owner not in self._untouchable and owner not in taken
                if not free or out in root or size[out] != size[value] or step.inputs.count(value) > 1:
                    continue
            taken.add(owner)
            root[out] = owner
            until[owner] = max(until.get(owner, at), last[out])
