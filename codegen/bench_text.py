"""What `stepplan bench` prints, and what it says about the machine's state.

A plan's times are those of the machine as it was profiled. On a virtual machine two lanes may since have been moved
onto one core, or onto cores that share no cache. Measured on two virtual processors of an AMD Zen 4, which change
between these states every few seconds: with both on one core convolutions take 1.7 times as long; where they share no
cache, overwriting what the other lane read takes 10 to 30 times as long, and the step of a small network 1.6 times. The
executor tells both (`crowding`, `crossing`), so a step that takes longer than predicted is not put down to the plan.
"""

from collections.abc import Iterator
from typing import Any

from planner.units import format_bytes

CHANGED = 2.0
"""Signals that take this many times as long, or as short, as in the cost table come from a machine in another state."""
FARTHER = 4.0
"""The same for bytes that lanes touch in turn, which vary more."""
CROWDED = 1.4
"""Lanes that take this many times as long together as alone do not have a core each. Cores that work together may run
at a lower clock, which costs less."""


def bench_text(result: dict[str, Any]) -> str:
    """`result`: what `codegen.bench.bench` returned, or its counterpart for GPUs."""
    memory = result["memory"]
    lines = [
        f"{result['name']} on {result['target']}, {result['lanes']} lanes",
        f"step        {result['step_ms']:.3f} ms (spread {result['spread']:.1%})",
        f"predicted   {result['predicted_ms']:.3f} ms (measured / predicted {result['measured_over_predicted']:.3f})",
    ]
    if "overhead" in result:
        lines.append(f"overhead    {result['overhead']:.2%} over the kernels of the busiest lane")
    if "host_ms" in result:
        lines.append(f"host        {result['host_ms']:.3f} ms until step returns")
    lines.append(
        f"memory      {format_bytes(memory['planned_bytes'])} planned, {format_bytes(memory['gained_bytes'])} gained"
    )
    lines += _lanes(result)
    if remarks := list(_remarks(result)):
        remarks.append("Step and prediction cannot be compared: measure again, or profile and plan again.")
    lines += [f"            {remark}" for remark in remarks]
    if "predicted_now_ms" in result:
        fetch, reclaim = (result["crossing_ns_per_kib"][f"{what}_ns"] for what in ("fetch", "reclaim"))
        lines.append(
            f"crossing    a KiB another lane wrote costs {fetch:.1f} ns more, writing one that it read {reclaim:.1f}:\n"
            f"            {result['predicted_now_ms']:.3f} ms predicted with that "
            f"(measured / predicted {result['measured_over_predicted_now']:.3f})"
        )
    if "floor_ms" in result:
        lines.append(f"floor       {result['floor_ms']:.3f} ms (step / floor {result['over_floor']:.3f})")
    for name, against in result.get("against", {}).items():
        lines.append(f"{name:14} {against['ms']:.3f} ms, ratio {against['ratio']:.3f}")
    lines += [f"{name:14} PyTorch fails: {reason}" for name, reason in result.get("failed", {}).items()]
    return "\n".join(lines)


def _lanes(result: dict[str, Any]) -> Iterator[str]:
    now, profiled = result.get("handoff_ns", 0.0), result.get("profiled_handoff_ns", 0.0)
    if now:
        yield (
            f"lanes       {now:.0f} ns for a signal from one to another"
            + (f", {profiled:.0f} when profiled" if profiled else "")
            + f"; arithmetic takes {result['crowding']:.2f} times as long on all as on one"
        )


def _remarks(result: dict[str, Any]) -> Iterator[str]:
    """How the machine differs from the one that was profiled."""
    if result.get("crowding", 1.0) > CROWDED and not result["lanes_share_cores"]:
        yield "Lanes share a core (a virtual machine moves them), or other work runs beside."
    signal = _times(result.get("handoff_ns"), result.get("profiled_handoff_ns"))
    reclaimed = _times(result.get("crossing_ns_per_kib", {}).get("reclaim_ns"), result.get("planned_reclaim_ns"))
    if signal > CHANGED or reclaimed > FARTHER:
        yield "The lanes' processors are farther from each other than when the costs were measured."
    elif signal < 1 / CHANGED:
        yield "The lanes' processors are nearer to each other than when the costs were measured."


def _times(now: float | None, then: float | None) -> float:
    """How many times as long it takes now; 1 where either is not known."""
    return now / then if now and then else 1.0
