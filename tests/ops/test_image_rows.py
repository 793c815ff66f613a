"""What is sliced over the rows of images is sliced over the pixels of those that have one."""

import pytest

from planner.graph.model import Layout, TensorType
from planner.ops import all_ops
from planner.ops.average_pool import AvgPool2d
from planner.ops.base import Mode, Signature, reads, writes
from planner.ops.image_rows import ImageRows
from planner.ops.pool import AvgPoolAttrs

OPS = [op for op in all_ops().values() if isinstance(op, ImageRows)]


@pytest.mark.parametrize("op", OPS, ids=lambda op: op.name)
def test_sequences_have_more_slices_than_images(op):
    signatures = [Signature(op.name, s.attrs, s.inputs, op.infer(s.attrs, s.inputs)) for s in op.samples()]
    sequences = [s for s in signatures if s.inputs[0].shape[2] == s.outputs[0].shape[2] == 1]
    assert any(s.outputs[0].shape[3] > 5 for s in sequences)
    for signature in signatures:
        images, _, height, width = signature.outputs[0].shape
        assert op.dims(signature) == {("loops", "rows"): images * (width if signature in sequences else height)}


def test_slices_read_the_pixels_that_their_windows_touch():
    """19 pixels of 5 channels make 10 of 3 each, 2 apart, from -1 on; 10 i // 4 = 0, 2, 5, 7, 10."""
    x = TensorType(shape=(1, 5, 1, 19), layout=Layout.CHANNELS_LAST)
    attrs = AvgPoolAttrs(kernel=(1, 3), stride=(1, 2), padding=(0, 0, 1, 1))
    signature = Signature("avg_pool2d", attrs, (x,), AvgPool2d().infer(attrs, (x,)))
    found = [AvgPool2d().accesses(signature, Mode("loops", "rows", 4), 0, i, {}) for i in range(4)]
    assert found == [
        (reads("in0", 0, 4 * 5), writes("out0", 0, 2 * 5)),
        (reads("in0", 3 * 5, 10 * 5), writes("out0", 2 * 5, 5 * 5)),
        (reads("in0", 9 * 5, 14 * 5), writes("out0", 5 * 5, 7 * 5)),
        (reads("in0", 13 * 5, 19 * 5), writes("out0", 7 * 5, 10 * 5)),
    ]
