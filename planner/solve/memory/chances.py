"""Which decisions certainly lower no peak, told from what was seen without them.

Of the values that are in memory where most is, dropping one seldom helps: what it is made of would have to stay as
long, or it is read again on the way. A walk with the decision (quick.py) shows that; so does this, at a fraction of the
work, where all that a value is made of is there anyway when it is first wanted:

    step        1  2  3  4  5  6  7         x: bytes that go away from 3 to 5, up to the first late reader
    x           x  x  .  .  .  r  r         w, of which x is made: bytes that stay from 4 to 5 for it
    w           w  w  w  +  +  r

What lies before the first late reader is known to the byte then, and behind it nothing gets smaller but where a value
is made again more than once: there it may be absent wherever nobody reads it.
"""

import numpy as np

from planner.solve.memory.quick import WAYS, Glance, Quick
from planner.solve.memory.steps import Decision
from planner.solve.memory.walks import FRESH, KEEP, MOVE, OWN, Walk


class Chances:
    """Of single decisions besides those that a glance has seen, to lower what is above a level."""

    def __init__(self, quick: Quick, seen: Glance, level: int) -> None:
        self._quick, self._seen, self._level = quick, seen, level
        over = np.maximum(seen.alive - level, 0)
        self._over = over
        self._sums = np.concatenate(([0], np.cumsum(over)))
        """Of every step the bytes above the level before it."""
        self._walk = None if quick.several_losses else seen.walk
        if self._walk is not None:
            noted = self._walk.noted
            self._first = np.full(len(seen.since), -1, np.int64)
            """Of every instance the step that reads it first; -1: none."""
            self._first[noted.read[::-1]] = noted.reading[::-1]  # the last one written counts
            self._settled = {value: (place, instance) for place, value, instance in self._walk.settled}

    def none(self, value: str, decision: Decision) -> bool:
        """Whether nothing is gained; False: that is not known."""
        walk, number, way = self._walk, self._quick.number(value), WAYS[decision]
        if walk is None:
            return False
        recipe = self._quick.recipe(number)
        if any(walk.way[other] != KEEP for other in recipe.makes if other != number):
            return False  # it may come beside another value
        if walk.way[number] == KEEP:
            return self._none_of_kept(walk, number, way, recipe.reads if way != MOVE else ())
        return way != MOVE and not self._between(number)

    def _none_of_kept(self, walk: Walk, number: int, way: int, reads: tuple[int, ...]) -> bool:
        seen, first = self._seen, int(self._first[number])
        if first < 0:
            return True
        place = int(seen.calls.searchsorted(first, side="right")) - 1
        start, called = self._quick.last(number) + 1, int(seen.calls[place])
        stays = [(start, -self._quick.size(number))]
        for source in reads:
            instance = source
            if walk.way[source] != KEEP:
                settled, instance = self._settled.get(source, (place, -1))
                if settled >= place:
                    return False  # it has to come back for this value
            stays.append((int(seen.until[instance]) + 1, self._quick.size(source)))
        begin, more = min(at for at, _ in stays), 0
        if begin < called:
            then = seen.alive[begin:called].copy()
            for at, size in stays:
                if at < called:
                    then[at - begin :] += size
            if int(then.max()) > seen.peak:
                return True
            more = int(np.maximum(then - self._level, 0).sum()) - int(self._sums[called] - self._sums[begin])
        most = int(self._sums[first] - self._sums[called]) - more
        if way in (OWN, FRESH):
            most += self._between(number)
        return most <= 0

    def _between(self, number: int) -> int:
        """Bytes above the level while instances of a value wait for readers behind the first one, at most."""
        seen, walk = self._seen, self._walk
        assert walk is not None
        found = 0
        for instance in np.flatnonzero(seen.value_of == number).tolist():
            reading = np.unique(walk.noted.reading[walk.noted.read == instance])
            if not reading.size:
                continue
            begin, end = int(reading[0]), int(seen.until[instance]) + 1
            if instance >= self._quick.count:
                begin = int(seen.since[instance])
                found -= 0 if begin == int(reading[0]) else int(self._over[begin])
            found += int(self._sums[max(begin, end)] - self._sums[begin])
            found -= int(self._over[reading[reading < end]].sum())
        return found
