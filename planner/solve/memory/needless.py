"""What would go with a step that need not run: whatever runs for nothing else.

    a  b = f(a)  c = g(b)  d = h(b)  e = k(c, d)        with e go c, d, b and a; with c nothing, as d reads b as well

Each step has a *nearest* later one that it goes with: where the ways from its readers to what stays first meet. These
form a tree (of dominators), in which everything below a step goes with it.
"""

from collections.abc import Collection, Mapping, Sequence


def going_ns(ns: Sequence[float], readers: Mapping[int, Collection[int]]) -> list[float]:
    """For every step that may go, its time and that of what goes with it. `ns`: of every step. `readers`: of steps that
    may go, the later ones that read what they make; what is not among the keys stays."""
    stays = len(ns)
    nearest = [stays] * stays
    for at in sorted(readers, reverse=True):
        found = -1
        for reader in readers[at]:
            if reader not in readers:
                found = stays
                break
            found = reader if found < 0 else _meeting(found, reader, nearest)
        if found >= 0:
            nearest[at] = found
    total = list(ns)
    for at in sorted(readers):
        if nearest[at] < stays:
            total[nearest[at]] += total[at]
    return total


def _meeting(one: int, other: int, nearest: Sequence[int]) -> int:
    """Where two ways meet first; what stays is their end."""
    while one != other:
        if one < other:
            one = nearest[one]
        else:
            other = nearest[other]
    return one
