"""Plans are built with the kernels that they call, and with all that those call."""

import re
import subprocess
from pathlib import Path

import pytest

from codegen.cuda.build import BASE, EXECUTOR, KERNELS, LIBRARY, NULL_KERNELS, NULL_LIBRARY, _host, _paths
from codegen.cuda.toolchain import CUDA_RUNTIME
from codegen.cuda.used import Group, offered, on_floats, used
from codegen.emit import emit
from codegen.toolchain import headers_of
from planner.zoo import build as zoo
from tests.codegen.cuda.plans import gpu, plan_for

RUNTIME = _paths((*EXECUTOR, *LIBRARY, *BASE))


def test_a_plan_needs_what_it_calls(tmp_path: Path) -> None:
    graph = zoo("mlp", 8)
    emit(plan_for(graph), graph, gpu(), tmp_path)
    found = used([*tmp_path.glob("*.cpp"), *RUNTIME], KERNELS)
    assert set(found) == {("joint.cu", "training.cu"), ("unary.cu",)}


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
    assert used([tmp_path / "forward.cpp"], KERNELS) == (("joint.cu", "training.cu"), ("indexed.cu",))


def test_every_declared_kernel_is_found() -> None:
    declared = re.findall(r"^void (\w+)\(Queue", (CUDA_RUNTIME / "device_kernels.hpp").read_text(), re.MULTILINE)
    assert len(declared) > 60
    assert set(declared) <= set().union(*offered().values())


def symbols(made: Path, *flags: str) -> set[str]:
    told = subprocess.run(["nm", "-C", *flags, str(made)], capture_output=True, text=True, check=True).stdout
    return set(re.findall(r" [A-Za-z] (stepplan::gpu::.*)$", told, re.MULTILINE))


def test_what_works_on_bfloat16_alone_needs_no_floats(tmp_path: Path) -> None:
    norms = ("normalise.cu", "pooling.cu")

    def needed(*bodies: str) -> bool:
        source = tmp_path / "forward.cpp"
        source.write_text("".join(f"void node() {{\n  {body}\n}}\n" for body in bodies))
        return on_floats([source], norms)

    norm = "const float* g = f(); const gpu::BatchNorm<{}> a{{}}; gpu::batch_norm<Fusion::relu>(queue, a, sums, 2);"
    pool = "const {0}* x = run.at<{0}>(3); gpu::max_pool(queue, x, y, nullptr, pool);"
    assert not needed(norm.format("bfloat16"), pool.format("bfloat16"), "const float* x = f(); gpu::copy(x);")
    assert needed(norm.format("float"), pool.format("bfloat16"))
    assert needed(norm.format("bfloat16"), pool.format("float"))


@pytest.mark.parametrize("group", (BASE, *KERNELS, EXECUTOR, NULL_LIBRARY), ids="-".join)
def test_the_linker_misses_nothing(group: Group) -> None:
    """Compiled for the null device: what one needs is in what is found from its text."""

    def compiled(sources: Group) -> Path:
        flags = NULL_KERNELS if sources[0].endswith(".cu") else ("-O2",)
        return _host(_paths(sources), (*flags, "-DSTEPPLAN_NULL_DEVICE"), (), ())()

    # These are part of every module.
    beside = {*used(_paths(group), KERNELS), NULL_LIBRARY, EXECUTOR, BASE, group}
    defined = set().union(*(symbols(compiled(other), "--defined-only") for other in beside))
    assert symbols(compiled(group), "--undefined-only") <= defined
