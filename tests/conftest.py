"""Workspaces that several test modules share, and how tests share a machine."""

import gc
import os
import shutil
from collections.abc import Generator
from pathlib import Path

import pytest
from hypothesis import settings

# Before any library reads it: threads that wait for others sleep. By default they spin, which takes the processor from
# other tests' threads, and those spin, too.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")

# Kernels that no GPU runs need not be fast.
if not os.environ.get("STEPPLAN_TEST_GPU"):
    os.environ.setdefault("NVCC_APPEND_FLAGS", "-Ofc=max")

from tests.cli import Files, workspace

# A busy machine is not a defect: examples have no time limit of their own.
settings.register_profile("patient", deadline=None)
settings.load_profile("patient")

LONGEST = (
    "codegen/cuda/test_bfloat16.py",
    "solve/test_budget.py",
    "codegen/test_truth.py",
    "runtime/test_convolutions.py",
    "codegen/cuda/test_null_device.py",
    "codegen/test_ops.py",
    "test_killed.py",
    "solve/test_pipeline.py",
    "codegen/cuda/test_devices.py",
    "zoo/test_executors.py",
    "frontends/test_families.py",
    "codegen/test_lanes.py",
    "test_examples.py",
    "solve/memory/test_beside.py",
    "solve/superneurons/test_out_of_core.py",
)
"""Files that begin first, so that none of them is left for one worker at the end (xdist's `loadfile`)."""


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """The second worker reads from the back: what a fresh clone has to compile for Python, each compiles half of."""
    report = yield
    if isinstance(collector, pytest.Directory) and os.environ.get("PYTEST_XDIST_WORKER") == "gw1":
        report.result = report.result[::-1]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    order = {Path(__file__).parent / name: number for number, name in enumerate(LONGEST)}
    items.sort(key=lambda item: (order.get(item.path, len(order)), item.path))


def pytest_collection_finish() -> None:
    """PyTorch's and ONNX's modules are 700000 objects that stay: no full collection has to look at them."""
    gc.set_threshold(10_000, 10, 10)
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def made_workspace(tmp_path_factory: pytest.TempPathFactory) -> Files:
    return workspace(tmp_path_factory.mktemp("workspace"))


@pytest.fixture
def files(made_workspace: Files, tmp_path: Path) -> Files:
    """A workspace of the test's own: graph.json, target.toml, costs.json and plan/ of a small net."""
    shutil.copytree(made_workspace.folder, tmp_path, dirs_exist_ok=True)
    return Files(tmp_path, *(tmp_path / p.name for p in made_workspace[1:]))
