"""PyTorch modules -> functional ATen programs, through torch.export: in training mode, in-place operators and views
made pure, decomposed until every operator has a handler, as far as PyTorch's own tables go."""

import os
import re
import sys
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from planner.errors import UserError
from planner.frontends.aten import HANDLERS, packet
from planner.graph.model import unsupported


def import_torch() -> Any:
    """SP1012 when PyTorch is missing: it is an optional dependency."""
    try:
        import torch
    except ImportError as error:
        raise UserError("SP1012", "capturing a PyTorch module needs PyTorch", "pip install torch==2.13.0") from error
    return torch


def export(torch: Any, module: Any, original: Any, positional: Any, keywords: dict[str, Any]) -> Any:
    """A functional program whose operators all have handlers, as far as PyTorch can decompose them."""
    with warnings.catch_warnings(), _training(original), _quiet():
        warnings.simplefilter("ignore")
        try:
            program = torch.export.export(module, positional, keywords, strict=False)
        except Exception as error:
            raise _export_error(error) from error
        _refuse_detached(program)
        _refuse_dynamic(program)
        _dropout_in_place(torch, program)
        program = program.run_decompositions({})
        for _ in range(8):  # a decomposition may use operators that need another one
            missing = {n.target for n in _calls(program) if packet(n.target) not in HANDLERS}
            table = torch.export.default_decompositions() if missing else {}
            known = {target: table[target] for target in sorted(missing, key=str) if target in table}
            if not known:
                break
            program = program.run_decompositions(known)
    return program


@contextmanager
def _training(module: Any) -> Iterator[None]:
    """Training mode during the export; submodules that were set to evaluation mode in a training module stay so."""
    modes = {m: m.training for m in module.modules()}
    if not module.training:
        module.train()
    try:
        yield
    finally:
        for submodule, mode in modes.items():
            submodule.training = mode


@contextmanager
def _quiet() -> Iterator[None]:
    """PyTorch logs the graph when an export fails; the error says enough."""
    import logging

    previous = logging.root.manager.disable
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(previous)


def _export_error(error: Exception) -> UserError:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    problem = lines[0] if lines else type(error).__name__
    text = f"{type(error).__name__} {error}".lower()
    if "data-dependent" in text or "datadependent" in text or "dynamic" in text:
        fix = "sizes and branches may not depend on the data: use fixed shapes, and masks instead of indexing"
        return UserError("SP1014", f"the module has shapes that depend on the data: {problem}", fix)
    fix = "check that module(*inputs) runs; see PyTorch's documentation of torch.export"
    return UserError("SP1013", f"torch.export cannot capture the module: {problem}", fix)


def _dropout_in_place(torch: Any, program: Any) -> None:
    """Dropout in place, where nobody reads what it overwrites, is dropout: left alone it would become a comparison of
    random numbers."""
    later: set[Any] = set()
    for node in reversed(list(program.graph.nodes)):
        if node.target is torch.ops.aten.dropout_.default and node.args[0] not in later:
            node.target = torch.ops.aten.dropout.default
        later.update(node.all_input_nodes)


def _refuse_dynamic(program: Any) -> None:
    for node in program.graph.nodes:
        shape = getattr(node.meta.get("val"), "shape", ())
        if not all(isinstance(d, int) for d in shape):
            raise UserError(
                "SP1014",
                f"node {node.name!r}{_place(node)} has the dynamic shape ({', '.join(map(str, shape))})",
                "stepplan plans fixed shapes: index with masks of fixed size",
            )


def _refuse_detached(program: Any) -> None:
    """`detach` and blocks under torch.no_grad() would get gradients once the program is functional: refuse them,
    unless they compute with constants only."""
    signature = program.graph_signature
    inputs = set(signature.user_inputs) | set(signature.inputs_to_parameters)
    varying: set[Any] = set()
    for node in program.graph.nodes:
        if node.name not in inputs and not any(n in varying for n in node.all_input_nodes):
            continue
        varying.add(node)
        if node.op != "call_function":
            continue
        if str(node.target) == "wrap_with_set_grad_enabled" and node.args[0] is False:
            raise unsupported(node.name, "torch.no_grad", "a frozen parameter (requires_grad=False)", source_line(node))
        if packet(node.target) in ("aten.detach", "aten.detach_"):
            raise unsupported(node.name, "aten.detach", "a frozen parameter (requires_grad=False)", source_line(node))


def _calls(program: Any) -> list[Any]:
    return [n for n in program.graph.nodes if n.op == "call_function" and str(n.target).startswith("aten.") and n.users]


def source_line(node: Any) -> str:
    """`models/net.py:12`: the user's innermost line, relative to where it is imported from."""
    frames = re.findall(r'File "([^"]+)", line (\d+)', node.meta.get("stack_trace") or "")
    own = [(f, line) for f, line in frames if f"{os.sep}torch{os.sep}" not in f] or frames
    if not own:
        return ""
    file, line = own[-1]
    roots = [os.path.join(os.path.abspath(root), "") for root in (*sys.path, os.getcwd())]
    root = max((r for r in roots if file.startswith(r)), key=len, default=os.path.join(os.path.dirname(file), ""))
    return f"{file.removeprefix(root)}:{line}"


def located_error(error: UserError, node: Any) -> UserError:
    """The same error with the source line of the operator that caused it."""
    return UserError(error.code, f"{error.problem}{_place(node)}", error.fix) if source_line(node) else error


def _place(node: Any) -> str:
    line = source_line(node)
    return f" ({line})" if line else ""
