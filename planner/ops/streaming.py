"""Results that bypass the caches: a schedule of element-wise loops whose results no cache holds until they are read.

An ordinary store of a line that no cache has fetches it first, so a loop that writes n bytes moves 2 n for them. A
streaming store does not (templates/runtime/stream.hpp); but who reads the result next finds nothing of it in a cache.
Profiling times it where results are large, and a plan uses it where they are gone before they are read anyway
(costs/residency.py). Every element is computed alike, so results have the same bits.

Updates of parameters stream them for another reason. Between two updates several lanes read a parameter, so each has a
copy of its lines, or their common cache has; an ordinary store waits until all of them have given theirs up, a
streaming one does not wait. Measured on an AMD Zen 4, two lanes, SGD with momentum for 1.2 million parameters: 0.2
instead of 0.7 ms where the lanes share a cache, instead of 1.9 ms where they do not.
"""

import re

STREAMS = ("stream:128", "stream:512")
"""Implementations of a loop that streams its results, and from blocks of how many elements."""

UPDATE_STREAMS = ("stream:512",)
"""The same of a parameter's update."""

STREAMED_FAMILIES = frozenset({"elementwise", "binary", "choice", "chain"})
"""Op families whose loops can: those of chains, and of the ops that can be steps of one."""


def block_of(implementation: str) -> int:
    """Elements of the blocks that an implementation streams; 0: it writes ordinarily."""
    found = re.fullmatch(r"stream:([0-9]{1,6})", implementation)
    return int(found[1]) if found else 0
