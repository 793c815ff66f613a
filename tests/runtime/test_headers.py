"""Headers of the runtime that plans include."""

import os
import subprocess
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from codegen.build import COMMON
from codegen.cpu.tables import HEADERS
from codegen.toolchain import compiler
from tests.runtime.build import MARCH, RUNTIME


@pytest.mark.parametrize("without", [(), ("attention", "dropout")])
@pytest.mark.parametrize("backwards", [False, True])
def test_all_go_together_whichever_comes_first(tmp_path: Path, without: tuple[str, ...], backwards: bool) -> None:
    """A plan includes those of its ops, so that one may miss another, or meet its names: `random.hpp` includes that of
    dropout, which is then behind more than where there is dropout."""
    found = {header for family, headers in HEADERS.items() if family not in without for header in headers}
    source = tmp_path / "headers.cpp"
    source.write_text("".join(f'#include "{header}"\n' for header in sorted(found, reverse=backwards)))
    command = (compiler().path, *COMMON, MARCH, "-Wall", "-Wextra", "-Werror", "-fsyntax-only", f"-I{RUNTIME}")
    run = subprocess.run([*command, str(source)], capture_output=True, text=True)
    assert not run.returncode, run.stderr


def test_each_goes_alone(tmp_path: Path) -> None:
    """A plan may have the ops of one family only."""

    def error_of(header: str) -> str:
        source = tmp_path / f"{header}.cpp"
        source.write_text(f'#include "{header}"\n')
        command = (compiler().path, *COMMON, MARCH, "-fsyntax-only", f"-I{RUNTIME}", str(source))
        return subprocess.run(command, capture_output=True, text=True).stderr

    headers = sorted({header for found in HEADERS.values() for header in found})
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        assert dict(zip(headers, pool.map(error_of, headers), strict=True)) == dict.fromkeys(headers, "")
