"""Which random numbers a module draws in training mode alone, as a layer of noise does that asks for `self.training`.

A module is exported in training mode, and `predict` follows from that op by op. Whether PyTorch draws there as well, a
second export says, in evaluation mode: of modules that draw at all, by source lines and paths of submodules. Dropout is
none of it, in layers of its own and in others: `predict` has none anyway.
"""

import re
from collections.abc import Iterator
from typing import Any

from planner.errors import UserError
from planner.frontends.aten import TRAINING_ALONE, packet
from planner.frontends.torch_program import exported, source_line

DROPPING = re.compile(r"dropout|attention|lstm|gru|rnn")
"""Operators that draw nothing but dropout's masks."""


def mark_training_alone(torch: Any, program: Any, module: Any, original: Any, inputs: Any) -> None:
    """Mark the program's nodes that draw what the module does not draw in evaluation mode. `inputs`: positional ones,
    and those by name. A module that cannot be exported in that mode draws alike in both."""
    drawing = list(_drawing(torch, program))
    if not drawing:
        return
    try:
        evaluated = exported(torch, module, original, *inputs, training=False)
    except UserError:
        return
    places = {_place(node) for node in _drawing(torch, evaluated)}
    for node in drawing:
        node.meta[TRAINING_ALONE] = _place(node) not in places


def _drawing(torch: Any, program: Any) -> Iterator[Any]:
    for block in program.graph_module.modules():  # what runs under torch.no_grad() is a block of its own
        for node in block.graph.nodes if isinstance(block, torch.fx.GraphModule) else ():
            draws = torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ())
            if draws and not DROPPING.search(packet(node.target)):
                yield node


def _place(node: Any) -> tuple[str, str]:
    stack = [path for path, _ in (node.meta.get("nn_module_stack") or {}).values()]
    return source_line(node), re.sub(r"@\d+", "", stack[-1]) if stack else ""
