"""How ops run on a GPU: whole, in one stage, on one stream.

A GPU divides a kernel's work by itself, so a node has one slice there and touches all of its operands; how the op is
cut for processors does not matter. `running` gives the op as a mode's kernel runs it, whatever that is.
"""

from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any

from planner.graph.model import Node, TensorType
from planner.ops.base import (
    Access,
    Again,
    Array,
    Facts,
    Mode,
    Op,
    ScratchPart,
    Signature,
    op_named,
    reads,
    writes,
)
from planner.units import Bytes

LIBRARIES: Mapping[str, str] = {
    "attention": "cublaslt",
    "conv": "cudnn",
    "matmul": "cublaslt",
    "transfer": "copy",
}
"""Op family -> the kernel that computes it on a GPU, where it is not one of stepplan's own (`cuda`)."""

DEVICE_KERNELS = frozenset({"cuda", *LIBRARIES.values()})
WHOLE = "whole"

PARTS: Mapping[str, str] = {"packed": "packed_bytes", "library": "scratch_bytes", "partial": "partial_bytes"}
"""Scratch part -> the fact that says how large it is."""


def device_mode(op: Op, implementation: str = "") -> Mode:
    """The mode of an op on a GPU. `implementation`: the library's algorithm."""
    return Mode(LIBRARIES.get(op.family, "cuda"), WHOLE, 1, implementation)


def limit(op: Op, signature: Signature, kernel: str, dim: str) -> int:
    """The most slices that the op can be cut into along `dim` in `kernel`; 0: it does not run like that."""
    return dims_of(op, signature, kernel).get((kernel, dim), 0)


def dims_of(op: Op, signature: Signature, kernel: str) -> Mapping[tuple[str, str], int]:
    """`Op.dims` on the kind of hardware that `kernel` is for."""
    if kernel in DEVICE_KERNELS:
        mode = device_mode(op)
        return {(mode.kernel, mode.dim): 1}
    return op.dims(signature)


def running(op: Op, mode: Mode) -> Op:
    """The op as the mode runs it."""
    return _on_device(op.name) if mode.kernel in DEVICE_KERNELS else op


@cache
def _on_device(name: str) -> Op:
    return _Whole(op_named(name))


class _Whole(Op):
    """An op in one piece. What it means and moves is the op's; only how it is cut differs."""

    def __init__(self, op: Op) -> None:
        self._op = op
        # Instances describe different ops, so these are theirs, not the class's.
        self.name = op.name  # type: ignore[misc]
        self.family = op.family  # type: ignore[misc]

    def infer(self, attrs: Any, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return self._op.infer(attrs, inputs)

    def again(self, node: Node) -> Again | None:
        return self._op.again(node)

    def reference(self, attrs: Any, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return self._op.reference(attrs, inputs)

    def flops(self, signature: Signature) -> int:
        return self._op.flops(signature)

    def bytes_moved(self, signature: Signature) -> Bytes:
        return self._op.bytes_moved(signature)

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        mode = device_mode(self._op)
        return {(mode.kernel, mode.dim): 1}

    def scratch(self, signature: Signature, mode: Mode, facts: Facts) -> tuple[ScratchPart, ...]:
        return tuple(ScratchPart(name, Bytes(facts[fact])) for name, fact in PARTS.items() if facts.get(fact))

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        return (
            *(reads(f"in{i}", 0, t.elements) for i, t in enumerate(signature.inputs)),
            *(reads(f"up{i}", 0, t.elements) for i, t in enumerate(signature.updates)),
            *(writes(f"out{i}", 0, t.elements) for i, t in enumerate(signature.outputs)),
            *(writes(f"up{i}", 0, t.elements) for i, t in enumerate(signature.updates)),
            *(writes(p.name, 0, 1) for p in self.scratch(signature, mode, facts)),
        )

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        """As on a processor: every element is written by the thread that read it, or in a later kernel."""
        return self._op.inplace(signature, mode)

    def alias(self, signature: Signature) -> tuple[int, int] | None:
        return self._op.alias(signature)
