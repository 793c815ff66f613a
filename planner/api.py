"""One function per command of the planning half, each under its command's name, and the options of `plan` and `make`.

    from planner.api import capture, check, plan

(`planner.plan` is a package, so the functions live here. The building half: codegen.api.)
"""

from planner.capturing import capture
from planner.pack_csv import pack
from planner.plan.check import check
from planner.plan.diff import diff
from planner.plan.explain import explain
from planner.plan.simulate import simulate
from planner.report.table import plan_table as show
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan as plan
from planner.target.detect import detect

__all__ = ["PlanOptions", "capture", "check", "detect", "diff", "explain", "pack", "plan", "show", "simulate"]
