"""What is said of a module that PyTorch cannot export, or not with the gradients that it has."""

import re
from enum import Enum
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_places import bracketed, calling_line, causes, place_of, raised_at

PADDED = "pass padded sequences and their lengths, and pack them in forward"
_UNKNOWN_RESULT = re.compile(r"Found <class '([^']+)'> in output, which is not a known type")
_DATA_DEPENDENT = re.compile(r"data-?dependent|dynamic (shape|output)|dynamicoutput")


def _told(error: BaseException) -> str:
    return f"{type(error).__name__} {error}".lower()


def export_error(error: Exception) -> UserError:
    line = raised_at(error)
    place = f" at {line}" if line else ""
    # What PyTorch wanted to add to its message may fail in its turn.
    of_data = next((e for e in causes(error) if _DATA_DEPENDENT.search(_told(e))), None)
    lines = [line.strip() for line in str(of_data or error).splitlines() if line.strip()]
    problem = re.sub(r" \(unhinted:.*", "", lines[0]) if lines else type(error).__name__
    if isinstance(error, KeyError):  # which says no more than the key
        problem = f"KeyError: {problem}"
    text = _told(error)
    if of_data:
        fix = "sizes and branches may not depend on the data: use fixed shapes, and masks instead of indexing"
        return UserError("SP1014", f"the module has shapes or branches that depend on the data{place}: {problem}", fix)
    fix = "check that module(*inputs), and the loss behind it, run; see PyTorch's documentation of torch.export"
    if "fake tensor in the exported program constant" in text:
        fix = "of `.data`, PyTorch's export knows nothing: use detach(), and write to nothing through it"
    if "exporting a scriptmodule" in text:
        fix = "pass the module itself, not what torch.jit makes of it"
    unknown = _unknown_result(error)
    if unknown:
        problem = f"it returns a {unknown}, of which PyTorch does not know what it holds"
        fix = (
            "return tensors, numbers and texts in tuples, lists, dicts and named tuples; call "
            "torch.export.register_dataclass for a dataclass (of transformers' models: config.use_cache = False)"
        )
    return UserError("SP1013", f"torch.export cannot capture the module{place}: {problem}", fix)


def _unknown_result(error: Exception) -> str:
    """The class that PyTorch does not know; it takes an Enum, which it does know as an argument, for a node."""
    told = _UNKNOWN_RESULT.search(str(error))
    if isinstance(error, AttributeError) and error.name == "meta" and isinstance(error.obj, Enum):
        return type(error.obj).__name__
    return told[1] if told else ""


def own_gradient(what: str, line: str) -> UserError:
    fix = "put what changes gradients into a torch.autograd.Function that returns new tensors, or into the loss"
    return UserError("SP1024", f"the module has gradients of its own: {what}{bracketed(line)}", fix)


def no_derivative(what: str, node: Any) -> UserError:
    place = calling_line() if node is None else place_of(node)
    fix = "use torch.autograd.grad, of operators of PyTorch's that draw no numbers"
    return UserError(
        "SP1025", f"the module computes a derivative that a plan cannot have: {what}{bracketed(place)}", fix
    )
