"""Where a step stops for its caller: behind what the caller's loss depends on, before the gradient of that."""

from collections.abc import Mapping, Sequence

from planner.graph.model import Attrs, Node, TensorType
from planner.ops.base import Access, Again, Array, Facts, Mode, Op, Sample, Signature, reads, register, split, writes


class CallerGradientAttrs(Attrs):
    """How many predictions the model returns."""

    predictions: int = 1


@register
class CallerGradient(Op):
    """y = the first input: a gradient that the caller gives when all the others are there, which are the predictions in
    the order in which the model returns them, and what else must be finished by then. An executor ends its run before
    such nodes and goes on when it has the gradient (codegen/parts.py)."""

    name = "caller_gradient"
    family = "copy"
    attrs_type = CallerGradientAttrs
    input_counts = ()
    any_dtype = True
    differentiable = False

    def layouts(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[None, ...]:
        return (None,) * len(inputs)

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return (inputs[0],)

    def again(self, node: Node) -> Again | None:
        return None

    def flops(self, signature: Signature) -> int:
        return 0

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.outputs[0].elements // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        lo, hi = split(signature.outputs[0].elements, mode.slices, index)
        before = [reads(f"in{i}", 0, t.elements) for i, t in enumerate(signature.inputs) if i]
        return (reads("in0", lo, hi), *before, writes("out0", lo, hi))

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].copy(),)

    def samples(self) -> Sequence[Sample]:
        given, other = TensorType(shape=(33, 4)), TensorType(shape=(20,))
        return (
            Sample(CallerGradientAttrs(), (given, given)),
            Sample(CallerGradientAttrs(predictions=2), (given, given, other, other)),
        )
