"""What parameters and states start from: the rule of each value and the seed.

Every value draws from its own stream, keyed by the seed and its name, so the bits do not depend on the order of
values, on other values, or on the NumPy version (only Philox's raw words are used, the rest is arithmetic).
"""

import ctypes
import hashlib
import math
import operator
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from codegen.state import State
from planner.errors import UserError
from planner.graph.model import DType, Graph, Init, Value

Array = np.ndarray[Any, Any]


def read_weights(file: Path) -> dict[str, Array]:
    """The weights that came with a captured model; none without a file. SP1613: it cannot be read (nor run: pickled
    objects are refused)."""
    if not file.exists():
        return {}
    try:
        with np.load(file, allow_pickle=False) as arrays:
            given = {name: np.asarray(arrays[name]) for name in arrays.files}
    except Exception as error:  # NumPy, zipfile and the tokenizer each have errors of their own for what is damaged
        # What NumPy says of a file that is no archive is to load it as a pickle, which would run its code.
        why = "it is no .npz archive" if isinstance(error, ValueError) and "pickle" in str(error) else error
        raise UserError("SP1613", f"{file.name} cannot be read: {why}", "capture the model again") from error
    for name, data in given.items():
        if data.dtype.kind not in "fiubc":
            raise UserError("SP1613", f"{file.name} has no numbers in {name[:80]!r}", "capture the model again")
    return given


def checked_seed(seed: Any) -> int:
    """SP1610: it is no unsigned 64-bit number."""
    try:
        found = operator.index(seed)
    except TypeError:
        found = -1
    if not 0 <= found < 2**64:
        raise UserError("SP1610", f"seed {seed} is not an unsigned 64-bit number", "use one from 0 to 2**64 - 1")
    return found


LARGEST_RATE = float(np.finfo(np.float32).max)
"""What steps compute with is float32: more would be infinite there."""


def checked_rate(rate: Any) -> float:
    """A learning rate: a number, or an array of one. SP1610: it is no finite number from 0 on."""
    try:
        found = math.nan if isinstance(rate, str | bytes) else float(rate)
    except (TypeError, ValueError, OverflowError):
        found = math.nan
    if not 0 <= found <= LARGEST_RATE:
        raise UserError("SP1610", f"learning rate {rate!r} is not a finite number from 0 on", "use a number like 0.1")
    return found


def set_initial_values(state: State, seed: int, given: Mapping[str, Array]) -> None:
    """Write every parameter and state. `given` (a captured module's weights, by name) goes before the rules.

    SP1613: a value should come from `given` and does not, or its shape differs.
    """
    for value in state.values:
        name = value.name or value.id
        if name not in given:
            place = state.in_place(value)
            if place is None:
                state.write(value, draw(value, seed))
            else:
                _fill(value, seed, place)
            continue
        data = np.asarray(given[name])
        if data.shape != value.type.shape:
            raise UserError(
                "SP1613",
                f"weights.npz has {name} in shape {data.shape}, the plan in {value.type.shape}",
                "capture the model again",
            )
        state.write(value, data)


def with_drawn_data(graph: Graph) -> Graph:
    """The graph with rules in place of a captured model's weights, for executors that are only timed: random matrices
    and filters, ones elsewhere; whole numbers, which may be indices, are 0."""

    def rule(value: Value) -> Init:
        if value.type.dtype in (DType.INT32, DType.INT64, DType.UINT8):
            return Init(kind="zeros")
        return Init(kind="normal", value=0.05) if len(value.type.shape) > 1 else Init(kind="ones")

    given = [v.id for v in graph.values if v.init is not None and v.init.kind == "data"]
    changed = {v: graph.value[v].model_copy(update={"init": rule(graph.value[v])}) for v in given}
    return graph.model_copy(update={"values": tuple(changed.get(v.id, v) for v in graph.values)})


def draw(value: Value, seed: int) -> Array:
    """The contents that the value's own rule gives, in its logical shape."""
    found = np.empty(value.type.elements, np.float32)
    _fill(value, seed, found)
    return found.reshape(value.type.shape)


def _fill(value: Value, seed: int, out: Array) -> None:
    """The same into a flat array."""
    init = value.init
    if init is None or init.kind == "zeros":
        out[:] = 0
    elif init.kind == "ones":
        out[:] = 1
    elif init.kind == "constant":
        out[:] = init.value
    elif init.kind == "uniform":
        for place, drawn in _uniform(value.id, seed, len(out)):
            out[place] = (2 * drawn - 1) * init.value
    elif init.kind == "normal":
        for place, drawn in _normal(value.id, seed, len(out)):
            out[place] = drawn * init.value
    else:
        raise UserError(
            "SP1613",
            f"{value.id} takes its contents from weights.npz, which is missing or lacks it",
            "keep weights.npz beside plan.json, or capture the model again",
        )


PIECE = 1 << 18
"""Elements that are drawn at a time: doubles of a large table at once would take several times its bytes."""


def _words(name: str, seed: int) -> np.random.Philox:
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    return np.random.Philox(key=int.from_bytes(key[:16], "little"))


def _doubles(words: np.random.Philox, count: int) -> Array:
    """The next in [0, 1)."""
    return (words.random_raw(count) >> np.uint64(11)) * 2.0**-53


def _uniform(name: str, seed: int, count: int) -> Iterator[tuple[slice, Array]]:
    """(place, doubles in [0, 1)), piece by piece."""
    words = _words(name, seed)
    for start in range(0, count, PIECE):
        stop = min(count, start + PIECE)
        yield slice(start, stop), _doubles(words, stop - start)


def _normal(name: str, seed: int, count: int) -> Iterator[tuple[slice, Array]]:
    """(place, doubles of the standard normal distribution), piece by piece (Box and Muller: of two halves of the
    stream, radii and angles, come two halves of the result)."""
    half = (count + 1) // 2
    radii, angles = _words(name, seed), _words(name, seed)
    angles.random_raw(half, output=False)
    for start in range(0, half, PIECE):
        stop = min(half, start + PIECE)
        radius = np.sqrt(-2 * np.log(1 - _doubles(radii, stop - start)))
        angle = 2 * np.pi * _doubles(angles, stop - start)
        yield slice(start, stop), radius * np.cos(angle)
        rest = min(count - half, stop) - start
        yield slice(half + start, half + start + rest), (radius * np.sin(angle))[:rest]


def give_back_memory() -> None:
    """Return what drawing large tensors took to the system: the C library keeps freed memory, as much as the planned
    arena for a network that is mostly tables."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc only
    if trim is not None:
        trim(0)
