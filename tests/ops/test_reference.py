"""Every op's samples: shapes and types against the NumPy reference, gradient rules against PyTorch's autograd, and
slice rules against their own promises."""

import numpy as np
import pytest
import torch

from planner.graph.model import DType, TensorType
from planner.ops import all_ops
from planner.ops.base import Mode, Op, Sample, Signature
from tests.ops.updates import update_count

CASES = [(op, sample) for op in all_ops().values() for sample in op.samples()]
IDS = [f"{op.name}-{op.samples().index(sample)}" for op, sample in CASES]


def signature_of(op: Op, sample: Sample) -> Signature:
    inputs = len(sample.inputs) - update_count(op, sample)
    if op.name == "batch_norm":
        inputs = 4 if sample.attrs.residual else 3
    outputs = op.infer(sample.attrs, sample.inputs[:inputs])
    return Signature(op.name, sample.attrs, sample.inputs[:inputs], outputs, sample.inputs[inputs:])


SHARED_BY_SOME = {"group_norm": "slices read the sums of those that have the same images"}
INFINITE = {"ctc_loss": "states that no path reaches", "segment_max": "entries without rows"}


@pytest.mark.parametrize("name", all_ops())
def test_has_samples(name):
    assert all_ops()[name].samples()


@pytest.mark.parametrize(("op", "sample"), CASES, ids=IDS)
def test_shapes(op, sample):
    signature = signature_of(op, sample)
    drawn = op.draw(sample, np.random.default_rng(0))
    for array, type_ in zip(drawn, sample.inputs, strict=True):
        assert array.shape == type_.shape
    before = [a.copy() for a in drawn]
    results = op.reference(sample.attrs, drawn)
    expected = (*signature.outputs, *signature.updates)
    assert len(results) == len(expected)
    for array, type_ in zip(results, expected, strict=True):
        assert isinstance(array, np.ndarray | np.generic)
        assert array.shape == type_.shape
        real = type_.dtype in (DType.FLOAT32, DType.BFLOAT16)
        assert array.dtype == (np.float64 if real else np.dtype(type_.dtype.value))
        assert np.isfinite(array).all() or (op.name in INFINITE and not np.isnan(array).any())
    for array, old in zip(drawn, before, strict=True):
        np.testing.assert_array_equal(array, old)
    assert op.flops(signature) >= 0
    assert op.bytes_moved(signature) > 0


@pytest.mark.parametrize(("op", "sample"), CASES, ids=IDS)
def test_slices(op, sample):
    signature = signature_of(op, sample)
    elements = {f"in{i}": t.elements for i, t in enumerate(signature.inputs)}
    elements |= {f"out{i}": t.elements for i, t in enumerate(signature.outputs)}
    elements |= {f"up{i}": t.elements for i, t in enumerate(signature.updates)}
    modes = op.dims(signature)
    assert modes
    if op.alias(signature):
        assert modes == {("alias", "whole"): 1}
        return
    facts_cases = [{}, {"packed_bytes": 256, "scratch_bytes": 100, "partial_bytes": 4096}]
    if next(iter(modes))[0] != "onednn":
        facts_cases = [{}]
    for facts in facts_cases:
        for (kernel, dim), most in modes.items():
            assert most >= 1
            for slices in sorted({*range(1, min(5, most) + 1), min(most, 40)}):
                check_mode(op, signature, Mode(kernel, dim, slices), facts, elements)


def check_mode(op, signature, mode, facts, elements):
    parts = {p.name: p.bytes for p in op.scratch(signature, mode, facts)}
    assert all(size > 0 for size in parts.values())
    written = {name: np.zeros(size, np.int64) for name, size in elements.items() if name.startswith("out")}
    for stage in range(op.stage_count(signature, mode, facts)):
        boxes = [op.accesses(signature, mode, stage, i, facts) for i in range(mode.slices)]
        for index, own in enumerate(boxes):
            for access in own:
                lo, hi = access.hull
                assert access.operand in elements or access.operand in parts, access
                assert 0 <= lo <= hi <= elements.get(access.operand, mode.slices), access
                assert not (access.write and access.operand.startswith("in")), access
                # Of scratch its own share, all shares, or the only one that there is: whoever reads less races.
                some = access.operand in elements or op.name in SHARED_BY_SOME
                assert some or (lo, hi) in {(index, index + 1), (0, mode.slices), (0, 1)}, access
                others = [a for i, other in enumerate(boxes) if i != index for a in other]
                if access.write:
                    # Nobody else of the stage may touch what a slice writes.
                    assert not [a for a in others if a.operand == access.operand and a.overlaps(access)], access
        for own in boxes:
            for access in own:
                if access.write and access.operand in written:
                    rows, cols = access.rows, access.cols
                    lines = written[access.operand].reshape(-1, access.width)
                    lines[rows[0] : rows[1], cols[0] : cols[1]] += 1
    for name, counts in written.items():
        assert counts.min(initial=1) >= 1, f"{name} is not written whole by {mode.text()}"
    check_inplace(op, signature, mode, facts)


def check_inplace(op, signature, mode, facts):
    """A slice may overwrite an input in place only if no other slice reads that part, in any stage."""
    for output, source in op.inplace(signature, mode):
        assert signature.outputs[output].bytes == signature.inputs[source].bytes
        stages = range(op.stage_count(signature, mode, facts))
        touched = [
            (i, a) for s in stages for i in range(mode.slices) for a in op.accesses(signature, mode, s, i, facts)
        ]
        for writer, access in touched:
            if access.operand == f"out{output}" and access.write:
                for reader, other in touched:
                    if other.operand == f"in{source}" and reader != writer:
                        assert not access._replace(operand=other.operand).overlaps(other), (access, other)


def test_slice_boxes_cover_once():
    """Outside of ops that fill first, every element is written by one slice in one stage."""
    twice = {"pad", "slice_backward"}
    for op, sample in CASES:
        signature = signature_of(op, sample)
        if op.name in twice or op.alias(signature) or not signature.outputs:
            continue
        for kernel, dim in op.dims(signature):
            mode = Mode(kernel, dim, min(3, op.dims(signature)[kernel, dim]))
            for position, type_ in enumerate(signature.outputs):
                total = 0
                for stage in range(op.stage_count(signature, mode, {})):
                    for index in range(mode.slices):
                        for a in op.accesses(signature, mode, stage, index, {}):
                            if a.write and a.operand == f"out{position}":
                                total += (a.rows[1] - a.rows[0]) * (a.cols[1] - a.cols[0])
                assert total == type_.elements, (op.name, mode, position)


def test_signature_text_is_unique():
    texts = [signature_of(op, sample).text for op, sample in CASES]
    assert len(set(texts)) == len(texts)


def test_dtype_of_labels():
    assert TensorType(shape=(3,), dtype=DType.INT64).bytes == 24
    assert torch.float64.is_floating_point


@pytest.mark.filterwarnings("ignore:(divide by zero|invalid value):RuntimeWarning")
@pytest.mark.parametrize("name", ["cross_entropy", "nll_loss"])
def test_labels_that_are_all_ignored_have_no_gradient(name):
    """The mean over none is NaN, as in PyTorch; nobody is to move by it."""
    loss, backward = all_ops()[name], all_ops()[f"{name}_backward"]
    scores, labels = np.log(np.full((2, 3), 1 / 3)), np.full(2, -100)
    mean, *saved, scale = loss.reference(loss.samples()[0].attrs, (scores, labels))
    attrs = next(s.attrs for s in backward.samples() if s.attrs.reduction == "mean" and s.attrs.ignore_index < 0)
    attrs = attrs.model_copy(update={"classes": 3}) if hasattr(attrs, "classes") else attrs
    given = (scores, *saved) if saved else ()
    (gradient,) = backward.reference(attrs, (np.ones(()), scale, *given, labels))
    assert np.isnan(mean) and gradient.shape == (2, 3) and not gradient.any()
