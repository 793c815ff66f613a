"""Mixed precision: activations and their gradients in bfloat16, whatever is added up over steps in float32.

A pass over a captured graph, before planning. Every op says which of its inputs may be bfloat16 (`Op.low_inputs`):

    convolutions, products   always run on bfloat16 operands; the library adds in float32. What they read of the master
                             weights is a working copy, a value as any other: rounded once for all its readers, a
                             convolution's in the library's order (`round_weights`). Products' gradients of weights are
                             float32, convolutions' bfloat16, as their libraries have them; updates read both, and what
                             else reads one reads it cast to float32
    what follows its inputs  activations, normalisations, softmax, attention, pooling, sums, chains, copies, logits of
                             which a cross-entropy is computed: in bfloat16 where an input is; they compute in float32
                             and round what they store, and attention rounds its weights for the product with the
                             values, too. But a layer norm's gradient of its input is float32, and so are the sums that
                             it goes into: in a deep transformer they are sums of sums. A gradient takes what its
                             forward pass took: the slope of a sine of 1000 is not that of a sine of a number nearby,
                             and what a normalisation subtracts is the mean of what was not rounded
    everything else          other losses, Fourier transforms and products of complex numbers: in float32

    float32 always           parameters (the master weights), momentum and other states, statistics, losses, a
                             program's results

Where a node wants a value in the other precision, a `cast` node goes in front of it, once per value and program.

    conv1(x f32, w f32) -> y f32; relu(y) -> z f32; loss(z) -> l f32    becomes
    x.bf16 = cast(x); w.bf16 = round_weights(w); conv1(x.bf16, w.bf16) -> y bf16; relu(y) -> z bf16; z.f32 = cast(z);
    loss(z.f32) -> l f32
"""

from planner.errors import UserError
from planner.graph.model import Attrs, DType, Graph, Node, Program, Role, TensorType, Value
from planner.graph.text import validate
from planner.ops.base import Op, op_named
from planner.ops.conv import Conv2dBackwardWeights
from planner.ops.masks import CastAttrs

LIBRARY_FAMILIES = frozenset({"conv", "matmul"})
SHORT = {DType.BFLOAT16: "bf16", DType.FLOAT32: "f32"}


def mixed_precision(graph: Graph) -> Graph:
    """The graph in bfloat16 with float32 master weights, named after it with `_bf16`.

    SP1033: it holds bfloat16 already, or float64, which has no place in it.
    """
    for value in graph.values:
        if value.type.dtype in (DType.BFLOAT16, DType.FLOAT64):
            raise UserError("SP1033", f"value {value.id!r} is {value.type.text()}", "start from a float32 graph")
    pass_ = _Pass(graph)
    programs = tuple(pass_.program(p) for p in graph.programs)
    made = {v for p in programs for n in p.nodes for v in (*n.reads, *n.writes)} | set(graph.value)
    values = tuple(v for v in pass_.values.values() if v.id in made)
    mixed = graph.model_copy(update={"name": f"{graph.name}_bf16", "values": values, "programs": programs})
    validate(mixed)
    return mixed


def full_precision(graph: Graph) -> Graph:
    """The float32 graph that `mixed_precision` was given: what a bfloat16 one is compared with."""
    renamed: dict[str, str] = {}
    fixed, gradients = _fixed(graph), _weight_gradients(graph)
    for program in graph.programs:
        for node in program.nodes:
            if _rounds(graph, node):
                (source,), (result,) = node.inputs, node.outputs
                if result in fixed or source in gradients:
                    renamed[source] = result
                else:
                    renamed[result] = renamed.get(source, source)

    def named(values: tuple[str, ...]) -> tuple[str, ...]:
        return tuple(renamed.get(v, v) for v in values)

    programs = tuple(
        p.model_copy(
            update={
                "nodes": tuple(
                    n.model_copy(update={"inputs": named(n.inputs), "outputs": named(n.outputs)})
                    for n in p.nodes
                    if not _rounds(graph, n)
                )
            }
        )
        for p in graph.programs
    )
    values = tuple(
        v.model_copy(update={"type": v.type.model_copy(update={"dtype": DType.FLOAT32})})
        if v.type.dtype is DType.BFLOAT16
        else v
        for v in graph.values
        if v.id not in renamed
    )
    name = graph.name.removesuffix("_bf16")
    full = graph.model_copy(update={"name": name, "values": values, "programs": programs})
    validate(full)
    return full


def _fixed(graph: Graph) -> set[str]:
    """Values that the caller knows: they keep their type."""
    return {v for p in graph.programs for v in (*p.inputs, *p.outputs)} | {v.id for v in graph.values if v.name}


def _weight_gradients(graph: Graph) -> set[str]:
    """What convolutions' libraries round."""
    nodes = (n for p in graph.programs for n in p.nodes)
    return {n.outputs[0] for n in nodes if isinstance(op_named(n.op), Conv2dBackwardWeights)}


def _added_up(graph: Graph) -> set[str]:
    """Gradients of weights that something else than an update reads: that one computes with them, in float32."""
    others = {v for p in graph.programs for n in p.nodes if op_named(n.op).family != "optimizer" for v in n.reads}
    return _weight_gradients(graph) & others


def _rounds(graph: Graph, node: Node) -> bool:
    """Whether the node is one that `mixed_precision` adds."""
    low = any(graph.value[v].type.dtype is DType.BFLOAT16 for v in (*node.inputs, *node.outputs))
    return low and node.op in ("cast", "round_weights")


def is_mixed(graph: Graph) -> bool:
    return any(v.type.dtype is DType.BFLOAT16 for v in graph.values)


def require_precision(graph: Graph, target: str, able: bool) -> None:
    """SP1033 unless the graph is in float32 or the target's hardware is `able` to compute in bfloat16."""
    if able:
        return
    for program in graph.programs:
        for node in program.nodes:
            for value in (*node.reads, *node.writes):
                if graph.value[value].type.dtype is DType.BFLOAT16:
                    raise UserError(
                        "SP1033",
                        f"node {node.id!r} ({node.op}) of {program.name} works on {value!r}, which is "
                        f"{graph.value[value].type.text()}: the processor of {target} has no instructions for bfloat16",
                        "capture with --precision float32, or plan for a processor with avx512_bf16 or amx_bf16 among "
                        "its target's isa, or for a GPU",
                    )


class _Pass:
    """The values of all programs; they share parameters and inputs, and may share results."""

    def __init__(self, graph: Graph) -> None:
        self.values: dict[str, Value] = dict(graph.value)
        self._fixed = _fixed(graph) | _added_up(graph)

    def program(self, program: Program) -> Program:
        self._nodes: list[Node] = []
        self._casts: dict[tuple[str, str, DType], str] = {}
        """(value, op, dtype) -> what the op makes of it"""
        self._own: set[str] = set()
        """Values that the program adds."""
        self._program = program.name
        for node in program.nodes:
            self._add(node)
        return program.model_copy(update={"nodes": tuple(self._nodes)})

    def _add(self, node: Node) -> None:
        op = op_named(node.op)
        low = self._low_inputs(op, node)
        inputs = tuple(
            (self._low(v, op, i, node) if i in low else self._cast(v, DType.FLOAT32, node)) if self._is_float(v) else v
            for i, v in enumerate(node.inputs)
        )
        types = op.infer(node.attrs, [self.values[v].type for v in inputs])
        outputs, results = [], []
        for value, type_ in zip(node.outputs, types, strict=True):
            if value in self._fixed and type_.dtype is DType.BFLOAT16:
                own = self._new(self.values[value], type_)
                results.append((own, value))
                value = own
            else:
                self.values[value] = self.values[value].model_copy(update={"type": type_})
            outputs.append(value)
        self._nodes.append(node.model_copy(update={"inputs": inputs, "outputs": tuple(outputs)}))
        # What was rounded of a value that changes is its past.
        self._casts = {key: made for key, made in self._casts.items() if key[0] not in node.updates}
        for own, value in results:  # as the caller gets it
            self._nodes.append(self._added("cast", CastAttrs(dtype="float32"), own, value, node))

    def _low_inputs(self, op: Op, node: Node) -> frozenset[int]:
        """Positions of the inputs that become bfloat16."""
        allowed = op.low_inputs(node.attrs)
        if allowed is None:
            return frozenset()
        able = [i for i, v in enumerate(node.inputs) if i in allowed and self._is_float(v)]
        if op.family in LIBRARY_FAMILIES:
            return frozenset(able)
        leading = [node.inputs[i] for i in able if op.leads is None or i in op.leads]
        follows = any(self.values[v].type.dtype is DType.BFLOAT16 for v in leading)
        exact = node.phase == "backward" and any(self._read_exactly(node.inputs[i]) for i in able)
        return frozenset(able) if follows and not exact else frozenset()

    def _read_exactly(self, value: str) -> bool:
        """Whether the forward pass made it and read it in float32 only."""
        known = self.values[value]
        made = known.role in (Role.INPUT, Role.ACTIVATION) and known.type.dtype is DType.FLOAT32
        return made and (value, "cast", DType.BFLOAT16) not in self._casts

    def _is_float(self, value: str) -> bool:
        return self.values[value].type.dtype in (DType.FLOAT32, DType.BFLOAT16)

    def _low(self, value: str, op: Op, position: int, reader: Node) -> str:
        """An operand in bfloat16: weights in the library's order."""
        weights = op.family == "conv" and position not in op.activations  # type: ignore[attr-defined]
        type_ = self.values[value].type
        if not weights and (self.values[value].role is not Role.PARAMETER or len(type_.shape) == 4):
            return self._cast(value, DType.BFLOAT16, reader)
        return self._made(self._cast(value, DType.FLOAT32, reader), "round_weights", DType.BFLOAT16, reader)

    def _cast(self, value: str, dtype: DType, reader: Node) -> str:
        """The value in a precision."""
        return value if self.values[value].type.dtype is dtype else self._made(value, "cast", dtype, reader)

    def _made(self, value: str, op: str, dtype: DType, reader: Node) -> str:
        """What an op makes of the value, in front of its first reader."""
        known = self._casts.get((value, op, dtype))
        if known is None:
            attrs = op_named(op).attrs_type.model_validate({"dtype": dtype.value} if op == "cast" else {})
            (type_,) = op_named(op).infer(attrs, [self.values[value].type])
            known = self._casts[value, op, dtype] = self._new(self.values[value], type_)
            self._nodes.append(self._added(op, attrs, value, known, reader))
        return known

    def _new(self, value: Value, type_: TensorType) -> str:
        """A value like this one in another precision, which the program itself makes: none of another program's, or
        its bytes would be held from there to here."""
        role = value.role if value.role is Role.GRADIENT else Role.ACTIVATION
        spelled = f"{value.id}.{SHORT[type_.dtype]}"
        if spelled in self.values and spelled not in self._own:
            spelled = f"{self._program}.{spelled}"
        name, again = spelled, 2
        while name in self.values:
            name, again = f"{spelled}{again}", again + 1
        self._own.add(name)
        self.values[name] = Value(id=name, type=type_, role=role, gradient_of=value.gradient_of)
        return name

    @staticmethod
    def _added(op: str, attrs: Attrs, source: str, target: str, beside: Node) -> Node:
        return Node(
            id=f"{target}.cast" if target == beside.id else target,
            op=op,
            inputs=(source,),
            outputs=(target,),
            attrs=attrs,
            phase="backward" if beside.phase == "update" else beside.phase,  # updates are nodes that change a state
            origin=beside.origin,
        )
