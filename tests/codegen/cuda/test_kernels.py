"""Every op's samples as GPU kernels, run by the null device, against the ops' NumPy references."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.cuda.executor import CudaExecutor
from codegen.cuda.facts import has_bias
from codegen.cuda.launches import Launch
from codegen.cuda.probe import algorithms
from codegen.cuda.profile import entry_of
from planner.graph.model import DType, Layout, TensorType
from planner.ops import all_ops
from planner.ops.base import Mode, Op, Sample, op_named, round_bfloat16
from planner.ops.copy import PermuteAttrs
from planner.ops.device import device_mode
from planner.ops.pool import MaxPoolAttrs, MaxPoolGradAttrs
from planner.ops.signature import signature_of, signatures_of
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from tests.codegen.cuda.plans import NULL, costs_of, gpu, make, plan_for
from tests.codegen.plans import Case, graph_of, in_bfloat16, low_samples
from tests.codegen.test_ops import drawn, load, mistakes

Array = np.ndarray[Any, Any]
TRANSFERS = ("offload", "prefetch")
"""These need two pools; tests with budgets run them."""


def samples_of(op: Op) -> list[Sample]:
    """In float32, and the first three, where the op takes bfloat16, in that; every activation's first, and of
    convolutions also the first with a bias."""
    low = low_samples(op)
    chosen = low[: 1 if op.family in ("elementwise", "binary") else 3]
    biased = next((s for s in low if op.family == "conv" and len(s.inputs) > 2), None)
    return [*op.samples(), *chosen, *([biased] if biased is not None and biased not in chosen else [])]


def larger(op: Op, sample: Sample) -> list[Sample]:
    """The sample, in both precisions, with more channels than a block has threads across, or more elements than two
    blocks take at once, in no whole number of packs."""
    first = sample.inputs[0].shape
    channels = {first[1]: 264} if len(first) == 4 and op.family == "batch_norm" else {}
    length = {} if channels else {first[0]: 4099}
    grown = [
        t.model_copy(update={"shape": tuple(channels.get(n, length.get(n, n)) for n in t.shape)}) for t in sample.inputs
    ]
    more = Sample(sample.attrs, tuple(grown))
    return [more, in_bfloat16(op, more)] if op.low_precision is not None else [more]


LARGER = (
    "relu",
    "sigmoid_backward",
    "mul",
    "dropout",
    "sgd_update",
    "adam_update",
    "batch_norm",
    "batch_norm_backward",
)


def turned() -> list[Sample]:
    """Matrices in whole tiles and in parts of them, with short sides of either kind, too small for tiles; in elements
    of every size. And dimensions that change places over neighbours that stay together, in packs and not."""
    types = (DType.FLOAT32, DType.BFLOAT16, DType.INT64, DType.UINT8)
    shapes = ((2, 64, 128), (3, 33, 70), (2, 3, 700), (2, 700, 3), (5, 9, 130), (1, 260, 12), (4, 10, 20))
    some = (((3, 4, 5, 16), (0, 2, 1, 3)), ((3, 4, 5, 6), (0, 2, 1, 3)), ((4, 6, 8), (1, 0, 2)))
    found = [(shape, (0, 2, 1), dtype) for shape, dtype in product(shapes, types)]
    found += [(shape, axes, dtype) for (shape, axes), dtype in product(some, types)]
    return [Sample(PermuteAttrs(axes=axes), (TensorType(shape=shape, dtype=dtype),)) for shape, axes, dtype in found]


def windows() -> list[tuple[str, Sample]]:
    """Maxima over windows of one to three elements, next to each other or apart, and their gradients, at random."""
    rng, found = np.random.default_rng(), list[tuple[str, Sample]]()
    pooled, gradient = op_named("max_pool2d"), op_named("max_pool2d_backward")
    while len(found) < 40:
        kernel = tuple(rng.integers(1, 4, 2).tolist())
        stride = (2, 2) if rng.integers(3) else tuple(rng.integers(1, 4, 2).tolist())
        top, left = (int(rng.integers(0, k // 2 + 1)) for k in kernel)
        shape = (2, int(rng.choice((3, 8))), *rng.integers(4, 11, 2).tolist())
        common = {
            "kernel": kernel,
            "stride": stride,
            "padding": (top, top, left, left),
            "ceil_mode": bool(rng.integers(2)),
        }
        forward = Sample(MaxPoolAttrs(**common), (TensorType(shape=shape, layout=Layout.CHANNELS_LAST),))
        results = pooled.infer(forward.attrs, forward.inputs)
        backward = Sample(MaxPoolGradAttrs(**common, shape=shape), tuple(results))
        if rng.integers(2):
            forward, backward = in_bfloat16(pooled, forward), in_bfloat16(gradient, backward)
        found += [(pooled.name, forward), (gradient.name, backward)]
    return found


LIBRARIES = ("conv", "matmul")
FAMILIES = ("all",) if NULL else tuple(sorted({op.family for op in all_ops().values()} - {"transfer"}))
"""On a GPU each in an executor of its own: what one does wrong hides nothing of the others."""


def device_cases(family: str) -> list[Case]:
    return [case for case in every_case() if family in ("all", case.op.family)]


def every_case() -> list[Case]:
    found: list[Case] = []
    for op in all_ops().values():
        for sample in () if op.name in TRANSFERS else samples_of(op):
            probe = Case(0, op, sample, Mode("", "", 1))
            if op.alias(signature_of(graph_of([probe]), probe.node)) is None:
                found.append(Case(len(found), op, sample, device_mode(op)))
    for name in LARGER:
        op = op_named(name)
        ranks = (4,) if op.family == "batch_norm" else (1, 2)
        sample = next(s for s in op.samples() if len(s.inputs[0].shape) in ranks)
        for more in larger(op, sample):
            found.append(Case(len(found), op, more, device_mode(op, "64x2")))
    for name, sample in windows():
        found.append(Case(len(found), op_named(name), sample, device_mode(op_named(name))))
    permute = op_named("permute")
    found += [Case(len(found) + i, permute, sample, device_mode(permute)) for i, sample in enumerate(turned())]
    return found


@pytest.fixture(scope="module", params=FAMILIES)
def cases(request: pytest.FixtureRequest) -> list[Case]:
    return device_cases(request.param)


@pytest.fixture(scope="module")
def executor(cases: list[Case], tmp_path_factory: pytest.TempPathFactory) -> CudaExecutor:
    folder: Path = tmp_path_factory.mktemp("every_kernel")
    graph = graph_of(cases)
    return make(plan_for(graph), graph, folder, safe=False)(poison=True, null_device=NULL)


def require_references(executor: CudaExecutor, cases: list[Case]) -> dict[str, Array]:
    """On operands that are returned."""
    state = drawn(cases, np.random.default_rng(0))
    load(executor, state)
    executor.predict()
    # For some shapes the libraries have no other way.
    twice = {case.node_id for case in cases if not NULL and case.op.family in LIBRARIES}
    wrong = [m for case in cases for m in mistakes(executor, case, state, case.node_id in twice)]
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {len(cases)}"
    return state


def test_every_kernel(executor: CudaExecutor, cases: list[Case]) -> None:
    state = require_references(executor, cases)
    if not NULL:
        return
    biased = [c for c in cases if c.op.family == "conv" and has_bias(signature_of(executor._graph, c.node))]
    low = [c for c in biased if c.sample.inputs[0].dtype is DType.BFLOAT16]
    assert low
    for case in low:  # bias and all, a sum is rounded once
        (want,) = case.op.reference(case.sample.attrs, [state[n].astype(np.float64) for n in case.inputs])
        got = executor._copy(executor._graph.value[case.outputs[0]])
        np.testing.assert_array_equal(got, round_bfloat16(want.astype(np.float32)))


@pytest.mark.skipif(NULL, reason="a GPU's libraries have them")
@pytest.mark.parametrize("family", LIBRARIES)
def test_every_algorithm(family: str, tmp_path: Path) -> None:
    """Of what the libraries offer, not only what is fastest here."""
    cases = device_cases(family)
    graph = graph_of(cases)
    ways = {
        s: algorithms(s, gpu().gpus[0].arch, tf32=False)
        for s in signatures_of([graph])
        if op_named(s.op).family == family
    }
    table, texts = costs_of(graph), {s.text for s in ways}
    others = table.model_copy(update={"entries": tuple(e for e in table.entries if e.signature not in texts)})
    for number in range(max(map(len, ways.values()))):
        chosen = [entry_of(s, found[number % len(found)]) for s, found in ways.items()]
        plan = make_plan(graph, gpu(), others.with_entries(chosen), PlanOptions(policy="sequential"))
        with make(plan, graph, tmp_path / str(number), safe=False)(poison=True) as executor:
            require_references(executor, cases)


def test_few_blocks_leave_the_same_bits(executor: CudaExecutor, cases: list[Case]) -> None:
    """Where a launch has fewer threads than a kernel has elements, tiles or rows of channels, all of them loop."""
    native, handle, plan = executor._native, executor._handle, executor.plan
    made = [case for case in cases if not case.updates]
    placed = {name: plan.placement[name] for case in made for name in case.outputs}
    executor.predict()
    want = {name: executor._copy(executor._graph.value[name]).tobytes() for name in placed}
    for place in placed.values():
        native.write(handle, place.offset, np.full(place.bytes, 0xFF, np.uint8))
    executor.node_times("predict", 1, dict.fromkeys((case.node_id for case in made), Launch(32, 2)))
    got = {name: executor._copy(executor._graph.value[name]).tobytes() for name in placed}
    wrong = [case.label for case in made if any(got[name] != want[name] for name in case.outputs)]
    assert not wrong, "\n".join(wrong[:20]) + f"\n{len(wrong)} of {len(made)}"
