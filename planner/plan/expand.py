"""The meaning of a plan's memory decisions: the program that really runs.

A plan states as data which nodes run a second time, which values move between pools, and which *instance* of a value
every node reads (schema.Rewrite). `expand` turns that into an ordinary graph with more nodes and more values, and
liveness, offsets, waits, replay, emitted code and the checker work on it as on any other.

    graph:     conv1 -> relu1 -> conv2 -> ...         backward: ... conv2.bw(relu1.y), conv1.bw(x)
    rewrite:   recompute relu1.recompute of relu1, makes relu1.y.recompute; conv2.bw reads that for relu1.y
    expanded:  conv1, relu1, conv2, ..., relu1.recompute, conv2.bw(relu1.y.recompute), conv1.bw

In the expanded program's list an offload follows the node that makes its value; a recomputation and a prefetch come
in front of the first node that needs them, or of the first that changes in place what they read: the first behind the
node that they run again, for the forward passes of several losses stand between updates. So the list is a valid
order with the graph's own meaning, whatever order the rewrite is written in. When each really starts is, as for every
node, the schedule's decision (`ProgramPlan.nodes`).

That the result computes what the graph computes is not taken from here: check_rewrites.py proves it.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache

from planner.errors import UserError
from planner.graph.dependencies import view_roots
from planner.graph.model import ID_PATTERN, Graph, Node, Program, Role, Value
from planner.ops.base import op_named
from planner.plan.schema import Plan, Recompute, Rewrite, Transfer

RECOMPUTE, TRANSFER = "recompute", "transfer"
"""Phases of the added nodes."""

_INSTANCE_ROLES = (Role.ACTIVATION, Role.SAVED, Role.GRADIENT)


def recompute_name(of: str, number: int = 1) -> str:
    """Id of the node's `number`-th recomputation, and the same ending for the values it makes."""
    return f"{of}.recompute{number if number > 1 else ''}"


def offload_names(value: str) -> tuple[str, str]:
    """(node, instance) of the value's copy in a slower pool."""
    return f"{value}.offload", f"{value}.away"


def prefetch_names(value: str, number: int = 1) -> tuple[str, str]:
    """(node, instance) of the `number`-th copy of the value that comes back."""
    ending = str(number) if number > 1 else ""
    return f"{value}.prefetch{ending}", f"{value}.back{ending}"


def expanded(graph: Graph, plan: Plan) -> Graph:
    """The graph whose nodes `plan` runs; `graph` itself where nothing is rewritten. SP1434 as `expand`."""
    return expand(graph, {p.name: p.rewrite for p in plan.programs if p.rewrite})


def expand(graph: Graph, rewrites: Mapping[str, Rewrite]) -> Graph:
    """The graph with the added nodes and instances. `rewrites`: program name -> what changes in it.

    SP1434: a rewrite names what does not exist, or something twice, or nothing can start first.
    """
    wanted = tuple((p.name, rewrites[p.name]) for p in graph.programs if rewrites.get(p.name))
    return _expand(_Same(graph), wanted) if wanted else graph


class _Same:
    """A graph compared by identity: hashing its thousands of values would cost more than expanding it."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Same) and self.graph is other.graph

    def __hash__(self) -> int:
        return id(self.graph)


@lru_cache(maxsize=4)
def _expand(same: _Same, rewrites: tuple[tuple[str, Rewrite], ...]) -> Graph:
    graph = same.graph
    values: dict[str, Value] = dict(graph.value)
    programs = {p.name: p for p in graph.programs}
    for name, rewrite in rewrites:
        programs[name] = _expand_program(graph, programs[name], rewrite, values)
    return graph.model_copy(update={"values": tuple(values.values()), "programs": tuple(programs.values())})


def pools_of(rewrite: Rewrite) -> dict[str, str]:
    """instance -> the slower pool that it is offloaded to; everything else lies in the plan's first pool."""
    return {t.makes: t.to_pool for t in rewrite.transfers if t.kind == "offload"}


def woven(
    order: Sequence[Node], added: Iterable[Node], runs: Mapping[str, str], roots: Mapping[str, str]
) -> tuple[Node, ...]:
    """`order` with the added nodes where they are needed: see the module's text. SP1434: some wait for each other.
    `runs`: recomputation -> the node that it runs again; `roots`: the graph's views and what they are views of.

    The solver weaves into its own order of the graph's nodes, `expand` into the program's.
    """
    extra = {n.id: n for n in added}
    maker = {v: n.id for n in extra.values() for v in n.outputs}
    following: dict[str, list[str]] = {}
    """value -> offloads of it"""
    reading: dict[str, list[str]] = {}
    """value of the graph -> recomputations that read it, or a view of it"""
    for node in extra.values():
        for value in node.inputs:
            if node.op == "offload":
                following.setdefault(value, []).append(node.id)
            elif value not in maker and node.id in runs:
                reading.setdefault(roots.get(value, value), []).append(node.id)
    done: dict[str, Node] = {}

    def put(first: Node) -> None:
        """Emit a node after everything that it needs, and the offloads of what it makes. No recursion: a chain of
        recomputations may be as long as the network."""
        stack, open_ = [first], {first.id}
        while stack:
            node = stack[-1]
            missing = [maker[v] for v in node.reads if v in maker and maker[v] not in done]
            for value in node.updates:
                missing += [n for n in reading.get(value, ()) if n not in done and runs[n] in done]
            if missing:
                if missing[0] in open_:
                    raise _broken(f"{node.id} and {missing[0]} need each other", "remove one of them")
                open_.add(missing[0])
                stack.append(extra[missing[0]])
                continue
            stack.pop()
            done[node.id] = node
            for value in node.outputs:
                # Behind what is already on the stack: an offload may be needed there, and is then found done.
                stack += [extra[n] for n in following.get(value, ()) if n not in done and n not in open_]
                open_.update(following.get(value, ()))

    for node in order:
        put(node)
    for node in extra.values():
        if node.id not in done:
            put(node)
    return tuple(done.values())


def _expand_program(graph: Graph, program: Program, rewrite: Rewrite, values: dict[str, Value]) -> Program:
    known = program.node
    redirected: dict[str, dict[str, str]] = {}
    for read in rewrite.reads:
        if redirected.setdefault(read.node, {}).setdefault(read.value, read.instance) != read.instance:
            raise _broken(f"{read.node} reads two instances of {read.value}", "keep one of the reads")
    added: dict[str, Node] = {}
    runs = {entry.node: entry.of for entry in rewrite.recomputes}
    for entry in rewrite.recomputes:
        _require_new(entry.node, known, added)
        added[entry.node] = _second_run(entry, known, redirected.get(entry.node, {}), values)
    for transfer in _makers_first(rewrite.transfers):
        _require_new(transfer.node, known, added)
        added[transfer.node] = _copy(transfer, values)
    made = {v for n in added.values() for v in n.outputs}
    for read in rewrite.reads:
        if read.node not in known and read.node not in added:
            raise _broken(f"{read.node}, which reads {read.instance}, is no node", "name a node of the program")
        if read.instance not in made:
            raise _broken(f"{read.instance}, which {read.node} reads, is made by nothing", "recompute or transfer it")
    nodes = [_redirected(n, redirected.get(n.id)) for n in program.nodes]
    for node in (*nodes, *added.values()):
        for value in node.reads:
            if value not in values:
                raise _broken(f"{node.id} reads {value}, which does not exist", "name a value or one of its instances")
    return program.model_copy(update={"nodes": woven(nodes, added.values(), runs, view_roots(graph, program))})


def _second_run(
    entry: Recompute, known: Mapping[str, Node], reads: Mapping[str, str], values: dict[str, Value]
) -> Node:
    if entry.of not in known:
        raise _broken(f"{entry.node} recomputes {entry.of}, which is no node of the program", "name one that is")
    node = known[entry.of]
    again = op_named(node.op).again(node)
    if again is None:
        raise _broken(f"{entry.node} recomputes {entry.of}, but {node.op} changes values in place", "keep its results")
    if len(entry.makes) != again.results:
        raise _broken(f"{entry.node} makes {len(entry.makes)} values; {again.op} makes {again.results}", "name them")
    for value, original in zip(entry.makes, node.outputs, strict=False):
        _add_instance(value, original, values)
    copy = Node(
        id=entry.node,
        op=again.op,
        inputs=again.inputs,
        outputs=entry.makes,
        attrs=again.attrs,
        phase=RECOMPUTE,
        origin=node.origin,
    )
    return _redirected(copy, reads)


def _makers_first(transfers: Sequence[Transfer]) -> Iterator[Transfer]:
    """Prefetches come after the offloads whose copies they bring back, in whatever order they are written."""
    maker = {t.makes: t for t in transfers}
    done: set[str] = set()
    for transfer in transfers:
        chain: dict[str, Transfer] = {}
        at: Transfer | None = transfer
        while at is not None and at.node not in done and at.node not in chain:
            chain[at.node] = at
            at = maker.get(at.value)
        yield from reversed(chain.values())
        done |= chain.keys()


def _copy(transfer: Transfer, values: dict[str, Value]) -> Node:
    if transfer.value not in values:
        problem = f"{transfer.node} copies {transfer.value}, which does not exist"
        raise _broken(problem, "name a value of the graph, or one that a recomputation or a transfer makes")
    _add_instance(transfer.makes, transfer.value, values)
    return Node(id=transfer.node, op=transfer.kind, inputs=(transfer.value,), outputs=(transfer.makes,), phase=TRANSFER)


def _add_instance(instance: str, of: str, values: dict[str, Value]) -> None:
    if instance in values:
        raise _broken(f"{instance} is made twice", "give every instance a name of its own")
    if not ID_PATTERN.fullmatch(instance):
        raise _broken(f"{instance[:80]!r} is not an id", "use letters, digits, '.' and '_', at most 200")
    original = values[of]
    role = original.role if original.role in _INSTANCE_ROLES else Role.ACTIVATION
    values[instance] = Value(id=instance, type=original.type, role=role)


def _redirected(node: Node, reads: Mapping[str, str] | None) -> Node:
    if not reads:
        return node
    for value in reads:
        if value not in node.inputs:
            raise _broken(f"{node.id} is to read an instance of {value}, but does not read {value}", "remove the read")
    return node.model_copy(update={"inputs": tuple(reads.get(v, v) for v in node.inputs)})


def _require_new(name: str, known: Mapping[str, Node], added: Mapping[str, Node]) -> None:
    if name in known or name in added:
        raise _broken(f"there are two nodes {name}", "give every added node a name of its own")
    if not ID_PATTERN.fullmatch(name):
        raise _broken(f"{name[:80]!r} is not an id", "use letters, digits, '.' and '_', at most 200")


def _broken(problem: str, fix: str) -> UserError:
    return UserError("SP1434", f"the plan's rewrite makes no sense: {problem}", fix)
