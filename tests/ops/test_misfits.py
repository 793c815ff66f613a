"""Shapes that do not fit are SP1002 with a fix, and never a traceback from within."""

import pytest

from planner.errors import UserError
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Init, Layout, TensorType
from planner.ops.activation import LeakyReluAttrs
from planner.ops.concat import ConcatAttrs
from planner.ops.conv import ConvAttrs
from planner.ops.conv3d import Conv3dAttrs, Conv3dTransposeAttrs
from planner.ops.copy import ExpandAttrs, PermuteAttrs, SliceAttrs
from planner.ops.distances import DistancesBackwardAttrs
from planner.ops.dropout import DropoutAttrs
from planner.ops.entries import SortEntriesAttrs
from planner.ops.group_norm import GroupNormAttrs
from planner.ops.layer_norm import LayerNormAttrs
from planner.ops.loss import ClassLossAttrs
from planner.ops.lrn import LrnAttrs
from planner.ops.pad import PadAttrs
from planner.ops.pool import AdaptivePoolAttrs, AvgPoolAttrs, MaxPoolAttrs
from planner.ops.random import RandomAttrs, RandomWholeAttrs
from planner.ops.reduce import ReduceAttrs, SumToAttrs
from planner.ops.segment import SegmentAttrs
from planner.ops.shape import ReshapeAttrs
from planner.ops.sparse import SddmmAttrs, SpmmAttrs

IMAGE = (2, 8, 5, 7)

CASES = {
    "conv groups": ("conv2d", [IMAGE, (6, 3, 3, 3)], ConvAttrs(groups=2)),
    "conv kernel": ("conv2d", [IMAGE, (6, 8, 9, 3)], ConvAttrs()),
    "conv3d kernel": ("conv3d", [IMAGE, (6, 8, 9, 3)], Conv3dAttrs(depth=2, kernel_depth=3)),
    "conv3d volumes": ("conv3d", [IMAGE, (6, 8, 6, 3)], Conv3dAttrs(depth=3, kernel_depth=2)),
    "conv3d depths": ("conv3d", [IMAGE, (6, 8, 7, 3)], Conv3dAttrs(depth=2, kernel_depth=2)),
    "conv3d stride": ("conv3d", [IMAGE, (6, 8, 6, 3)], Conv3dAttrs(depth=2, kernel_depth=2, depth_stride=0)),
    "conv3d bias": ("conv3d", [IMAGE, (6, 8, 6, 3), (5,)], Conv3dAttrs(depth=2, kernel_depth=2)),
    "conv_transpose3d depths": (
        "conv_transpose3d",
        [(3, 8, 5, 7), (8, 6, 4, 2)],
        Conv3dTransposeAttrs(depth=4, kernel_depth=2, depth_stride=2),
    ),
    "conv_transpose3d stride": (
        "conv_transpose3d",
        [IMAGE, (8, 6, 4, 2)],
        Conv3dTransposeAttrs(depth=4, kernel_depth=2, depth_stride=0),
    ),
    "linear": ("linear", [(4, 5), (3, 6)], None),
    "linear bias": ("linear", [(4, 5), (3, 5), (4,)], None),
    "matmul": ("matmul", [(4, 5), (4, 5)], None),
    "matmul vector": ("matmul", [(4, 5), (5,)], None),
    "matmul batch": ("matmul", [(2, 4, 5), (3, 5, 4)], None),
    "add": ("add", [(4, 5), (4, 6)], None),
    "concat": ("concat", [(4, 5), (3, 6)], ConcatAttrs(axis=0)),
    "concat axis": ("concat", [(4, 5), (3, 5)], ConcatAttrs(axis=2)),
    "slice": ("slice", [(4, 5)], SliceAttrs(axis=1, start=3, stop=6)),
    "slice axis": ("slice", [(4, 5)], SliceAttrs(axis=2, start=0, stop=1)),
    "pad": ("pad", [(4, 5)], PadAttrs(pads=((0, 1),))),
    "permute": ("permute", [(4, 5)], PermuteAttrs(axes=(0, 0))),
    "expand": ("expand", [(4, 5)], ExpandAttrs(shape=(8, 5))),
    "reshape": ("reshape", [(4, 5)], ReshapeAttrs(shape=(3, 7))),
    "permute rank": ("permute", [(2,) * 7], PermuteAttrs(axes=(6, 5, 4, 3, 2, 1, 0))),
    "add rank": ("add", [(2,) * 7, (2,)], None),
    "reduce rank": ("reduce_sum", [(2,) * 7], ReduceAttrs(axes=(1,))),
    "reduce": ("reduce_sum", [(4, 5)], ReduceAttrs(axes=(2,))),
    "sum_to": ("sum_to", [(4, 5)], SumToAttrs(shape=(2, 5))),
    "max_pool": ("max_pool2d", [(4, 5)], MaxPoolAttrs(kernel=(2, 2), stride=(2, 2))),
    "max_pool window": ("max_pool2d", [IMAGE], MaxPoolAttrs(kernel=(6, 2), stride=(2, 2))),
    "max_pool 255": ("max_pool2d", [(1, 1, 40, 40)], MaxPoolAttrs(kernel=(16, 16), stride=(2, 2))),
    "max_pool pad": ("max_pool2d", [IMAGE], MaxPoolAttrs(kernel=(2, 2), stride=(1, 1), padding=(2, 2, 2, 2))),
    "avg_pool sides": ("avg_pool2d", [IMAGE], AvgPoolAttrs(kernel=(3, 3), stride=(1, 1), padding=(0, 1, 0, 1))),
    "adaptive": ("adaptive_avg_pool2d", [IMAGE], AdaptivePoolAttrs(output=(0, 1))),
    "layer_norm": ("layer_norm", [(4, 5), (4,), (4,)], LayerNormAttrs()),
    "layer_norm dims": ("layer_norm", [(4, 5), (5,), (5,)], LayerNormAttrs(dims=3)),
    "batch_norm": ("batch_norm", [(4, 5), (4,), (4,)], None),
    "group_norm": ("group_norm", [IMAGE, IMAGE[1:2], IMAGE[1:2]], GroupNormAttrs(groups=IMAGE[1] + 1)),
    "group_norm rank": ("group_norm", [(4, 6), (6,), (6,)], GroupNormAttrs(groups=2)),
    "group_norm scale": ("group_norm", [IMAGE, (IMAGE[1] + 1,), IMAGE[1:2]], GroupNormAttrs(groups=1)),
    "lrn": ("lrn", [(4, 5)], LrnAttrs(size=65)),
    "lrn rank": ("lrn", [(4,)], LrnAttrs(size=5)),
    "dropout": ("dropout", [(4, 5)], DropoutAttrs(p=1.5)),
    "random size": ("random", [], RandomAttrs(distribution="normal", shape=(3, 0))),
    "random stream": ("random", [], RandomAttrs(distribution="normal", shape=(3,), stream=2**32)),
    "random layout": ("random", [], RandomAttrs(distribution="normal", shape=(3,), layout=Layout.CHANNELS_LAST)),
    "random input": ("random", [(4, 5)], RandomAttrs(distribution="uniform", shape=(3,))),
    "random_whole none": ("random_whole", [], RandomWholeAttrs(low=3, high=3, shape=(3,))),
    "random_whole many": ("random_whole", [], RandomWholeAttrs(high=2**32 + 1, shape=(3,))),
    "leaky_relu": ("leaky_relu", [(4, 5)], LeakyReluAttrs(slope=-1.0)),
    "cross_entropy": ("cross_entropy", [(4, 5), (4,)], None),
    "smoothing": ("cross_entropy", [(4, 5), "labels"], ClassLossAttrs(label_smoothing=2.0)),
    "mse": ("mse_loss", [(4, 5), (4, 1)], None),
    "distances features": ("distances", [(4, 5), (4, 6)], None),
    "distances stacks": ("distances", [(2, 4, 5), (3, 4, 5)], None),
    "distances rank": ("distances", [(5,), (4, 5)], None),
    "distances_backward": ("distances_backward", [(4, 3), (4, 5), (4, 5)], DistancesBackwardAttrs()),
    "distances_backward turned": ("distances_backward", [(4, 3), (4, 5), (3, 5)], DistancesBackwardAttrs(turned=True)),
    "embedding": ("embedding", [(4, 5), (3,)], None),
    "spmm matrix": ("spmm", [(4, 5, 1), "labels", "labels"], SpmmAttrs(rows=3)),
    "spmm entries": ("spmm", [(4, 5), "labels", "more labels"], SpmmAttrs(rows=3)),
    "spmm heads": ("spmm", [(4, 5), "labels", "labels", (4, 2)], SpmmAttrs(rows=3)),
    "spmm weights": ("spmm", [(4, 6), "labels", "labels", (5, 2)], SpmmAttrs(rows=3)),
    "sddmm": ("sddmm", [(4, 5), (4, 6), "labels", "labels"], SddmmAttrs()),
    "sddmm heads": ("sddmm", [(4, 5), (7, 5), "labels", "labels"], SddmmAttrs(heads=2)),
    "segment_max matrix": ("segment_max", [(4, 5, 1), "labels", "labels"], SegmentAttrs(rows=3)),
    "segment_max entries": ("segment_max", [(4, 5), "labels", "more labels"], SegmentAttrs(rows=3)),
    "segment_max_backward": ("segment_max_backward", [(3, 5), (4, 5), (3, 6), *["labels"] * 2], SegmentAttrs(rows=4)),
    "sort_entries": ("sort_entries", ["labels", "more labels"], SortEntriesAttrs(source_rows=2, target_rows=2)),
    "sort_entries rows": ("sort_entries", ["labels", "labels"], SortEntriesAttrs(source_rows=2, target_rows=0)),
    "softmax": ("softmax", [()], None),
}


@pytest.mark.parametrize("case", CASES)
def test_misfit(case):
    op, shapes, attrs = CASES[case]
    b = GraphBuilder("g")
    operands = []
    for index, shape in enumerate(shapes):
        if isinstance(shape, str):
            type_ = TensorType(shape=(4 if shape == "labels" else 5,), dtype=DType.INT64)
            operands.append(b.input(f"labels{index}", type_))
        else:
            operands.append(b.parameter(f"p{index}", shape, Init(kind="zeros")))
    with pytest.raises(UserError) as caught:
        b.op(op, operands, attrs, name="culprit")
    assert caught.value.code == "SP1002"
    assert "culprit" in str(caught.value)
    assert caught.value.fix
