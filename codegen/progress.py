"""How far an executor's training has come: what its runs are told besides their inputs."""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

import numpy as np

from codegen.initial import checked_rate, checked_seed
from codegen.state import PREFIX, as_array, as_text, count_in
from planner.errors import UserError

Array = np.ndarray[Any, Any]

Moment = tuple[int, float, int, int, int, bool]
"""As runtime/context.hpp has it."""


@dataclass
class Progress:
    seed: int
    lr: float
    steps: int = 0
    """Updates of the parameters."""
    batches: int = 0
    """That were trained on, by which random numbers differ: as many as steps where each step takes one."""
    held: int = 0
    """Batches since the last update, whose gradients wait for the next one."""

    def moment(self, hold: bool = False) -> Moment:
        """Of the coming run. `hold`: its gradients wait, too."""
        return self.seed, self.lr, self.batches + 1, self.steps + 1, self.held, hold

    def trained(self, hold: bool = False) -> None:
        """A batch has been trained on."""
        self.batches += 1
        self.steps += not hold
        self.held = self.held + 1 if hold else 0

    def entries(self) -> dict[str, Array]:
        """What a state has of it."""
        found: dict[str, Any] = {"step": np.int64(self.steps), "seed": np.uint64(self.seed), "lr": np.float64(self.lr)}
        if self.batches != self.steps:
            found |= {"batches": np.int64(self.batches), "held": np.int64(self.held)}
        return {f"{PREFIX}{name}": np.asarray(number) for name, number in found.items()}

    def loaded(self, state: Mapping[str, Any]) -> Self:
        """With what a state says about it. SP1610: a seed, rate or count that is none."""
        seed = checked_seed(state.get(f"{PREFIX}seed", self.seed))
        rate = checked_rate(state.get(f"{PREFIX}lr", self.lr))
        found = replace(self, seed=seed, lr=rate)
        if f"{PREFIX}step" in state:
            found.steps = _count(state, "step", 0)
            found.batches = _count(state, "batches", found.steps)
            found.held = _count(state, "held", 0)
        return found


def _count(state: Mapping[str, Any], name: str, otherwise: int) -> int:
    given = as_array(state.get(f"{PREFIX}{name}", otherwise))
    count = count_in(given)
    if count is None:
        fix = "load a state as state_dict gave it"
        raise UserError("SP1610", f"{PREFIX}{name} of the state is {as_text(given)}", fix)
    return count
