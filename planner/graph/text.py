"""graph.json: reading and writing the training graph as canonical text."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from pydantic import RootModel, ValidationError

from planner.artefact import canonical_json, one_line, read_json, sha256, strictly, write_text
from planner.errors import UserError
from planner.graph.model import PERSISTENT, Graph, Node, Program, Role, Value
from planner.graph.results import tensors
from planner.malformed import place
from planner.ops.base import op_named
from planner.ops.caller_gradient import CallerGradientAttrs

SCHEMA = 1

LARGEST = 2**60
"""Bytes that no value has: below them sums stay in 64 bits, the libraries' too."""

CYCLE_SHOWN = 12
"""Nodes of a dependency cycle that an error spells out."""

NAMES = ("id", "name")
"""What an entry of a graph's list is known by."""

_CORRECT = "correct what is named, or capture the model again"


class _Values(RootModel[tuple[Value, ...]]):
    """All of them at once, so that an error says which one it is in."""


def graph_text(graph: Graph) -> str:
    document = {
        "schema": SCHEMA,
        "name": graph.name,
        "values": [v.model_dump(mode="json", exclude_defaults=True) for v in graph.values],
        "programs": [
            {
                "name": p.name,
                "inputs": list(p.inputs),
                "outputs": list(p.outputs),
                "nodes": [n.model_dump(mode="json", exclude_defaults=True) for n in p.nodes],
                **({} if p.results is None else {"results": one_line(p.results)}),
                **({} if p.arguments is None else {"arguments": one_line(dict(p.arguments))}),
            }
            for p in graph.programs
        ],
    }
    if graph.lr is not None:
        document["lr"] = graph.lr
    if graph.loss_prefix:
        document["loss_prefix"] = graph.loss_prefix
    return canonical_json(document)


def graph_hash(graph: Graph) -> str:
    if "hash" not in graph.memo:
        graph.memo["hash"] = sha256(graph_text(graph))
    return str(graph.memo["hash"])


def write_graph(graph: Graph, path: Path | str) -> None:
    write_text(path, graph_text(graph))


def read_graph(path: Path | str) -> Graph:
    """Read and validate graph.json: unknown ops, broken references and shapes that do not fit are errors."""
    return parse_graph(read_json(path, "graph"))


def parse_graph(document: dict[str, Any]) -> Graph:
    if document.get("schema") != SCHEMA:
        raise UserError("SP1007", f"graph schema {document.get('schema')!r} is not {SCHEMA}", "capture the model again")
    with _told(document, ()):
        _known_fields(document, {"schema", "name", "values", "programs", "lr", "loss_prefix"}, "")
        listed = document["values"]
        with _told(document, ("values",)):
            values = strictly(_Values, listed).root
        programs = tuple(_parse_program(document, i) for i in range(len(document["programs"])))
        prefix = document.get("loss_prefix", "")
        graph = Graph(
            name=document["name"], values=values, programs=programs, lr=document.get("lr"), loss_prefix=prefix
        )
    huge = next((v for v in graph.values if v.type.bytes >= LARGEST), None)
    if huge is not None:
        raise UserError("SP1009", f"value {huge.id!r} has 2^60 bytes or more", "capture the model with a smaller batch")
    validate(graph)
    return graph


def _known_fields(entry: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(entry) - known)
    if unknown:
        raise UserError("SP1008", f"the graph has the unknown field {where}{unknown[0][:80]}", "remove it")


@contextmanager
def _told(document: dict[str, Any], path: tuple[int | str, ...]) -> Iterator[None]:
    """SP1008 where what lies there is malformed, with the innermost entry's name."""
    try:
        yield
    except ValidationError as error:
        first = error.errors()[0]
        where = place(document, (*path, *first["loc"]), NAMES)
        raise UserError("SP1008", f"the graph is malformed at {where}: {first['msg']}", _CORRECT) from error
    except KeyError as error:
        where = place(document, (*path, str(error.args[0])), NAMES)
        raise UserError("SP1008", f"the graph lacks {where}", _CORRECT) from error
    except (TypeError, AttributeError) as error:
        where = place(document, path, NAMES) or "its top"
        raise UserError("SP1008", f"the graph is mistyped at {where}: {error}", _CORRECT) from error


def _parse_program(document: dict[str, Any], number: int) -> Program:
    path = ("programs", number)
    with _told(document, path):
        entry = document["programs"][number]
        where = f"{place(document, path, NAMES)}."
        _known_fields(entry, {"name", "inputs", "outputs", "nodes", "results", "arguments"}, where)
        nodes = tuple(_parse_node(document, (*path, "nodes", i)) for i in range(len(entry["nodes"])))
        return Program(
            name=entry["name"],
            inputs=entry["inputs"],
            outputs=entry["outputs"],
            nodes=nodes,
            results=entry.get("results"),
            arguments=entry.get("arguments"),
        )


def _parse_node(document: dict[str, Any], path: tuple[str, int, str, int]) -> Node:
    with _told(document, path):
        entry = document["programs"][path[1]]["nodes"][path[3]]
        op = op_named(entry["op"])
        with _told(document, (*path, "attrs")):
            attrs = strictly(op.attrs_type, entry.get("attrs", {}))
        return Node.model_validate({**entry, "attrs": attrs})


def _unwritten(program: Program, node: Node, value: str) -> UserError:
    """A node reads what no earlier node writes: another order of nodes would do, unless they depend on each other."""
    import networkx  # only for the error: loading it takes longer than most commands

    maker = next((n.id for n in program.nodes if value in n.outputs), None)
    problem = f"node {node.id!r} reads {value!r} before it is written"
    if maker is None:
        return UserError("SP1009", f"{problem}: no node of {program.name} writes it", "capture it again")
    makers = {v: n.id for n in program.nodes for v in n.outputs}
    needs = networkx.DiGraph((n.id, makers[v]) for n in program.nodes for v in n.reads if v in makers)
    if not networkx.has_path(needs, maker, node.id):
        return UserError("SP1009", f"{problem} by {maker!r}", f"move {maker!r} in front of it")
    path = [node.id, *networkx.shortest_path(needs, maker, node.id)]
    if len(path) > CYCLE_SHOWN:
        path[CYCLE_SHOWN - 1 : -1] = [f"{len(path) - CYCLE_SHOWN} more nodes"]
    cycle = " needs ".join(path)
    return UserError("SP1009", f"{problem}, and no order would do: {cycle}", "remove one of these dependencies")


def _validate_names(graph: Graph) -> None:
    """What persists has a name of the framework's, a different one each: a state is read and written by them."""
    names: dict[str, str] = {}
    inputs = {v for p in graph.programs for v in p.inputs}
    for value in graph.values:
        if bool(value.name) != (value.role in PERSISTENT):
            what = f"is called {value.name!r}, but its" if value.name else "has no name, but its"
            raise UserError("SP1009", f"value {value.id!r} {what} role is {value.role.value}", "capture it again")
        if value.name and value.id in inputs:
            raise UserError("SP1009", f"{value.id!r} is an input and a {value.role.value}", "capture it again")
        for name in (value.name, *value.aliases):
            if name and names.setdefault(name, value.id) != value.id:
                problem = f"values {names[name]!r} and {value.id!r} are both called {name!r}"
                raise UserError("SP1009", problem, "rename one")


def _validate_inputs(graph: Graph) -> None:
    """No node writes what a program's caller passes: it lies in the caller's array, as its role says."""
    taken = {v: p.name for p in graph.programs for v in p.inputs}
    given = {v.id for v in graph.values if v.role is Role.INPUT}
    for value, name in taken.items():
        if value in graph.value and value not in given:
            role = graph.value[value].role.value
            raise UserError("SP1009", f"{value!r} is an input of {name}, but its role is {role}", "let it be input")
    for program in graph.programs:
        for node in program.nodes:
            for value in node.outputs:
                if value in given:
                    problem = f"node {node.id!r} of {program.name} writes {value!r}, whose role is input"
                    raise UserError("SP1009", problem, "name another output, or correct the role")


def validate(graph: Graph) -> None:
    """Every reference resolves, every value is written before it is read, every shape follows from its op."""
    if len(graph.value) != len(graph.values):
        twice = next(name for name, count in Counter(v.id for v in graph.values).items() if count > 1)
        raise UserError("SP1009", f"two values have the same id {twice!r}", "remove or rename one")
    if len(graph.program) != len(graph.programs):
        raise UserError("SP1009", "two programs have the same name", "rename one")
    _validate_names(graph)
    _validate_inputs(graph)
    persistent = {v.id for v in graph.values if v.name}
    for program in graph.programs:
        available = persistent | set(program.inputs)
        seen: set[str] = set()
        for node in program.nodes:
            if node.id in seen:
                raise UserError("SP1009", f"two nodes of {program.name} are called {node.id!r}", "rename one")
            seen.add(node.id)
            for value in (*node.reads, *node.writes):
                if value not in graph.value:
                    raise UserError("SP1009", f"node {node.id!r} names unknown value {value!r}", "capture it again")
            for value in node.reads:
                if value not in available:
                    raise _unwritten(program, node, value)
            op = op_named(node.op)
            if node.phase == "update" and not node.updates:
                raise UserError("SP1009", f"node {node.id!r} is an update of nothing", "let its phase be another")
            if node.phase != "update" and node.updates and op.family == "optimizer":
                raise UserError(
                    "SP1009", f"node {node.id!r} is an update within {node.phase}", "let its phase be update"
                )
            types = graph.types(node.inputs)
            if not set(node.updates) <= persistent or len({*node.updates}) < len(node.updates):
                raise UserError("SP1009", f"node {node.id!r} updates values that do not persist", "use new values")
            for value, type_, layout in zip(node.inputs, types, op.layouts(node.attrs, types), strict=True):
                if layout is not None and len(type_.shape) == 4 and type_.layout is not layout:
                    raise UserError("SP1009", f"node {node.id!r} needs {value!r} as {layout.value}", "convert it")
            try:
                op.check(node.attrs, types, graph.types(node.updates))
                expected = op.infer(node.attrs, types)
            except UserError as error:
                raise UserError(error.code, f"node {node.id!r} ({node.op}): {error.problem}", error.fix) from None
            except (ValueError, TypeError, IndexError, ArithmeticError) as error:
                raise UserError(
                    "SP1009", f"node {node.id!r}: {node.op} has impossible attributes", "fix them"
                ) from error
            outputs = graph.types(node.outputs)
            if expected != outputs:
                made, stated = (" and ".join(t.text() for t in types) or "nothing" for types in (expected, outputs))
                problem = f"node {node.id!r}: {node.op} makes {made}, but its outputs are {stated}"
                raise UserError("SP1009", problem, "correct the types of its inputs or outputs, or its attributes")
            for value in node.outputs:
                if value in available:
                    raise UserError("SP1009", f"node {node.id!r} writes {value!r} a second time", "use a new value")
            available.update(node.outputs)
        for value in (*program.inputs, *program.outputs):
            if value not in available:
                raise UserError("SP1009", f"{program.name} names {value!r}, which nothing makes", "capture it again")
        _validate_results(program)


def _validate_results(program: Program) -> None:
    """What the module returns has as many tensors as the program, in training those that the caller's loss is of."""
    if program.results is None:
        return
    waiting = (n.attrs.predictions for n in program.nodes if isinstance(n.attrs, CallerGradientAttrs))
    told, made = len([*tensors(program.results)]), next(waiting, len(program.outputs))
    if told != made:
        problem = f"the results of {program.name} name {told} tensors, it makes {made}"
        raise UserError("SP1009", problem, "capture it again")
