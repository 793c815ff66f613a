"""Every op's samples in every slicing, in one executor, against the ops' NumPy references."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.executor import Executor
from codegen.load import executor_class
from planner.graph.model import DType
from planner.ops.base import Access, round_bfloat16, scratch_offsets
from planner.ops.signature import signature_of
from planner.plan.schema import slice_name
from tests.codegen.plans import Case, every_case, graph_of, plan_of, target_of
from tests.codegen.quick import STRICT

Array = np.ndarray[Any, Any]

LANES = 5
RATE = 0.1
"""The executor's learning rate, whatever the samples say."""
HIDDEN = {"float32": np.nan, "uint16": 0x7FFF}
"""What undeclared elements hold, NaN, of bfloat16 in bits; indices and masks, the least that there is."""


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return every_case((1, LANES))


@pytest.fixture(scope="module")
def executor(cases: list[Case], tmp_path_factory: pytest.TempPathFactory) -> Executor:
    folder: Path = tmp_path_factory.mktemp("every_op")
    graph, target = graph_of(cases), target_of(LANES)
    emit(plan_of(cases, graph, target), graph, target, folder)
    build(folder, flags=(*STRICT, "-O1"))  # vector code, too: of what the loops ask for, in half of the time
    return executor_class(folder)(pin=False, poison=True)


@pytest.fixture(scope="module")
def state(cases: list[Case]) -> dict[str, Array]:
    return drawn(cases, np.random.default_rng(0))


def drawn(cases: list[Case], rng: np.random.Generator) -> dict[str, Array]:
    """What every case reads and changes, by value name."""
    found = {}
    for case in cases:
        arrays = case.op.draw(case.sample, rng)
        for name, array, type_ in zip(case.inputs + case.updates, arrays, case.sample.inputs, strict=True):
            found[name] = stored(array, type_.dtype)
    return found


def stored(array: Array, dtype: DType) -> Array:
    """As an executor takes it: bfloat16, which NumPy lacks, as numbers that have no more digits."""
    return round_bfloat16(array) if dtype is DType.BFLOAT16 else np.asarray(array).astype(dtype.value)


def load(executor: Executor, state: dict[str, Array]) -> None:
    executor.load_state_dict(state, strict=False)
    executor.lr = RATE


def mistakes(executor: Executor, case: Case, state: dict[str, Array], rounded_twice: bool = False) -> list[str]:
    """Where the results of a case differ from its op's reference in double. `rounded_twice`: in bfloat16 sums may be
    rounded before a bias is added, or the bias."""
    read = [state[n] for n in case.inputs + case.updates]
    attrs = case.sample.attrs
    if hasattr(attrs, "lr"):
        attrs = attrs.model_copy(update={"lr": RATE})
    expected = case.op.reference(attrs, [a.astype(np.float64) if a.dtype.kind == "f" else a for a in read])
    found = []
    low = {n for n in case.outputs if executor._graph.value[n].type.dtype is DType.BFLOAT16}
    for name, want in zip(case.outputs + case.updates, expected, strict=True):
        got = executor._copy(executor._graph.value[name])
        if got.shape != want.shape:
            found.append(f"{case.label}: {name} has shape {got.shape}, not {want.shape}")
            continue
        same = got == want  # infinities, where there are any
        error = np.abs(np.where(same, 0, got.astype(np.float64)) - np.where(same, 0, want))
        size = np.abs(want).max(initial=0, where=np.isfinite(want))
        allowed = 0 if got.dtype == np.uint8 else 2e-5 * size + 1e-6
        if name in low:  # rounded once, to the nearest: half a step of 8 bits
            allowed = allowed + 2**-8 * np.abs(want)
            if rounded_twice:
                allowed = allowed + 2**-8 * size
            if case.op.family == "attention":  # weights are rounded before they are multiplied
                allowed = allowed + 2**-7 * np.abs(want).max(initial=0)
            if getattr(attrs, "joined", False) and name == case.outputs[0]:
                # Computed from the sum of two gradients as it was stored: that error, as it is scaled.
                gamma, inv_std, kept = read[2], read[5], expected[3]
                allowed = allowed + 2**-8 * np.abs(kept * (gamma * inv_std).reshape(1, -1, 1, 1))
        if not np.all(error <= allowed):
            found.append(f"{case.label}: {name} is off by {error.max()}")
    return found


def test_every_op_in_every_slicing(executor: Executor, cases: list[Case], state: dict[str, Array]) -> None:
    load(executor, state)
    executor.predict()
    wrong = [m for case in cases for m in mistakes(executor, case, state)]
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {len(cases)}"


def test_slices_touch_only_what_their_ops_declare(
    executor: Executor, cases: list[Case], state: dict[str, Array]
) -> None:
    """Slices run one by one. Whatever a slice has not declared to read is NaN meanwhile, and whatever it has not
    declared to write must keep its bytes: plans are only as safe as these declarations. Of scratch, parts of which it
    declares nothing: how others are shared is the op's business."""
    load(executor, state)
    graph, plan = executor._graph, executor.plan
    where = {e.run: (lane, i) for lane, entries in enumerate(plan.programs[0].lanes) for i, e in enumerate(entries)}
    wrong = []
    for case in cases:
        signature, node = signature_of(graph, case.node), plan.programs[0].node[case.node_id]
        operands = {f"in{i}": v for i, v in enumerate(case.inputs)}
        operands |= {f"out{i}": v for i, v in enumerate(case.outputs)}
        operands |= {f"up{i}": v for i, v in enumerate(case.updates)}
        arrays = {o: executor._view(graph.value[v]).reshape(-1) for o, v in operands.items()}
        parts = case.op.scratch(signature, node.mode, node.facts)
        for part, offset in scratch_offsets(parts).items():
            begin = node.scratch_offset + offset
            size = next(p.bytes for p in parts if p.name == part)
            arrays[part] = executor._arena[begin : begin + size // 4 * 4].view(np.float32)
        for stage in range(node.stages):
            for index in range(node.slices):
                every = case.op.accesses(signature, node.mode, stage, index, node.facts)
                declared = [a for a in every if a.hull[0] < a.hull[1]]
                hidden, kept = {}, {}
                for operand, array in arrays.items():
                    mask = np.ones(array.size, bool)
                    for access in (a for a in declared if a.operand == operand):
                        mask[elements(access) if operand in operands else ...] = False
                    hidden[operand], kept[operand] = mask, array[mask].copy()
                    array[mask] = HIDDEN.get(array.dtype.name, array.min(initial=0))
                before = {o: a.copy() for o, a in arrays.items()}
                executor._native.run_entry(executor._handle, 0, *where[slice_name(case.node_id, stage, index)], RATE)
                for operand, array in arrays.items():
                    touched = np.flatnonzero(array.view(np.uint8) != before[operand].view(np.uint8))
                    writable = np.zeros(array.size, bool)
                    for access in (a for a in declared if a.operand == operand and a.write):
                        writable[elements(access) if operand in operands else ...] = True
                    if not writable[touched // array.itemsize].all():
                        wrong.append(f"{case.label} stage {stage} slice {index} writes more of {operand} than it says")
                    array[hidden[operand]] = kept[operand]
        wrong += mistakes(executor, case, state)
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {len(cases)}"


def test_streamed_results_have_the_bits_of_plain_ones(
    executor: Executor, cases: list[Case], state: dict[str, Array]
) -> None:
    """By every case that streams, and the case in whose place it may run, on the same operands."""
    plain = {(c.op.name, c.sample, c.mode): c for c in cases}
    pairs = [
        (c, plain[c.op.name, c.sample, c.mode._replace(implementation="")])
        for c in cases
        if c.mode.kernel == "loops" and c.mode.implementation
    ]
    assert len(pairs) > 60
    operands = [pair for c, p in pairs for pair in zip(c.inputs + c.updates, p.inputs + p.updates, strict=True)]
    load(executor, state | {new: state[old] for new, old in operands})
    executor.predict()
    for case, other in pairs:
        for name, same in zip(case.outputs + case.updates, other.outputs + other.updates, strict=True):
            found, wanted = (executor._copy(executor._graph.value[v]) for v in (name, same))
            assert found.tobytes() == wanted.tobytes(), case.label


def test_numbers_have_the_same_bits_in_every_slicing(
    executor: Executor, cases: list[Case], state: dict[str, Array]
) -> None:
    """And uniform and whole ones those of their references."""
    load(executor, state)
    executor.predict()
    found: dict[str, set[bytes]] = {}
    for case in (c for c in cases if c.op.family == "random"):
        got = executor._copy(executor._graph.value[case.outputs[0]])
        found.setdefault(case.sample.attrs.text() + case.op.name, set()).add(got.tobytes())
        (want,) = case.op.reference(case.sample.attrs, ())
        if getattr(case.sample.attrs, "distribution", "uniform") == "uniform":
            assert np.array_equal(got, want), case.label
        np.testing.assert_allclose(got, want, rtol=1e-6, atol=1e-9)
    assert len(found) == 8 and {len(bits) for bits in found.values()} == {1}


def elements(access: Access) -> Array:
    """Positions of an access in its operand's memory order."""
    rows, columns = np.arange(*access.rows), np.arange(*access.cols)
    return (rows[:, None] * access.width + columns).reshape(-1)
