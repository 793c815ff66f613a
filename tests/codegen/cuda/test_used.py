"""Plans are built with the kernels that they call, and with all that those call."""

import re
import subprocess
from pathlib import Path

import pytest

from codegen.cuda.build import EXECUTOR, KERNELS, LIBRARY, NULL_KERNELS, NULL_LIBRARY, _host
from codegen.cuda.toolchain import CUDA_RUNTIME
from codegen.cuda.used import offered, used
from codegen.emit import emit
from codegen.toolchain import headers_of
from planner.zoo import build as zoo
from tests.codegen.cuda.plans import gpu, plan_for

RUNTIME = [CUDA_RUNTIME / name for name in (*EXECUTOR, *LIBRARY)]


def test_a_plan_needs_what_it_calls(tmp_path: Path) -> None:
    graph = zoo("mlp", 8)
    emit(plan_for(graph), graph, gpu(), tmp_path)
    found = set(used([*tmp_path.glob("*.cpp"), *RUNTIME], KERNELS))
    assert found == {"elementwise.cu", "joint.cu", "movement.cu", "plain.cu", "rows.cu", "steps.cu", "training.cu"}


def test_a_plans_own_sources_see_no_device(tmp_path: Path) -> None:
    """Its headers take longer to compile than a small plan."""
    graph = zoo("digits_cnn", 8)
    emit(plan_for(graph, 2), graph, gpu(), tmp_path)

    def included(source: Path) -> set[str]:
        return {h.name for h in headers_of(source, (CUDA_RUNTIME, CUDA_RUNTIME.parent))}

    device = {"device.hpp", "device_cuda.hpp", "device_null.hpp", "executor.hpp"}
    assert device <= included(tmp_path / "module.cpp")
    seen = set().union(*(included(s) for s in tmp_path.glob("*.cpp") if s.name != "module.cpp"))
    assert {"queue.hpp", "run.hpp", "spec.hpp"} <= seen and not seen & (device | {"launch.hpp"})


def test_kernels_that_kernels_call_are_needed(tmp_path: Path) -> None:
    (tmp_path / "forward.cpp").write_text("gpu::spmm(queue, entries);\n")
    assert used([tmp_path / "forward.cpp"], KERNELS) == ("indexed.cu", "training.cu")


def test_every_declared_kernel_is_found() -> None:
    declared = re.findall(r"^void (\w+)\(Queue", (CUDA_RUNTIME / "device_kernels.hpp").read_text(), re.MULTILINE)
    assert len(declared) > 60
    assert set(declared) <= set().union(*offered().values())


def symbols(made: Path, *flags: str) -> set[str]:
    told = subprocess.run(["nm", "-C", *flags, str(made)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" [A-Za-z] (stepplan::gpu::.*)$", told, re.MULTILINE))


@pytest.mark.parametrize("name", (*KERNELS, *EXECUTOR, *NULL_LIBRARY))
def test_the_linker_misses_nothing(name: str) -> None:
    """Compiled for the null device: what one needs is in what is found from its text."""

    def compiled(source: str) -> Path:
        flags = NULL_KERNELS if source.endswith(".cu") else ("-O2",)
        return _host([CUDA_RUNTIME / source], (*flags, "-DSTEPPLAN_NULL_DEVICE"), (), ())()

    # The null device's blocks and libraries are part of every module.
    beside = {*used([CUDA_RUNTIME / name], KERNELS), *NULL_LIBRARY, *EXECUTOR, name}
    defined = set().union(*(symbols(compiled(other), "--defined-only") for other in beside))
    assert symbols(compiled(name), "--undefined-only") <= defined
