"""What `check` finds: stable codes, their fixes, and a collector that keeps reports short.

A plan with one mistake can break thousands of slices in the same way, so the collector keeps the first few findings
of every code and program and counts the rest.
"""

from planner.graph.model import Frozen
from planner.malformed import shown

KEPT = 8
"""Findings of one code in one program that are reported one by one."""

_AGAIN = "plan again with `stepplan plan`"

FIXES = {
    "SP1403": "check the plan against the graph that it was made for, or plan again",
    "SP1404": "check the plan against the target that it was made for, or plan again",
    "SP1405": "a plan has one entry for every program of its graph; " + _AGAIN,
    "SP1406": "list every node of the program exactly once; " + _AGAIN,
    "SP1407": "choose a kernel, dimension and number of slices that the op offers",
    "SP1408": "give every stage of the node a time in stage_ns, and a view none",
    "SP1409": "the scratch block must have the size that the op asks for; " + _AGAIN,
    "SP1410": "run every slice in exactly one lane; a node's `slices` and the lanes change together",
    "SP1411": "run every slice in exactly one lane",
    "SP1412": "name slices of the same program, node/stage#index; a node's `slices` and the lanes change together",
    "SP1413": "remove one of the waits, or reorder the lanes",
    "SP1414": "add the writing slice to the reading slice's waits, or reorder the lanes where it runs later",
    "SP1415": "add the earlier slice to the later slice's waits, or reorder the lanes where it runs later",
    "SP1416": "let the later stage's slice wait for the earlier stage's",
    "SP1417": "give every value exactly one placement",
    "SP1418": "placements start on a multiple of 64 bytes and have as many bytes as the value",
    "SP1419": "move it inside its pool's arena, or enlarge the arena to where it ends",
    "SP1420": "plan with a smaller memory budget, or raise the capacity",
    "SP1421": "share only with the input that the op views or overwrites in place, byte for byte; move them together",
    "SP1422": "move one of the two to free bytes; a larger arena has some at its end",
    "SP1423": "move one of the two to free bytes, or let the one slice wait for the other",
    "SP1424": "move one of the two elsewhere",
    "SP1425": "let the writing slice wait for the other readers, or give the value its own bytes",
    "SP1426": "give every lane its own number, in order, and every program as many lane programs as there are lanes",
    "SP1427": "pin every lane to a logical processor of its own that the target has",
    "SP1428": "list every pool once, with at most the target's capacity, the one in which nodes run first",
    "SP1429": "state the true peak; " + _AGAIN,
    "SP1430": "times are whole nanoseconds, zero or more; " + _AGAIN,
    "SP1431": "sizes and offsets must stay below 2^60 bytes",
    "SP1432": "the facts or the mode do not fit the node; " + _AGAIN,
    "SP1433": "use fewer lanes or slices",
    "SP1434": "correct the plan's rewrite; " + _AGAIN,
    "SP1435": "let the node read an instance of the right value; give a recomputation its original's mode",
    "SP1436": "correct the pools; nodes compute in the first pool only",
    "SP1437": "run every transfer in one slice on a copy lane, all of one direction on the same lane",
    "SP1438": "store a parameter, its gradient and its momentum alike, in a layout that all their nodes take; "
    + _AGAIN,
    "SP1440": "list nodes of one op and one slice each, once; or remove the parallel operator from the plan",
}
"""code -> the usual way out; docs/errors.md says the same at length."""


class Finding(Frozen):
    """One reason why a plan is not safe."""

    code: str
    program: str
    """The program it concerns; empty when it concerns the whole plan."""
    message: str
    fix: str

    def text(self) -> str:
        place = f" [{shown(self.program)}]" if self.program else ""
        return f"{self.code}{place}: {self.message}\n  fix: {self.fix}"


def _finding(code: str, program: str, message: str, fix: str = "") -> Finding:
    return Finding(code=code, program=program, message=message, fix=fix or FIXES[code])


class Report:
    """Collects findings; the same one twice is kept once."""

    def __init__(self) -> None:
        self._kept: dict[tuple[str, str], dict[str, Finding]] = {}
        self._more: dict[tuple[str, str], int] = {}

    def add(self, code: str, program: str, message: str, more: int = 0, fix: str = "") -> None:
        """`more`: how many further findings of this kind the caller leaves out. `fix`: a better one than the usual."""
        key = (code, program)
        kept = self._kept.setdefault(key, {})
        if len(kept) < KEPT:
            kept.setdefault(message, _finding(code, program, message, fix))
        elif message not in kept:
            more += 1
        if more:
            self._more[key] = self._more.get(key, 0) + more

    def __len__(self) -> int:
        return sum(map(len, self._kept.values()))

    def findings(self) -> list[Finding]:
        """In the order in which their codes were first found."""
        found: list[Finding] = []
        for (code, program), kept in self._kept.items():
            found += kept.values()
            more = self._more.get((code, program))
            if more:
                found.append(_finding(code, program, f"... and {more} more like these"))
        return found


def shown_number(number: int) -> str:
    """A number of the plan; one with thousands of digits is only described (printing it may even be refused)."""
    return str(number) if abs(number) < 2**70 else "a number beyond 2^70"
