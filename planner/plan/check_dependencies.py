"""Part of `check`: every slice that needs what another slice made, or destroys what another needs, is ordered.

Within one tensor the graph decides the meaning: of two conflicting accesses (same bytes, at least one writes), the
one that comes first by (node, stage) must happen before the other. That is read after write, write after read and
write after write, the last two for values updated in place; stages of one node are ordered the same way. Slices of
one stage are independent by the op's contract.
"""

from collections.abc import Iterator

import numpy as np

from planner.plan.check_order import BoolArray, IntArray, Order
from planner.plan.check_structure import Slices
from planner.plan.check_touches import Touches
from planner.plan.findings import Report

PAIRS_AT_ONCE = 1 << 20
"""Bounds the memory that a comparison takes."""

TOLD = 2000
"""Broken pairs that are looked at one by one; the earliest of every kind are reported."""


def check_dependencies(slices: Slices, touched: Touches, order: Order, report: Report) -> None:
    """SP1414 read after write, SP1415 in-place updates, SP1416 stages of one node."""
    broken: list[tuple[IntArray, IntArray]] = []
    count = told = 0
    for write, other in _overlapping(touched):
        first, second, bad = _unordered(touched, order, write, other)
        count += int(bad.sum())
        if told < TOLD and bad.any():
            broken.append((first[bad][: TOLD - told], second[bad][: TOLD - told]))
            told += len(broken[-1][0])
    if not broken:
        return
    firsts, seconds = (np.concatenate(parts) for parts in zip(*broken, strict=True))
    earliest = np.argsort(order.rank[touched.slice[seconds]], kind="stable")
    for index in earliest.tolist():
        code, message = _message(slices, touched, order, int(firsts[index]), int(seconds[index]))
        report.add(code, slices.plan.name, message)
    if count > told:
        report.add(code, slices.plan.name, message, more=count - told)


def _overlapping(touched: Touches) -> Iterator[tuple[IntArray, IntArray]]:
    """All (write, other access of the same tensor) whose hulls overlap, in batches.

    Tensors are laid out one behind the other on one line (by rank where numbers might overflow). Of the writes
    sorted by start, those that overlap an access lie between the first whose end, or an earlier one's, is behind
    the access's start, and the last that starts before the access's end. Slices write side by side, so hardly any
    write in that range does not overlap.
    """
    lo, hi = _on_one_line(touched)
    writes = np.flatnonzero(touched.write)
    writes = writes[np.argsort(lo[writes], kind="stable")]
    first = np.searchsorted(np.maximum.accumulate(hi[writes]), lo, side="right")
    count = np.searchsorted(lo[writes], hi, side="left") - first
    np.maximum(count, 0, out=count)
    total = np.concatenate(([0], np.cumsum(count)))
    begin = 0
    while begin < len(count):
        # At least one access at a time, however many writes it overlaps.
        end = max(begin + 1, int(np.searchsorted(total, total[begin] + PAIRS_AT_ONCE, side="right")) - 1)
        sizes = count[begin:end]
        other = np.repeat(np.arange(begin, end), sizes)
        within = np.arange(len(other)) - np.repeat(total[begin:end] - total[begin], sizes)
        write = writes[first[other] + within]
        kept = hi[write] > lo[other]
        yield write[kept], other[kept]
        begin = end


def _on_one_line(touched: Touches) -> tuple[IntArray, IntArray]:
    """Starts and ends, those of different tensors far from each other."""
    length = int(touched.hi.max(initial=0)) + 1
    if length * (int(touched.tensor.max(initial=0)) + 1) < 2**62:
        base = touched.tensor * length
        return base + touched.lo, base + touched.hi
    marks, ranks = np.unique(np.concatenate((touched.lo, touched.hi)), return_inverse=True)
    base = touched.tensor * (len(marks) + 1)
    return base + ranks[: len(base)], base + ranks[len(base) :]


def _unordered(
    touched: Touches, order: Order, write: IntArray, other: IntArray
) -> tuple[IntArray, IntArray, BoolArray]:
    """(earlier access, later access, whether they conflict and are not ordered) of every pair."""
    write_first = touched.step[write] < touched.step[other]
    first, second = np.where(write_first, write, other), np.where(write_first, other, write)
    conflict = (touched.step[write] != touched.step[other]) & ~touched.columns_apart(write, other)
    return first, second, conflict & ~order.before(touched.slice[first], touched.slice[second])


def _message(slices: Slices, touched: Touches, order: Order, first: int, second: int) -> tuple[str, str]:
    one, other = int(touched.slice[first]), int(touched.slice[second])
    earlier, later = slices.names[one], slices.names[other]
    missing = order.missing(slices.names, one, other)
    what = touched.tensors[int(touched.tensor[first])].text()
    if earlier.rpartition("/")[0] == later.rpartition("/")[0]:
        return "SP1416", f"{later} touches {what} {missing}, an earlier stage that touches it, too"
    if not touched.write[second]:
        return "SP1414", f"{later} reads {what} {missing}, which writes it"
    verb = "writes" if touched.write[first] else "reads"
    return "SP1415", f"{later} changes {what} in place {missing}, which {verb} it first"
