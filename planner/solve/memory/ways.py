"""Pass *ways*: at every step the fastest mode whose scratch fits the bytes that are free there (SuperNeurons, 3.5).

Functional tensors come first: the free bytes are what they leave of a limit. A node and its recomputations run in one
mode, because a recomputation makes the same bits (plan/check_rewrites.py), so its scratch must fit wherever it runs:

    free 300 MiB at conv1, 90 MiB where it runs again
    fft (4 ms, 300 MiB), gemm (6 ms, 80 MiB), implicit (9 ms, 0): gemm

Where a budget binds nodes run one after the other, so each has all that is free at its step, and deciding node by node
is exact. Other modes round differently: whether that is allowed is `PlanOptions.same_bits`.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import numpy as np

from planner.costs.table import CostTable
from planner.graph.model import Graph, Node
from planner.ops.base import op_named, scratch_bytes
from planner.ops.device import running
from planner.ops.signature import signature_of
from planner.ops.stored import PLAIN, stored_as
from planner.solve.memory.footprints import Footprint
from planner.solve.memory.steps import Material, Step
from planner.solve.rewriting import again_ns
from planner.solve.schedule import Schedule
from planner.solve.stored import given
from planner.solve.threads import Choice, Options


class Way(NamedTuple):
    """One way to run a node."""

    choice: Choice
    again_ns: float
    """Where it runs again."""
    scratch: int
    """Bytes that it needs while it runs; none where another op stands in for it."""

    def ns(self, times: int) -> float:
        """Of the node and `times` recomputations."""
        return self.choice.total_ns + times * self.again_ns


class Point(NamedTuple):
    """What some decisions need and cost with one choice of ways."""

    peak: int
    again_ns: float
    """What recomputation takes, and slower ways than the schedule's own; no copies."""


class Ways:
    """How the nodes of one program may run."""

    def __init__(self, graph: Graph, schedule: Schedule, made: Material, options: Options, costs: CostTable) -> None:
        """`options`: every mode of every node; of them those count that need as many lanes as the schedule's, and
        overwrite the same inputs, so that nothing else changes."""
        self._schedule, self._made = schedule, made
        self._again_scratch = frozenset(n.id for n in made.order if n.id in made.again and made.again[n.id].op == n.op)
        self._ways: dict[str, tuple[Way, ...]] = {}
        for node in made.order:
            found = _alternatives(graph, node, schedule.choices[node.id], options[node.id])
            if len(found) > 1:
                again = made.again.get(node.id)
                self._ways[node.id] = tuple(
                    Way(choice, again_ns(graph, node, again, choice, costs) if again else 0.0, scratch)
                    for choice, scratch in found
                )

    def __bool__(self) -> bool:
        """Whether there is anything to choose."""
        return bool(self._ways)

    def at_price(self, ns_per_byte: float) -> Schedule:
        """Every node in the way that is the fastest when a byte of scratch costs something."""
        chosen = {
            name: min(ways, key=lambda w: (w.choice.total_ns + ns_per_byte * w.scratch, w.scratch)).choice
            for name, ways in self._ways.items()
        }
        return self._with(chosen)

    def smallest(self) -> Schedule:
        """Every node in the way that needs the least scratch."""
        return self._with({name: _worth_having(ways, 0)[-1].choice for name, ways in self._ways.items()})

    def fitting(self, found: Sequence[Step], footprint: Footprint, limit: int) -> Schedule:
        """The fastest ways with which some steps need no more than `limit` bytes; where nothing fits, the smallest.
        `footprint`: theirs, in any ways."""
        resident = footprint.alive - footprint.scratch
        chosen = {}
        for name, (most, times) in self._uses(found, resident).items():
            ladder = _worth_having(self._ways[name], times)
            chosen[name] = next((w for w in ladder if most + w.scratch <= limit), ladder[-1]).choice
        return self._with(chosen)

    def points(self, found: Sequence[Step], footprint: Footprint) -> list[Point]:
        """All that some steps may need, from the least to where more bytes help no more, the ways being `fitting`.
        `footprint`: theirs, in the schedule's own ways."""
        resident = footprint.alive - footprint.scratch
        uses = self._uses(found, resident)
        scratch = footprint.scratch.copy()
        gains: list[tuple[int, float]] = []
        extra = footprint.again_ns
        smallest: dict[str, int] = {}
        for name, (most, times) in uses.items():
            ladder = _worth_having(self._ways[name], times)
            own = next(w for w in self._ways[name] if w.choice == self._schedule.choices[name])
            extra += ladder[-1].ns(times) - own.ns(times)
            smallest[name] = ladder[-1].scratch
            gains += [(most + w.scratch, v.ns(times) - w.ns(times)) for w, v in pairwise(ladder)]
        for at, step in enumerate(found):
            if step.of in smallest and self._has_scratch(step):
                scratch[at] = smallest[step.of]
        points = [Point(int((resident + scratch).max()), extra)]
        for need, gain in sorted(gains):
            extra -= gain
            if need <= points[-1].peak:
                points[-1] = Point(points[-1].peak, extra)
            else:
                points.append(Point(need, extra))
        return points

    def _has_scratch(self, step: Step) -> bool:
        return step.kind == "node" or (step.kind == "recompute" and step.of in self._again_scratch)

    def _uses(
        self, found: Sequence[Step], resident: np.ndarray[tuple[int], np.dtype[np.int64]]
    ) -> dict[str, list[int]]:
        """node -> most bytes of everything else where its scratch is needed; how often it runs again"""
        uses: dict[str, list[int]] = {}
        for at, step in enumerate(found):
            if step.of not in self._ways or step.kind not in ("node", "recompute"):
                continue
            use = uses.setdefault(step.of, [0, 0])
            if self._has_scratch(step):
                use[0] = max(use[0], int(resident[at]))
            use[1] += step.kind == "recompute"
        return uses

    def _with(self, chosen: Mapping[str, Choice]) -> Schedule:
        return replace(self._schedule, choices={**self._schedule.choices, **chosen})


def _alternatives(graph: Graph, node: Node, own: Choice, options: Sequence[Choice]) -> list[tuple[Choice, int]]:
    """The node's own choice and what may stand in for it, with the scratch that each needs. Weights stay as the
    schedule stores them."""
    signature, op = signature_of(graph, node), op_named(node.op)
    if op.alias(signature) is not None:
        return [(own, 0)]
    inplace, stored = op.inplace(signature, own.mode), stored_as(own.facts)
    if stored != PLAIN:
        options = [given(graph, node, choice, stored) for choice in options]
    found = {}
    for choice in (own, *options):
        alike = (choice.mode.slices, choice.affinity) == (own.mode.slices, own.affinity)
        if alike and choice.mode not in found and op.inplace(signature, choice.mode) == inplace:
            scratch = running(op, choice.mode).scratch(signature, choice.mode, choice.facts)
            found[choice.mode] = (choice, scratch_bytes(scratch))
    return list(found.values())


def _worth_having(ways: Sequence[Way], times: int) -> list[Way]:
    """The fastest first, then only smaller and smaller ones. `times`: how often the node runs again."""
    best: list[Way] = []
    for way in sorted(ways, key=lambda w: (w.ns(times), w.scratch, w.choice.mode)):
        if not best or way.scratch < best[-1].scratch:
            best.append(way)
    return best
