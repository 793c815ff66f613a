"""What is known of tensors of a module that is being exported from how they are made: whether two have the same
numbers, as far as that follows. Kernels of Gaussian processes ask (`torch.equal(x1, x2)`), of one tensor mostly."""

from typing import Any

from planner.frontends.torch_writes import is_changed


def equal(torch: Any, a: Any, b: Any) -> bool | None:
    """What torch.equal says of numbers (of NaN it says otherwise): no for other shapes, yes where the same operators
    make both of the same operands, of which none is written to. None where only the numbers tell."""
    if a is b:
        return True
    if a.shape != b.shape:
        return False
    first, second = node_of(a), node_of(b)
    if first is None or second is None:
        return None
    seen, open_ = set[tuple[Any, Any]](), [(first, second)]
    while open_:
        m, n = pair = open_.pop()
        if pair in seen:
            continue
        seen.add(pair)
        if m is not n:
            inner = _operands(torch, m, n)
            if inner is None:
                return None
            open_ += inner
    return None if is_changed({node for pair in seen for node in pair}) else True


def _operands(torch: Any, m: Any, n: Any) -> list[tuple[Any, Any]] | None:
    """The nodes that two calls are made of, where they are alike otherwise."""
    if (m.op, m.target) != (n.op, n.target):
        return None
    if m.op == "get_attr":
        return []
    if torch.Tag.nondeterministic_seeded in getattr(m.target, "tags", ()):
        return None
    (left, form), (right, other) = (torch.utils._pytree.tree_flatten((x.args, x.kwargs)) for x in (m, n))
    pairs = list(zip(left, right, strict=False))
    nodes = [(p, q) for p, q in pairs if isinstance(p, torch.fx.Node) and isinstance(q, torch.fx.Node)]
    same = all(type(p) is type(q) and (isinstance(p, torch.fx.Node) or p == q) for p, q in pairs)
    return nodes if form == other and same else None


def is_recorded(torch: Any) -> bool:
    """Whether what is called now is of the program: what is transformed is no tensor of one, nor is what tells a
    result's shape to the export."""
    transformed = torch._C._functorch.peek_interpreter_stack() is not None
    apart = torch.compiler.is_dynamo_compiling() or torch._C._meta_in_tls_dispatch_include()
    return not (transformed or apart)


def node_of(tensor: Any) -> Any:
    """The node of the program that is being recorded; None for what is none of its tensors."""
    slot = slot_of(tensor)
    return slot.proxy.node if slot is not None else None


def slot_of(tensor: Any) -> Any:
    """What PyTorch's exporter takes a tensor for; None for what is no tensor of the program."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, get_proxy_slot

    mode = get_proxy_mode()
    return get_proxy_slot(_plain(tensor), mode.tracer, None) if mode is not None else None


def take_for(tensor: Any, slot: Any) -> None:
    """From here on it is that to PyTorch's exporter."""
    from torch.fx.experimental.proxy_tensor import get_proxy_mode, set_proxy_slot

    set_proxy_slot(_plain(tensor), get_proxy_mode().tracer, slot)


def _plain(tensor: Any) -> Any:
    from torch._subclasses.functional_tensor import FunctionalTensor

    return tensor.from_functional() if isinstance(tensor, FunctionalTensor) else tensor


def is_of_data(tensor: Any) -> bool:
    """Whether a tensor of the program that is being recorded depends on what the program is given."""
    seen, open_ = set[Any](), [node_of(tensor)]
    while open_:
        node = open_.pop()
        if node is not None and node not in seen:
            if node.op == "placeholder":
                return True
            seen.add(node)
            open_ += node.all_input_nodes
    return False
