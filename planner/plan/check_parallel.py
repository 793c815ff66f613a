"""Part of `check`: parallel operators are what they say. Nothing runs by them, but people judge a plan by them."""

from collections import Counter

from planner.malformed import shown
from planner.plan.check_structure import Slices
from planner.plan.findings import Report


def check_parallel(slices: Slices, report: Report) -> None:
    """Members are nodes of the program, of the named op, in one slice, each in one parallel operator only."""
    name = slices.program.name
    planned = slices.plan.node
    times = Counter(n for group in slices.plan.parallel for n in group.nodes)
    for group in slices.plan.parallel:
        for member in group.nodes:
            if member not in planned:
                report.add("SP1440", name, f"the program has no node {shown(member)}, of a parallel {shown(group.op)}")
            elif slices.program.node[member].op != group.op:
                op = slices.program.node[member].op
                report.add("SP1440", name, f"node {member} is a {op}, its parallel operator a {shown(group.op)}")
            elif planned[member].slices != 1:
                report.add("SP1440", name, f"node {member} of a parallel {group.op} is cut into slices")
    for member, count in times.items():
        if count > 1:
            report.add("SP1440", name, f"node {shown(member)} is in parallel operators {count} times")
