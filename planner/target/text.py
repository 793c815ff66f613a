"""NAME.toml: reading and writing targets as canonical text.

Canonical: fields in the model's order, cores by number, one core, pool and GPU per line, large numbers with digit
groups. Writing what was read from such a file gives the same bytes, so comments don't survive: what a reader should
know about the figures goes into `source`.
"""

import difflib
import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ValidationError

from planner.artefact import sha256, strictly, write_text
from planner.errors import UserError
from planner.malformed import SETTLE, unmerged
from planner.target.model import NAME, SCHEMA, Caches, Cpu, Gpu, Pool, Target
from planner.target.topology import Core

_FOLDER = Path(__file__).parent
_AGAIN = "correct the file, or make it again with stepplan detect"


def target_text(target: Target) -> str:
    document = target.model_dump(mode="json", exclude_none=True)
    cpu = document.pop("cpu")
    lists = {key: document.pop(key) for key in ("pools", "gpus")}
    lines = [f"{k} = {_scalar(v)}" for k, v in document.items()]
    for key, entries in lists.items():
        if entries:
            lines += ["", *_entries(key, entries)]
    cores = cpu.pop("cores")
    lines += ["", "[cpu]"]
    lines += [f"{k} = {_table(v) if isinstance(v, dict) else _scalar(v)}" for k, v in cpu.items()]
    lines += _entries("cores", cores)
    return "\n".join(lines) + "\n"


def _entries(key: str, entries: list[dict[str, Any]]) -> list[str]:
    return [f"{key} = [", *(f"  {_table(e)}," for e in entries), "]"]


def _table(entry: Mapping[str, Any]) -> str:
    return "{ " + ", ".join(f"{k} = {_scalar(v)}" for k, v in entry.items()) + " }"


def _scalar(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(_scalar(v) for v in value) + "]"
    if isinstance(value, int):
        return f"{value:_}" if value >= 100_000 else str(value)
    # The model lets no character through that JSON and TOML write differently.
    return json.dumps(value)


def target_hash(target: Target) -> str:
    return sha256(target_text(target))


def write_target(target: Target, path: Path | str) -> None:
    """Write canonical TOML atomically; SP1702 when it can't be written."""
    write_text(path, target_text(target))


def available_targets() -> tuple[str, ...]:
    """The names of the checked-in targets, sorted."""
    return tuple(sorted(p.stem for p in _FOLDER.glob("*.toml")))


def load_target(name_or_path: Path | str) -> Target:
    """A checked-in target by its name (`knl7250`), or the target in a file (`./knl7250.toml`).

    A bare name is always a checked-in target, whatever lies in the working folder. SP1107 for an unknown name, the
    errors of `read_target` for a file.
    """
    text = str(name_or_path)
    if isinstance(name_or_path, str) and NAME.fullmatch(text):
        if text in available_targets():
            return read_target(_FOLDER / f"{text}.toml")
        raise UserError(
            "SP1107",
            f"there is no target called {text!r}",
            f"choose one of {', '.join(available_targets())}, or name a file like ./{text}.toml",
        )
    return read_target(name_or_path)


def read_target(path: Path | str) -> Target:
    """Read a target file: SP1101 when it can't be read, else the errors of `parse_target`."""
    file = Path(path)
    try:
        data = file.read_bytes()
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise UserError(
            "SP1101",
            f"cannot read target {file}: {(error.strerror if isinstance(error, OSError) else None) or error}",
            f"name an existing file, one of {', '.join(available_targets())}, or make one with stepplan detect",
        ) from error
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise UserError("SP1102", f"target {file} is not UTF-8 text: {error}", _AGAIN) from error
    return parse_target(text, str(file))


def parse_target(text: str, what: str = "target") -> Target:
    """Parse TOML; `what` names it in errors.

    SP1102 not TOML, SP1103 another schema, SP1104 an unknown field, SP1105 a missing field or a wrong value, SP1106
    fields that contradict each other (a processor listed twice, no core, an unknown pool), SP1109 a bad -march.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        if problem := unmerged(text):
            raise UserError("SP1102", f"{what} is not TOML: {problem}", SETTLE) from error
        raise UserError("SP1102", f"{what} is not TOML: {error}", _AGAIN) from error
    if not text.strip():
        raise UserError("SP1102", f"{what} is empty", _AGAIN)
    version = document.get("schema_version")
    if type(version) is not int or version != SCHEMA:
        raise UserError(
            "SP1103",
            f"{what} has schema_version {version!r}, this stepplan reads {SCHEMA}",
            f"start the file with schema_version = {SCHEMA}, or make it again with stepplan detect",
        )
    try:
        return strictly(Target, document)
    except ValidationError as error:
        raise target_error(what, error) from error
    except (ValueError, RecursionError) as error:  # numbers of thousands of digits, tables thousands deep
        raise UserError("SP1102", f"{what} is not a target: {error}", _AGAIN) from error


def target_error(what: str, failure: ValidationError) -> UserError:
    """The first mistake in one line that names the field, like `cpu.cores[3].cpus`; `what` names the target."""
    error = failure.errors()[0]
    where = "".join(f"[{p}]" if isinstance(p, int) else f".{p}" for p in error["loc"]).lstrip(".")
    if error["type"].startswith("SP"):
        at = f" at {where}" if where else ""
        return UserError(error["type"], f"{what} is wrong{at}: {error['msg']}", error["ctx"]["fix"])
    if error["type"] == "extra_forbidden":
        return UserError("SP1104", f"{what} has an unknown field {where}", _instead_of(str(error["loc"][-1])))
    if error["type"] == "missing":
        return UserError("SP1105", f"{what} lacks {where}", "add it, or make the file again with stepplan detect")
    given = repr(error["input"])
    shown = given if len(given) <= 60 else given[:57] + "..."
    return UserError("SP1105", f"{what} is wrong at {where}: {error['msg']}, not {shown}", _AGAIN)


_PLACES: Final[tuple[tuple[str, type[BaseModel]], ...]] = (
    ("the top of the file", Target),
    ("cpu", Cpu),
    ("an entry of cpu.cores", Core),
    ("cpu.caches", Caches),
    ("an entry of pools", Pool),
    ("an entry of gpus", Gpu),
)


def _instead_of(field: str) -> str:
    """What to do about a field that is not known where it stands: lines that were moved are known elsewhere."""
    belongs = [where for where, model in _PLACES if field in model.model_fields]
    if belongs:
        return f"move it to {' or '.join(belongs)}, or remove it"
    near = difflib.get_close_matches(field, [name for _, model in _PLACES for name in model.model_fields], n=1)
    return f"write {near[0]}" if near else "remove it"
