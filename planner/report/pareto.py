"""Predicted time against memory: the plans between all the memory they like and as little as will do."""

from collections.abc import Sequence
from typing import Any

from planner.plan.render import text_table
from planner.plan.schema import Plan
from planner.report.raster import curve
from planner.units import format_bytes, format_ns


def pareto_rows(plans: Sequence[Plan]) -> list[dict[str, Any]]:
    """The figures of every plan; `plans` from the largest to the smallest."""
    rows = []
    for plan in plans:
        rewrites = [p.rewrite for p in plan.programs]
        total, first = _total(plan), _total(plans[0])
        rows.append(
            {
                "bytes": plan.pools[0].arena,
                "share": round(plan.pools[0].arena / plans[0].pools[0].arena, 4),
                "predicted_ns": total,
                "overhead": round(total / first - 1, 4) if first else 0.0,
                "recomputed": sum(len(r.recomputes) for r in rewrites),
                "moved": sum(t.kind == "offload" for r in rewrites for t in r.transfers),
            }
        )
    return rows


def pareto_table(plans: Sequence[Plan]) -> str:
    head = ("memory", "share", "predicted", "overhead", "run again", "moved")
    rows = [
        (
            format_bytes(r["bytes"]),
            f"{100 * r['share']:.1f} %",
            format_ns(r["predicted_ns"]),
            f"{100 * r['overhead']:.2f} %",
            str(r["recomputed"]),
            str(r["moved"]),
        )
        for r in pareto_rows(plans)
    ]
    return "\n".join(text_table(head, rows))


def pareto_picture(plans: Sequence[Plan]) -> bytes:
    """PNG: memory in MiB to the right, predicted ms upwards."""
    points = [(p.pools[0].arena / 2**20, _total(p) / 1e6) for p in plans]
    return curve(plans[0].name, "MiB of memory", "ms per step", points)


def _total(plan: Plan) -> int:
    return plan.program["train_step"].predicted_ns if "train_step" in plan.program else plan.programs[0].predicted_ns
