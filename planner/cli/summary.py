"""What several commands print of a plan."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.plan.schema import Plan


def summary(solved: "Plan") -> dict[str, Any]:
    """The numbers of a plan that scripts want."""
    return {
        "name": solved.name,
        "target": solved.target,
        "policy": solved.policy,
        "arena_bytes": sum(p.arena for p in solved.pools),
        "programs": {
            p.name: {
                "predicted_ns": p.predicted_ns,
                "bound_ns": p.bounds.best_ns,
                "gap": round(p.gap, 4),
                "peak_bytes": p.peak_bytes,
            }
            for p in solved.programs
        },
    }
