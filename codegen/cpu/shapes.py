"""Shapes in the words of the runtime's kernels: what templates print and what the probe is asked."""

from math import prod
from typing import Any

from planner.errors import InternalError
from planner.graph.model import DType, TensorType
from planner.ops.base import Mode, Signature, op_named
from planner.ops.conv3d import Conv3dAttrs
from planner.ops.strides import MAX_RANK, Strides, broadcast_strides, merge

CONV_KINDS = {
    **{"conv2d": 0, "conv2d_backward_data": 1, "conv_transpose2d": 1, "conv2d_backward_weights": 2},
    **{"conv3d": 0, "conv3d_backward_data": 1, "conv_transpose3d": 1, "conv3d_backward_weights": 2},
}

ONE_DEEP = (1, 1, 1, 1, 0, 1)
"""The fields of Depth (runtime/depth.hpp) of images."""


def conv_shape(signature: Signature) -> tuple[int, ...]:
    """The fields of ConvShape (runtime/convolution.hpp): 16, bias as 0 or 1, the element as _element,
    and the 6 of Depth."""
    attrs: Any = signature.attrs
    if CONV_KINDS[signature.op] == 0:
        x, w, y = signature.inputs[0].shape, signature.inputs[1].shape, signature.outputs[0].shape
        bias = len(signature.inputs) > 2
    elif CONV_KINDS[signature.op] == 1:
        x, w, y, bias = signature.outputs[0].shape, signature.inputs[1].shape, signature.inputs[0].shape, False
    else:
        x, w, y, bias = signature.inputs[0].shape, attrs.shape, signature.inputs[1].shape, attrs.bias
    n, ic, ih, iw = x
    depth = _depth(attrs) if isinstance(attrs, Conv3dAttrs) else ONE_DEEP
    return (
        *(n // depth[0], ic, ih, iw, w[0], y[2], y[3], w[2] // depth[2], w[3]),
        *(*attrs.stride, attrs.padding[0], attrs.padding[2], *attrs.dilation, attrs.groups),
        *(int(bias), _element(signature.inputs[0]), *depth),
    )


def _depth(a: Conv3dAttrs) -> tuple[int, ...]:
    return (a.depth, a.results, a.kernel_depth, a.depth_stride, a.depth_padding[0], a.depth_dilation)


def matmul_shape(signature: Signature) -> tuple[int, ...]:
    """The 16 fields of MatMulShape (runtime/matmul.hpp), strides of a, b and c in a row, elements as _element."""
    op: Any = op_named(signature.op)
    p = op.product(signature)
    strides = [s for m in (p.a, p.b, p.c) for s in (m.batch_stride, m.row_stride, m.column_stride)]
    elements = (_element(signature.inputs[0]), _element(signature.outputs[0]))
    return (p.batch, p.m, p.n, p.k, *strides, int(bool(p.bias)), *elements)


def _element(type_: TensorType) -> int:
    """As enum Element (runtime/bfloat16.hpp) numbers it."""
    return int(type_.dtype is DType.BFLOAT16)


def pool_shape(attrs: Any, x: tuple[int, ...], y: tuple[int, ...]) -> tuple[int, ...]:
    """The fields of Pool2d (runtime/max_pool.hpp) for data (N, C, H, W) x and result y; adaptive windows read only the
    sizes."""
    sizes = (x[0], x[2], x[3], x[1], y[2], y[3])
    if not hasattr(attrs, "kernel"):
        return (*sizes, 1, 1, 1, 1, 0, 0)
    return (*sizes, *attrs.kernel, *attrs.stride, attrs.padding[0], attrs.padding[2], *attrs.dilation)


def slice_dim(signature: Signature, mode: Mode) -> str:
    """The dimension as enum SliceDim spells it."""
    op: Any = op_named(signature.op)
    return op.slice_dim(mode) if hasattr(op, "slice_dim") else mode.dim


def padded(values: tuple[int, ...], fill: int) -> tuple[int, ...]:
    """Aligned to the right in MAX_RANK dimensions, as runtime/strides.hpp wants shapes."""
    if len(values) > MAX_RANK:
        raise InternalError(f"a strided kernel walks at most {MAX_RANK} dimensions, not {values}")
    return (fill,) * (MAX_RANK - len(values)) + tuple(values)


def broadcast(target: TensorType, *operands: TensorType) -> tuple[tuple[int, ...], tuple[Strides, ...]]:
    """The merged shape of an element-wise node's result and every operand's strides over it, all padded."""
    shape, walks = merge(target.physical_shape, *(broadcast_strides(t, target) for t in operands))
    return padded(shape, 1), tuple(padded(w, 0) for w in walks)


def walk(shape: tuple[int, ...], *strides: Strides) -> tuple[tuple[int, ...], tuple[Strides, ...]]:
    """A shape in memory order with each side's strides, merged and padded."""
    merged, walks = merge(shape, *strides)
    return padded(merged, 1), tuple(padded(w, 0) for w in walks)


def dense(shape: tuple[int, ...]) -> Strides:
    """Strides of a dense tensor of this physical shape."""
    return tuple(prod(shape[d + 1 :]) for d in range(len(shape)))


def square_block(signature: Signature) -> int:
    """Elements whose squares are added up apart."""
    from planner.ops.optimizer import square_block as block_of

    return block_of(signature.inputs[0].elements)


def reduction(signature: Signature) -> dict[str, tuple[int, ...]]:
    """The fields of Reduction (runtime/reduce.hpp): kept axes in the result's memory order, reduced axes in x's."""
    from planner.ops.strides import memory_order, strides

    op: Any = op_named(signature.op)
    x, y = signature.inputs[0], signature.outputs[0]
    reduced = set(op.reduced_axes(signature))
    own = strides(x)
    kept = [a for a in range(len(x.shape)) if a not in reduced]
    if len(y.shape) == len(x.shape):  # keepdims: the result's memory order decides
        kept = [a for a in memory_order(y) if a not in reduced]
    kept_shape, (kept_strides,) = merge([x.shape[a] for a in kept], tuple(own[a] for a in kept))
    order = [a for a in memory_order(x) if a in reduced]
    reduced_shape, (reduced_strides,) = merge([x.shape[a] for a in order], tuple(own[a] for a in order))
    return {
        "kept": padded(kept_shape, 1),
        "kept_strides": padded(kept_strides, 0),
        "reduced": padded(reduced_shape, 1),
        "reduced_strides": padded(reduced_strides, 0),
    }
