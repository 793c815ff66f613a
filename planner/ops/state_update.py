"""A state takes a new value at the end of a step: what an LSTM carries to the next batch."""

from collections.abc import Mapping, Sequence

from planner.graph.model import Attrs, TensorType
from planner.ops.base import Access, Array, Facts, Mode, Op, Sample, Signature, misfit, reads, register, split, writes


@register
class StateUpdate(Op):
    """state = x. Input: x; updates: the state. `gradients()` leaves it alone."""

    name = "state_update"
    family = "copy"
    update_counts = (1,)

    def check(self, attrs: Attrs, inputs: Sequence[TensorType], updates: Sequence[TensorType]) -> None:
        super().check(attrs, inputs, updates)
        if inputs[0] != updates[0]:
            raise misfit(f"the state {updates[0].text()} cannot become {inputs[0].text()}", "make them alike")

    def infer(self, attrs: Attrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        return ()

    def flops(self, signature: Signature) -> int:
        return 0

    def dims(self, signature: Signature) -> Mapping[tuple[str, str], int]:
        return {("loops", "elements"): max(1, signature.inputs[0].elements // 16)}

    def accesses(self, signature: Signature, mode: Mode, stage: int, index: int, facts: Facts) -> tuple[Access, ...]:
        lo, hi = split(signature.inputs[0].elements, mode.slices, index)
        return (reads("in0", lo, hi), writes("up0", lo, hi))

    def reference(self, attrs: Attrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        return (inputs[0].copy(),)

    def samples(self) -> Sequence[Sample]:
        types = (TensorType(shape=(20, 12)), TensorType(shape=(33,)))
        return tuple(Sample(Attrs(), (t, t)) for t in types)
