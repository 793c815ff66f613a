"""The compiler and the libraries that executors are built with, and the cache of what was compiled before.

Every object is kept under a key that hashes all it depends on (compiler, flags, sources, every header they include), so
nothing is compiled twice, not even by two builds at once.
"""

import fcntl
import functools
import hashlib
import os
import re
import secrets
import shutil
import signal
import stat
import subprocess
import sys
import sysconfig
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen.paths import RUNTIME
from planner.errors import InternalError, UserError

OLDEST_COMPILER = 11
KEPT_OBJECTS = 400
"""The cache drops its oldest objects beyond these."""

LEFT_S = 86_400
"""No compiler writes to a file for so long."""

TOGETHER = 65536
"""Bytes of sources that are compiled as one: the headers of a small plan take longer than what is its own."""


@dataclass(frozen=True)
class Compiler:
    path: str
    version: str


@functools.lru_cache(maxsize=8)
def _compiler(path: str | None) -> Compiler:
    fix = f"install g++ {OLDEST_COMPILER} or newer (Debian, Ubuntu: apt install g++)"
    if path is None:
        raise UserError("SP1506", "there is no C++ compiler: g++ is not on the PATH", fix)
    try:
        answer = subprocess.run(
            [path, "-dumpfullversion"], capture_output=True, encoding="utf-8", errors="replace", timeout=60, check=True
        )
    except (OSError, subprocess.SubprocessError) as error:
        raise UserError("SP1506", f"{path} does not run: {error}", fix) from error
    version = answer.stdout.strip()
    major = re.match(r"\d+", version)
    if not major or int(major[0]) < OLDEST_COMPILER:
        raise UserError("SP1507", f"{path} has version {version or 'unknown'}, which is too old for C++20", fix)
    return Compiler(path, version)


def compiler() -> Compiler:
    """g++ from the PATH, at least version 11 (SP1506, SP1507)."""
    return _compiler(shutil.which("g++"))


@functools.cache
def onednn() -> Path:
    """The prefix under which the oneDNN wheels put include/ and lib/ (SP1508)."""
    found = onednn_if_installed()
    if found is not None:
        return found
    raise UserError(
        "SP1508",
        "oneDNN's headers and library are not installed in this Python environment",
        "pip install onednn-cpu-gomp==2023.2.0 onednn-devel-cpu-gomp==2023.2.0",
    )


def onednn_if_installed() -> Path | None:
    """The same; executors for GPUs are built without it."""
    for prefix in (Path(sysconfig.get_path("data")), Path(sys.prefix)):
        if (prefix / "include" / "dnnl.hpp").exists() and (prefix / "lib" / "libdnnl.so").exists():
            return prefix
    return None


def cache_folder() -> Path:
    """$STEPPLAN_CACHE, or stepplan in the user's cache folder (SP1509 when it cannot be written)."""
    named = os.environ.get("STEPPLAN_CACHE")
    base = Path(named) if named else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stepplan"
    what = f"the folder for compiled objects, {base}, cannot be"
    fix = "set STEPPLAN_CACHE to a folder that you can write"
    folders = [base / name for name in ("objects", "locks")]
    try:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError("SP1509", f"{what} made: {error.strerror}", fix) from error
    # Found objects are marked as used, and whoever looks for one takes a lock.
    if not all(os.access(folder, os.W_OK) for folder in folders):
        raise UserError("SP1509", f"{what} written", fix)
    return base


def include_flags() -> tuple[str, ...]:
    import nanobind

    library = onednn_if_installed()
    folders = (
        RUNTIME,
        *((library / "include",) if library else ()),
        Path(nanobind.include_dir()),
        Path(nanobind.source_dir()).parent / "ext" / "robin_map" / "include",
        Path(sysconfig.get_path("include")),
    )
    return tuple(flag for folder in folders for flag in ("-isystem" if folder != RUNTIME else "-I", str(folder)))


def headers_of(source: Path, folders: Sequence[Path]) -> tuple[Path, ...]:
    """Every header that a source includes with quotes, found beside what includes it or in `folders`, and what those
    include; sorted."""
    found: set[Path] = set()
    pending = [source]
    while pending:
        file = pending.pop()
        for name in _included(file.read_bytes()):
            beside = (os.path.join(folder, name) for folder in (file.parent, *folders))
            header = next((Path(path) for path in beside if os.path.exists(path)), None)
            if header is not None and header not in found:
                found.add(header)
                pending.append(header)
    return tuple(sorted(found))


@functools.lru_cache(maxsize=1024)
def _included(text: bytes) -> tuple[str, ...]:
    """The names that a file includes with quotes. Most headers are everybody's: they are looked through once."""
    return tuple(re.findall(r'^\s*#include "([^"]+)"', text.decode(errors="replace"), re.MULTILINE))


def compile_object(*sources: Path, flags: Sequence[str], folders: Sequence[Path] = (RUNTIME,)) -> Path:
    """The object file of sources of one folder, one after the other as if they were one, compiled now or before.

    A compiler error is an InternalError: generated code and runtime are ours, whatever the plan."""
    made_by, last = compiler(), sources[-1]
    key = hashlib.sha256()
    for part in (made_by.path, made_by.version, sys.version, library_versions(), *flags):
        key.update(part.encode() + b"\0")
    headers = {h for source in sources for h in headers_of(source, (source.parent, *folders))}
    for file in (*sources, *sorted(headers)):
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    target = cache_folder() / "objects" / f"{last.stem}-{key.hexdigest()[:24]}.o"
    before = [part for source in sources[:-1] for part in ("-include", str(source))]
    command = [made_by.path, *flags, *include_flags(), f"-I{last.parent}", *before, "-c", str(last)]
    return made_once(command, target)


def made_once(command: Sequence[str], target: Path) -> Path:
    """A file of the cache: found there, or made now. Who needs it while somebody else makes it waits for that."""
    with open(cache_folder() / "locks" / f"{hashlib.sha256(target.name.encode()).hexdigest()[:2]}.object", "w") as lock:
        if not target.exists():
            fcntl.flock(lock, fcntl.LOCK_EX)
        if target.exists():
            os.utime(target)
        else:
            run_compiler(command, target)
    return target


def groups(sources: Sequence[Path], together: int = TOGETHER) -> list[list[Path]]:
    """Sources that are compiled as one: all of a small plan, each alone of a large one, where there is something to
    gain from compiling them side by side and from compiling only what changed. `together`: bytes of a small plan's."""
    if sum(source.stat().st_size for source in sources) <= together:
        return [list(sources)] if sources else []
    return [[source] for source in sources]


@functools.cache
def library_versions() -> str:
    """What the system headers depend on."""
    import nanobind

    library = onednn_if_installed()
    version = library / "include" / "dnnl_version.h" if library else None
    numbers = re.findall(r"#define DNNL_VERSION_\w+ (\w+)", version.read_text()) if version and version.exists() else []
    return f"nanobind {nanobind.__version__} oneDNN {'.'.join(numbers)}"


def run_compiler(command: Sequence[str], target: Path) -> None:
    """Compile or link into a temporary file that is then renamed, so that nobody ever sees half a result."""
    temporary = str(target.with_name(f".{target.name}.{secrets.token_hex(6)}"))
    handle = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o777)
    mode = stat.S_IMODE(os.fstat(handle).st_mode)  # as the user's umask has it; linkers make the file anew
    os.close(handle)
    try:
        # In English, which the functions below read.
        english = os.environ | {"LC_ALL": "C"}
        done = subprocess.run(
            [*command, "-o", temporary], capture_output=True, encoding="utf-8", errors="replace", env=english
        )
        if done.returncode:
            lines = [line for line in done.stderr.splitlines() if line.strip()]
            first = next((i for i, line in enumerate(lines) if "error" in line), 0)
            shown = "\n  ".join(lines[first : first + 12]) or f"exit status {done.returncode}"
            _require_resources(done.returncode, done.stderr)
            _require_architecture(done.stderr)
            raise InternalError(f"{Path(command[0]).name} failed on {target.name}:\n  {shown}")
        os.chmod(temporary, mode)
        os.replace(temporary, target)
    finally:
        if os.path.exists(temporary):
            os.unlink(temporary)


def _require_resources(status: int, errors: str) -> None:
    """SP1514 where a compiler failed for lack of space or memory, which is not its source's fault."""
    told = re.search(
        r"No space left on device|File too large|Disk quota exceeded|Cannot allocate memory|out of memory"
        r"|virtual memory exhausted|(?:Killed|File size limit exceeded)(?= signal terminated)",
        errors,
    )
    if told or status < 0:
        raise UserError(
            "SP1514",
            f"the compiler could not finish: {told[0] if told else signal.Signals(-status).name}",
            "free disk space and memory (stepplan build --jobs 1 needs less), then build again: what is done is kept",
        )


def _require_architecture(errors: str) -> None:
    """SP1109 where the compiler does not know what `march` names, as an older one does not know a new processor."""
    unknown = re.search(r"bad value \W?([\w.-]+?)\W? for \W?-march=", errors)
    if unknown:
        raise UserError(
            "SP1109",
            f"{compiler().path} does not know the target's march {unknown[1]!r}",
            "use a newer g++, or a target with an architecture that this one knows, like x86-64-v3 or x86-64-v4",
        )


def drop_old_objects() -> None:
    """Keep the cache's newest objects, and nothing that a killed compiler left half-written."""
    folder = cache_folder() / "objects"
    objects = sorted(folder.glob("*.o"), key=_age, reverse=True)
    left = [file for file in folder.glob(".*") if _age(file) < time.time() - LEFT_S]
    for old in (*objects[KEPT_OBJECTS:], *left):
        old.unlink(missing_ok=True)


def _age(file: Path) -> float:
    try:
        return file.stat().st_mtime
    except OSError:
        return 0.0


def digest_of(files: Iterable[Path]) -> str:
    """One hash over names and contents."""
    total = hashlib.sha256()
    for file in files:
        total.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    return total.hexdigest()[:16]
