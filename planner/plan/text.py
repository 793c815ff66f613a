"""plan.json: canonical text of a plan. One node, value and slice per line, so that a git diff stays small.

A digest of the content is part of the file: a truncated or hand-edited plan is noticed (SP1402) and must be
confirmed with `stepplan check --accept-edits`, which checks it from scratch and writes a new digest.
"""

from json.encoder import encode_basestring_ascii as quoted
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from planner import __version__
from planner.artefact import Line, digested_json, read_digested, sha256, strictly, write_text
from planner.errors import UserError
from planner.malformed import place
from planner.plan.schema import SCHEMA, Entry, Plan

TOLD = 3
"""Malformed places that an error names: a misspelt key is two, a missing one and an unknown one."""

NAMES = ("node", "value", "run", "name")
"""What an entry of a plan's list is known by."""


def plan_document(plan: Plan) -> dict[str, Any]:
    # Lanes hold nearly everything there is, in two fields: their entries are rendered straight away.
    rest = plan.model_dump(mode="json", exclude={"programs": {"__all__": {"lanes"}}})
    document: dict[str, Any] = {"schema": SCHEMA, "tool": f"stepplan {__version__}", **rest}
    for program, planned in zip(document["programs"], plan.programs, strict=True):
        program["nodes"] = [{k: v for k, v in n.items() if v not in (0, {}, [], "")} for n in program["nodes"]]
        for optional in ("parallel", "slowdowns"):
            if not program[optional]:
                del program[optional]
        program["lanes"] = [[_line(entry) for entry in lane] for lane in planned.lanes]
        if not any(program["rewrite"].values()):
            del program["rewrite"]
        if not program["least_again_ns"]:
            del program["least_again_ns"]
    if not plan.keep:
        del document["keep"]
    for optional in ("fetch_ns", "reclaim_ns"):
        if not document["sharing"][optional]:
            del document["sharing"][optional]
    document["lanes"] = [{k: v for k, v in lane.items() if (k, v) != ("kind", "core")} for lane in document["lanes"]]
    document["placements"] = [{k: v for k, v in p.items() if v != ""} for p in document["placements"]]
    return document


def _line(entry: Entry) -> Line:
    if not entry.wait:
        return Line(f'{{"run": {quoted(entry.run)}}}')
    return Line(f'{{"run": {quoted(entry.run)}, "wait": [{", ".join(map(quoted, entry.wait))}]}}')


def plan_text(plan: Plan) -> str:
    return digested_json(plan_document(plan))


def plan_hash(plan: Plan) -> str:
    return sha256(plan_text(plan))


def write_plan(plan: Plan, path: Path | str) -> None:
    write_text(path, plan_text(plan))


def read_plan(path: Path | str, *, accept_edits: bool = False) -> Plan:
    """Read plan.json. SP1401: not a plan; SP1402: its content does not match its digest (edited or truncated)."""
    document, intact = read_digested(path, "plan")
    if "lanes" not in document and "placements" not in document:
        raise UserError("SP1401", f"{Path(path).name} is not a plan", "name a plan.json, or its folder")
    if document.get("schema") != SCHEMA:
        raise UserError(
            "SP1401", f"plan schema {document.get('schema')!r} is not {SCHEMA}, which this stepplan reads", "plan again"
        )
    if not accept_edits and not intact:
        raise UserError(
            "SP1402",
            f"{Path(path).name} was edited or cut: its content does not match its digest",
            "run `stepplan check --accept-edits PLAN` to check the edit and renew the digest, or plan again",
        )
    document.pop("schema")
    document.pop("tool", None)
    try:
        return strictly(Plan, document)
    except ValidationError as error:
        told = [f"{place(document, e['loc'], NAMES)}: {e['msg']}" for e in error.errors(include_url=False)[:TOLD]]
        problem = "the plan is malformed at " + "; at ".join(told)
        raise UserError("SP1401", problem, "correct what is named, or plan again") from error
