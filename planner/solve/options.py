"""Every knob of the planner in one model, and the decisions a user can pin."""

import tomllib
from pathlib import Path
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from planner.errors import UserError
from planner.graph.model import Frozen, Settings


class Pins(Frozen):
    """Decisions that the solver must honour (pins.toml)."""

    slices: dict[str, int] = Field(default_factory=dict)
    """node id -> slice count"""


class ParallelOps(Settings):
    """Which sibling nodes become one parallel operator (parallel_op.py). SP1305: a value that makes no sense."""

    code = "SP1305"

    threshold: Annotated[int, Field(ge=2)] = 4
    """The fewest siblings."""
    also: tuple[str, ...] = ()
    """Ops whose kernels may run beside each other, beside parallel_op.THREAD_SAFE."""
    least_gain: Annotated[float, Field(ge=0, lt=1)] = 0.02
    """Part of their time that must be gained, as predicted."""


class PlanOptions(Settings):
    """SP1305: an option that there is not, or a value that it cannot have."""

    code = "SP1305"

    policy: Literal["sequential", "liu", "auto"] = "auto"
    strategies: tuple[Annotated[int, Field(ge=1, le=4)], ...] = ()
    """Of Liu et al.; for policy liu. 1: a count per node; 2: one count per op type; 3: nodes co-run; 4: small nodes
    run on the second threads of busy cores (implies 3)."""
    uniform: Annotated[int, Field(ge=1)] | None = None
    """For policy liu, instead of strategies 1 and 2: every node on so many lanes, or the most below that it can use
    (a framework's intra-op threads). With strategy 3 as many nodes at a time as fit (its inter-op threads)."""
    search: bool = False
    """With strategy 3: try other ways to schedule than the published one, and take the best by simulation."""
    lanes: int | None = None
    """How many hardware threads to use; None: one per core of the target."""
    memory_budget: int | None = None
    """Bytes in the first pool, everything counted; None: the pool's capacity."""
    same_bits: bool | None = None
    """Whether a step under a budget computes the bits of the step without one. If not, every node runs in the fastest
    mode whose scratch fits the bytes that are free at its step (solve/memory/ways.py). None: on processors, where
    scratch is a small part of memory; not on a GPU."""
    plain_weights: bool = False
    """Keep all weights as the framework has them, although convolutions then pack them in every step (stored.py). On a
    processor a plan that is rewritten for a memory budget always does."""
    pins: Pins = Pins()
    parallel_ops: ParallelOps | None = None
    """Let siblings run side by side where nothing else co-runs; None: only `auto` tries it."""
    keep: tuple[str, ...] = ()
    """Values, or patterns of values, that keep their bytes until their program ends (`Executor.value`)."""

    @property
    def coruns(self) -> bool:
        """Whether nodes may run side by side."""
        return 3 in self.strategies or 4 in self.strategies

    def candidates(self, smt: bool) -> tuple["PlanOptions", ...]:
        """What `auto` chooses from, by predicted time; the first wins a tie. `smt`: cores have second threads."""
        ways: list[tuple[Literal["sequential", "liu"], tuple[int, ...]]] = [
            ("sequential", ()),
            ("liu", (1,)),
            ("liu", (1, 2)),
            ("liu", (1, 3)),
            ("liu", (1, 2, 3)),
        ]
        if smt:
            ways += [("liu", (1, 3, 4)), ("liu", (1, 2, 3, 4))]
        alone = {"uniform": None, "parallel_ops": None}
        plain = [
            self.model_copy(update={"policy": policy, "strategies": strategies, "search": 3 in strategies, **alone})
            for policy, strategies in ways
        ]
        # As published as well: what ends first as scheduled need not when waits are counted.
        plain += [o.model_copy(update={"search": False}) for o in plain if o.search]
        siblings = {"policy": "liu", "strategies": (1,), **alone, "parallel_ops": self.parallel_ops or ParallelOps()}
        return (*plain, self.model_copy(update=siblings))

    def uniform_candidates(self, lanes: int) -> tuple["PlanOptions", ...]:
        """The uniform settings that `auto` compares with: all lanes shared by 2, 4, 8, ... nodes at a time, and one
        node at a time on as few lanes. Strategy 1 has each node's best count, but in steps of microseconds signals
        between lanes, and bytes in other lanes' caches, may cost more than further lanes gain."""
        counts = [lanes // 2**power for power in range(1, lanes.bit_length())]
        fixed = {"policy": "liu", "search": False, "parallel_ops": None}
        ways = [{**fixed, "strategies": s, "uniform": count} for s in ((3,), ()) for count in counts]
        return tuple(self.model_copy(update=way) for way in ways)


def read_pins(path: Path | str) -> Pins:
    """Read pins.toml: `[slices]` maps node ids to counts."""
    try:
        return Pins.model_validate(tomllib.loads(Path(path).read_text(encoding="utf-8")), strict=True)
    except (OSError, ValueError, RecursionError) as error:
        if isinstance(error, ValidationError):
            told = "; ".join(f"{'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors(include_url=False))
        else:
            told = (error.strerror if isinstance(error, OSError) else None) or str(error)
        fix = 'write lines like "conv1" = 1 under [slices]'
        raise UserError("SP1303", f"cannot use pins {path}: {told}", fix) from error
