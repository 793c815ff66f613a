"""Pass *threads*: how many slices each node gets (Liu et al., strategies 1 and 2).

Strategy 1 takes each node's best measured mode. Strategy 2 takes one slice count per op type, from its most
time-consuming instance: published because resizing a thread team costs time. Here lanes are permanent, so the cost
of changing counts is nil and strategy 2 is off unless asked for. `sequential` gives every node all lanes.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from planner.costs.residency import gone_before_read, stage_times
from planner.costs.table import CostEntry, CostTable
from planner.errors import UserError
from planner.graph.model import Graph, Node
from planner.ops.base import Facts, Mode, Op, Signature, op_named
from planner.ops.device import DEVICE_KERNELS, limit, running
from planner.ops.signature import signature_of
from planner.ops.streaming import block_of


class Choice(NamedTuple):
    """The mode of one node with its predicted time per stage."""

    mode: Mode
    facts: Facts
    stage_ns: tuple[int, ...]
    traffic: int = 0
    """Bytes per ms that it moves to and from memory when it runs alone."""
    affinity: str = "compact"
    """How its lanes were placed when it was timed: sharing caches or not."""

    @property
    def total_ns(self) -> int:
        return sum(self.stage_ns)


Options = Mapping[str, tuple[Choice, ...]]
"""node id -> every way to run it on the lanes there are"""


def node_options(
    graph: Graph,
    order: Sequence[Node],
    cold: Mapping[str, float],
    costs: CostTable,
    lanes: int,
    cache_bytes: int,
    *,
    gpu: bool = False,
) -> dict[str, tuple[Choice, ...]]:
    """Every usable mode of every node of a program; `cold`: how warm each finds its operands (warmth.py). Results are
    streamed only where they are not read from the cache. SP1202: a node was never measured on such hardware."""
    streams = gone_before_read(graph, order, cold, cache_bytes) if costs.streams else frozenset[str]()
    known: dict[tuple[str, float, bool], tuple[Choice, ...]] = {}
    found = {}
    for node in order:
        key = (signature_of(graph, node).text, cold[node.id], node.id in streams)
        if key not in known:
            known[key] = _options(graph, node, costs, lanes, gpu, *key[1:])
        found[node.id] = known[key]
    return found


def choose_modes(
    order: Sequence[Node],
    options: Options,
    lanes: int,
    *,
    policy: str,
    strategies: Sequence[int],
    pinned: Mapping[str, int],
    uniform: int | None = None,
) -> dict[str, Choice]:
    """node id -> its mode. `uniform`: with that many slices each, or as many below as there are."""
    if policy == "sequential":
        wanted = {node.id: lanes for node in order}
    elif uniform is not None:
        wanted = {node.id: uniform for node in order}
    elif 2 in strategies:
        wanted = _uniform_counts(order, options)
    else:
        wanted = {}
    wanted.update(pinned)
    return {node.id: _pick(node, options[node.id], wanted.get(node.id), node.id in pinned) for node in order}


def _options(
    graph: Graph, node: Node, costs: CostTable, lanes: int, gpu: bool, cold: float, streams: bool
) -> tuple[Choice, ...]:
    signature = signature_of(graph, node)
    op = op_named(node.op)
    if op.alias(signature) is not None:
        return (Choice(Mode("alias", "whole", 1), {}, ()),)
    entries = [e for e in costs.modes(signature.text) if e.slices <= lanes and _valid(op, signature, e, gpu)]
    streaming = [e for e in entries if block_of(e.implementation)]
    if not streams:
        entries = [e for e in entries if not block_of(e.implementation)]
    elif signature.updates and streaming and lanes > 1:
        # What an ordinary store of a parameter costs that other lanes have read, no table has (ops/streaming.py).
        entries = streaming
    if not entries:
        raise UserError(
            "SP1202",
            f"the cost table has no usable entry for node {node.id!r}: {signature.text}",
            "run `stepplan profile` on this graph with the same target",
        )
    moved = op.bytes_moved(signature) * cold * 1e6
    found = []
    for entry in entries:
        times = stage_times(entry, cold)
        found.append(Choice(entry.mode, entry.facts, times, round(moved / max(1, sum(times))), entry.affinity))
    return tuple(found)


def _valid(op: Op, signature: Signature, entry: CostEntry, gpu: bool) -> bool:
    """Whether the op offers the entry's mode on this kind of hardware, with as many stages as were timed."""
    if (entry.kernel in DEVICE_KERNELS) != gpu or entry.slices > limit(op, signature, entry.kernel, entry.dim):
        return False
    return running(op, entry.mode).stage_count(signature, entry.mode, entry.facts) == len(entry.warm_ns)


def _uniform_counts(order: Sequence[Node], options: Options) -> dict[str, int]:
    """Strategy 2: the best count of each op type's most time-consuming instance."""
    slowest: dict[str, Choice] = {}
    for node in order:
        best = min(options[node.id], key=rank)
        if node.op not in slowest or best.total_ns > slowest[node.op].total_ns:
            slowest[node.op] = best
    return {node.id: slowest[node.op].mode.slices for node in order}


def _pick(node: Node, options: Sequence[Choice], count: int | None, pinned: bool) -> Choice:
    """The fastest option with `count` slices, or with the nearest smaller count there is."""
    if count is not None:
        exact = [o for o in options if o.mode.slices == count]
        if pinned and not exact:
            raise UserError(
                "SP1302",
                f"node {node.id!r} is pinned to {count} slices, which its op or the cost table does not offer",
                f"pin one of {sorted({o.mode.slices for o in options})}",
            )
        largest = max((o.mode.slices for o in options if o.mode.slices <= count), default=1)
        options = exact or [o for o in options if o.mode.slices == largest] or options
    return min(options, key=rank)


def rank(choice: Choice) -> tuple[int, int, Mode]:
    """Sorts the ways to run a node: the fastest first, then the one with fewer slices."""
    return (choice.total_ns, choice.mode.slices, choice.mode)
