"""Every knob of the planner in one model, and the decisions a user can pin."""

import tomllib
from pathlib import Path
from typing import Literal

from pydantic import Field

from planner.errors import UserError
from planner.graph.model import Frozen


class Pins(Frozen):
    """Decisions that the solver must honour (pins.toml)."""

    slices: dict[str, int] = Field(default_factory=dict)
    """node id -> slice count"""


class PlanOptions(Frozen):
    policy: Literal["sequential", "liu", "auto"] = "auto"
    strategies: tuple[int, ...] = ()
    """Of Liu et al.; for policy liu. 1: a count per node; 2: one count per op type."""
    lanes: int | None = None
    """How many hardware threads to use; None: one per core of the target."""
    memory_budget: int | None = None
    """Bytes in the first pool, everything counted; None: the pool's capacity."""
    pins: Pins = Pins()
    keep: tuple[str, ...] = ()
    """Values, or patterns of values, that keep their bytes until their program ends (`Executor.value`)."""

    def candidates(self) -> tuple["PlanOptions", ...]:
        """What `auto` chooses from, by predicted time; the first wins a tie."""
        return tuple(
            self.model_copy(update={"policy": policy, "strategies": strategies})
            for policy, strategies in (("sequential", ()), ("liu", (1,)), ("liu", (1, 2)))
        )


def read_pins(path: Path | str) -> Pins:
    """Read pins.toml: `[slices]` maps node ids to counts."""
    try:
        return Pins.model_validate(tomllib.loads(Path(path).read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:  # ValidationError is a ValueError
        raise UserError(
            "SP1303", f"cannot use pins {path}: {error}", 'write lines like "conv1" = 1 under [slices]'
        ) from error
