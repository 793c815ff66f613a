"""The tables behind an executor: names, offsets, node views, lane programs, inputs."""

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from codegen.cpu.names import identifiers
from codegen.cpu.view import Addresses, NodeView, scratch_expressions
from codegen.indices import Indices, Told, index_inputs
from codegen.parts import Part, parts, predictions
from planner.graph.model import Graph, Node, Program, Role, TensorType, Value
from planner.ops.optimizer import GradientSum
from planner.ops.signature import signature_of
from planner.ops.strides import strides
from planner.plan.schema import Entry, Plan, parse_slice, parse_wait

HEADERS = {
    "attention": ("attention.hpp", "dropout.hpp"),
    "batch_norm": ("batch_norm.hpp",),
    "binary": ("binary.hpp",),
    "chain": ("activations.hpp", "binary.hpp"),
    "choice": ("masks.hpp",),
    "conv": ("convolution.hpp",),
    "copy": ("copy.hpp",),
    "ctc": ("ctc.hpp",),
    "distances": ("distances.hpp",),
    "dropout": ("dropout.hpp",),
    "elementwise": ("activations.hpp", "binary.hpp"),
    "embedding": ("embedding.hpp",),
    "entries": ("entries.hpp",),
    "group_norm": ("group_norm.hpp",),
    "grouped": ("grouped.hpp",),
    "gru": ("gru.hpp",),
    "interpolate": ("interpolate.hpp",),
    "layer_norm": ("layer_norm.hpp",),
    "loss": ("losses.hpp",),
    "lrn": ("lrn.hpp",),
    "lstm": ("lstm.hpp",),
    "masks": ("masks.hpp",),
    "matmul": ("matmul.hpp",),
    "matrices": ("matrices.hpp",),
    "optimizer": ("optimizer.hpp",),
    "order": ("order.hpp",),
    "pool": ("max_pool.hpp", "average_pool.hpp"),
    "random": ("random.hpp",),
    "reduce": ("reduce.hpp",),
    "shape": ("copy.hpp",),
    "softmax": ("softmax.hpp",),
    "segment": ("segment.hpp",),
    "sparse": ("sparse.hpp",),
    "transfer": ("copy.hpp",),
}


def headers_of(view: NodeView) -> tuple[str, ...]:
    more = {"stream.hpp": view.streamed, "indices.hpp": bool(view.looks)}
    return (*HEADERS[view.family], *(header for header, wanted in more.items() if wanted))


@dataclass(frozen=True)
class WaitView:
    """A wait for one slice: entries of a lane that must be finished. `gate`: for all slices of a stage instead."""

    run: str
    lane: int = 0
    position: int = 0
    gate: int = -1
    slices: int = 0


@dataclass(frozen=True)
class TaskView:
    function: str
    stage: int
    slice: int
    run: str
    waits: tuple[WaitView, ...]
    gate: int = -1
    """The gate that counts this slice, if somebody waits for its whole stage."""
    gate_slices: int = 0


@dataclass(frozen=True)
class InputView:
    """One input of the graph; `staged`: a program returns it, so it must lie in the arena."""

    id: str
    name: str
    type: TensorType
    strides: tuple[int, ...]
    staged: bool
    indices: tuple[int, int, int] | None
    """First and last valid index + 1, and the index that is ignored, where it holds labels or indices."""
    columns: tuple[int, ...]
    """Last valid index + 1 of every column, where columns differ."""
    ignored: int


@dataclass(frozen=True)
class RunView:
    """What the executor runs at one go: a program, or a part of one (codegen/parts.py)."""

    name: str
    lanes: tuple[tuple[TaskView, ...], ...]
    gates: int
    """How many stages are waited for as a whole."""
    inputs: tuple[int, ...]
    """Positions in the model's inputs."""
    index_sources: tuple[str, ...]
    """By the number with which a node reports a bad index: the input that it is from."""


@dataclass(frozen=True)
class Model:
    """Everything that templates print."""

    values: tuple[tuple[str, Value, int], ...]
    """(C++ name, value, byte offset), in the graph's order."""
    scratch: tuple[tuple[str, int, int, str], ...]
    """(C++ name, offset, bytes, node)."""
    inputs: tuple[InputView, ...]
    parameters: tuple[tuple[str, str], ...]
    """(C++ name, value id) of what is trained; the order is the gradients' order."""
    views: Mapping[str, tuple[NodeView, ...]]
    runs: tuple[RunView, ...]

    @property
    def all_views(self) -> tuple[NodeView, ...]:
        return tuple(v for views in self.views.values() for v in views)


def trained_parameters(graph: Graph) -> tuple[str, ...]:
    """Parameters that an update node trains, in the order of the graph's values."""
    program = graph.program.get("train_step")
    trained = {n.updates[0] for n in program.nodes if n.phase == "update"} if program else set()
    return tuple(v.id for v in graph.values if v.id in trained and v.role is Role.PARAMETER)


def graph_inputs(graph: Graph) -> tuple[str, ...]:
    """Inputs of all programs, in the order of the graph's values."""
    used = {i for p in graph.programs for i in p.inputs}
    return tuple(v.id for v in graph.values if v.id in used)


def build(plan: Plan, graph: Graph, plan_text: str) -> Model:
    """Resolve every name and offset. The plan has been checked."""
    placed = [v for v in graph.values if v.id in plan.placement]
    value_names = identifiers([v.id for v in placed], "value", qualified=True)
    inputs = graph_inputs(graph)
    input_names = identifiers(inputs, "input", qualified=True)
    parameters = trained_parameters(graph)
    parameter_names = identifiers(parameters, "parameter", qualified=True)
    addresses = Addresses(graph, plan, value_names, input_names)
    nodes = [(p.name, n.node) for p in plan.programs for n in p.nodes if n.stage_ns]
    names = dict(zip(nodes, identifiers_of_pairs(nodes), strict=True))
    lines = _plan_lines(plan_text)
    views: dict[str, tuple[NodeView, ...]] = {}
    runs: list[RunView] = []
    scratch = []
    rate, indices = first_lr(graph), index_inputs(graph)
    for program in plan.programs:
        told = Told(graph)
        kept = {
            node: f"parameter::{parameter_names[parameter]}"
            for node, parameter in _gradients_kept(graph.program[program.name], parameters).items()
        }
        found = []
        for entry in program.nodes:
            if not entry.stage_ns:
                continue
            node = graph.program[program.name].node[entry.node]
            name = names[program.name, entry.node]
            signature = signature_of(graph, node)
            if entry.scratch_bytes:
                scratch.append((name, entry.scratch_offset, entry.scratch_bytes, node.id))
            found.append(
                NodeView(
                    node=node,
                    name=name,
                    plan=entry,
                    line=lines.get((program.name, entry.node), 0),
                    signature=signature,
                    inputs=tuple(addresses.operand(v) for v in node.inputs),
                    outputs=tuple(addresses.operand(v, True) for v in node.outputs),
                    updates=tuple(addresses.operand(v, True) for v in node.updates),
                    scratch=scratch_expressions(entry, signature, f"scratch::{name}"),
                    scratch_place=f"scratch::{name}",
                    parameter=kept.get(node.id, ""),
                    lr_factor=_lr(node) / rate if node.phase == "update" and rate else 1.0,
                    bad_index=told.by_kernel(node),
                    looks=told.before(node),
                )
            )
        views[program.name] = tuple(found)
        functions = {n: names[p, n] for p, n in nodes if p == program.name}
        reported = tuple(map(addresses.root, told.values))
        runs += (_run(part, functions, inputs, reported) for part in parts(plan, graph, program))
    return Model(
        values=tuple((value_names[v.id], v, plan.placement[v.id].offset) for v in placed),
        scratch=tuple(scratch),
        inputs=tuple(_input(graph, addresses, i, input_names[i], indices.get(i)) for i in inputs),
        parameters=tuple((parameter_names[p], p) for p in parameters),
        views=views,
        runs=tuple(runs),
    )


def identifiers_of_pairs(nodes: list[tuple[str, str]]) -> list[str]:
    """One identifier per (program, node), even where two programs use one id."""
    unique: dict[str, None] = {}
    for program, node in nodes:
        while node in unique:
            node = f"{program}.{node}"
        unique[node] = None
    names = identifiers(list(unique), "node")
    return [names[u] for u in unique]


def _gradients_kept(program: Program, parameters: tuple[str, ...]) -> dict[str, str]:
    """Node -> the parameter whose gradient it hands out when only gradients are wanted: that of the update, or of what
    adds up what the update reads. A state has no gradient."""
    sums = {n.updates[0]: n.id for n in program.nodes if n.op == GradientSum.name}
    updates = [n for n in program.nodes if n.phase == "update" and n.updates[0] in parameters]
    return {sums.get(n.inputs[0], n.id): n.updates[0] for n in updates}


def _lr(node: Node) -> float:
    return float(getattr(node.attrs, "lr", 0.0)) if node.phase == "update" else 0.0


def first_lr(graph: Graph) -> float:
    """Where the executor's learning rate starts: the optimizer's, or the first update node's."""
    nodes = graph.program["train_step"].nodes if "train_step" in graph.program else ()
    return graph.lr or next((_lr(n) for n in nodes if _lr(n)), 0.0)


def _plan_lines(text: str) -> dict[tuple[str, str], int]:
    """(program, node) -> the line of plan.json that says how the node runs.

    Keys are sorted, so the programs are the last list, and in each the name comes before the nodes.
    """
    found: dict[tuple[str, str], int] = {}
    program = ""
    for number, line in enumerate(text.splitlines(), start=1):
        if name := re.fullmatch(r'\s*"name": "([^"]+)",', line):
            program = name[1]
        elif node := re.search(r'"node": "([^"]+)"', line):
            found.setdefault((program, node[1]), number)
    return found


def _run(part: Part, names: Mapping[str, str], inputs: Sequence[str], reported: tuple[str, ...]) -> RunView:
    gates = _gates(part)
    return RunView(
        name=part.name,
        lanes=_lanes(part, gates, names),
        gates=len(gates),
        inputs=tuple(map(inputs.index, part.inputs)),
        index_sources=reported,
    )


def _gates(part: Part) -> dict[tuple[str, int], int]:
    """(node, stage) -> number of the gate, for the stages that are waited for as a whole."""
    here = {parse_slice(e.run)[:2] for entries in part.lanes for e in entries}
    found: dict[tuple[str, int], int] = {}
    for entries in part.lanes:
        for entry in entries:
            for wait in entry.wait:
                node, stage, index = parse_wait(wait)
                if index is None and (node, stage) in here:
                    found.setdefault((node, stage), len(found))
    return found


def _lanes(
    part: Part, gates: Mapping[tuple[str, int], int], names: Mapping[str, str]
) -> tuple[tuple[TaskView, ...], ...]:
    """What an earlier part ran is finished: nobody waits for it."""
    position = {e.run: (lane, i) for lane, entries in enumerate(part.lanes) for i, e in enumerate(entries)}
    slices = Counter(parse_slice(e.run)[:2] for entries in part.lanes for e in entries)

    def wait_views(entry: Entry) -> Iterator[WaitView]:
        for wait in entry.wait:
            node, stage, index = parse_wait(wait)
            if index is None and (node, stage) in gates:
                yield WaitView(wait, gate=gates[node, stage], slices=slices[node, stage])
            elif wait in position:
                lane, at = position[wait]
                yield WaitView(wait, lane, at + 1)

    result = []
    for entries in part.lanes:
        tasks = []
        for entry in entries:
            node, stage, index = parse_slice(entry.run)
            gate = gates.get((node, stage), -1)
            counted = slices[node, stage] if gate >= 0 else 0
            tasks.append(TaskView(names[node], stage, index, entry.run, tuple(wait_views(entry)), gate, counted))
        result.append(tuple(tasks))
    return tuple(result)


def _input(graph: Graph, addresses: Addresses, value: str, name: str, indices: Indices | None) -> InputView:
    type_ = graph.value[value].type
    outputs = {addresses.root(o) for o in (*(v for p in graph.programs for v in p.outputs), *predictions(graph))}
    whole = indices.whole if indices else None
    columns = indices.columns if indices and whole is None else ()
    ignored = indices.ignored if indices else 0
    return InputView(value, name, type_, strides(type_), value in outputs, whole, columns, ignored)
