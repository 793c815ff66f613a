"""Weights of convolutions as a plan may store them, so that the kernels that want them so need not pack them.

`ohwi`: the input channels innermost, what a GPU's library takes in every direction. On processors in blocks,
`ohwi64o`: the output channels in blocks of 64, the blocks outermost, a block's channels innermost; `ihwo32i` likewise
with input channels: what oneDNN's convolutions want, forward and for the gradient of the data. There are whole blocks
only, without padding: such weights have as many bytes as plain ones (O, I, H, W), and what goes element by element over
a parameter, its gradient and its momentum computes the same bits in any order. The processors' runtime has the word
`Stored` for it (runtime/onednn/weight_layout.hpp).

Kernels' facts speak of it in numbers: `packs_o`, `packs_i` is the block of the layout that a kernel packs plain weights
into (what the library says), `stored_o`, `stored_i` that of the layout which the plan gives it (the solver's decision).
`ohwi` is blocks of one output channel.
"""

import re
from typing import NamedTuple

from planner.graph.model import DType, Graph, TensorType
from planner.ops.base import Array, Facts, Mode, Signature, split_channels
from planner.ops.device import DEVICE_KERNELS

BLOCKS = (8, 16, 24, 32, 48, 64)
"""On processors."""

WEIGHTS = {
    "conv2d": "in1",
    "conv2d_backward_data": "in1",
    "conv_transpose2d": "in1",
    "round_weights": "in0",
    "conv2d_backward_weights": "out0",
}
"""Op -> the operand that may be stored so. In the order in which their wishes count."""

PLAIN_WEIGHTS = {
    "conv3d": "in1",
    "conv3d_backward_data": "in1",
    "conv_transpose3d": "in1",
    "conv3d_backward_weights": "out0",
}
"""Op -> the operand that kernels want in another order, too, but plans store plain: a kernel's depths are brought below
each other by a reshape, which takes a parameter's bytes as they are."""

ELEMENTWISE = frozenset({"gradient_sum", "sgd_update", "adam_update", "rmsprop_update", "adagrad_update"})
"""Ops that do not care, as long as all their operands are stored alike."""


def held_by_caller(graph: Graph) -> bool:
    """Whether the loss is the caller's: then the parameters are those of the caller's module, without a copy."""
    return any(node.op == "caller_gradient" for program in graph.programs for node in program.nodes)


class Stored(NamedTuple):
    """Channels per block; both 0: plain."""

    o_block: int = 0
    i_block: int = 0

    @property
    def text(self) -> str:
        if self == FILTERS:
            return "ohwi"
        if self.o_block:
            return f"ohwi{self.o_block}o"
        return f"ihwo{self.i_block}i" if self.i_block else ""


PLAIN = Stored()
FILTERS = Stored(o_block=1)
"""As a GPU's library takes weights."""


def parse_stored(text: str) -> Stored | None:
    """The layout of this name; None: there is none."""
    found = re.fullmatch(r"ohwi(\d+)o|ihwo(\d+)i", text)
    if not text:
        return PLAIN
    if text == FILTERS.text:
        return FILTERS
    if found is None:
        return None
    stored = Stored(*(int(block or 0) for block in found.groups()))
    return stored if max(stored) in BLOCKS else None


def weights_of(signature: Signature) -> TensorType:
    """The operand that kernels want so, of an op that has one."""
    operand = {**WEIGHTS, **PLAIN_WEIGHTS}[signature.op]
    return (signature.outputs if operand.startswith("out") else signature.inputs)[int(operand[-1])]


def stored_as(facts: Facts) -> Stored:
    """How a node takes its weights, or its gradient of weights."""
    return Stored(facts.get("stored_o", 0), facts.get("stored_i", 0))


def wanted(facts: Facts) -> Stored:
    """How weights would have to be stored for the kernel not to pack them; plain: there is no such way."""
    return Stored(facts.get("packs_o", 0), facts.get("packs_i", 0))


def unpacked(facts: Facts) -> dict[str, int]:
    """The facts of a kernel whose weights are stored as it wants them."""
    return {k: v for k, v in facts.items() if k not in ("packed_bytes", "packs_o", "packs_i")}


def divides(stored: Stored, shape: tuple[int, ...]) -> bool:
    """Whether weights of this shape come in whole blocks, of one kind of channels."""
    known = stored == FILTERS or max(stored) in BLOCKS
    if len(shape) != 4 or bool(stored.o_block) == bool(stored.i_block) or not known:
        return False
    return shape[0] % stored.o_block == 0 if stored.o_block else shape[1] % stored.i_block == 0


def takes(signature: Signature, mode: Mode, facts: Facts, stored: Stored) -> bool:
    """Whether a kernel can work with weights stored so.

    A GPU's want them in one order, whatever they compute. On a processor a gradient of weights must be reduced or
    unpacked, which is where it gets its layout: kernels may write that of one pixel, or of one input channel, straight
    away. If its slices make output channels each, they must make whole blocks.
    """
    weights = weights_of(signature)
    if not divides(stored, weights.shape):
        return False
    if mode.kernel in DEVICE_KERNELS:
        return stored == FILTERS
    backward = signature.op == "conv2d_backward_weights"
    able = mode.kernel == "onednn" and (backward or signature.op in ("conv2d", "conv2d_backward_data"))
    if not able or getattr(signature.attrs, "groups", 1) != 1 or stored == FILTERS:
        return False
    if weights.dtype is DType.BFLOAT16:  # a copy in the order that `round_weights` gives it
        return False
    if not backward or facts.get("partial_bytes"):
        return True
    if mode.dim != "channels" or weights.shape[2:] == (1, 1) or weights.shape[1] == 1:
        return False
    parts = (split_channels(weights.shape[0], mode.slices, i) for i in range(mode.slices))
    return not stored.o_block or all(lo % stored.o_block == 0 for lo, _ in parts)


def to_stored(plain: Array, stored: Stored) -> Array:
    """Weights (O, I, H, W) in the order in which the plan stores them, flat."""
    o, i, h, w = plain.shape
    if stored.o_block:
        ordered = plain.reshape(o // stored.o_block, stored.o_block, i, h, w).transpose(0, 3, 4, 2, 1)
    else:
        ordered = plain.reshape(o, i // stored.i_block, stored.i_block, h, w).transpose(1, 3, 4, 0, 2)
    return ordered.reshape(-1)


def from_stored(flat: Array, shape: tuple[int, ...], stored: Stored) -> Array:
    """The way back, to (O, I, H, W)."""
    o, i, h, w = shape
    if stored.o_block:
        blocks = flat.reshape(o // stored.o_block, h, w, i, stored.o_block).transpose(0, 4, 3, 1, 2)
    else:
        blocks = flat.reshape(i // stored.i_block, h, w, o, stored.i_block).transpose(3, 0, 4, 1, 2)
    return blocks.reshape(shape)
