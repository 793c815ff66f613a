"""Chains of element-wise ops as one node: every element is read once, computed in one go and written once.

What is computed stands in the attribute `expression` (planner/ops/expression.py), in terms of the element-wise ops,
each of which is described in its own place: the reference, the FLOPs and the gradient of a chain are those of its
steps. The backward
node computes what lies between the steps again, so nothing of that is kept for it.
"""

from collections.abc import Container, Sequence
from functools import lru_cache

import numpy as np

from planner.graph.gradient import GradientContext
from planner.graph.model import Attrs, Layout, TensorType
from planner.ops.base import EVERY, Array, Mode, Sample, Signature, op_named, register
from planner.ops.broadcast import Broadcast
from planner.ops.expression import MOST_INPUTS, MOST_RESULTS, Expression, parse
from planner.ops.expression_gradient import DY, Y, backward_of
from planner.ops.reduce import sum_to


class ChainAttrs(Attrs):
    """`expression`: of the operands a, b, c, ..., for instance `a * sigmoid(b) + c`."""

    expression: str

    def text(self) -> str:
        return self.expression.replace(" ", "")


@register
class Chain(Broadcast):
    """y = expression(a, b, ...), broadcast. Several results have one shape."""

    name = "chain"
    low_precision = EVERY
    family = "chain"
    attrs_type = ChainAttrs
    input_counts = ()
    output_names = ("y", *(f"y{i}" for i in range(1, MOST_RESULTS)))

    def low_inputs(self, attrs: ChainAttrs) -> Container[int] | None:
        """Not where two tensors are compared: rounding one of them would turn results over."""
        return None if _compares_tensors(attrs.expression) else EVERY

    def expression(self, attrs: ChainAttrs, inputs: Sequence[object]) -> Expression:
        return parse(attrs.expression, len(inputs))

    def infer(self, attrs: ChainAttrs, inputs: Sequence[TensorType]) -> tuple[TensorType, ...]:
        y = self.broadcast(inputs, inputs[0].dtype)
        return (y,) * len(self.expression(attrs, inputs).results)

    def gradient(self, context: GradientContext) -> None:
        attrs, inputs = context.attrs, context.node.inputs
        assert isinstance(attrs, ChainAttrs)
        wanted = [i for i in range(len(inputs)) if context.needs(i)]
        sizes = [context.type(v).elements for v in inputs]
        backward = backward_of(self.expression(attrs, inputs), wanted, sizes)
        made: tuple[str, ...] = ()
        if backward.expression.results:
            leaves = {DY: context.grad, Y: context.node.outputs[0], **{str(i): v for i, v in enumerate(inputs)}}
            operands = [leaves[leaf] for leaf in backward.reads]
            first = next(i for i, result in backward.result.items() if result == 0)
            made = context.emit("chain_backward", operands, ChainAttrs(expression=backward.expression.text), of=first)
        for index, result in backward.result.items():
            gradient = context.grad if result < 0 else made[result]
            context.give(index, sum_to(context, gradient, context.type(inputs[index]).shape, index))

    def reference(self, attrs: ChainAttrs, inputs: Sequence[Array]) -> tuple[Array, ...]:
        expression = self.expression(attrs, inputs)
        values = list(inputs)
        for step in expression.steps:
            (value,) = op_named(step.op).reference(step.attrs, [values[v] for v in step.operands])
            values.append(value)
        shape = np.broadcast_shapes(*(x.shape for x in inputs))
        return tuple(np.broadcast_to(values[r], shape).copy() for r in expression.results)

    def flops(self, signature: Signature) -> int:
        y, total = signature.outputs[0], 0
        assert isinstance(signature.attrs, ChainAttrs)
        for step in self.expression(signature.attrs, signature.inputs).steps:
            if step.constant is not None:
                continue
            total += op_named(step.op).flops(Signature(step.op, step.attrs, (y,) * len(step.operands), (y,)))
        return total

    def inplace(self, signature: Signature, mode: Mode) -> tuple[tuple[int, int], ...]:
        """An element's operands are all read before its results are written."""
        y = signature.outputs[0]
        same = [i for i, t in enumerate(signature.inputs) if t == y]
        return tuple((o, i) for o in range(len(signature.outputs)) for i in same)

    def samples(self) -> Sequence[Sample]:
        return tuple(Sample(ChainAttrs(expression=text), types) for text, types in _cases())


@register
class ChainBackward(Chain):
    """The gradients of a chain's inputs, from dy and what `expression` needs of the chain's inputs and result."""

    name = "chain_backward"
    output_names = ("dx", *(f"dx{i}" for i in range(1, MOST_RESULTS)))

    def gradient(self, context: GradientContext) -> None:
        raise NotImplementedError

    def samples(self) -> Sequence[Sample]:
        """Of the forward samples, with all that their gradients read."""
        found = []
        for text, types in _cases():
            attrs, chain = ChainAttrs(expression=text), Chain()
            (y,) = chain.infer(attrs, types)
            sizes = [t.elements for t in types]
            backward = backward_of(chain.expression(attrs, types), range(len(types)), sizes)
            if backward.expression.results:
                leaves = [y if leaf in (DY, Y) else types[int(leaf)] for leaf in backward.reads]
                found.append(Sample(ChainAttrs(expression=backward.expression.text), tuple(leaves)))
        return tuple(found)


@lru_cache(maxsize=4096)
def _compares_tensors(text: str) -> bool:
    steps = parse(text, MOST_INPUTS).steps
    constants = {MOST_INPUTS + i for i, s in enumerate(steps) if s.constant is not None}
    return any(s.op == "compare" and constants.isdisjoint(s.operands) for s in steps)


def _cases() -> tuple[tuple[str, tuple[TensorType, ...]], ...]:
    cl = Layout.CHANNELS_LAST
    image, gate = TensorType(shape=(3, 8, 5, 7), layout=cl), TensorType(shape=(3, 8, 1, 1), layout=cl)
    matrix, row, column = TensorType(shape=(6, 40)), TensorType(shape=(40,)), TensorType(shape=(6, 1))
    one, vector = TensorType(shape=()), TensorType(shape=(133,))
    return (
        ("a * clamp(a + 3.0, 0.0, 6.0) * 0.16666667", (image,)),
        ("a * sigmoid(b) + c", (vector,) * 3),
        ("a * b * (c + d + e + f + g + h + j + k) + l - m", (vector,) * MOST_INPUTS),
        ("a * round(b * 4.0) + floor(c) * b - sign(a) * c", (vector,) * 3),
        ("a * 0.5 * (tanh((a + a ** 3.0 * 0.044715) * 0.7978846) + 1.0)", (vector,)),
        ("a * b + c", (matrix, row, matrix)),
        ("relu(a * sigmoid(b))", (image, gate)),
        ("leaky_relu(a - b * c, 0.2)", (matrix, column, one)),
        ("gelu(a + b, 'tanh') - gelu(a)", (matrix, row)),
        ("(a - b) * (a - b) / (square(c) + 0.5)", (vector,) * 3),
        ("maximum(a, b) + minimum(b, -c)", (vector,) * 3),
        ("log(exp(-abs(a)) + 1.0) + sqrt(square(b) + 1.0)", (TensorType(shape=(4, 1, 6)), TensorType(shape=(5, 1)))),
        ("u1 = square(a) + 1.0; u1 ** -0.5 * reciprocal(u1) + u1 ** 0.5", (vector,)),
        ("tanh(silu(a) + b)", (matrix, matrix)),
        ("where(compare(a, 0.0, 'gt'), a, b * 0.5) + maximum(a, 0.25)", (matrix, row)),
        ("where(compare(a, b, 'le'), -1.5, a * c)", (image, gate, image)),
        ("a + b", (matrix, matrix)),
    )
