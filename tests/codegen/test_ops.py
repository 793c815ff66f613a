"""Every op's samples in every slicing, in one executor, against the ops' NumPy references."""

from pathlib import Path

import numpy as np
import pytest

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.executor import Executor
from codegen.load import executor_class
from planner.graph.model import DType
from tests.codegen.plans import Case, every_case, graph_of, plan_of, target_of

LANES = 5
RATE = 0.1
"""The executor's learning rate, whatever the samples say."""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return every_case((1, 2, LANES))


@pytest.fixture(scope="module")
def executor(cases: list[Case], tmp_path_factory: pytest.TempPathFactory) -> Executor:
    folder: Path = tmp_path_factory.mktemp("every_op")
    graph, target = graph_of(cases), target_of(LANES)
    emit(plan_of(cases, graph, target), graph, target, folder)
    build(folder, flags=("-Wall", "-Wextra"))
    return executor_class(folder)(pin=False, poison=True)


def test_every_op_in_every_slicing(executor: Executor, cases: list[Case]) -> None:
    rng = np.random.default_rng(0)
    drawn = {c.node_id: c.op.draw(c.sample, rng) for c in cases}
    state = {}
    for case in cases:
        for name, array, type_ in zip(case.inputs + case.updates, drawn[case.node_id], case.sample.inputs, strict=True):
            state[name] = np.asarray(array).astype(type_.dtype.value)
    executor.load_state_dict(state, strict=False)
    executor.lr = RATE
    executor.predict()
    after = executor.state_dict()
    wrong = []
    for case in cases:
        inputs = [state[n].astype(np.float64) if state[n].dtype.kind == "f" else state[n]
                  for n in case.inputs + case.updates]  # fmt: skip
        attrs = case.sample.attrs
        if hasattr(attrs, "lr"):
            attrs = attrs.model_copy(update={"lr": RATE})
        expected = case.op.reference(attrs, inputs)
        for name, want in zip(case.outputs + case.updates, expected, strict=True):
            got = after[name] if name in case.updates else executor._copy(executor._graph.value[name])
            if case.values[-1].type.dtype is DType.UINT8 and got.dtype == np.uint8:
                same = np.array_equal(got, want)
            else:
                scale = np.abs(want).max(initial=0) + 1e-6
                same = got.shape == want.shape and np.abs(got - want).max(initial=0) <= 2e-5 * scale + 1e-6
            if not same:
                error = np.abs(got.astype(float) - want).max(initial=0) if got.shape == want.shape else "shape"
                wrong.append(f"{case.label}: {name} is off by {error}")
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {len(cases)}"
