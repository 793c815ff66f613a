"""Attention that a model spells out becomes one node.

    matmul(q, k') -> scale -> add mask -> softmax -> dropout -> matmul(., v)     attention(q, k, v, mask)

Scale, mask and dropout may be missing. The node takes the id and the output of the last product, so nothing behind it
changes. Several masks that are smaller than the scores are added up first; where they are added to a view of the scores
with the batch divided, as Swin adds what its windows must not see, q, k and v become such views. Left alone is what
anybody else reads in between, and a learned mask with which nothing would be saved.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from math import prod
from typing import NamedTuple

import numpy as np

from planner.graph.joining import with_joined
from planner.graph.model import Attrs, Node, Role, TensorType, Value
from planner.ops.attention import AttentionForward
from planner.ops.attention_base import AttentionAttrs
from planner.ops.attention_mask import AttentionMaskBackward
from planner.ops.copy import PermuteAttrs
from planner.ops.dropout import DropoutAttrs
from planner.ops.heads import mismatch
from planner.ops.matmul import MatmulAttrs
from planner.ops.scalar import ScalarAttrs
from planner.ops.shape import ReshapeAttrs


class _Scores(NamedTuple):
    """What softmax is taken of."""

    product: Node
    factor: float
    masks: tuple[str, ...]
    causal: bool
    shape: tuple[int, ...]
    """Where masks are added: the product's, or another view's with more dimensions in front."""
    members: tuple[Node, ...]


class _Found(NamedTuple):
    operands: tuple[str, str, str]
    """q, k and v."""
    masks: tuple[str, ...]
    lead: tuple[int, ...]
    """Dimensions before the heads' with which masks are added."""
    attrs: AttentionAttrs
    members: tuple[Node, ...]
    """What the node stands for, but for the last product."""


def join_attention(
    nodes: Sequence[Node],
    values: MutableMapping[str, Value],
    wanted: Collection[str],
    changing: Collection[str],
    causal: Collection[str],
) -> list[Node]:
    """The forward nodes with every attention as one. `wanted`: values that must stay. `changing`: values that may have
    a gradient. `causal`: constant masks that ops/heads.py calls so. Adds what the backward pass reads of it to
    `values`."""
    finder = _Finder(nodes, values, wanted, changing, causal)
    return with_joined(nodes, finder.attention, lambda last, found: _joined(last, found, values))


def _joined(last: Node, found: _Found, values: MutableMapping[str, Value]) -> list[Node]:
    """The attention in the place of its last product, behind the sum of several masks, and between views where these
    are added to a view of the scores."""
    made: list[Node] = []

    def value(part: str, type_: TensorType) -> str:
        name = f"{last.id}.{part}"
        values[name] = Value(id=name, type=type_, role=Role.ACTIVATION)
        return name

    def emit(part: str, op: str, inputs: Sequence[str], shape: tuple[int, ...]) -> str:
        result = value(part, values[inputs[0]].type.model_copy(update={"shape": shape}))
        attrs = ReshapeAttrs(shape=shape) if op == "reshape" else Attrs()
        update = {"id": result, "op": op, "attrs": attrs, "inputs": tuple(inputs), "outputs": (result,)}
        made.append(last.model_copy(update=update))
        return result

    def view(operand: str, part: str) -> str:
        shape = (*found.lead, *values[operand].type.shape[-3:])
        return operand if values[operand].type.shape == shape else emit(part, "reshape", [operand], shape)

    inputs = [view(v, part) for v, part in zip(found.operands, ("q", "k", "v"), strict=True)]
    for number, mask in enumerate(found.masks):
        if number == 0:
            inputs.append(mask)
        else:
            both = np.broadcast_shapes(values[inputs[3]].type.shape, values[mask].type.shape)
            inputs[3] = emit(f"mask{number}", "add", [inputs[3], mask], both)
    types = AttentionForward().infer(found.attrs, [values[v].type for v in inputs])
    whole = last.outputs[0] if types[0].shape == values[last.outputs[0]].type.shape else value("view", types[0])
    saved = [value(name, type_) for name, type_ in zip(AttentionForward.output_names[1:], types[1:], strict=True)]
    update = {"op": "attention", "attrs": found.attrs, "inputs": tuple(inputs), "outputs": (whole, *saved)}
    made.append(last.model_copy(update=update))
    if whole != last.outputs[0]:
        attrs = ReshapeAttrs(shape=values[last.outputs[0]].type.shape)
        update = {"id": f"{last.id}.whole", "op": "reshape", "attrs": attrs, "inputs": (whole,)}
        made.append(last.model_copy(update=update))
    return made


class _Finder:
    def __init__(
        self,
        nodes: Sequence[Node],
        values: Mapping[str, Value],
        wanted: Collection[str],
        changing: Collection[str],
        causal: Collection[str],
    ) -> None:
        self._values, self._wanted, self._changing, self._causal = values, set(wanted), set(changing), causal
        self._maker = {v: n for n in nodes for v in n.outputs}
        self._readers: dict[str, int] = {}
        for node in nodes:
            for value in node.reads:
                self._readers[value] = self._readers.get(value, 0) + 1

    def attention(self, last: Node) -> _Found | None:
        """The attention that ends with a product."""
        if last.op != "matmul" or last.attrs != MatmulAttrs():
            return None
        weights, v = last.inputs
        drawn = self._only_for_one(weights, "dropout")
        softmax = self._only_for_one(drawn.inputs[0] if drawn else weights, "softmax")
        if softmax is None:
            return None
        scores = self._scores(softmax)
        operands = scores and self._operands(scores.product)
        if scores is None or operands is None:
            return None
        q, k, turned = operands
        attrs = AttentionAttrs(scale=scores.factor, causal=scores.causal)
        if drawn:
            assert isinstance(drawn.attrs, DropoutAttrs)
            attrs = attrs.model_copy(update={"dropout": drawn.attrs.p, "stream": drawn.attrs.stream})
        types = [self._values[i].type for i in (q, k, v)]
        if self._shape(last.outputs[0]) != (*types[0].shape[:-1], types[2].shape[-1]):
            return None
        lead = scores.shape[:-3]
        if len(scores.shape) > len(types[0].shape):
            types = [t.model_copy(update={"shape": (*lead, *t.shape[-3:])}) for t in types]
        if not self._fits(types, scores):
            return None
        members = (softmax, *([drawn] if drawn else []), *scores.members, *turned)
        return _Found((q, k, v), scores.masks, lead, attrs, members)

    def _scores(self, softmax: Node) -> _Scores | None:
        value, factor, causal = softmax.inputs[0], 1.0, False
        whole = shape = self._shape(value)
        members: list[Node] = []
        masks: list[str] = []
        while node := self._only_for_one(value, "scale", "add", "matmul", "reshape"):
            members.append(node)
            if node.op == "matmul":
                fits = self._shape(value) == whole
                return _Scores(node, factor, tuple(masks), causal, shape, tuple(members)) if fits else None
            if node.op == "scale":
                assert isinstance(node.attrs, ScalarAttrs)
                factor, value = factor * node.attrs.value, node.inputs[0]
            elif node.op == "reshape":
                (value,) = node.inputs
                if self._shape(value)[-3:] != whole[-3:]:
                    return None
                shape = max(shape, self._shape(value), key=len)
            else:
                rest = self._mask(node)
                if factor != 1.0 or rest is None:
                    return None
                value, added = rest
                if added in self._causal and self._shape(added)[-2] == self._shape(value)[-2]:
                    causal = True
                else:
                    masks.append(added)
        return None

    def _fits(self, types: Sequence[TensorType], scores: _Scores) -> bool:
        """Whether the op takes q, k, v and the masks, in a sum where they are several, and is worth it."""
        if not scores.masks:
            return mismatch(types[0], types[1], types[2], None) is None
        shapes = [self._shape(m) for m in scores.masks]
        # Masks of fewer dimensions than the view's are added in front of it: they must not reach into what it divides.
        if any(len(s) < len(scores.shape) and prod(s[:-3]) > 1 for s in shapes):
            return False
        full = (*types[0].shape[:-1], types[1].shape[-2])
        mask = self._values[scores.masks[0]].type.model_copy(update={"shape": np.broadcast_shapes(*shapes)})
        if mismatch(types[0], types[1], types[2], mask) or (len(shapes) > 1 and mask.elements >= prod(full)):
            return False
        readers = self._readers[scores.masks[0]] if len(shapes) == 1 else 1
        learned = not self._changing.isdisjoint(scores.masks)
        return not learned or AttentionMaskBackward.gains(mask, types[0], types[1], scores.factor, readers)

    def _shape(self, value: str) -> tuple[int, ...]:
        return self._values[value].type.shape

    def _only_for_one(self, value: str, *ops: str) -> Node | None:
        """What makes the value, if it is one of these ops, the value is read once, and nothing else of the node is."""
        node = self._maker.get(value)
        if node is None or node.op not in ops or self._readers[value] != 1:
            return None
        others = set(node.outputs) - {value}
        return None if self._wanted & {value, *others} or others & self._readers.keys() else node

    def _mask(self, addition: Node) -> tuple[str, str] | None:
        """Scores, which may be a sum with another mask, and mask of their sum."""
        for ops in (("scale", "matmul"), ("add",), ("reshape",)):
            for scores, mask in (addition.inputs, addition.inputs[::-1]):
                full = self._values[scores].type == self._values[addition.outputs[0]].type
                if full and self._only_for_one(scores, *ops):
                    return scores, mask
        return None

    def _operands(self, product: Node) -> tuple[str, str, tuple[Node, ...]] | None:
        """q and k of their product, and the node that turned k for it alone."""
        attrs, (q, turned) = product.attrs, product.inputs
        assert isinstance(attrs, MatmulAttrs)
        if attrs.transpose_a:
            return None
        if attrs.transpose_b:
            return q, turned, ()
        node = self._maker.get(turned)
        if node is None or not isinstance(node.attrs, PermuteAttrs):
            return None
        axes = range(len(node.attrs.axes))
        if tuple(node.attrs.axes) != (*axes[:-2], axes[-1], axes[-2]):
            return None
        alone = self._readers[turned] == 1 and turned not in self._wanted
        return q, node.inputs[0], (node,) if alone else ()
