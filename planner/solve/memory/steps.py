"""From decisions about values to what runs: which nodes run again, what is copied, who reads which instance.

Every value that a forward node makes and that is read after the forward pass is

    keep     left where it is
    share    dropped after its last forward reader, made again once for all later readers   (speed-centric)
    own      made again for every recomputation that reads it and dropped in between, as fresh is, but left from the
             first late reader of its own on: in a chain of joins all values are needed to get at the last one, and
             each again when its own turn comes
    fresh    made again for every later reader and dropped in between                        (memory-centric)
    move     copied to a slower pool, copied back once for all later readers

What a recomputation reads and is not there is brought back first, by that value's own decision. A view follows the
value that it is a view of. Between two readers a value may be *held* all the same
(holding.py). `steps` lists everything in the order in which it runs, as bare tuples, so that a solver can
try thousands of decisions (footprint of the list: footprints.py); `rewrite_of` states the same as plan data.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from planner.graph.model import PERSISTENT, Graph, Node, Program
from planner.ops.base import Again, op_named
from planner.ops.signature import signature_of
from planner.plan.expand import offload_names, prefetch_names, recompute_name
from planner.plan.schema import Read, Recompute, Rewrite, Transfer

Decision = Literal["keep", "share", "own", "fresh", "move"]


Held = Collection[tuple[str, str]]
"""(value, node): what is left behind that node until it is next needed, though its decision says otherwise; FORWARD:
what is left behind its last forward reader"""

FORWARD = ""


ON_DEMAND = ("recompute", "prefetch")
"""Kinds of steps that stand right before the first one that needs them."""


class Step(NamedTuple):
    """One node of the expanded program."""

    id: str
    of: str
    """The graph's node that runs, or runs again; the value that is copied."""
    kind: Literal["node", "recompute", "offload", "prefetch"]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class Material:
    """What may be decided upon in one program, in a given order of its nodes."""

    order: tuple[Node, ...]
    again: Mapping[str, Again]
    """forward node -> how it runs again, for those that can"""
    producer: Mapping[str, str]
    """value -> forward node that can make it again"""
    views: Mapping[str, str]
    """value -> the value that it is only a view of"""
    values: tuple[str, ...]
    """Values of the forward pass that need not stay: all but views and what must be there at the end."""
    late: frozenset[str]
    """Those that are read after the forward pass, themselves or a view of them."""
    changes: Mapping[str, tuple[str, ...]]
    """node -> forward nodes before it that can run again and read what it changes in place"""
    cuts: tuple[str, ...]
    """Values through which all that the forward pass still needs goes, in order: whoever keeps them can make
    everything between two of them again from the first."""

    @cached_property
    def changed_from(self) -> Mapping[str, int]:
        """forward node -> the place in the order from which on it would read something else if it ran again"""
        found: dict[str, int] = {}
        for at, node in enumerate(self.order):
            for name in self.changes.get(node.id, ()):
                found.setdefault(name, at)
        return found

    @cached_property
    def plain(self) -> tuple[Step, ...]:
        """What runs where everything is kept, node by node."""
        return tuple(Step(n.id, n.id, "node", n.reads, n.writes) for n in self.order)

    def ways(self, value: str, slower_pool: bool) -> tuple[Decision, ...]:
        """What can be decided about a value. One that nobody reads late costs nothing, unless a recomputation reads
        it: then it too is made again rather than kept for that."""
        again: tuple[Decision, ...] = ("share", "own", "fresh") if value in self.producer else ()
        return (*again, "move") if slower_pool and value in self.late else again


def material(graph: Graph, program: Program, order: Sequence[Node], keep: Collection[str] = ()) -> Material:
    """`keep`: values that stay to the end anyway. The program's inputs, outputs and persistent values do as well."""
    fixed = {v.id for v in graph.values if v.role in PERSISTENT} | {*program.inputs, *program.outputs, *keep}
    again: dict[str, Again] = {}
    producer: dict[str, str] = {}
    views: dict[str, str] = {}
    late: set[str] = set()
    changes: dict[str, tuple[str, ...]] = {}
    reading: dict[str, dict[str, None]] = {}
    for node in order:
        if changed := dict.fromkeys(n for v in node.updates for n in reading.get(v, ())):
            changes[node.id] = tuple(changed)
        if node.phase != "forward":
            late.update(views.get(v, v) for v in node.reads)
            continue
        op = op_named(node.op)
        alias = op.alias(signature_of(graph, node))
        if alias is not None:
            source = node.inputs[alias[1]]
            views[node.outputs[alias[0]]] = views.get(source, source)
        way = op.again(node)
        if way is not None:
            again[node.id] = way
            for value in way.inputs:
                reading.setdefault(views.get(value, value), {})[node.id] = None
            producer.update((v, node.id) for v in node.outputs[: way.results])
    # A value stays if it, or a view of it, must.
    staying = {views.get(v, v) for v in fixed}
    made = {v: n for n in order if n.phase == "forward" for v in n.outputs}
    found = tuple(v for v in made if v not in views and v not in staying)
    return Material(
        tuple(order),
        again,
        producer,
        views,
        found,
        frozenset(v for v in found if v in late),
        changes,
        _cuts(order, views, set(found)),
    )


def _cuts(order: Sequence[Node], views: Mapping[str, str], values: Collection[str]) -> tuple[str, ...]:
    forward = [n for n in order if n.phase == "forward"]
    last: dict[str, int] = {}
    for at, node in enumerate(forward):
        for value in node.inputs:
            last[views.get(value, value)] = at
    waiting: set[str] = set()
    done: dict[int, list[str]] = {}
    for value, at in last.items():
        done.setdefault(at, []).append(value)
    found: dict[str, None] = {}
    for at, node in enumerate(forward):
        waiting.update(v for v in node.outputs if v in values and last.get(v, -1) > at)
        waiting.difference_update(done.get(at, ()))
        if len(waiting) == 1:
            found[next(iter(waiting))] = None
    return tuple(found)


def steps(material: Material, decisions: Mapping[str, Decision], held: Held = frozenset()) -> list[Step]:
    """Everything that runs, in order. Values without a decision are kept."""
    if not any(d != "keep" for d in decisions.values()):
        return list(material.plain)
    return _Unfolding(material, decisions, held).run()


def placed(found: Sequence[Step], material: Material) -> list[Step]:
    """Steps in the order in which plan/expand.py puts them: what runs again or comes back stands in front of the first
    node that needs it, or that changes in place what it reads. What nothing needs is left out."""
    maker = {v: at for at, step in enumerate(found) if step.kind in ON_DEMAND for v in step.outputs}
    again: dict[str, list[int]] = {}
    """forward node -> its recomputations"""
    for at, step in enumerate(found):
        if step.kind == "recompute":
            again.setdefault(step.of, []).append(at)
    done = [False] * len(found)
    order: list[Step] = []
    for start, first in enumerate(found):
        if first.kind in ON_DEMAND:
            continue
        if first.id not in material.changes and maker.keys().isdisjoint(first.inputs):
            order.append(first)
            continue
        stack = [start]
        while stack:
            step = found[stack[-1]]
            missing = [at for v in step.inputs if not done[at := maker.get(v, start)] and at != start]
            if not missing and step.kind == "node":
                changed = material.changes.get(step.id, ())
                missing = sorted(at for n in changed for at in again.get(n, ()) if not done[at])
            if missing:
                stack.append(missing[0])
                continue
            done[stack.pop()] = True
            order.append(step)
    return order


def rewrite_of(material: Material, found: Sequence[Step], fast: str, slow: str) -> Rewrite:
    """Steps as plan data. `fast`, `slow`: names of the pools that moved values change between."""
    known = {n.id: n for n in material.order}
    recomputes, transfers, reads = [], [], []
    for step in found:
        if step.kind == "node":
            originals = known[step.id].reads
        elif step.kind == "recompute":
            recomputes.append(Recompute(node=step.id, of=step.of, makes=step.outputs))
            originals = material.again[step.of].inputs
        else:
            pools = (fast, slow) if step.kind == "offload" else (slow, fast)
            transfers.append(
                Transfer(
                    node=step.id,
                    kind=step.kind,
                    value=step.inputs[0],
                    makes=step.outputs[0],
                    from_pool=pools[0],
                    to_pool=pools[1],
                )
            )
            continue
        pairs = dict.fromkeys(p for p in zip(originals, step.inputs, strict=True) if p[0] != p[1])
        reads += [Read(node=step.id, value=value, instance=instance) for value, instance in pairs]
    return Rewrite(recomputes=tuple(recomputes), transfers=tuple(transfers), reads=tuple(reads))


class _Unfolding:
    def __init__(self, material: Material, decisions: Mapping[str, Decision], held: Held) -> None:
        self._material, self._held = material, held
        self._decisions = {v: d for v, d in decisions.items() if d != "keep"}
        for view, root in material.views.items():
            decision = decisions.get(root, "keep")
            if decision != "keep" and view in material.producer:
                self._decisions[view] = "share" if decision == "move" else decision
        self._nodes = {n.id: n for n in material.order}
        self._shared: dict[str, str] = {}
        self._local: dict[str, str] = {}
        self._waiting = {v: v for v, node in held if node == FORWARD}
        """What is held and was not needed again so far."""
        self._own: frozenset[str] = frozenset()
        """What the present node itself reads, if that matters."""
        self._times: dict[str, int] = {}
        self._now = 0
        """The present node's place in the order."""
        self._misplaced = False
        """Whether something ran again that reads something else by now."""
        self._steps: list[Step] = []

    def run(self) -> list[Step]:
        moved = {v for v, d in self._decisions.items() if d == "move"}
        dropped, own = self._decisions.keys(), "own" in self._decisions.values()
        for at, (node, plain) in enumerate(zip(self._material.order, self._material.plain, strict=True)):
            if node.phase == "forward":
                self._steps.append(plain)
                for value in node.outputs if moved else ():
                    if value in moved:
                        copy, away = offload_names(value)
                        self._steps.append(Step(copy, value, "offload", (value,), (away,)))
                continue
            if dropped.isdisjoint(node.inputs):
                self._steps.append(plain)
                continue
            self._now = at
            if own:
                self._own = frozenset((*node.inputs, *(self._material.views.get(v, v) for v in node.inputs)))
            inputs = tuple([self._bring(v) if v in dropped else v for v in node.inputs])
            self._steps.append(Step(node.id, node.id, "node", inputs + node.updates, node.writes))
            self._waiting.update((v, i) for v, i in self._local.items() if (v, node.id) in self._held)
            self._local.clear()
        return placed(self._steps, self._material) if self._misplaced else self._steps

    def _there(self, value: str) -> str | None:
        if value in self._waiting:
            self._local[value] = self._waiting.pop(value)
        return self._local.get(value) or self._shared.get(value)

    def _bring(self, wanted: str) -> str:
        """The instance to read for a value that is dropped; makes what is missing. No recursion: chains are as long as
        networks."""
        stack = [wanted]
        while stack:
            value = stack[-1]
            if self._there(value):
                stack.pop()
                continue
            if self._decisions[value] == "move":
                copy, back = prefetch_names(value)
                self._steps.append(Step(copy, value, "prefetch", (offload_names(value)[1],), (back,)))
                self._shared[value] = back
                continue
            maker = self._material.producer[value]
            again = self._material.again[maker]
            missing = [v for v in again.inputs if v in self._decisions and not self._there(v)]
            if missing:
                stack += reversed(missing)  # the order in which plan/expand.py puts them
                continue
            self._again(maker, again)
        return self._there(wanted) or wanted

    def _again(self, maker: str, again: Again) -> None:
        self._misplaced |= self._material.changed_from.get(maker, self._now + 1) <= self._now
        number = self._times[maker] = self._times.get(maker, 0) + 1
        originals = self._nodes[maker].outputs[: again.results]
        makes = tuple(recompute_name(v, number) for v in originals)
        inputs = tuple([self._there(v) or v if v in self._decisions else v for v in again.inputs])
        self._steps.append(Step(recompute_name(maker, number), maker, "recompute", inputs, makes))
        for value, instance in zip(originals, makes, strict=True):
            self._local[value] = instance
            decision = self._decisions.get(value)
            if decision == "share" or (decision == "own" and value in self._own):
                self._shared[value] = instance
