"""Copies between memory pools: offload (out of the pool in which nodes run) and prefetch (back into it).

They stand in no captured graph; plan/expand.py adds them where a plan says so. Byte for byte, any dtype and layout.
"""

from collections.abc import Sequence

from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import EVERY, Array, Sample, Signature, register
from planner.ops.elementwise import Elementwise


class _Transfer(Elementwise):
    family = "transfer"
    any_dtype = True
    low_precision = EVERY

    def layouts(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[Layout | None, ...]:
        return (None,)

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def flops(self, signature: Signature) -> int:
        return 0

    def inplace(self, signature: Signature, mode: object) -> tuple[tuple[int, int], ...]:
        return ()

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].copy(),)

    def samples(self) -> Sequence[Sample]:
        image = TensorType(shape=(3, 8, 5, 7), layout=Layout.CHANNELS_LAST)
        return (Sample(Attrs(), (image,)), Sample(Attrs(), (TensorType(shape=(100,)),)))


@register
class Offload(_Transfer):
    """y = x, in a slower pool."""

    name = "offload"


@register
class Prefetch(_Transfer):
    """y = x, back in the pool in which nodes run."""

    name = "prefetch"
