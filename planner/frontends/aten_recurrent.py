"""ATen's recurrent layers, unrolled over time: one product with the inputs of many times, then cell after cell."""

from collections.abc import Callable
from itertools import accumulate
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.graph.shared_weights import steps_of_blocks
from planner.ops.dropout import DropoutAttrs

Cell = Callable[[Context, str, str, list[str]], list[str]]
"""(gates of the input, gates of the hidden state, states) -> states; the first state is the output."""


def _lstm_cell(c: Context, a: str, b: str, states: list[str]) -> list[str]:
    return list(c.outputs("lstm_cell", a, b, states[1])[:2])


def _gru_cell(c: Context, a: str, b: str, states: list[str]) -> list[str]:
    return [c.op("gru_cell", a, b, states[0])]


def _plain_cell(activation: str) -> Cell:
    def cell(c: Context, a: str, b: str, states: list[str]) -> list[str]:
        return [c.op(activation, c.op("add", a, b))]

    return cell


def _linear(c: Context, x: str, w: Any, bias: Any) -> str:
    return c.op("linear", x, c.val(w), *([c.val(bias)] if bias is not None else []))


def _unrolled(
    c: Context, x: str, states: list[str], parameters: list[Any], cell: Cell, backwards: bool, counted: list[str]
) -> Any:
    """x (T, N, I), states (N, H) each; parameters w_ih, w_hh, [b_ih, b_hh], [w_hr]. counted: by time, which sequences
    have it, (N, 1), or nothing: all. Returns (outputs by time, last states)."""
    times, batch, width = c.shape(x)
    w_input, w_hidden, *rest = parameters
    b_input, b_hidden = rest[:2] if len(rest) > 1 else (None, None)
    projection = rest[-1] if len(rest) % 2 else None
    sizes = steps_of_blocks(times, batch, [c.shape(c.val(w)) for w in (w_input, w_hidden)])
    rows = c.split(c.reshape(x, (times * batch, width)), 0, [steps * batch for steps in sizes])
    blocks = [*zip(rows, sizes, accumulate(sizes), strict=True)]
    found: list[str] = [""] * times
    for block, steps, end in reversed(blocks) if backwards else blocks:
        parts = c.split(_linear(c, block, w_input, b_input), 0, [batch] * steps)
        for t in reversed(range(steps)) if backwards else range(steps):
            before = states
            states = cell(c, parts[t], _linear(c, states[0], w_hidden, b_hidden), states)
            if projection is not None:
                states = [_linear(c, states[0], projection, None), *states[1:]]
            if counted:
                states = [c.where(counted[t], *pair) for pair in zip(states, before, strict=True)]
            found[end - steps + t] = states[0]
    return found, states


def _layers(
    c: Context, cell: Cell, x: Any, first: list[Any], parameters: list[Any], biases: bool, layers: int, dropout: float,
    train: bool, both: bool, batch_first: bool, counted: tuple[list[str], list[str]] = ([], []),
) -> tuple[str, ...]:  # fmt: skip
    """Layer upon layer, in one or both directions. first: states (layers * directions, N, H) each; counted: for each
    direction, as `_unrolled` has it."""
    x, first = c.val(x), [c.val(s) for s in first]
    if c.rank(x) == 2:
        alone = _layers(
            c, cell, c.unsqueeze(x, 1), [c.unsqueeze(s, 1) for s in first], parameters, biases, layers, dropout, train,
            both, False,
        )  # fmt: skip
        return tuple(c.select(v, 1, 0) for v in alone)
    directions = 1 + both
    each = len(parameters) // (layers * directions)
    x = c.permute(x, (1, 0, 2)) if batch_first else x
    last: list[list[str]] = [[] for _ in first]
    for layer in range(layers):
        outputs = []
        for direction in range(directions):
            at = layer * directions + direction
            states = [c.select(s, 0, at) for s in first]
            own = parameters[at * each : (at + 1) * each]
            found, states = _unrolled(c, x, states, own, cell, direction == 1, counted[direction])
            outputs.append(c.stack(found, 0))
            for collected, state in zip(last, states, strict=True):
                collected.append(state)
        x = c.concat(outputs, 2)
        if dropout and train and layer + 1 < layers:
            x = c.op("dropout", x, attrs=DropoutAttrs(p=float(dropout)))
    y = c.permute(x, (1, 0, 2)) if batch_first else x
    return (y, *(c.stack(states, 0) for states in last))


@lowers("lstm")
def _lstm(c: Context, x: str, first: list[Any], parameters: Any, *options: Any) -> Any:
    require(isinstance(parameters, list), "packed sequences")
    return _layers(c, _lstm_cell, x, [c.val(s) for s in first], parameters, *options)


@lowers("gru")
def _gru(c: Context, x: str, first: Any, parameters: Any, *options: Any) -> Any:
    require(isinstance(parameters, list), "packed sequences")
    return _layers(c, _gru_cell, x, [c.val(first)], parameters, *options)


@lowers("rnn_tanh")
def _rnn_tanh(c: Context, x: str, first: Any, parameters: Any, *options: Any) -> Any:
    require(isinstance(parameters, list), "packed sequences")
    return _layers(c, _plain_cell("tanh"), x, [c.val(first)], parameters, *options)


@lowers("rnn_relu")
def _rnn_relu(c: Context, x: str, first: Any, parameters: Any, *options: Any) -> Any:
    require(isinstance(parameters, list), "packed sequences")
    return _layers(c, _plain_cell("relu"), x, [c.val(first)], parameters, *options)


_CELLS = {
    "lstm": _lstm_cell,
    "gru": _gru_cell,
    "rnn_tanh": _plain_cell("tanh"),
    "rnn_relu": _plain_cell("relu"),
}


@lowers("stepplan.recurrent")
def _ending(c: Context, x: str, mask: Any, first: list[Any], parameters: list[Any], kind: str, *options: Any) -> Any:
    """Of sequences that end (torch_packed.py): behind their ends, states are as they were there. Who goes forward and
    leaves no states to anybody does not have to know."""
    wide = c.unsqueeze(c.truth(mask, 1), 2)
    counted = [c.select(wide, 0, t) for t in range(c.shape(wide)[0])]
    forward = counted if any(c.wanted(i + 1) for i in range(len(first))) else []
    biases, layers, dropout, train, both = options
    ends = (forward, counted)
    return list(_layers(c, _CELLS[kind], x, first, parameters, biases, layers, dropout, train, both, False, ends))


@lowers("lstm_cell")
def _one_lstm_cell(c: Context, x: str, states: list[Any], w_input: Any, w_hidden: Any, *biases: Any) -> Any:
    h, state = (c.val(s) for s in states)
    b_input, b_hidden = biases or (None, None)
    return _lstm_cell(c, _linear(c, x, w_input, b_input), _linear(c, h, w_hidden, b_hidden), [h, state])


@lowers("gru_cell")
def _one_gru_cell(c: Context, x: str, h: Any, w_input: Any, w_hidden: Any, *biases: Any) -> Any:
    h = c.val(h)
    b_input, b_hidden = biases or (None, None)
    return _gru_cell(c, _linear(c, x, w_input, b_input), _linear(c, h, w_hidden, b_hidden), [h])[0]
