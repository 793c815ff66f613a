"""Text and Markdown of a plan difference: times and memory first, then what caused them, the largest effect first."""

import json
import textwrap
from collections.abc import Sequence

from planner.errors import UserError
from planner.plan.diff_model import NodeChange, PlanDiff, ProgramDiff, Schedule
from planner.plan.render import WIDTH, cell, counted, markdown_table, percent, printable, signed, text_table
from planner.units import format_bytes, format_ns


class _Page:
    """Collects lines in one of the two forms."""

    def __init__(self, markdown: bool, limit: int) -> None:
        self.markdown, self.limit = markdown, limit
        self.lines: list[str] = []

    def title(self, text: str, level: int) -> None:
        if self.lines:
            self.lines.append("")
        self.lines.append(f"{'#' * level} {cell(text)}" if self.markdown else printable(text))
        if self.markdown:
            self.lines.append("")

    def line(self, text: str) -> None:
        if self.markdown:
            self.lines.append(f"- {cell(text)}")
        else:
            self.lines += textwrap.wrap(printable(text), WIDTH, initial_indent="  ", subsequent_indent="    ")

    def table(self, head: Sequence[str], rows: Sequence[Sequence[str]], left: Sequence[int], rest: str = "") -> None:
        """The first `limit` rows; `rest` says what the others come to."""
        shown = rows[: self.limit]
        self.lines += markdown_table(head, shown, left) if self.markdown else text_table(head, shown, left, indent=2)
        if len(rows) > len(shown):
            if self.markdown:
                self.lines.append("")
            self.line(f"and {len(rows) - len(shown)} more{rest}")


def render(diff: PlanDiff, form: str = "text", limit: int = 20) -> str:
    """`text`, `markdown` or `json`. The first two list at most `limit` entries per section and say how many they left
    out; JSON has all. SP1451: another form."""
    if form == "json":
        return json.dumps(diff.document(), indent=1, sort_keys=True)
    if form not in ("text", "markdown"):
        raise UserError("SP1451", f"unknown format {form!r}", "choose text, markdown or json")
    page = _Page(form == "markdown", limit)
    page.title(f"plan {diff.before} -> {diff.after}" if diff.before != diff.after else f"plan {diff.after}", 1)
    if not diff.changed:
        page.line("no difference")
        return "\n".join(page.lines)
    _totals(page, diff)
    reasons = [p for p in diff.programs if p.status == "changed" and p.predicted_before != p.predicted_after]
    if reasons:
        page.lines.append("")
    for program in reasons:
        page.line(_headline(program))
    if diff.settings:
        page.title("settings", 2)
        page.table(("what", "before", "after"), [(s.name, s.before, s.after) for s in diff.settings], (0, 1, 2))
    for program in diff.programs:
        if program.status == "changed":
            _program(page, program)
    _placement(page, diff)
    return "\n".join(page.lines)


def _headline(program: ProgramDiff) -> str:
    """`train_step is slower by 1.05 ms: 28 modes +1.1 ms, 8 times +12 us, waiting -60 us`, in time that passes, not in
    time of cores."""
    total = program.predicted_after - program.predicted_before
    named = (
        (counted(len(program.modes), "mode"), program.modes),
        (counted(len(program.times), "time"), program.times),
        (f"{len(program.added)} added", program.added),
        (f"{len(program.removed)} removed", program.removed),
    )
    parts, left = [], total
    for what, changes in named:
        effect = sum(c.delta_ns for c in changes)
        left -= effect
        if changes:
            parts.append(f"{what} {signed(format_ns(abs(effect)), effect)}")
    if left:
        parts.append(f"waiting {signed(format_ns(abs(left)), left)}")
    word = "slower" if total > 0 else "faster"
    return f"{program.name} is {word} by {format_ns(abs(total))}: {', '.join(parts)}"


def _totals(page: _Page, diff: PlanDiff) -> None:
    rows = []
    for p in diff.programs:
        rows.append(
            (
                p.name if p.status in ("changed", "same") else f"{p.name} ({p.status})",
                _arrow(format_ns(p.predicted_before), format_ns(p.predicted_after)),
                percent(p.predicted_before, p.predicted_after) if p.predicted_after else "",
                _arrow(format_bytes(p.peak_before), format_bytes(p.peak_after)),
                percent(p.peak_before, p.peak_after) if p.peak_after else "",
                _arrow(format_ns(p.bound_before), format_ns(p.bound_after)),
                _arrow(str(p.schedule.waits_before), str(p.schedule.waits_after)),
            )
        )
    page.table(("program", "predicted", "", "peak", "", "lower bound", "waits"), rows, (0,))


def _arrow(before: str, after: str) -> str:
    return before if before == after else f"{before} -> {after}"


def _program(page: _Page, program: ProgramDiff) -> None:
    _section(page, f"nodes added to {program.name}", program.added)
    _section(page, f"nodes removed from {program.name}", program.removed)
    _parallel(page, program)
    _section(page, f"modes of {program.name}", program.modes)
    _section(page, f"times of unchanged modes of {program.name}", program.times)
    _section(page, f"scratch of unchanged modes of {program.name}", program.scratch, scratch=True)
    _schedule(page, program.name, program.schedule)


def _section(page: _Page, what: str, changes: Sequence[NodeChange], scratch: bool = False) -> None:
    if changes:
        page.title(f"{what}: {len(changes)}", 2)
        _changes(page, changes, scratch)


def _parallel(page: _Page, program: ProgramDiff) -> None:
    """Siblings that run side by side now, or no longer."""
    if not program.parallel:
        return
    rows = []
    for c in program.parallel:
        group = c.after or c.before
        if group is None:
            continue
        count = _arrow(*(str(len(g.nodes)) if g else "0" for g in (c.before, c.after)))
        before = c.before.together_ns if c.before else group.alone_ns
        after = c.after.together_ns if c.after else group.alone_ns
        change = signed(format_ns(abs(c.delta_ns)), c.delta_ns)
        source, target = group.source or "several", group.target or "several"
        rows.append((group.op, count, source, target, _arrow(format_ns(before), format_ns(after)), change))
    page.title(f"parallel operators of {program.name}: {len(rows)}", 2)
    page.table(("op", "nodes side by side", "from", "to", "time", "effect"), rows, (0, 1, 2, 3, 4))


def _changes(page: _Page, changes: Sequence[NodeChange], scratch: bool) -> None:
    head = ["node", "mode", "implementation", "time", "effect", "scratch"]
    rows = []
    for c in changes:
        sides = [s for s in (c.before, c.after) if s]
        rows.append(
            [
                _layer(c),
                _mode(c),
                " -> ".join(dict.fromkeys(s.implementation for s in sides)).strip(),
                " -> ".join(dict.fromkeys(format_ns(s.predicted_ns) for s in sides)),
                signed(format_ns(abs(c.delta_ns)), c.delta_ns),
                " -> ".join(dict.fromkeys(format_bytes(s.scratch_bytes) for s in sides))
                if scratch or page.markdown
                else signed(format_bytes(abs(c.delta_scratch)), c.delta_scratch),
            ]
        )
    if not any(row[head.index("implementation")] for row in rows):
        rows = [[c for i, c in enumerate(row) if i != head.index("implementation")] for row in rows]
        head.remove("implementation")
    # A line of a terminal is too short for both.
    if (page.markdown or "implementation" not in head) and any(c.op for c in changes):
        head.insert(1, "op")
        rows = [[row[0], c.op, *row[1:]] for row, c in zip(rows, changes, strict=True)]
    left = changes[page.limit :]
    time, size = sum(c.delta_ns for c in left), sum(c.delta_scratch for c in left)
    total = signed(format_bytes(abs(size)), size) if scratch else signed(format_ns(abs(time)), time)
    page.table(head, rows, range(head.index("time")), f", {total} together")


def _layer(change: NodeChange) -> str:
    """The id, and where the layer comes from unless the id says so already."""
    return f"{change.node} ({change.origin})" if change.origin and change.origin not in change.node else change.node


def _mode(change: NodeChange) -> str:
    """`loops/rows x1 -> x8`: what both modes have in common is said once."""
    before, after = change.before, change.after
    if not (before and after):
        side = before or after
        return f"{side.kind} x{side.slices}" if side else ""
    if (before.kind, before.slices) == (after.kind, after.slices):
        return f"{before.kind} x{before.slices}"
    if before.kind == after.kind:
        return f"{before.kind} x{before.slices} -> x{after.slices}"
    return f"{before.kind} x{before.slices} -> {after.kind} x{after.slices}"


def _schedule(page: _Page, program: str, schedule: Schedule) -> None:
    lines = []
    if schedule.moved_nodes:
        names = ", ".join(schedule.moved_nodes[: page.limit])
        more = len(schedule.moved_nodes) - page.limit
        moved = counted(len(schedule.moved_nodes), "node")
        lines.append(f"{moved} moved: {names}" + (f" and {more} more" if more > 0 else ""))
    if schedule.other_lane:
        lines.append(f"{counted(schedule.other_lane, 'slice')} moved to another lane")
    if schedule.reordered_lanes:
        lines.append(f"{counted(schedule.reordered_lanes, 'lane')} with slices in another order")
    if schedule.changed_waits or schedule.waits_before != schedule.waits_after:
        lines.append(
            f"waits: {_arrow(str(schedule.waits_before), str(schedule.waits_after))}, "
            f"changed for {counted(schedule.changed_waits, 'slice')}"
        )
    if lines:
        page.title(f"order of {program}", 2)
        for line in lines:
            page.line(line)


def _placement(page: _Page, diff: PlanDiff) -> None:
    placement = diff.placement
    if not (placement.changes or placement.moved or placement.reordered):
        return
    page.title("placement", 2)
    if placement.reordered:
        page.line("values are listed in another order")
    if placement.moved:
        page.line(f"{placement.moved} blocks merely moved, {format_bytes(placement.moved_bytes)}")
    if placement.changes:
        if page.markdown and (placement.moved or placement.reordered):
            page.lines.append("")
        rows = [(c.value, c.change, c.before, c.after, format_bytes(c.bytes)) for c in placement.changes]
        page.table(("value", "change", "before", "after", "bytes"), rows, (0, 1, 2, 3))
