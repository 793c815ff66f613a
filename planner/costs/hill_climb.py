"""Hill climbing over slice counts and interpolation between the counts that were timed (Liu et al., section III-D).

A signature is timed with 1 slice, then 1 + x, 1 + 2x, ... until its time rises or the lanes run out; with both
affinities where they differ. Counts in between are linear interpolations.
"""

from collections.abc import Callable, Mapping, Sequence


def default_interval(lanes: int) -> int:
    """4 as published, 1 where there are at most 4 cores."""
    return 4 if lanes > 4 else 1


def counts_to_try(limit: int, lanes: int, interval: int) -> tuple[int, ...]:
    """1, 1 + x, 1 + 2x, ... and the largest usable count, which the sequential policy needs."""
    last = max(1, min(limit, lanes))
    return tuple(sorted({*range(1, last + 1, interval), last}))


def hill_climb(counts: Sequence[int], measure: Callable[[int], float]) -> dict[int, float]:
    """Times (ns) of the counts up to and including the first that is slower than the one before it.

    The last count is always measured: `sequential` runs every node on all lanes, whatever that costs.
    """
    times: dict[int, float] = {}
    previous = float("inf")
    for count in counts:
        times[count] = measure(count)
        if times[count] > previous:
            break
        previous = times[count]
    if counts and counts[-1] not in times:
        times[counts[-1]] = measure(counts[-1])
    return times


def interpolate(times: Mapping[int, float], count: int) -> float:
    """Linear interpolation between the neighbouring measured counts; outside them, the nearest one's time."""
    if count in times:
        return times[count]
    known = sorted(times)
    below = max((k for k in known if k < count), default=known[0])
    above = min((k for k in known if k > count), default=known[-1])
    if above <= below:
        return times[below]
    share = (count - below) / (above - below)
    return times[below] + share * (times[above] - times[below])


def accuracy(predicted: Sequence[float], actual: Sequence[float]) -> float:
    """1 - mean(|predicted - actual| / actual), the measure of table V."""
    return 1.0 - sum(abs(p - a) / a for p, a in zip(predicted, actual, strict=True)) / len(actual)
