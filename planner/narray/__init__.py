"""NumPy-like lazy arrays (Minerva): expressions record the dataflow graph of a step instead of computing.

    import codegen.dataflow  # what builds and runs
    from planner import narray as na

    w1, w2 = na.normal((64, 100), 0.1), na.normal((100, 10), 0.1)
    for x, target in batches:
        a1 = na.relu(na.array(x) @ w1)
        s3 = na.softmax(a1 @ w2) - na.array(target)
        s2 = na.relu_backward(s3 @ w2.T, a1)
        w1, w2 = w1 - 0.01 * (na.array(x).T @ s2), w2 - 0.01 * (a1.T @ s3)
        na.wait_for_all()

When a value is asked for, everything recorded since the last time becomes one graph, which is planned and built: what
is independent runs side by side. The same operations on other data run the same executor again. `na.step` records a
function once. `start(dataflow=False)` computes every operation at once, in order, with NumPy.
"""

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from planner.errors import UserError
from planner.graph.model import ID_PATTERN
from planner.narray.array import NArray, with_elements
from planner.narray.functions import (
    absolute,
    avg_pool2d,
    avg_pool2d_backward,
    broadcast_to,
    clip,
    concatenate,
    conv2d,
    conv2d_backward_data,
    conv2d_backward_weights,
    count_nonzero,
    cross_entropy,
    equal,
    exp,
    local_response_norm,
    local_response_norm_backward,
    log,
    log_softmax,
    max_pool2d,
    max_pool2d_backward,
    maximum,
    mean_squared_error,
    minimum,
    multiply,
    relu,
    relu_backward,
    reshape,
    sigmoid,
    sigmoid_backward,
    softmax,
    softmax_backward,
    sqrt,
    square,
    tanh,
    tanh_backward,
    transpose,
)  # fmt: skip
from planner.narray.recorder import Recorder
from planner.narray.session import Engine, Session
from planner.narray.step import Tracing, stepping
from planner.units import parse_bytes

abs = absolute
_engines: list[Callable[..., Engine]] = []
_session: Session | None = None
_tracing: Tracing | None = None


# -- sessions --------------------------------------------------------------------------------------------------
def start(
    *, dataflow: bool = True, memory_limit: int | str | None = None, name: str = "narray", seed: int = 0, **options: Any
) -> Session:
    """Begin anew; arrays made before cannot meet new ones.

    dataflow: False computes every operation when it is written. memory_limit: bytes, or like "64MiB", of all arrays and
    planned steps together. name: of the first graph. seed: of random arrays. Other options are the engine's
    (codegen.dataflow.Dataflow). SP1042: nothing that runs recorded arrays is imported. SP1503, SP1610, SP1801: not a
    name, not a seed, not a size.
    """
    global _session
    limit = parse_bytes(str(memory_limit)) if memory_limit is not None else None
    if not isinstance(name, str) or not ID_PATTERN.fullmatch(name):
        raise UserError("SP1503", f"a graph cannot be called {name!r}", "use letters, digits, '.' and '_'")
    try:
        rng = np.random.default_rng(seed)
    except (TypeError, ValueError) as error:
        raise UserError("SP1610", f"seed {seed!r} is none: {error}", "use a number from 0 on") from error
    engine = None
    if dataflow:
        if not _engines:
            raise UserError("SP1042", "nothing is there that builds and runs steps", "import codegen.dataflow first")
        engine = _engines[-1](**options)
    if _session is not None:
        _session.close()
    _session = Session(engine, limit, name)
    _session.rng = rng
    return _session


def session() -> Session:
    """The one that arrays are made in now."""
    return _session or start()


def register(engine: Callable[..., Engine]) -> None:
    """What sessions run with from now on."""
    _engines.append(engine)


def wait_for_all() -> None:
    """Compute everything that was recorded."""
    session().run()


def _enter(tracing: Tracing | None) -> Tracing | None:
    global _tracing
    before, _tracing = _tracing, tracing
    return before


step = stepping(session, _enter)


# -- making arrays ---------------------------------------------------------------------------------------------
def array(data: Any, dtype: Any = np.float32, name: str = "") -> NArray:
    """A copy of the data. dtype: float32, or int64 for class numbers. name: what plans call it."""
    return _made(np.array(data, dtype, order="C"), name)


def asarray(data: Any, dtype: Any = np.float32, name: str = "") -> NArray:
    """As `array`, without a copy where data has that type already: it must not change until it was used."""
    return _made(np.asarray(data, dtype, order="C"), name)


from_numpy = array


def _made(data: Any, name: str = "") -> NArray:
    if data.dtype not in (np.float32, np.int64):
        raise UserError("SP1017", f"an array of {data.dtype}", "use float32, or int64 for class numbers")
    return NArray((_tracing or session()).given(with_elements(data), name))


def full(shape: Sequence[int], value: float) -> NArray:
    sizes = tuple(map(int, shape))
    if _tracing is not None:
        return NArray(_tracing.record("fill", (sizes, float(value))))
    return _made(np.full(sizes, value, np.float32))


def zeros(shape: Sequence[int]) -> NArray:
    return full(shape, 0.0)


def ones(shape: Sequence[int]) -> NArray:
    return full(shape, 1.0)


def normal(shape: Sequence[int], deviation: float = 1.0, mean: float = 0.0) -> NArray:
    """Drawn now, by the session's generator."""
    return _drawn("normal", lambda rng: rng.standard_normal(tuple(shape), np.float32) * deviation + mean)


def bernoulli(shape: Sequence[int], p: float) -> NArray:
    """1 with probability p, else 0; drawn now, by the session's generator."""
    return _drawn("bernoulli", lambda rng: rng.random(tuple(shape), np.float32) < p)


def _drawn(what: str, draw: Callable[[np.random.Generator], Any]) -> NArray:
    if _tracing is not None:
        raise UserError("SP1021", f"{what} inside of a step would be drawn once only", "draw outside and pass it in")
    return _made(np.ascontiguousarray(draw(session().rng), np.float32))


__all__ = [
    "NArray", "Recorder", "Session", "abs", "absolute", "array", "asarray", "avg_pool2d", "avg_pool2d_backward",
    "bernoulli", "broadcast_to", "clip", "concatenate", "conv2d", "conv2d_backward_data", "conv2d_backward_weights",
    "count_nonzero", "cross_entropy", "equal", "exp", "from_numpy", "full", "local_response_norm",
    "local_response_norm_backward", "log", "log_softmax", "max_pool2d", "max_pool2d_backward", "maximum",
    "mean_squared_error", "minimum", "multiply", "normal", "ones", "register", "relu", "relu_backward", "reshape",
    "session", "sigmoid", "sigmoid_backward", "softmax", "softmax_backward", "sqrt", "square", "start", "step", "tanh",
    "tanh_backward", "transpose", "wait_for_all", "zeros",
]  # fmt: skip
