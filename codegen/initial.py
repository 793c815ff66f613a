"""What parameters and states start from: the rule of each value and the seed.

Every value draws from its own stream, keyed by the seed and its name, so the bits do not depend on the order of
values, on other values, or on the NumPy version (only Philox's raw words are used, the rest is arithmetic).
"""

import ctypes
import hashlib
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.graph.model import Value

Array = np.ndarray[Any, Any]


def read_weights(file: Path) -> dict[str, Array]:
    """The weights that came with a captured model; none without a file. SP1613: it cannot be read (nor run: pickled
    objects are refused)."""
    if not file.exists():
        return {}
    try:
        with np.load(file, allow_pickle=False) as arrays:
            given = {name: np.asarray(arrays[name]) for name in arrays.files}
    except (
        OSError,
        ValueError,
        EOFError,
        AttributeError,
        NotImplementedError,
        zipfile.BadZipFile,
        zlib.error,
    ) as error:
        raise UserError("SP1613", f"{file.name} cannot be read: {error}", "capture the model again") from error
    for name, data in given.items():
        if data.dtype.kind not in "fiub":
            raise UserError("SP1613", f"{file.name} has no numbers in {name[:80]!r}", "capture the model again")
    return given


def initial_values(values: Iterable[Value], seed: int, given: Mapping[str, Array]) -> Iterator[tuple[Value, Array]]:
    """(value, contents in its logical shape). `given` (a captured module's weights, by name) goes before the rules.

    SP1613: a value should come from `given` and does not, or its shape differs.
    """
    for value in values:
        name = value.name or value.id
        if name in given:
            data = np.asarray(given[name])
            if data.shape != value.type.shape:
                raise UserError(
                    "SP1613",
                    f"weights.npz has {name} in shape {data.shape}, the plan in {value.type.shape}",
                    "capture the model again",
                )
            yield value, data
        else:
            yield value, draw(value, seed)


def draw(value: Value, seed: int) -> Array:
    """The contents that the value's own rule gives."""
    shape, count = value.type.shape, value.type.elements
    init = value.init
    kind = init.kind if init else "zeros"
    if kind == "zeros":
        return np.zeros(shape, np.float32)
    if kind == "ones":
        return np.ones(shape, np.float32)
    assert init is not None
    if kind == "constant":
        return np.full(shape, init.value, np.float32)
    if kind == "uniform":
        return ((2 * uniform(value.id, seed, count) - 1) * init.value).astype(np.float32).reshape(shape)
    if kind == "normal":
        return (normal(value.id, seed, count) * init.value).astype(np.float32).reshape(shape)
    raise UserError(
        "SP1613",
        f"{value.id} takes its contents from weights.npz, which is missing or lacks it",
        "keep weights.npz beside plan.json, or capture the model again",
    )


def uniform(name: str, seed: int, count: int) -> Array:
    """Doubles in [0, 1)."""
    key = hashlib.sha256(f"{seed}/{name}".encode()).digest()
    words = np.random.Philox(key=int.from_bytes(key[:16], "little")).random_raw(count)
    return (words >> np.uint64(11)) * 2.0**-53


def normal(name: str, seed: int, count: int) -> Array:
    """Doubles of the standard normal distribution (Box and Muller)."""
    half = (count + 1) // 2
    both = uniform(name, seed, 2 * half)
    radius, angle = np.sqrt(-2 * np.log(1 - both[:half])), 2 * np.pi * both[half:]
    return np.concatenate((radius * np.cos(angle), radius * np.sin(angle)))[:count]


def give_back_memory() -> None:
    """Return what drawing large tensors took to the system: the C library keeps freed memory, as much as the planned
    arena for a network that is mostly tables."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # of glibc only
    if trim is not None:
        trim(0)
