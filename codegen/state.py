"""Parameters and states of an executor, in and out, by the framework's names and in its layout."""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from codegen.cpu.tables import trained_parameters
from planner.errors import UserError
from planner.graph.model import PERSISTENT, DType, Graph, Value
from planner.ops.base import round_bfloat16
from planner.ops.stored import Stored, from_stored, to_stored
from planner.ops.strides import memory_order

Array = np.ndarray[Any, Any]

NO_LAYOUTS: Mapping[str, Stored] = {}

PREFIX = "stepplan."
MOST_COUNTED = 2**62
"""Steps and batches of a state are fewer, so that they can be counted on in 64 bits."""
COUNTER = "num_batches_tracked"
"""PyTorch's batch norms count batches; no kernel needs that number, but a PyTorch module's state has it."""


class IncompatibleKeys(NamedTuple):
    """What of a state was not taken over, as PyTorch tells it."""

    missing_keys: list[str]
    """Of the plan; what the optimizer or a loss keeps only where the state has some of it."""
    unexpected_keys: list[str]


class State:
    """`view` gives a value's bytes as an array in its memory order. `given`: a captured module's weights; what of them
    is no value of the graph is carried along, so that the state is the module's. `store` writes such an array to where
    `view` only reads a copy from. `layouts`: id of a value -> how it is stored, where that is not plainly."""

    def __init__(
        self,
        graph: Graph,
        view: Callable[[Value], Array],
        given: Mapping[str, Array],
        store: Callable[[Value, Array], None] | None = None,
        layouts: Mapping[str, Stored] = NO_LAYOUTS,
    ) -> None:
        self._view, self._store, self._layouts, self._loss = view, store, layouts, graph.loss_prefix
        self.values = tuple(v for v in graph.values if v.role in PERSISTENT)
        self.by_name = {v.name or v.id: v for v in self.values}
        self.trained = {v: graph.value[v].name or v for v in trained_parameters(graph)}
        """Value id -> name of every trained parameter."""
        updates = [n for p in graph.programs for n in p.nodes if n.phase == "update"]
        buffers = {v.id for v in self.values if v.init is not None and v.init.kind == "data"}
        self.slots = {v for n in updates for v in n.updates} - self.trained.keys() - buffers
        """Ids of what an optimizer or a carried state keeps: PyTorch's modules have none of it. A module's buffers that
        forward changes are carried, too, but were captured with their contents."""
        rates = [float(getattr(n.attrs, "lr", 0.0)) for n in updates]
        self.first_lr = graph.lr or next((r for r in rates if r), 0.0)
        self.steps = 0
        """Training steps since the counters of batches were set."""
        self._aliases = {a: n for n, v in self.by_name.items() for a in v.aliases}
        self.per_step = {n: 0 for n in given if n.endswith(COUNTER)} | _batch_norms(graph)
        rest = {n: a for n, a in given.items() if n not in self.by_name and n not in self._aliases}
        self._counters = {n: int(rest.pop(n, np.int64(0))) for n in self.per_step}
        self.fixed: Mapping[str, Array] = rest
        """What the module saves and the plan has as constants, or does not compute with."""

    # -- out ---------------------------------------------------------------------------------------------------
    def read_all(self) -> dict[str, Array]:
        """Everything by name, tied parameters under each of theirs."""
        found = {name: self.read(value) for name, value in self.by_name.items()}
        found |= {alias: found[name].copy() for alias, name in self._aliases.items()}
        counters = {n: np.asarray(c + self.steps * self.per_step[n], np.int64) for n, c in self._counters.items()}
        return found | counters | {name: data.copy() for name, data in self.fixed.items()}

    def module_names(self) -> list[str]:
        """Names of the framework's module: neither the optimizer's states, nor what the model's code fixes, nor the
        loss's."""
        own = [n for n, v in self.by_name.items() if v.id not in self.slots and not v.constant]
        return [n for n in (*own, *self._aliases, *self._counters, *self.fixed) if not self._of_loss(n)]

    def loss_names(self) -> dict[str, str]:
        """Name within the loss -> name here, of all that a loss saves."""
        found = (*(n for n, v in self.by_name.items() if v.id not in self.slots), *self._aliases, *self._counters)
        return {n.removeprefix(self._loss): n for n in (*found, *self.fixed) if self._of_loss(n)}

    def _of_loss(self, name: str) -> bool:
        return bool(self._loss) and name.startswith(self._loss)

    def read(self, value: Value) -> Array:
        """A copy in the logical shape, contiguous; of bfloat16, which NumPy lacks, in float32."""
        view = self._view(value)
        data = self.plain(value, view) if value.id in self._layouts else logical(view, value)
        return in_framework(value, np.array(from_words(data) if data.dtype == np.uint16 else data, order="C"))

    def plain(self, value: Value, data: Array) -> Array:
        """An array in the order in which the plan stores the value, or its gradient, in its logical shape."""
        stored = self._layouts.get(value.id)
        return data if stored is None else from_stored(data.reshape(-1), value.type.shape, stored)

    # -- in ----------------------------------------------------------------------------------------------------
    def in_place(self, value: Value) -> Array | None:
        """A float32 value's bytes as a flat array to write to, where they lie in the order of its logical shape."""
        order = memory_order(value.type)
        if self._store is not None or value.type.dtype is not DType.FLOAT32 or list(order) != sorted(order):
            return None
        if value.id in self._layouts:
            return None
        return self._view(value).reshape(-1)

    def write(self, value: Value, data: Array) -> None:
        stored = self._layouts.get(value.id)
        ordered = data.transpose(memory_order(value.type)) if stored is None else to_stored(data, stored)
        if self._store is not None:
            self._store(value, ordered)
        else:
            view = self._view(value)
            view[...] = (to_words(ordered) if view.dtype == np.uint16 else ordered).reshape(view.shape)

    def load(self, state: Mapping[str, Any], strict: bool) -> IncompatibleKeys:
        """Write everything that `state` names, except `stepplan.` entries, after all of it was looked at."""
        given = {k: _told(k, v) for k, v in state.items() if not k.startswith(PREFIX)}
        counters = {k: _counted(k, v) for k, v in given.items() if k.endswith(COUNTER)}
        tensors = {k: v for k, v in given.items() if k not in counters}
        fixed = {k: tensors.pop(k) for k in self.fixed if k in tensors}
        tensors = self._untied(tensors, strict)
        found = self._incompatible(tensors)
        if strict:
            _require_none(found)
            self._require_same(fixed)
        fitting = [(self.by_name[k], in_pairs(v)) for k, v in tensors.items() if k in self.by_name]
        for value, data in fitting:
            if data.shape != value.type.shape or data.dtype.kind not in "fiu":
                raise UserError(
                    "SP1611",
                    f"{value.name or value.id} must be {value.type.text()}, not {data.dtype} of shape {data.shape}",
                    "load the state of this model",
                )
        for value, data in fitting:
            self.write(value, data)
        now = {n: c + self.steps * self.per_step[n] for n, c in self._counters.items()}
        self._counters = {n: counters.get(n, c) for n, c in now.items()}
        self.steps = 0
        return found

    def _untied(self, tensors: Mapping[str, Array], strict: bool) -> dict[str, Array]:
        """One entry per value; SP1611 where tied parameters differ."""
        found = {k: v for k, v in tensors.items() if k not in self._aliases}
        for alias, name in self._aliases.items():
            if alias not in tensors:
                continue
            if strict and not np.array_equal(found.setdefault(name, tensors[alias]), tensors[alias], equal_nan=True):
                raise UserError(
                    "SP1611",
                    f"{name} and {alias} are one tensor in this model and differ in the state",
                    "load the state of this model, or capture the model without tying them",
                )
            found.setdefault(name, tensors[alias])
        return found

    def _incompatible(self, tensors: Mapping[str, Array]) -> IncompatibleKeys:
        unknown = sorted(k for k in tensors if k not in self.by_name)
        with_loss = any(map(self._of_loss, tensors))
        needed = (n for n, v in self.by_name.items() if v.id not in self.slots and not v.constant)
        missing = sorted(n for n in needed if n not in tensors and (with_loss or not self._of_loss(n)))
        slots = {n for n, v in self.by_name.items() if v.id in self.slots}
        if slots & tensors.keys():
            missing += sorted(slots - tensors.keys())
        return IncompatibleKeys(missing, unknown)

    def _require_same(self, fixed: Mapping[str, Array]) -> None:
        """What was folded into the plan's constants cannot change any more."""
        for name, data in fixed.items():
            if not np.array_equal(data, self.fixed[name], equal_nan=data.dtype.kind == "f"):
                raise UserError(
                    "SP1611",
                    f"{name} was fixed when the model was captured and differs in the state",
                    "capture the model with that state, or pass strict=False to keep the plan's",
                )


def _require_none(found: IncompatibleKeys) -> None:
    told = [
        f"{len(names)} {what} ({', '.join(names[:4])}{', ...' if len(names) > 4 else ''})"
        for what, names in (("missing", found.missing_keys), ("unknown", found.unexpected_keys))
        if names
    ]
    if told:
        raise UserError(
            "SP1611",
            f"the state does not fit the plan: {' and '.join(told)}",
            "load the state of this model, or pass strict=False to take over what fits",
        )


def _batch_norms(graph: Graph) -> dict[str, int]:
    """Name of every batch norm's counter -> how often it runs in a training step."""
    program = graph.program.get("train_step")
    found: dict[str, int] = {}
    for node in program.nodes if program else ():
        if node.op == "batch_norm" and node.updates:
            mean = graph.value[node.updates[0]]
            for name in (mean.name, *mean.aliases):  # of one that the module has under several
                if name.endswith(".running_mean"):
                    counter = f"{name.removesuffix('running_mean')}{COUNTER}"
                    found[counter] = found.get(counter, 0) + 1
    return found


def logical(data: Array, value: Value) -> Array:
    """An array in a value's memory order in its logical shape; no copy."""
    order = memory_order(value.type)
    back = sorted(range(len(order)), key=order.__getitem__)
    return data.transpose(back)


def in_framework(value: Value, data: Array) -> Array:
    """A value of pairs as complex numbers; any other as it is. `data`: contiguous."""
    return data.view(np.complex64)[..., 0] if value.pairs else data


def _counted(name: str, data: Array) -> int:
    found = count_in(data)
    if found is None:
        raise UserError("SP1611", f"{name} counts batches and is {as_text(data)}", "load the state of this model")
    return found


def count_in(data: Array) -> int | None:
    """A count from 0 on that a state holds, as a float, too, since people convert whole states; None: it is none."""
    if data.size != 1 or data.dtype.kind not in "iuf" or not 0 <= data.item() < MOST_COUNTED:
        return None
    return int(data.item()) if data.item() == int(data.item()) else None


def as_text(data: Array) -> str:
    """An array as messages show it."""
    return f"{data.dtype} {np.array2string(data, threshold=4)[:60]}"


def in_pairs(data: Array) -> Array:
    """Complex numbers as pairs along a last axis, in float32; any other array as it is."""
    complex_ = data.dtype.kind == "c"
    return np.ascontiguousarray(data, np.complex64)[..., None].view(np.float32) if complex_ else data


def from_words(words: Array) -> Array:
    """bfloat16 numbers as they lie in memory (uint16), in float32."""
    found: Array = (words.astype(np.uint32) << 16).view(np.float32)
    return found


def to_words(data: Array) -> Array:
    """The nearest bfloat16 numbers, as they lie in memory."""
    rounded = round_bfloat16(np.asarray(data, np.float32, order="C"))
    return (rounded.view(np.uint32) >> 16).astype(np.uint16)


def _told(name: str, data: Any) -> Array:
    if str(getattr(data, "layout", "")).startswith("torch.sparse"):  # of no executor: a constant of the plan
        return np.empty(0, np.float32)
    try:
        return as_array(data)
    except (TypeError, ValueError, RuntimeError) as error:  # on PyTorch's meta device, for instance
        raise UserError("SP1611", f"{name} has no contents: {error}", "load the state of this model") from error


def as_array(data: Any) -> Array:
    """NumPy arrays, PyTorch tensors (detached, brought to the processor), numbers."""
    for method in ("detach", "cpu"):
        if hasattr(data, method):
            data = getattr(data, method)()
    if type(data).__module__.startswith("torch") and str(data.dtype) == "torch.bfloat16":
        data = data.float()
    return np.asarray(data)
