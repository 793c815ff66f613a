"""Convolution algorithms of a GPU library, modelled: time and workspace without a GPU at hand.

The algorithms are those that cuDNN names and the paper speaks of (SuperNeurons, section 3.5): direct ones that need no
workspace are slow; im2col, Winograd and FFT trade bytes for time. Workspaces follow from what each algorithm stores;
speeds are rough shares of the peak. Good for showing a planner's choices, not for predicting a GPU; measured costs
take its place where there is one.
"""

from dataclasses import dataclass

from planner.graph.model import Graph, Node
from planner.ops.base import Signature, op_named
from planner.ops.conv import ConvAttrs
from planner.ops.signature import signature_of
from planner.units import Bytes


@dataclass(frozen=True)
class Algorithm:
    """One way to compute a node: its time, and the scratch bytes that it needs for it."""

    name: str
    ns: int
    workspace: Bytes


_COMPLEX = 8
_FLOAT = 4
IMPLICIT, PRECOMPUTED, IM2COL, WINOGRAD, FFT = 0.25, 0.35, 0.50, 0.45, 0.40
"""Shares of the peak that the algorithms' own arithmetic reaches."""


def conv_algorithms(graph: Graph, node: Node, flops_per_second: float) -> tuple[Algorithm, ...]:
    """What a convolution, or one of its gradients, can be computed with; empty for other nodes."""
    if not node.op.startswith("conv2d"):
        return ()
    signature = signature_of(graph, node)
    direct = op_named(node.op).flops(signature)
    (n, c, h, w), (k, _, kh, kw), (oh, ow), attrs = _sizes(signature)

    def algorithm(name: str, flops: float, share: float, workspace: int) -> Algorithm:
        return Algorithm(name, round(flops / (share * flops_per_second) * 1e9), Bytes(workspace))

    found = [
        algorithm("implicit_gemm", direct, IMPLICIT, 0),
        # One offset per filter tap and output position of a tile.
        algorithm("implicit_precomp_gemm", direct, PRECOMPUTED, _FLOAT * (oh * ow + c * kh * kw)),
        algorithm("gemm", direct, IM2COL, _FLOAT * n * oh * ow * c * kh * kw),
    ]
    if attrs.stride == attrs.dilation == (1, 1) and attrs.groups == 1:
        if (kh, kw) == (3, 3):
            # F(2x2, 3x3): 16 numbers for every 4 outputs, 2.25 times fewer multiplications.
            tiles = n * -(-oh // 2) * -(-ow // 2)
            workspace = _FLOAT * 16 * (tiles * (c + k) + c * k)
            found.append(algorithm("winograd", direct / 2.25, WINOGRAD, workspace))
        if kh > 1:
            # Spectra of inputs, filters and outputs, padded to powers of two; multiplied per frequency.
            frequencies = _power_of_two(h + kh - 1) * (_power_of_two(w + kw - 1) // 2 + 1)
            planes = n * c + n * k + c * k
            flops = 8 * n * c * k * frequencies + 15 * planes * frequencies * 8
            found.append(algorithm("fft", flops, FFT, _COMPLEX * planes * frequencies))
    return tuple(found)


def _power_of_two(size: int) -> int:
    return 1 << (size - 1).bit_length()


def _sizes(signature: Signature) -> tuple[tuple[int, ...], tuple[int, ...], tuple[int, int], ConvAttrs]:
    """(x shape, weight shape, output rows and columns, attributes), whichever direction it is."""
    attrs = signature.attrs
    assert isinstance(attrs, ConvAttrs)
    if signature.op == "conv2d":
        x, w, y = signature.inputs[0].shape, signature.inputs[1].shape, signature.outputs[0].shape
    elif signature.op == "conv2d_backward_data":
        x, w, y = signature.outputs[0].shape, signature.inputs[1].shape, signature.inputs[0].shape
    else:
        x, w, y = signature.inputs[0].shape, signature.outputs[0].shape, signature.inputs[1].shape
    return x, w, (y[2], y[3]), attrs
