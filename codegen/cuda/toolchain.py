"""nvcc and NVIDIA's libraries: where they are, and how a kernel's source is compiled. None of it needs a GPU.

nvcc comes from the PATH, from /usr/local/cuda or from the wheels nvidia-cuda-nvcc and nvidia-cuda-runtime; cuDNN and
cuBLASLt come from wheels (`pip install stepplan[cuda]`), with headers and libraries.
"""

import contextlib
import ctypes
import functools
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from codegen import toolchain
from codegen.paths import RUNTIME
from planner.errors import UserError

CUDA_RUNTIME = RUNTIME / "cuda"
OLDEST_CUDA = 13
WHEEL = "cu13"
"""The folder of the toolkit's wheels."""
UNFUSED = frozenset({"joint.cu", "training.cu"})
"""Kernels of updates, alone and in joint launches, where an update gets the same bits: which products a compiler joins
with which sums depends on the code around them."""
INSTALL = "pip install 'stepplan[cuda]' brings cuDNN, cuBLASLt and, where there is no CUDA toolkit, nvcc"


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit: its compiler, headers and the runtime to link."""

    nvcc: str
    version: str
    include: Path
    library: Path
    """Of libcudart_static.a."""

    @property
    def includes(self) -> tuple[Path, ...]:
        """What a host compiler searches: with the C++ core library, which CUDA 13 keeps in a folder of its own and
        nvcc alone looks for there."""
        core = (self.include / "cccl", _in_wheels(f"{WHEEL}/include/cccl"))
        return (self.include, *(folder for folder in core if folder is not None and folder.is_dir()))


def wheels() -> tuple[Path, ...]:
    """The folders into which NVIDIA's wheels are installed: one per place that Python looks for packages in."""
    found = importlib.util.find_spec("nvidia")
    return tuple(map(Path, found.submodule_search_locations or ())) if found else ()


def _in_wheels(name: str) -> Path | None:
    """A file or folder of theirs, like `cu13/lib`."""
    return next((folder / name for folder in wheels() if (folder / name).exists()), None)


@functools.cache
def toolkit() -> Toolkit:
    """SP1518: there is no nvcc, or it is older than CUDA 13."""
    for nvcc in _candidates():
        found = _toolkit(nvcc)
        if found is not None:
            return found
    raise UserError("SP1518", f"there is no nvcc of CUDA {OLDEST_CUDA} or newer with its headers and runtime", INSTALL)


def _candidates() -> list[Path]:
    on_path = shutil.which("nvcc")
    named = os.environ.get("CUDA_HOME")
    places = [Path(on_path)] if on_path else []
    places += [Path(home) / "bin" / "nvcc" for home in (named, "/usr/local/cuda") if home]
    packaged = _in_wheels(f"{WHEEL}/bin/nvcc")
    return [p for p in (*places, *([packaged] if packaged else [])) if p.is_file()]


def _toolkit(nvcc: Path) -> Toolkit | None:
    try:
        told = subprocess.run(
            [str(nvcc), "--version"], capture_output=True, encoding="utf-8", errors="replace", timeout=60, check=True
        ).stdout
        # nvcc may be a script: its own plan of a compilation says where the toolkit is.
        dry = subprocess.run(
            [str(nvcc), "--dryrun", "x.cu"], capture_output=True, encoding="utf-8", errors="replace", timeout=60
        )
    except (OSError, subprocess.SubprocessError):
        return None
    version = re.search(r"release (\d+)\.(\d+)", told)
    if not version or int(version[1]) < OLDEST_CUDA:
        return None
    top = re.search(r"^#\$ TOP=(.+)$", dry.stderr, re.MULTILINE)
    home = Path(top[1]).resolve() if top else nvcc.resolve().parents[1]
    runtime = _in_wheels(f"{WHEEL}/include/cuda_runtime.h")
    for place in (home, *([runtime.parents[1]] if runtime else [])):
        include = place / "include"
        for library in (place / "lib64", place / "lib", place / "targets" / "x86_64-linux" / "lib"):
            headers = (include / "cuda_runtime.h", include / "crt" / "host_config.h")
            if all(h.is_file() for h in headers) and (library / "libcudart_static.a").is_file():
                return Toolkit(str(nvcc), f"{version[1]}.{version[2]}", include, library)
    return None


def _in_toolkit(name: str) -> Path | None:
    """The same file where an installed toolkit has it, and cuDNN's where distributions put it."""
    try:
        kit = toolkit()
    except UserError:
        return None
    places = (kit.library, Path("/usr/lib/x86_64-linux-gnu"), Path("/usr/lib64"))
    if "/include/" in name:
        places = (kit.include, Path("/usr/include"), Path("/usr/include/x86_64-linux-gnu"))
    return next((folder / Path(name).name for folder in places if (folder / Path(name).name).is_file()), None)


@dataclass(frozen=True)
class Libraries:
    """cuDNN and cuBLASLt."""

    includes: tuple[Path, ...]
    files: tuple[Path, ...]
    version: str


@functools.cache
def libraries() -> Libraries:
    """SP1519: cuDNN or cuBLASLt is not installed, neither as wheels nor beside the toolkit."""
    names = ("cudnn/lib/libcudnn.so.9", f"{WHEEL}/lib/libcublasLt.so.13")
    headers = ("cudnn/include/cudnn.h", f"{WHEEL}/include/cublasLt.h")
    found = {name: _in_wheels(name) or _in_toolkit(name) for name in (*names, *headers)}
    missing = [name for name, file in found.items() if file is None]
    if missing:
        raise UserError("SP1519", f"NVIDIA's wheels are not installed here: there is no {missing[0]}", INSTALL)
    files, includes = ([f for n in some if (f := found[n])] for some in (names, headers))
    version = (includes[0].parent / "cudnn_version.h").read_text()
    numbers = re.findall(r"#define CUDNN_(?:MAJOR|MINOR|PATCHLEVEL) (\d+)", version)
    return Libraries(tuple(f.parent for f in includes), tuple(files), ".".join(numbers))


@functools.cache
def load_nvrtc() -> None:
    """cuDNN compiles some kernels when it is asked for them. It looks for NVRTC by its name, and NVRTC for its own
    second half, which wheels put where neither looks: whatever is loaded already is found. Without them cuDNN offers
    fewer engines, and refuses those that a process which had them, PyTorch's for instance, put into a plan."""
    for folder in (*(wheel / WHEEL / "lib" for wheel in wheels()), *_toolkits_libraries()):
        found = [*folder.glob("libnvrtc-builtins.so.13.*"), *folder.glob("libnvrtc.so.13")]
        if len(found) > 1:
            with contextlib.suppress(OSError):  # cuDNN does without
                for library in found:
                    ctypes.CDLL(str(library))
            return


def _toolkits_libraries() -> tuple[Path, ...]:
    """Where a toolkit has them, without asking nvcc, which need not be there when an executor runs."""
    homes = (os.environ.get("CUDA_HOME"), "/usr/local/cuda")
    return tuple(Path(home) / "lib64" for home in homes if home)


def require_driver() -> None:
    """SP1851: there is none, told before anything is compiled that would find out."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError as error:
        fix = "run on a machine with a GPU and its driver; nvidia-smi lists them"
        raise UserError("SP1851", "there is no NVIDIA driver on this machine", fix) from error


def compile_kernels(sources: Sequence[Path], arch: str, defines: tuple[str, ...] = ()) -> Path:
    """The object of .cu files of one folder for one architecture, one after the other as if they were one, compiled now
    or before."""
    kit, host, last = toolkit(), toolchain.compiler(), sources[-1]
    # -O1 is for what runs on the processor, which only launches: the code for the GPU is the same under every -O.
    flags = (*defines, "-std=c++20", "-O1", f"-arch={arch}", "--extended-lambda", "--expt-relaxed-constexpr")
    flags += ("-fmad=false",) if UNFUSED.issuperset(source.name for source in sources) else ()
    flags += ("-diag-suppress=177", "-Xcompiler=-fPIC,-fvisibility=hidden,-Wno-unknown-pragmas", f"-ccbin={host.path}")
    key = hashlib.sha256()
    more = [os.environ.get(name, "") for name in ("NVCC_PREPEND_FLAGS", "NVCC_APPEND_FLAGS")]  # nvcc reads them itself
    for part in (kit.nvcc, kit.version, host.version, *flags, *more):
        key.update(part.encode() + b"\0")
    headers = {h for source in sources for h in toolchain.headers_of(source, (CUDA_RUNTIME, RUNTIME))}
    for file in (*sources, *sorted(headers)):
        key.update(file.name.encode() + b"\0" + file.read_bytes() + b"\0")
    target = toolchain.cache_folder() / "objects" / f"{last.stem}.{arch}-{key.hexdigest()[:24]}.o"
    include = (f"-I{CUDA_RUNTIME}", f"-I{RUNTIME}", f"-I{kit.include}")
    before = [part for source in sources[:-1] for part in ("-include", str(source))]
    return toolchain.made_once([kit.nvcc, *flags, *include, *before, "-c", str(last)], target)
