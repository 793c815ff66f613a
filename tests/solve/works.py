"""Random work for recomputation, and what a set of recomputations really does, by replaying it on symbolic contents."""

import random
from collections.abc import Sequence
from dataclasses import dataclass, field

from planner.solve.superneurons.recompute import Recomputation, Task, Work

Content = tuple[str, tuple["Content", ...]]
"""Who made a value, from what."""


def random_work(rng: random.Random, tasks: int, *, chain: bool) -> Work:
    """A chain, or a DAG with forks and joins; every backward task needs some of its forward task's values."""
    forward = []
    values = ["data"]
    for index in range(tasks):
        reads = [values[-1]] if chain else rng.sample(values[-4:], min(len(values), rng.choice([1, 1, 2])))
        forward.append(Task(f"t{index}", tuple(reads), (f"v{index}",)))
        values.append(f"v{index}")
    backward = tuple(
        Task(f"{t.id}.backward", tuple(v for v in (*t.reads, *t.writes) if rng.random() < 0.6), ())
        for t in reversed(forward)
    )
    checkpoints = frozenset(t.id for t in forward if rng.random() < 0.35)
    return Work(tuple(forward), backward, checkpoints, {v: rng.randint(1, 100) for v in values})


@dataclass
class Replay:
    """Runs a step as the recomputations say, keeping nothing that they do not keep. Fails where a value is missing or
    holds something else than in the forward pass."""

    work: Work
    recomputations: Sequence[Recomputation]
    runs: dict[str, int] = field(default_factory=dict)
    """Forward task -> how often it ran again."""
    peak: int = 0
    """The most bytes of recomputed values in memory at once."""

    def run(self) -> "Replay":
        truth: dict[str, Content] = {"data": ("data", ())}
        for task in self.work.forward:
            for value in task.writes:
                truth[value] = (task.id, tuple(truth[v] for v in task.reads))
        kept = {
            v: truth[v]
            for v in truth
            if v == "data" or any(v in t.writes for t in self.work.forward if t.id in self.work.checkpoints)
        }
        copies: dict[str, tuple[Content, str]] = {}
        """value -> what it holds, and the backward task after which it goes"""
        forward = {t.id: t for t in self.work.forward}
        for task in self.work.backward:
            for r in (r for r in self.recomputations if r.before == task.id):
                passing: list[str] = []
                for again in r.tasks:
                    self.runs[again] = self.runs.get(again, 0) + 1
                    read = {v: copies[v][0] if v in copies else kept[v] for v in forward[again].reads}
                    for value in forward[again].writes:
                        copies[value] = (
                            (again, tuple(read[v] for v in forward[again].reads)),
                            r.kept_until.get(value, ""),
                        )
                        passing += [value] if value not in r.kept_until else []
                    self.peak = max(self.peak, sum(self.work.bytes[v] for v in copies))
                for value in passing:
                    del copies[value]
            for value in task.reads:
                held = copies[value][0] if value in copies else kept[value]
                assert held == truth[value]
            copies = {v: (c, until) for v, (c, until) in copies.items() if until != task.id}
        assert not copies, "nothing is kept for ever"
        return self
