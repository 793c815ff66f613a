"""Whether a module's evaluation mode is its training mode, operator by operator: dropout away, batch norms with running
statistics. Then `predict` follows from the training step's operators. A module that draws random numbers or asks which
mode it is in may compute something else: its `predict` is lowered from an export in evaluation mode.
"""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from planner.frontends.aten import packet

DROPPING = re.compile(r"dropout|attention|lstm|gru|rnn")
"""Operators that draw nothing but dropout's masks."""


@contextmanager
def reads_of_mode(torch: Any) -> Iterator[list[str]]:
    """Within it, reads of a module's `training` by code that is neither PyTorch's nor ours are noted, by file."""
    kind, found = torch.nn.Module, list[str]()
    others = tuple(os.path.join(os.path.dirname(file), "") for file in (torch.__file__, __file__))

    def read(module: Any) -> bool:
        reader = sys._getframe(1).f_code.co_filename
        if not reader.startswith(others):
            found.append(reader)
        if "training" not in vars(module):
            raise AttributeError("training")
        return bool(vars(module)["training"])

    def write(module: Any, mode: bool) -> None:
        vars(module)["training"] = mode

    kind.training = property(read, write)  # before what lies in the module itself
    try:
        yield found
    finally:
        del kind.training


def draws(torch: Any, program: Any) -> bool:
    """Whether a program draws other numbers than masks of PyTorch's layers of dropout."""
    for block in program.graph_module.modules():  # what runs under torch.no_grad() is a block of its own
        for node in block.graph.nodes if isinstance(block, torch.fx.GraphModule) else ():
            if torch.Tag.nondeterministic_seeded in getattr(node.target, "tags", ()) and not _drops(node):
                return True
    return False


def _drops(node: Any) -> bool:
    stack = list((node.meta.get("nn_module_stack") or {}).values())
    innermost = str(stack[-1][1]) if stack else ""
    return "torch.nn.modules." in innermost and DROPPING.search(packet(node.target)) is not None
