"""The module of a built folder, loaded once it is known to be whole."""

import ctypes
import importlib.machinery
import importlib.util
import struct
from pathlib import Path
from types import ModuleType

from codegen.build import module_name, source_digest
from planner.errors import UserError


def native_module(folder: Path, null_device: bool = False) -> ModuleType:
    """Load the built module (SP1512). SP1623: in a subinterpreter."""
    require_main_interpreter()
    module = folder / module_name(source_digest(folder), null_device)
    if not module.is_file():
        others = list(folder.glob(module_name("*", null_device)))
        what = "its sources or the runtime changed since it was built" if others else "it is not built"
        raise UserError("SP1512", f"{folder.name}: {what}", f"run stepplan build {folder}")
    if not _complete_elf(module.read_bytes()):
        raise UserError(
            "SP1512",
            f"{folder.name}: the built module does not load: it is damaged",
            f"run stepplan build {folder} again",
        )
    loader = importlib.machinery.ExtensionFileLoader("_executor", str(module))
    spec = importlib.util.spec_from_file_location("_executor", module, loader=loader)
    assert spec is not None
    try:
        native = importlib.util.module_from_spec(spec)
        loader.exec_module(native)
    except ImportError as error:
        raise UserError(
            "SP1512", f"{folder.name}: the built module does not load: {error}", f"run stepplan build {folder} again"
        ) from error
    if f'executor_spec = {{"{native.plan_hash}"' not in (folder / "executor.cpp").read_text(errors="replace"):
        problem = f"{folder.name}: the built module is another plan's"
        raise UserError("SP1512", problem, f"run stepplan build {folder} again")
    return native


def require_main_interpreter() -> None:
    """SP1623 in another one: bindings ask for the GIL by PyGILState_Ensure, which waits there for ever."""
    api = ctypes.pythonapi
    current, main = api.PyInterpreterState_Get, api.PyInterpreterState_Main
    current.restype = main.restype = ctypes.c_void_p
    if current() != main():
        problem = "executors run in Python's main interpreter only, and this is a subinterpreter"
        raise UserError("SP1623", problem, "use a thread, or a process of its own (for WSGI: one interpreter)")


def _complete_elf(data: bytes) -> bool:
    """Whether a 64-bit ELF file is all there: loading half a copy would end the process, not raise an error. The
    section headers come last in the file."""
    if len(data) < 64 or data[:5] != b"\x7fELF\x02":
        return False
    start, size, count = (*struct.unpack_from("<Q", data, 40), *struct.unpack_from("<HH", data, 58))
    return bool(0 < start + size * count <= len(data))
