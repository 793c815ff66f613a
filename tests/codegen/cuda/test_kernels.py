"""Every op's samples as GPU kernels, run by the null device, against the ops' NumPy references."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.cuda.executor import CudaExecutor
from planner.ops import all_ops
from planner.ops.base import Mode
from planner.ops.device import device_mode
from planner.ops.signature import signature_of
from tests.codegen.cuda.plans import make, plan_for
from tests.codegen.plans import Case, graph_of
from tests.codegen.test_ops import load, mistakes

Array = np.ndarray[Any, Any]
TRANSFERS = ("offload", "prefetch")
"""These need two pools; tests with budgets run them."""


def device_cases() -> list[Case]:
    found: list[Case] = []
    for op in all_ops().values():
        for sample in () if op.name in TRANSFERS else op.samples():
            probe = Case(0, op, sample, Mode("", "", 1))
            if op.alias(signature_of(graph_of([probe]), probe.node)) is None:
                found.append(Case(len(found), op, sample, device_mode(op)))
    return found


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return device_cases()


@pytest.fixture(scope="module")
def executor(cases: list[Case], tmp_path_factory: pytest.TempPathFactory) -> CudaExecutor:
    folder: Path = tmp_path_factory.mktemp("every_kernel")
    graph = graph_of(cases)
    return make(plan_for(graph), graph, folder, safe=False)(poison=True, null_device=True)


def test_every_kernel(executor: CudaExecutor, cases: list[Case]) -> None:
    rng = np.random.default_rng(0)
    state: dict[str, Array] = {}
    for case in cases:
        drawn = case.op.draw(case.sample, rng)
        for name, array, type_ in zip(case.inputs + case.updates, drawn, case.sample.inputs, strict=True):
            state[name] = np.asarray(array).astype(type_.dtype.value)
    load(executor, state)
    executor.predict()
    wrong = [m for case in cases for m in mistakes(executor, case, state)]
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {len(cases)}"
