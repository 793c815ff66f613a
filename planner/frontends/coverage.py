"""What became of every operator of a PyTorch program: which of stepplan's ops it is, who computes them, or why nobody
does. Filled while lowering; `stepplan capture --explain` prints it."""

from collections.abc import Sequence
from typing import Any, Literal

from planner.errors import UserError
from planner.frontends.torch_places import source_line
from planner.graph.model import Frozen, Graph, Node
from planner.ops import op_named
from planner.ops.signature import signature_of

Kind = Literal["library", "generated", "native", "folded", "unsupported"]

_LIBRARIES = {"onednn": "oneDNN", "cudnn": "cuDNN", "cublaslt": "cuBLASLt"}
_ORDER: tuple[Kind, ...] = ("unsupported", "library", "generated", "native", "folded")


class OpUse(Frozen):
    """One operator of the model's program."""

    operator: str
    """`aten.convolution`."""
    layer: str
    """The module's path."""
    where: str = ""
    """`models/net.py:12`, where known."""
    kind: Kind
    """library: a vendor's kernel; generated: rendered from a tensor expression; native: stepplan's own loops; folded:
    nothing is left to run (a view, a constant, merged into a neighbour); unsupported."""
    ops: tuple[str, ...] = ()
    """The graph's ops that it became, each once."""
    why: str = ""


class Coverage:
    """Collects what became of operators. `tolerant`: go on where a layer does not fit, as after a missing operator."""

    def __init__(self, tolerant: bool = False) -> None:
        self.tolerant = tolerant
        self.missing: list[UserError] = []
        self._entries: list[tuple[Any, str, str, tuple[str, ...], UserError | None]] = []

    def lowered(self, node: Any, operator: str, layer: str, made: Sequence[str]) -> None:
        self._entries.append((node, operator, layer, tuple(made), None))

    def miss(self, node: Any, operator: str, layer: str, error: UserError) -> None:
        self.missing.append(error)
        self._entries.append((node, operator, layer, (), error))

    def require_complete(self) -> None:
        """SP1001 for the first operator that nobody lowers; the others are counted."""
        if not self.missing:
            return
        first, *others = self.missing
        more = f", and {len(others)} more operators are unsupported" if others else ""
        hint = "; `stepplan capture --explain` lists all of them" if others else ""
        raise UserError(first.code, first.problem + more, first.fix + hint)

    def uses(self, graph: Graph, nodes: Sequence[Node]) -> list[OpUse]:
        """In the program's order. `nodes`: as the frontend appended them; `graph`: the finished one: a node that is
        gone from it was merged into a neighbour."""
        known = {n.id: n for n in nodes}
        kept = {n.id: n for p in graph.programs for n in p.nodes}
        return [
            self._use(node, operator, layer, [known[i] for i in made if i in known], kept, error, graph)
            for node, operator, layer, made, error in self._entries
        ]

    @staticmethod
    def _use(
        node: Any,
        operator: str,
        layer: str,
        made: Sequence[Node],
        kept: dict[str, Node],
        error: UserError | None,
        graph: Graph,
    ) -> OpUse:
        place: dict[str, Any] = {"operator": operator, "layer": layer, "where": source_line(node)}
        if error is not None:
            return OpUse(**place, kind="unsupported", why=f"{error.code}: {error.problem}; {error.fix}")
        if not made:
            return OpUse(**place, kind="folded", why="a view, or computed once at capture")
        ops = tuple(dict.fromkeys(n.op for n in made))
        kinds = {n.id: kind_of(graph, kept[n.id]) for n in made if n.id in kept}
        if not kinds:
            return OpUse(
                **place, kind="folded", ops=ops, why="merged into a neighbouring node, or its result is unused"
            )
        kind = min((k for k, _ in kinds.values()), key=_ORDER.index)
        why = "; ".join(dict.fromkeys(w for k, w in kinds.values() if k == kind))
        return OpUse(**place, kind=kind, ops=ops, why=why)


def graph_uses(graph: Graph) -> list[OpUse]:
    """The nodes of a graph's training step (or only program), where no operators of a framework are known."""
    found = []
    for node in graph.programs[0].nodes:
        kind, why = kind_of(graph, node)
        found.append(OpUse(operator=node.op, layer=node.origin or node.id, kind=kind, ops=(node.op,), why=why))
    return found


def kind_of(graph: Graph, node: Node) -> tuple[Kind, str]:
    """Who computes a node on a processor, and why."""
    kernels = {kernel for kernel, _ in op_named(node.op).dims(signature_of(graph, node))}
    libraries = [name for kernel, name in _LIBRARIES.items() if kernel in kernels]
    if libraries:
        return "library", f"{' or '.join(libraries)} has it"
    if "tvm" in kernels:
        return "generated", "rendered from a tensor expression: no library has it"
    if kernels == {"alias"}:
        return "folded", "another view of the same bytes"
    return "native", "own loops: no library has it, or none is as fast"


def kind_counts(uses: Sequence[OpUse]) -> dict[str, int]:
    found = {kind: sum(u.kind == kind for u in uses) for kind in _ORDER}
    return {kind: count for kind, count in found.items() if count}


def coverage_text(uses: Sequence[OpUse]) -> str:
    """One line per operator and fate, unsupported ones first and every one of them; then the counts."""
    groups: dict[tuple[str, ...], list[OpUse]] = {}
    for use in uses:
        key = (use.kind, use.operator, use.why, *use.ops)
        groups.setdefault(key, []).append(use)
    lines = [f"{'kind':12}{'count':>6}  {'operator':44} {'first at':40} becomes; why"]
    for kind in _ORDER:
        for group in (g for g in groups.values() if g[0].kind == kind):
            first = group[0]
            place = " ".join(p for p in (first.layer, f"({first.where})" if first.where else "") if p)
            becomes = " + ".join(first.ops)
            lines.append(
                f"{kind:12}{len(group):>6}  {first.operator:44} {place:40} "
                + "; ".join(p for p in (becomes, first.why) if p)
            )
    counts = ", ".join(f"{count} {kind}" for kind, count in kind_counts(uses).items())
    return "\n".join([*lines, f"{len(uses)} operators: {counts or 'none'}"])
