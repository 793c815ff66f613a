"""Builds forward graphs and turns them into training graphs.

Every frontend and zoo network lowers into `GraphBuilder`, so shape rules, layouts, gradients and evaluation mode
are written once. `finish` differentiates the loss, appends one update node per parameter, and derives the
`predict` program in evaluation mode.
"""

from collections.abc import Sequence

from pydantic import ValidationError

from planner.errors import UserError
from planner.graph.differentiate import append_backward
from planner.graph.fuse import fuse as fuse_nodes
from planner.graph.model import (
    Attrs,
    Graph,
    Init,
    Layout,
    Node,
    Program,
    Role,
    TensorType,
    Value,
)
from planner.graph.optimizer import Optimizer, append_updates
from planner.ops import op_named


class GraphBuilder:
    """Collects values and forward nodes; ids are given by the caller or derived from the op's name.

    Methods return value ids.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.values: dict[str, Value] = {}
        self.nodes: list[Node] = []
        self.inputs: list[str] = []
        self.frozen: set[str] = set()
        self._used: set[str] = set()
        self._conversions: dict[tuple[str, Layout], str] = {}

    # -- values ------------------------------------------------------------------------------------------------
    def type(self, value: str) -> TensorType:
        return self.values[value].type

    def shape(self, value: str) -> tuple[int, ...]:
        return self.values[value].type.shape

    def add_value(self, value: Value) -> str:
        if value.id in self.values:
            raise UserError("SP1004", f"value {value.id!r} is defined twice", "give every layer its own name")
        self.values[value.id] = value
        return value.id

    def input(self, name: str, type_: TensorType) -> str:
        """A model input or label batch. Images should be channels-last: arrays of that layout are used in place."""
        self.inputs.append(name)
        return self.add_value(Value(id=name, type=type_, role=Role.INPUT))

    def parameter(self, name: str, shape: Sequence[int], init: Init, trainable: bool = True) -> str:
        """A float32 parameter in the framework's layout; `name` is the framework's name."""
        if not trainable:
            self.frozen.add(name)
        type_ = TensorType(shape=tuple(shape))
        return self.add_value(Value(id=name, type=type_, role=Role.PARAMETER, name=name, init=init))

    def state(self, id_: str, shape: Sequence[int], init: Init, name: str = "") -> str:
        """A persistent value that is not trained: running statistics, constant buffers. `name`: the framework's,
        where it is not the id."""
        type_ = TensorType(shape=tuple(shape))
        return self.add_value(Value(id=id_, type=type_, role=Role.STATE, name=name or id_, init=init))

    # -- nodes -------------------------------------------------------------------------------------------------
    def unique(self, base: str) -> str:
        """A node id that is not taken: base, base_1, base_2, ..."""
        candidate, count = base, 0
        while candidate in self._used:
            count += 1
            candidate = f"{base}_{count}"
        self._used.add(candidate)
        return candidate

    def op(
        self,
        op: str,
        inputs: Sequence[str],
        attrs: Attrs | None = None,
        *,
        name: str = "",
        updates: Sequence[str] = (),
        phase: str = "forward",
        origin: str = "",
        like: str = "",
    ) -> tuple[str, ...]:
        """Append a node and return its output ids. Shapes are checked here (SP1002 names the node).

        `like`: the value whose gradient the first output is, so that it is marked as one.
        """
        definition = op_named(op)
        attrs = attrs if attrs is not None else definition.attrs_type()
        node_id = self.unique(name or op)
        layouts = definition.layouts(attrs, [self.type(v) for v in inputs])
        inputs = [self.convert(v, layout) for v, layout in zip(inputs, layouts, strict=True)]
        types = [self.type(v) for v in inputs]
        try:
            definition.check(attrs, types, [self.type(v) for v in updates])
            attrs = definition.settle(attrs, node_id, types)
            results = definition.infer(attrs, types)
        except UserError as error:
            raise UserError(error.code, f"node {node_id!r} ({op}): {error.problem}", error.fix) from None
        except ValidationError as error:
            problem = error.errors()[0]["msg"]
            raise UserError("SP1002", f"node {node_id!r} ({op}): {problem}", "make every size at least 1") from None
        outputs = []
        for index, (type_, suffix) in enumerate(zip(results, definition.output_names, strict=False)):
            role = Role.SAVED if suffix in definition.saved_outputs else Role.ACTIVATION
            role = Role.GRADIENT if phase == "backward" else role
            target = like if index == 0 and phase == "backward" else ""
            outputs.append(self.add_value(Value(id=f"{node_id}.{suffix}", type=type_, role=role, gradient_of=target)))
        self.nodes.append(
            Node(
                id=node_id,
                op=op,
                inputs=tuple(inputs),
                outputs=tuple(outputs),
                updates=tuple(updates),
                attrs=attrs,
                phase=phase,
                origin=origin or name,
            )
        )
        return tuple(outputs)

    def convert(self, value: str, layout: Layout | None) -> str:
        """The same tensor in another memory layout, converted once and reused."""
        type_ = self.type(value)
        if layout is None or len(type_.shape) != 4 or type_.layout is layout:
            return value
        key = (value, layout)
        if key not in self._conversions:
            phase = "backward" if self.values[value].role is Role.GRADIENT else "forward"
            from planner.ops.shape import ConvertLayoutAttrs

            (converted,) = self.op(
                "convert_layout",
                [value],
                ConvertLayoutAttrs(layout=layout),
                name=f"{value}.{layout.value}",
                phase=phase,
            )
            self._conversions[key] = converted
        return self._conversions[key]

    # -- whole graphs ------------------------------------------------------------------------------------------
    def finish(self, loss: str, prediction: str, optimizer: Optimizer, *, fuse: bool = True) -> Graph:
        """The training graph: `train_step` (forward, backward, updates; output: the loss) and `predict`.

        loss: a one-element value; prediction: what `predict` returns (usually the logits).
        fuse: merge batch norm with the relu and the addition behind it (graph/fuse.py).
        """
        if self.type(loss).elements != 1:
            raise UserError("SP1005", f"the loss {loss!r} has shape {self.shape(loss)}", "reduce it to one element")
        if fuse:
            self.nodes = fuse_nodes(self.nodes, self.values, {loss, prediction})
        forward = list(self.nodes)
        predict = self._predict_program(forward, prediction)
        gradients = append_backward(self, forward, loss)
        append_updates(self, gradients, optimizer)
        self.values[loss] = self.values[loss].model_copy(update={"role": Role.OUTPUT})
        train = Program(
            name="train_step",
            nodes=tuple(live_nodes(self.nodes, {loss})),
            inputs=tuple(self.inputs),
            outputs=(loss,),
        )
        return self._graph((train, predict))

    def finish_inference(self, prediction: str, *, fuse: bool = True) -> Graph:
        """A graph with `predict` only."""
        if fuse:
            self.nodes = fuse_nodes(self.nodes, self.values, {prediction})
        return self._graph((self._predict_program(list(self.nodes), prediction),))

    def _graph(self, programs: tuple[Program, ...]) -> Graph:
        used = {v for p in programs for n in p.nodes for v in (*n.reads, *n.writes)}
        used |= {v for p in programs for v in (*p.inputs, *p.outputs)}
        return Graph(
            name=self.name,
            values=tuple(v for v in self.values.values() if v.id in used or v.name),
            programs=programs,
        )

    def _predict_program(self, forward: list[Node], prediction: str) -> Program:
        """Evaluation mode: batch-norm reads running statistics, dropout disappears; parameters are shared."""
        needed = {n.id for n in live_nodes(forward, {prediction})}
        twin = GraphBuilder(self.name)
        twin.values = dict(self.values)
        twin._used = set()
        renamed: dict[str, str] = {}
        for node in forward:
            if node.id not in needed:
                continue
            inputs = [renamed.get(v, v) for v in node.inputs]
            replacement = op_named(node.op).evaluation(node, inputs)
            if replacement is None:
                renamed[node.outputs[0]] = inputs[0]
                continue
            op, attrs, inputs = replacement
            outputs = twin.op(op, inputs, attrs, name=f"predict.{node.id}", origin=node.origin)
            renamed.update(zip(node.outputs, outputs, strict=False))
        result = renamed.get(prediction, prediction)
        for value in twin.values.values():
            self.values.setdefault(value.id, value)
        self.values[result] = self.values[result].model_copy(
            update={"role": Role.OUTPUT if self.values[result].role is Role.ACTIVATION else self.values[result].role}
        )
        inputs = [i for i in self.inputs if any(i in n.inputs for n in twin.nodes)]
        return Program(name="predict", nodes=tuple(twin.nodes), inputs=tuple(inputs), outputs=(result,))


def live_nodes(nodes: Sequence[Node], wanted: set[str]) -> list[Node]:
    """Nodes that contribute to `wanted` values or update something in place, in order."""
    needed, kept = set(wanted), []
    for node in reversed(nodes):
        if node.phase == "update" or any(v in needed for v in node.outputs):
            needed.update(node.reads)
            kept.append(node)
    return kept[::-1]
