"""Writes in place that autograd does not see: through a detached view, or under torch.no_grad(); and those that a
detached view, made before, does not see.

An exported program is made functional and differentiated later, so such a write would be lost with the copy that
detaching makes of its tensor, or cut the tensor off from its gradient. PyTorch does neither: the tensor has the new
contents, and the gradient of the old. What gives the same either way (nobody reads the tensor otherwise, or no gradient
passes it) is left alone.
"""

import operator
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from planner.errors import UserError

NO_GRAD = "wrap_with_set_grad_enabled"
DETACHED = "make a new tensor with that gradient: y + (changed - y).detach()"


class Place(NamedTuple):
    """Where a tensor's elements lie. `root`: the node that made them; `through`: the view without gradient by which
    they are reached, if any; `trained`: whether gradients pass it, or what it is a view of."""

    root: Any
    through: Any = None
    trained: bool = False


class Write(NamedTuple):
    node: Any
    to: Place
    time: int


def hidden_write(program: Any, prefix: str) -> tuple[UserError, Any] | None:
    """The error (SP1020) and the node of the first one that matters. `program`: exported, not functional yet; `prefix`:
    of parameters' and buffers' names."""
    found = _Walk(program)
    named = {s.arg.name: s for s in program.graph_signature.input_specs if hasattr(s.arg, "name")}
    for write in found.writes:
        to = write.to
        given = named.get(to.root.name) if to.root.op == "placeholder" else None
        if given is not None and to.through is not None:
            name = (given.target or given.arg.name).removeprefix(prefix)
            what = f"its {given.kind.name.lower().replace('user_', '')} {name!r} through a detached view"
            fix = "only optimizers change parameters, and batch norms their statistics: compute what is used from them"
        elif given is None and to.through is not None and found.read_otherwise(write):
            what, fix = "a tensor through a detached view", DETACHED
        elif given is None and to.through is None and to.trained:
            what, fix = "a tensor that has a gradient, under torch.no_grad()", DETACHED
        else:
            continue
        return UserError("SP1020", f"the module writes to {what}", fix), write.node
    if found.outdated:
        fix = "detach it behind the change; where the old contents are meant, take detach().clone()"
        what = "the module reads a view without gradient of a tensor that it has changed since"
        return UserError("SP1020", what, fix), found.outdated[0]
    return None


def buffers_without_gradient(program: Any) -> set[Any]:
    """The nodes that are buffers, or views of them, to which no gradient ever comes. `program`: as above."""
    given = {s.arg.name for s in program.graph_signature.input_specs if s.kind.name == "BUFFER"}
    places = _Walk(program).places
    trained = {p.root for p in places.values() if p.trained}
    return {n for n, p in places.items() if p.root.name in given and p.root not in trained}


def written_tensors(program: Any) -> set[Any]:
    """The nodes that make the tensors to which the program writes. `program`: as above."""
    return _Walk(program).written


def views_of_buffers(program: Any) -> list[Any]:
    """The nodes that detach such buffers; and those in blocks without gradients, which detach nothing."""
    found, root = buffers_without_gradient(program), program.graph_module
    blocks = [n for part in root.modules() if hasattr(part, "graph") for n in _blocks(part)]
    return [n for n in (*filter(found.__contains__, root.graph.nodes), *blocks) if _detaches(n)]


def _blocks(part: Any) -> Iterator[Any]:
    """The nodes of the blocks without gradients that are called in a graph."""
    for node in part.graph.nodes:
        if str(node.target) == NO_GRAD and node.args[0] is False:
            yield from part.get_submodule(node.args[1].target).graph.nodes


def written_arguments(graph: Any) -> set[Any]:
    """The placeholders of a block that it writes to, themselves or a view of them."""
    roots: dict[Any, Any] = {n: n for n in graph.nodes if n.op == "placeholder"}
    found = set()
    for node in graph.nodes:
        for argument, returned, written in _aliases(node):
            if argument in roots:
                found |= {roots[argument]} if written else set()
                roots |= {node: roots[argument]} if returned else {}
    return found


def is_changed(nodes: Iterable[Any]) -> bool:
    """Whether one of these tensors, or a view of one, is written to."""
    return any(True for _ in changing(nodes))


def changing(nodes: Iterable[Any]) -> Iterator[Any]:
    """What writes to these tensors, or to views of them."""
    seen, open_ = set[Any](), list(nodes)
    while open_:
        node = open_.pop()
        if node in seen:
            continue
        seen.add(node)
        if node.op == "get_attr":  # one tensor has a node wherever it is read
            open_ += [n for n in node.graph.nodes if (n.op, n.target) == (node.op, node.target)]
        for user in node.users:
            for argument, returned, written in _aliases(user):
                if argument is node and written:
                    yield user
                open_ += [user] if argument is node and returned else []
            if user.target is operator.getitem:
                open_.append(user)
            if node in _moved(user):
                yield user


def is_made(node: Any) -> bool:
    """Whether an operator makes its result anew: it lies in none of its operands, and no constant."""
    return node.op == "call_function" and not any(returned for _, returned, _ in _aliases(node))


def views_of(node: Any) -> dict[Any, int]:
    """What lies where a tensor does, by operators -> how many have read each so far."""
    return {view: len(view.users) for view in alike(node) - {node}}


def is_torn(choice: Any, sources: Iterable[Any] | None = None, held: bool = True) -> bool:
    """Whether it matters that a choice (`where`, or another of `sources`) is a tensor of its own, and not one of those
    that it is chosen from: one is written to, and the other read later, or what a module or its caller holds is written
    to. `held`: whether it is asked about that as well."""
    place = {node: i for i, node in enumerate(choice.graph.nodes)}
    own, later = alike(choice), [place[n] for n in changing([choice]) if place[n] > place[choice]]

    def read(nodes: set[Any], behind: int) -> bool:
        return any(place[user] > behind for node in nodes for user in node.users)

    for source in choice.args[1:3] if sources is None else sources:
        lies = alike(source)
        others = held and any(n.op in ("placeholder", "get_attr") for n in lies)
        if later and (others or read(lies, min(later))):
            return True
        written = [place[n] for n in changing(lies) if place[n] > place[choice]]
        if written and read(own, min(written)):
            return True
    return False


def alike(node: Any) -> set[Any]:
    """What lies where it does."""
    seen, open_ = set[Any](), [node]
    while open_:
        node = open_.pop()
        if node not in seen:
            seen.add(node)
            open_ += [argument for argument, returned, _ in _aliases(node) if returned]
            open_ += [node.args[0]] if node.target is operator.getitem else []
            for user in node.users:
                returned = any(argument is node and returned for argument, returned, _ in _aliases(user))
                open_ += [user] if returned or user.target is operator.getitem else []
    return seen


class _Walk:
    """Through all nodes in order, with the blocks without gradients where they stand."""

    def __init__(self, program: Any) -> None:
        self._root = program.graph_module
        self.writes: list[Write] = []
        """Those that autograd does not see."""
        self.outdated: list[Any] = []
        """Nodes that read through a view without gradient what was changed since that was made."""
        self.places: dict[Any, Place] = {}
        self._time = 0
        self._made: dict[Any, int] = {}
        """view without gradient -> when it was made"""
        self._changes: dict[Any, list[tuple[int, Place]]] = {}
        """root -> when it was changed"""
        self._results: dict[Any, list[Place | None]] = {}
        """block -> where its results lie"""
        self._reads: list[tuple[int, Place]] = []
        trained = {
            s.arg.name: bool(program.state_dict[s.target].requires_grad)
            for s in program.graph_signature.input_specs
            if s.kind.name == "PARAMETER"
        }
        for node in program.graph.nodes:
            if node.op == "placeholder":
                self.places[node] = Place(node, None, trained.get(node.name, False))
            else:
                self._visit(node, self.places, gradients=True)

    @property
    def written(self) -> set[Any]:
        """The roots of all writes."""
        return set(self._changes)

    def read_otherwise(self, write: Write) -> bool:
        """Whether somebody reads what was written to later, and not through the same detached view."""
        to = write.to
        return any(
            time > write.time and place.root is to.root and place.through is not to.through
            for time, place in self._reads
        )

    def _read(self, node: Any, given: list[Place]) -> None:
        self._time += 1
        self._reads += [(self._time, place) for place in given]
        for place in given:
            changes = self._changes.get(place.root, []) if place.through is not None else []
            if any(self._made[place.through] < at and to.through is not place.through for at, to in changes):
                self.outdated.append(node)

    def _visit(self, node: Any, places: dict[Any, Place], gradients: bool) -> None:
        given = [places[n] for n in node.all_input_nodes if n in places]
        self._read(node, given)
        if str(node.target) == NO_GRAD:
            self._block(node, places)
            return
        trained = gradients and any(p.trained for p in given) and _differentiable(node)
        places[node] = Place(node, None, trained)
        if node.target is operator.getitem:
            results = self._results.get(node.args[0])
            found = results[node.args[1]] if results else given[0] if given else None
            places[node] = found or places[node]
            return
        for argument in _moved(node):
            self._changes.setdefault(places[argument].root, []).append((self._time, places[argument]))
        for argument, returned, written in _aliases(node):
            place = places.get(argument)
            if place is None:
                continue
            if written and (place.through is not None or not gradients):
                self.writes.append(Write(node, place, self._time))
            elif written and trained and not place.trained:
                places |= {n: p._replace(trained=p.through is None) for n, p in places.items() if p.root is place.root}
            if written:
                self._changes.setdefault(place.root, []).append((self._time, place))
            if returned:  # a view of what has a gradient is one also where its own contents have none
                through = place.through
                if _detaches(node) and through is None:
                    through, self._made[node] = node, self._time
                places[node] = Place(place.root, through, (place.trained or trained) and through is None)

    def _block(self, node: Any, places: dict[Any, Place]) -> None:
        """A block with gradients or without; what is written to there and made there is nobody else's. Without, what it
        returns and, if it writes, what it only reads, are copies (torch_program.py), unless they are whole numbers."""
        enabled, block, *arguments = node.args
        graph = self._root.get_submodule(block.target).graph
        inner: dict[Any, Place] = {}
        before = len(self.writes)
        sources, written = iter(arguments), written_arguments(graph)
        for own in graph.nodes:
            if own.op == "placeholder":
                source = next(sources, None)
                inner[own] = places.get(source, Place(own))
                copied = not enabled and written and own not in written and is_floating(own)
                if copied and inner[own].through is None:
                    inner[own] = inner[own]._replace(through=own)
                    self._made[own] = self._time
            elif own.op == "output":
                results = [(inner.get(n), is_floating(n)) for n in own.args[0]]
            else:
                self._visit(own, inner, bool(enabled))
        outer = {p.root for p in places.values()}
        self.writes[before:] = [w for w in self.writes[before:] if w.to.root in outer]
        places[node] = Place(node, None, bool(enabled) and any(places[n].trained for n in arguments if n in places))
        self._made[node] = self._time
        for result, copied in results:
            kept = result if result is not None and result.root in outer else None
            if kept is not None and not enabled and copied and kept.through is None:
                kept = Place(kept.root, node)
            self._results.setdefault(node, []).append(kept)


def _detaches(node: Any) -> bool:
    return str(node.target).startswith("aten.detach.")


def is_floating(node: Any) -> bool:
    """Whether it is a tensor that can have a gradient."""
    dtype = getattr(getattr(node, "meta", {}).get("val"), "dtype", None)
    return dtype is not None and bool(dtype.is_floating_point)


def _moved(node: Any) -> list[Any]:
    """The statistics that a batch norm changes, of which its schema says nothing."""
    if not str(node.target).startswith("aten.batch_norm."):
        return []
    _, _, _, mean, variance, training, *_ = node.args
    return [n for n in (mean, variance) if n is not None and training]


def reads_contents(node: Any) -> bool:
    """Whether the result depends on operands' contents, not on their shapes alone."""
    name = str(node.target).removeprefix("aten.").split(".")[0]
    return not (name.endswith("_like") or name.startswith("new_"))


def _differentiable(node: Any) -> bool:
    """Whether the result depends on operands' contents, and is no whole number."""
    if not reads_contents(node):
        return False
    value = node.meta.get("val")
    first = value[0] if isinstance(value, list | tuple) and value else value
    return first is None or not hasattr(first, "dtype") or bool(first.dtype.is_floating_point)


def _aliases(node: Any) -> Iterator[tuple[Any, bool, bool]]:
    """Every argument, of a list every part, that the result lies in, or that is written to: (argument, lies there, is
    written to)."""
    schema = getattr(node.target, "_schema", None)
    if schema is None:
        return
    returned = {name for r in schema.returns if r.alias_info is not None for name in r.alias_info.before_set}
    given: Mapping[str, Any] = dict(zip((a.name for a in schema.arguments), node.args, strict=False)) | node.kwargs
    for argument in schema.arguments:
        if argument.alias_info is not None and argument.name in given:
            names, parts = argument.alias_info.before_set, given[argument.name]
            for part in parts if isinstance(parts, list | tuple) else (parts,):
                yield part, bool(returned & set(names)), argument.alias_info.is_write
