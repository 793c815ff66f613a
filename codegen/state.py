"""Parameters and states of an executor, in and out, by the framework's names and in its layout."""

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from codegen.cpu.tables import trained_parameters
from planner.errors import UserError
from planner.graph.model import PERSISTENT, Graph, Value
from planner.ops.strides import memory_order

Array = np.ndarray[Any, Any]

PREFIX = "stepplan."
IGNORED = "num_batches_tracked"
"""PyTorch counts batches; nothing here needs that number."""


class State:
    """`view` gives a value's bytes as an array in its memory order."""

    def __init__(self, graph: Graph, view: Callable[[Value], Array]) -> None:
        self._view = view
        self.values = tuple(v for v in graph.values if v.role in PERSISTENT)
        self.by_name = {v.name or v.id: v for v in self.values}
        self.trained = {v: graph.value[v].name or v for v in trained_parameters(graph)}
        """Value id -> name of every trained parameter."""
        updates = [n for p in graph.programs for n in p.nodes if n.phase == "update"]
        self.slots = {v for n in updates for v in n.updates if v not in self.trained}
        """Ids of what an optimizer or a carried state keeps: PyTorch's modules have none of it."""
        rates = [float(getattr(n.attrs, "lr", 0.0)) for n in updates]
        self.first_lr = next((r for r in rates if r), 0.0)

    def read_all(self) -> dict[str, Array]:
        return {name: self.read(value) for name, value in self.by_name.items()}

    def read(self, value: Value) -> Array:
        """A copy in the logical shape, contiguous."""
        back = tuple(int(a) for a in np.argsort(memory_order(value.type)))
        return np.array(self._view(value).transpose(back), order="C")

    def write(self, value: Value, data: Array) -> None:
        self._view(value)[...] = data.transpose(memory_order(value.type))

    def load(self, state: Mapping[str, Any], strict: bool) -> dict[str, Any]:
        """Write everything that `state` names, after all of it was looked at; returns the `stepplan.` entries."""
        given = {k: as_array(v) for k, v in state.items() if not k.endswith(IGNORED)}
        extra = {k[len(PREFIX) :]: v for k, v in given.items() if k.startswith(PREFIX)}
        tensors = {k: v for k, v in given.items() if not k.startswith(PREFIX)}
        unknown = sorted(k for k in tensors if k not in self.by_name)
        missing = sorted(n for n, v in self.by_name.items() if n not in tensors and v.id not in self.slots)
        slots = {n for n, v in self.by_name.items() if v.id in self.slots}
        if slots & tensors.keys():
            missing += sorted(slots - tensors.keys())
        if strict and (unknown or missing):
            told = [f"{len(names)} {what} ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
                    for what, names in (("missing", missing), ("unknown", unknown)) if names]  # fmt: skip
            raise UserError(
                "SP1611",
                f"the state does not fit the plan: {' and '.join(told)}",
                "load the state of this model, or pass strict=False to take over what fits",
            )
        fitting = [(self.by_name[k], v) for k, v in tensors.items() if k in self.by_name]
        for value, data in fitting:
            if data.shape != value.type.shape or data.dtype.kind not in "fiu":
                raise UserError(
                    "SP1611",
                    f"{value.name or value.id} must be {value.type.text()}, not {data.dtype} of shape {data.shape}",
                    "load the state of this model",
                )
        for value, data in fitting:
            self.write(value, data)
        return {k: v[()] for k, v in extra.items()}


def as_array(data: Any) -> Array:
    """NumPy arrays, PyTorch tensors (detached, brought to the processor), numbers."""
    for method in ("detach", "cpu"):
        if hasattr(data, method):
            data = getattr(data, method)()
    if type(data).__module__.startswith("torch") and str(data.dtype) == "torch.bfloat16":
        data = data.float()
    return np.asarray(data)
