"""Attention that a model spells out becomes one node.

    matmul(q, k') -> scale -> add mask -> softmax -> dropout -> matmul(., v)     attention(q, k, v, mask)

Scale, mask and dropout may be missing. The node takes the id and the output of the last product, so nothing behind it
changes. Left alone is what anybody else reads in between, and a learned mask with which nothing would be saved.
"""

from collections.abc import Collection, Mapping, MutableMapping, Sequence
from typing import NamedTuple

from planner.graph.model import Node, Role, Value
from planner.ops.attention import AttentionAttrs, AttentionForward
from planner.ops.attention_mask import AttentionMaskBackward
from planner.ops.copy import PermuteAttrs
from planner.ops.dropout import DropoutAttrs
from planner.ops.heads import mismatch
from planner.ops.matmul import MatmulAttrs
from planner.ops.scalar import ScalarAttrs


class _Found(NamedTuple):
    inputs: tuple[str, ...]
    """q, k, v and the mask, if there is one."""
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
    gone: set[str] = set()
    joined: dict[str, Node] = {}
    for last in nodes:
        found = finder.attention(last)
        if found is None:
            continue
        gone |= {n.id for n in found.members}
        types = AttentionForward().infer(found.attrs, [values[v].type for v in found.inputs])
        saved = {
            f"{last.id}.{name}": type_ for name, type_ in zip(AttentionForward.output_names[1:], types[1:], strict=True)
        }
        values.update({v: Value(id=v, type=type_, role=Role.ACTIVATION) for v, type_ in saved.items()})
        update = {"op": "attention", "attrs": found.attrs, "inputs": found.inputs, "outputs": (*last.outputs, *saved)}
        joined[last.id] = last.model_copy(update=update)
    return [joined.get(n.id, n) for n in nodes if n.id not in gone]


class _Finder:
    def __init__(
        self,
        nodes: Sequence[Node],
        values: Mapping[str, Value],
        wanted: Collection[str],
        changing: Collection[str],
        causal: Collection[str],
    ) -> None:
        self._values, self._wanted, self._changing, self._causal = values, set(wanted), changing, causal
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
        factor, mask, causal = 1.0, "", False
        members, scores = [softmax, *([drawn] if drawn else [])], softmax.inputs[0]
        while node := self._only_for_one(scores, "scale", "add", "matmul"):
            members.append(node)
            if node.op == "matmul":
                break
            if node.op == "scale":
                assert isinstance(node.attrs, ScalarAttrs)
                factor, scores = factor * node.attrs.value, node.inputs[0]
            else:
                rest = self._mask(node)
                if factor != 1.0 or rest is None:
                    return None
                scores, added = rest
                if added in self._causal and self._shape(added)[-2] == self._shape(scores)[-2]:
                    causal = True
                elif mask:
                    return None
                else:
                    mask = added
        else:
            return None
        operands = self._operands(node)
        if operands is None:
            return None
        q, k, turned = operands
        inputs = (q, k, v, *((mask,) if mask else ()))
        types = [self._values[i].type for i in (q, k, v)]
        if mask in self._changing and not AttentionMaskBackward.gains(
            self._values[mask].type, types[0], types[1], factor, self._readers[mask]
        ):
            return None
        if self._shape(last.outputs[0]) != (*types[0].shape[:-1], types[2].shape[-1]):
            return None
        if mismatch(types[0], types[1], types[2], self._values[mask].type if mask else None):
            return None
        attrs = AttentionAttrs(scale=factor, causal=causal)
        if drawn:
            assert isinstance(drawn.attrs, DropoutAttrs)
            attrs = attrs.model_copy(update={"dropout": drawn.attrs.p, "stream": drawn.attrs.stream})
        return _Found(inputs, attrs, (*members, *turned))

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
        for ops in (("scale", "matmul"), ("add",)):
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
