"""Workspaces (SuperNeurons, section 3.5): at each step the fastest way to run whose scratch fits the bytes free there.

Functional tensors come first: the free bytes are what they leave of the pool. The same node may run another way where
it is recomputed, because every step is decided by itself.

    free 100 MiB, algorithms implicit (9 ms, 0), gemm (6 ms, 80 MiB), fft (4 ms, 300 MiB): gemm
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from planner.costs.algorithms import Algorithm
from planner.errors import UserError
from planner.units import Bytes, format_bytes


@dataclass(frozen=True)
class Assignment:
    step: int
    """Position in the steps."""
    algorithm: Algorithm
    free: Bytes
    """What the functional tensors leave at this step."""


def fastest(algorithms: Sequence[Algorithm], free: int) -> Algorithm | None:
    """None where no workspace fits; of equally fast ones the smaller workspace."""
    fitting = (a for a in algorithms if a.workspace <= free)
    return min(fitting, key=lambda a: (a.ns, a.workspace, a.name), default=None)


def assign(
    resident: Sequence[int], capacity: int, algorithms: Mapping[int, Sequence[Algorithm]]
) -> tuple[Assignment, ...]:
    """The algorithm of every step that has a choice.

    resident: bytes of functional tensors at each step; algorithms: by step.
    SP1301: a step has no algorithm that fits.
    """
    found = []
    for step, choices in sorted(algorithms.items()):
        free = capacity - resident[step]
        best = fastest(choices, free)
        if best is None:
            need = resident[step] + min((a.workspace for a in choices), default=0)
            raise UserError(
                "SP1301",
                f"no workspace fits step {step}: {free} of {capacity} bytes are free",
                f"this step needs {need} bytes ({format_bytes(need)})",
            )
        found.append(Assignment(step, best, Bytes(free)))
    return tuple(found)
