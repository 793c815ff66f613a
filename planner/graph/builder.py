"""Builds forward graphs and turns them into training graphs.

Every frontend and zoo network lowers into `GraphBuilder`, so shape rules, layouts, gradients and evaluation mode
are written once. `finish` differentiates the loss, appends one update node per parameter, and derives the
`predict` program in evaluation mode. A step with several losses that train different parameters, like a generative
adversarial network's, closes each part but the last with `objective`.
"""

import math
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from pydantic import ValidationError

from planner.errors import InternalError, UserError
from planner.graph.attention import join_attention
from planner.graph.chains import join
from planner.graph.differentiate import append_backward, changing_with, trainable_parameters
from planner.graph.distances import join_distances
from planner.graph.fuse import fuse as fuse_nodes
from planner.graph.head_views import view_heads
from planner.graph.messages import join_messages
from planner.graph.model import (
    PERSISTENT,
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
from planner.graph.narrow import narrow
from planner.graph.optimizer import Optimizer, append_updates
from planner.graph.own_gradients import OwnGradient, values_of
from planner.graph.parts import split_slices
from planner.graph.shared_heads import share_heads
from planner.graph.views import join_views
from planner.ops import op_named
from planner.ops.shape import ReshapeAttrs


class _Objective(NamedTuple):
    """A loss, the forward nodes since the objective before it, and what it trains."""

    loss: str
    nodes: tuple[Node, ...]
    parameters: frozenset[str]
    optimizer: Optimizer


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
        self.own_gradients: dict[str, OwnGradient] = {}
        """The results of functions that have them."""
        self.causal: set[str] = set()
        """Constants that, added to scores, let query i see the keys up to i and no others."""
        self._used: set[str] = set()
        self._conversions: dict[tuple[str, Layout], str] = {}
        self._sharing = False
        self._objectives: list[_Objective] = []
        self._carried: list[tuple[str, str]] = []

    def beside(self) -> "GraphBuilder":
        """A builder of what else is computed from the same parameters, states and inputs."""
        made = GraphBuilder(self.name)
        made.values = {v.id: v for v in self.values.values() if v.role in PERSISTENT or v.role is Role.INPUT}
        made.inputs, made.frozen, made.causal = list(self.inputs), self.frozen, self.causal
        return made

    # -- values ------------------------------------------------------------------------------------------------
    def type(self, value: str) -> TensorType:
        return self.values[value].type

    def shape(self, value: str) -> tuple[int, ...]:
        return self.values[value].type.shape

    def add_value(self, value: Value) -> str:
        if self._sharing and self._redefines(value):
            return value.id
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

    def _redefines(self, value: Value) -> bool:
        known = self.values.get(value.id)
        return known is not None and known.role in PERSISTENT and (known.type, known.role) == (value.type, value.role)

    @contextmanager
    def sharing(self) -> Iterator[None]:
        """Within it, parameters and states that exist already are taken as they are: a layer that runs again."""
        before, self._sharing = self._sharing, True
        try:
            yield
        finally:
            self._sharing = before

    def carry(self, state: str, value: str) -> None:
        """At the end of every training step, `state` becomes `value`: an LSTM's hidden state for the next batch."""
        self._carried.append((state, value))

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
        for index, (type_, suffix) in enumerate(zip(results, definition.names(attrs), strict=False)):
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
            if self.values[value].role in PERSISTENT:  # an update may come between two uses
                return converted
            self._conversions[key] = converted
        return self._conversions[key]

    # -- whole graphs ------------------------------------------------------------------------------------------
    def objective(self, loss: str, optimizer: Optimizer, parameters: Iterable[str]) -> None:
        """The part of a training step up to here ends with training `parameters` on `loss`; what follows sees them
        updated. Gradients do not reach other parameters, as if every value from them had been detached."""
        self._require_single(loss)
        seen = {n.id for o in self._objectives for n in o.nodes}
        fresh = tuple(n for n in self.nodes if n.id not in seen)
        self._objectives.append(_Objective(loss, fresh, frozenset(parameters), optimizer))

    def finish(
        self,
        loss: str,
        prediction: str | Sequence[str],
        optimizer: Optimizer,
        *,
        parameters: Iterable[str] | None = None,
        fuse: bool = True,
        keep: Collection[str] = (),
        gradients_of: Sequence[str] = (),
        clip_norm: float | None = None,
        accumulate: bool = False,
        evaluation: "tuple[GraphBuilder, Sequence[str]] | None" = None,
    ) -> Graph:
        """The training graph: `train_step` (forward, backward, updates; outputs: the losses, in the order of the
        objectives) and `predict`.

        loss: a one-element value; prediction: what `predict` returns (usually the logits), one value or
        several.
        parameters: what this loss trains; None: every parameter that no other objective trains.
        fuse: merge slices into splits (graph/parts.py), batch norm with the relu and the addition behind it
        (graph/fuse.py), spelled-out attention (graph/attention.py), which reads repeated keys and values once
        (graph/shared_heads.py), messages along edges with the sums that they end in (graph/messages.py), distances
        of rows (graph/distances.py), views of views (graph/views.py), what moves heads with the attention between
        (graph/head_views.py), and element-wise nodes into chains (graph/chains.py); compute only what is read
        (graph/narrow.py).
        keep: values that stay values of the graph: what makes them is not fused with what reads them.
        gradients_of: inputs whose gradients are outputs of the step, behind the losses.
        clip_norm: what the norm of all gradients of a loss is scaled down to where it is larger (SP1023: not a number
        above 0).
        accumulate: gradients are added up over the batches that executors are given by `accumulate`, and parameters
        updated with their mean by the `step` that follows.
        evaluation: what `predict` computes instead of the forward nodes in evaluation mode, from `beside`, and of that
        what it returns.
        """
        if clip_norm is not None and not 0 < clip_norm < math.inf:
            raise UserError("SP1023", f"gradients cannot be clipped to the norm {clip_norm}", "use a number above 0")
        predictions = (prediction,) if isinstance(prediction, str) else tuple(prediction)
        others = frozenset(p for o in self._objectives for p in o.parameters)
        everything = {v.id for v in self.values.values() if v.role is Role.PARAMETER}
        if optimizer.groups:
            everything &= self._grouped(optimizer)
        self.objective(loss, optimizer, everything - others if parameters is None else parameters)
        self._require_disjoint()
        losses = [o.loss for o in self._objectives]
        kept = {*losses, *predictions, *keep, *values_of(self.own_gradients)}
        parts = [self._fused(o, kept, gradients_of) if fuse else list(o.nodes) for o in self._objectives]
        if evaluation is None:
            predict = self._predict_program([n for part in parts for n in part], predictions)
        else:
            predict = self._taken_over(*evaluation, fuse)
        self.nodes = []
        for objective, part in zip(self._objectives, parts, strict=True):
            self.nodes += part
            done = [n for n in self.nodes if n.phase == "forward"]
            trained = objective.parameters | set(gradients_of)
            gradients = append_backward(self, done, objective.loss, trained, gradients_of)
            if fuse:
                self.nodes = join(self.nodes, self.values, {*losses, *gradients.values(), *keep}, "backward")
            wanted = [self._own_gradient(v, gradients.pop(v)) for v in gradients_of if v in gradients]
            append_updates(self, gradients, objective.optimizer, clip_norm, accumulate)
        for state, value in self._carried:
            self.op("state_update", [value], name=f"{state}.carry", updates=[state], phase="update")
        losses += wanted
        for value in losses:
            self.values[value] = self.values[value].model_copy(update={"role": Role.OUTPUT})
        train = Program(
            name="train_step",
            nodes=tuple(live_nodes(self.nodes, set(losses))),
            inputs=tuple(self.inputs),
            outputs=tuple(losses),
        )
        return self._graph((train, predict), self._first_lr(train))

    def _first_lr(self, train: Program) -> float | None:
        """The first optimizer's learning rate, where the first update has that of another group."""
        rates = (float(getattr(n.attrs, "lr", 0.0)) for n in train.nodes if n.phase == "update")
        lr = self._objectives[0].optimizer.lr
        return None if lr == next((r for r in rates if r), lr) else lr or None

    def _own_gradient(self, of: str, gradient: str) -> str:
        """A view of a gradient that is another value's, too, as that of a sum is its operands': a caller is to find
        this one's."""
        if self.values[gradient].gradient_of == of:
            return gradient
        attrs = ReshapeAttrs(shape=self.shape(of))
        (view,) = self.op("reshape", [gradient], attrs, name=f"{of}.gradient", phase="backward", like=of)
        return view

    def _grouped(self, optimizer: Optimizer) -> set[str]:
        """The parameters that the optimizer's groups list. SP1023: some are not the model's, or in two groups."""
        ids = {name: v.id for v in self.values.values() if v.role is Role.PARAMETER for name in (v.name, *v.aliases)}
        listed = [name for group in optimizer.groups for name in group.parameters]
        twice = [name for name in listed if listed.count(name) > 1]
        if twice:
            raise UserError("SP1023", f"the optimizer has {twice[0]!r} in two groups", "list every parameter once")
        return {ids[name] for name in listed if name in ids}

    def _require_single(self, loss: str) -> None:
        if self.type(loss).elements != 1:
            raise UserError("SP1005", f"the loss {loss!r} has shape {self.shape(loss)}", "reduce it to one element")

    def _require_disjoint(self) -> None:
        trained: set[str] = set()
        for objective in self._objectives:
            twice = sorted(trained & objective.parameters)
            if twice:
                raise UserError("SP1022", f"two losses train {twice[0]!r}", "give every parameter to one objective")
            trained |= objective.parameters

    def _fused(self, objective: _Objective, wanted: set[str], gradients_of: Sequence[str]) -> list[Node]:
        """Its nodes, fused; what other objectives' nodes or the next step read stays."""
        elsewhere = {v for o in self._objectives if o is not objective for n in o.nodes for v in n.reads}
        return self._fuse(objective.nodes, wanted | elsewhere | {value for _, value in self._carried}, gradients_of)

    def _fuse(self, nodes: Sequence[Node], wanted: set[str], gradients_of: Sequence[str] = ()) -> list[Node]:
        everywhere = [n for o in self._objectives for n in o.nodes] or nodes
        nodes = live_nodes(nodes, wanted)  # who reads nothing keeps nothing apart
        changing = changing_with(self, everywhere, trainable_parameters(self) | set(gradients_of))
        nodes = fuse_nodes(split_slices(nodes, self.values, wanted, changing), self.values, wanted)
        joined = join_attention(nodes, self.values, wanted, changing, self.causal)
        joined = join_messages(share_heads(joined, self.values), self.values, wanted)
        joined = join_distances(joined, self.values, wanted)
        joined = narrow(joined, self.values, wanted, self.unique)
        joined = live_nodes(join_views(joined, self.values, wanted), wanted)
        joined = live_nodes(view_heads(joined, self.values, wanted), wanted)
        return join(joined, self.values, wanted, "forward")

    def finish_inference(self, prediction: str, *, fuse: bool = True) -> Graph:
        """A graph with `predict` only."""
        return self._graph((self._inference((prediction,), fuse),))

    def _inference(self, predictions: Sequence[str], fuse: bool) -> Program:
        nodes = self._fuse(self.nodes, set(predictions)) if fuse else list(self.nodes)
        return self._predict_program(nodes, predictions)

    def _graph(self, programs: tuple[Program, ...], lr: float | None = None) -> Graph:
        used = {v for p in programs for n in p.nodes for v in (*n.reads, *n.writes)}
        used |= {v for p in programs for v in (*p.inputs, *p.outputs)}
        return Graph(
            name=self.name,
            values=tuple(v for v in self.values.values() if v.id in used or (v.name and not v.constant)),
            programs=programs,
            lr=lr,
        )

    def _predict_program(self, forward: list[Node], predictions: Sequence[str]) -> Program:
        """Evaluation mode: batch-norm reads running statistics, dropout disappears; parameters are shared."""
        needed = {n.id for n in live_nodes(forward, set(predictions), updates=False)}
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
        results = self._results(twin, [renamed.get(p, p) for p in predictions])
        inputs = [i for i in self.inputs if i in results or any(i in n.inputs for n in twin.nodes)]
        return Program(name="predict", nodes=tuple(twin.nodes), inputs=tuple(inputs), outputs=results)

    def _taken_over(self, other: "GraphBuilder", predictions: Sequence[str], fuse: bool) -> Program:
        """`predict` of another builder; its values become this one's."""
        program = other._inference(predictions, fuse)
        used = {v for n in program.nodes for v in (*n.reads, *n.writes)} | {*program.outputs}
        for value in (v for v in other.values.values() if v.id in used):
            if self.values.setdefault(value.id, value).role is not value.role:
                raise InternalError(f"{value.id} is two values")
        return program

    def _results(self, twin: "GraphBuilder", results: Sequence[str]) -> tuple[str, ...]:
        """What another program returns; its values become the graph's."""
        for value in twin.values.values():
            self.values.setdefault(value.id, value)
        for result in results:
            held = self.values[result]
            self.values[result] = held.model_copy(
                update={"role": Role.OUTPUT if held.role is Role.ACTIVATION else held.role}
            )
        return tuple(results)


def live_nodes(nodes: Sequence[Node], wanted: set[str], updates: bool = True) -> list[Node]:
    """Nodes that contribute to `wanted` values or, with `updates`, change something in place, in order: a parameter, or
    the running statistics of a batch norm whose result nobody reads."""
    needed, kept = set(wanted), []
    for node in reversed(nodes):
        if (updates and node.updates) or any(v in needed for v in node.outputs):
            needed.update(node.reads)
            kept.append(node)
    return kept[::-1]
