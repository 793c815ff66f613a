"""Buffers that a plan has as constants, since forward does not write to them. One that changes behind the capture, such
as a schedule's factor, or that a checkpoint changes, changes nothing of what the plan computes: that is told of."""

import hashlib
import warnings
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from codegen.state import as_array
from planner.errors import UserError
from planner.frontends.naming import safe_name

Array = np.ndarray[Any, Any]
MADE, CALLED = 4, 6
"""Frames from the warning to who makes a planned module, or calls it."""


class FixedBuffers:
    """`shared`: names of buffers that the executor reads where they are, or counts itself. `captured`: contents of
    others by name, as far as the module saves them."""

    def __init__(self, module: nn.Module, shared: set[str], captured: Mapping[str, Array]) -> None:
        buffers = {name: b for name, b in module.named_buffers() if name not in shared}
        self._seen = {name: (b, _version(b)) for name, b in buffers.items()}
        self._contents: dict[str, bytes] = {}
        for name, buffer in buffers.items():
            own = as_array(buffer)
            self._contents[name] = _digest(own)
            if not np.array_equal(captured.get(safe_name(name), own), own, equal_nan=own.dtype.kind == "f"):
                self._tell(name, MADE)

    def look(self, buffers: Mapping[str, torch.Tensor]) -> None:
        """A warning for each that has changed, once."""
        for name, (known, version) in list(self._seen.items()):
            buffer = buffers.get(name, known)
            if buffer is known and _version(buffer) == version:
                continue
            self._seen[name] = buffer, _version(buffer)
            if _digest(as_array(buffer)) != self._contents[name]:
                self._tell(name, CALLED)

    def _tell(self, name: str, frames: int) -> None:
        self._seen.pop(name)
        problem = f"buffer {name!r} has changed since the module was captured: in a plan it stays what it was"
        fix = "capture the module again, or let it be an input; if nothing depends on it, all is well"
        warnings.warn(str(UserError("SP1014", problem, fix)), RuntimeWarning, stacklevel=frames)


def _version(tensor: torch.Tensor) -> int:
    return 0 if tensor.is_inference() else tensor._version


def _digest(array: Array) -> bytes:
    return hashlib.blake2b(array.tobytes()).digest()
