"""Free bytes as blocks: what is below the load but not used for a while, in as few blocks as the load allows."""

from planner.solve.packing.sections import Instance, loads

MOST = 0.05
"""Share of all bytes and time that may be free in a packing without waste: with more, blocks seldom take turns one for
one."""


def has_waste(problem: Instance) -> bool:
    """Whether more is free than packings without waste allow."""
    return float((problem.load - loads(problem)).sum()) > MOST * problem.load * problem.count


def with_free_space(problem: Instance) -> tuple[list[int], list[int], list[int]]:
    """(lower, upper, size) of the blocks and of what is free for a while below the load.

    Free bytes that end with the load's next rise by as much are one block; else the youngest ones give way.
    """
    lower, upper, size = list(problem.lower), list(problem.upper), list(problem.size)
    waiting: list[tuple[int, int]] = []
    """(bytes, since)"""
    before = 0
    slack = [problem.load - int(x) for x in loads(problem)]
    for section, free in enumerate((*slack, 0)):
        need = before - free
        if need < 0:
            waiting.append((-need, section))
        while need > 0:
            exact = [i for i, (room, _) in enumerate(waiting) if room == need]
            room, since = waiting.pop(exact[-1] if exact else -1)
            lower.append(since)
            upper.append(section)
            size.append(room)
            if room > need:
                waiting.append((room - need, section))
            need -= min(room, need)
        before = free
    return lower, upper, size
