"""ATen's arithmetic, activations and reductions."""

from collections.abc import Callable
from functools import reduce
from math import inf, log
from typing import Any

from planner.frontends.aten import HANDLERS, Context, Handler, lowers, packet, require
from planner.frontends.aten_elementwise import divided, whole_abs
from planner.frontends.torch_versions import closes_at_bounds
from planner.ops.activation import GeluAttrs, LeakyReluAttrs
from planner.ops.heads import SHUT
from planner.ops.rectifier import EluAttrs, SoftplusAttrs
from planner.ops.whole import Function

for _name in ("sigmoid", "tanh", "silu", "exp", "expm1", "log", "log1p", "sqrt", "reciprocal"):
    lowers(_name)(lambda c, x, op=_name: c.op(op, c.floating(x)))

_WHOLE: dict[str, Callable[[Context, str], Any]] = {
    "abs": whole_abs,
    "neg": lambda c, x: c.whole_of("sub", 0, x),
    "relu": lambda c, x: c.whole_of("maximum", x, 0),
    "square": lambda c, x: c.whole_of("mul", x, x),
}
for _name, _whole in _WHOLE.items():
    lowers(_name)(lambda c, x, op=_name, whole=_whole: whole(c, x) if c.whole_result() else c.op(op, x))


@lowers("_neg_view")
def _neg_view(c: Context, x: str) -> str:
    """What PyTorch makes of the imaginary parts of numbers that it has not conjugated yet."""
    return str(HANDLERS["aten.neg"](c, x))


@lowers("leaky_relu")
def _leaky_relu(c: Context, x: str, slope: float) -> str:
    return c.op("leaky_relu", x, attrs=LeakyReluAttrs(slope=float(slope)))


@lowers("gelu")
def _gelu(c: Context, x: str, approximate: str) -> str:
    return c.op("gelu", x, attrs=GeluAttrs.model_validate({"approximate": approximate}))


@lowers("rsqrt")
def _rsqrt(c: Context, x: str) -> str:
    return c.op("reciprocal", c.op("sqrt", c.floating(x)))


@lowers("hardtanh")
def _hardtanh(c: Context, x: str, low: Any, high: Any) -> str:
    return c.clamp(x, c.number(low), c.number(high))


@lowers("clamp")
def _clamp(c: Context, x: str, low: Any, high: Any) -> str:
    if c.whole_result():
        x = x if low is None else c.larger(x, low)
        return x if high is None else c.larger(x, high, -1)
    x = c.floating(x)  # whole numbers between bounds that are none
    closes, bounds = closes_at_bounds(c.torch), [b for b in (low, high) if b is not None]
    if all(c.number(b) is not None and not (closes and c.is_constant(b)) for b in bounds):
        bounded = c.clamp if closes else c.clip
        return bounded(x, *(None if b is None else c.number(b) for b in (low, high)))
    if not closes:
        return _between(c, x, low, high)
    y = x if low is None else c.larger(x, low)
    y = y if high is None else c.larger(y, high, -1)
    if len(bounds) < 2 or (not any(isinstance(b, str) for b in bounds) and _are_apart(c, low, high)):
        return y
    return c.where(c.compare("lt", low, high), y, _between(c, x, low, high))


def _between(c: Context, x: str, low: Any, high: Any) -> str:
    """Its gradient passes at the bounds."""
    x = x if low is None else c.where(c.compare("lt", x, low), c.floating(low), x)
    return x if high is None else c.where(c.compare("gt", x, high), c.floating(high), x)


def _are_apart(c: Context, low: Any, high: Any) -> bool:
    return bool((c.torch.as_tensor(low) < c.torch.as_tensor(high)).all())


@lowers("clamp_min")
def _clamp_min(c: Context, x: str, low: Any) -> str:
    return _clamp(c, x, low, None)


@lowers("clamp_max")
def _clamp_max(c: Context, x: str, high: Any) -> str:
    return _clamp(c, x, None, high)


@lowers("relu6")
def _relu6(c: Context, x: str) -> str:
    return c.clamp(x, 0, 6)


@lowers("hardsigmoid")
def _hard_sigmoid(c: Context, x: str) -> str:
    return c.hard_sigmoid(x)


@lowers("hardswish")
def _hard_swish(c: Context, x: str) -> str:
    return c.op("mul", x, c.hard_sigmoid(x))


@lowers("softplus")
def _softplus(c: Context, x: str, beta: float, threshold: float) -> str:
    return c.op("softplus", x, attrs=SoftplusAttrs(beta=float(beta), threshold=float(threshold)))


@lowers("log_sigmoid")
def _log_sigmoid(c: Context, x: str) -> str:
    return c.op("neg", c.op("softplus", c.op("neg", x), attrs=SoftplusAttrs()))


@lowers("log_sigmoid_forward")
def _log_sigmoid_forward(c: Context, x: str) -> Any:
    return (_log_sigmoid(c, x), None)


@lowers("mish")
def _mish(c: Context, x: str) -> str:
    return c.op("mul", x, c.op("tanh", c.op("softplus", x, attrs=SoftplusAttrs())))


@lowers("elu")
def _elu(c: Context, x: str, alpha: float, scale: float, input_scale: float) -> str:
    attrs = EluAttrs(alpha=float(alpha), scale=float(scale), input_scale=float(input_scale))
    return c.op("elu", x, attrs=attrs)


@lowers("selu")
def _selu(c: Context, x: str) -> str:
    return _elu(c, x, 1.6732632423543772, 1.0507009873554805, 1)


@lowers("celu")
def _celu(c: Context, x: str, alpha: float) -> str:
    return _elu(c, x, alpha, 1, 1 / alpha)


@lowers("prelu", "_prelu_kernel")
def _prelu(c: Context, x: str, weight: str) -> str:
    """One w, or one per channel (dimension 1)."""
    w, rank = c.val(weight), c.rank(x)
    if c.rank(w) == 1 and rank > 2 and c.shape(w)[0] > 1:
        w = c.reshape(w, (c.shape(w)[0], *([1] * (rank - 2))))
    return c.prelu(x, w)


@lowers("glu")
def _glu(c: Context, x: str, axis: int) -> str:
    axis %= c.rank(x)
    half = c.shape(x)[axis] // 2
    return c.op("mul", c.slice(x, axis, 0, half), c.op("sigmoid", c.slice(x, axis, half, 2 * half)))


@lowers("softmax", "_softmax")
def _softmax(c: Context, x: str, axis: int, *_: Any) -> str:
    return c.along_last("softmax", x, axis)


@lowers("log_softmax", "_log_softmax")
def _log_softmax(c: Context, x: str, axis: int, *_: Any) -> str:
    return c.along_last("log_softmax", x, axis)


# -- two operands ----------------------------------------------------------------------------------------------
@lowers("add")
def _add(c: Context, a: Any, b: Any, alpha: float = 1) -> str:
    if c.whole_result():
        return str(c.whole_of("add", a, b if alpha == 1 else c.whole_of("mul", b, c.torch.tensor(int(alpha)))))
    a, b = c.operand(a), c.operand(b)
    for x, y, factor in ((a, b, alpha), (b, a, alpha)):
        number = c.number(y)
        if isinstance(x, str) and number is not None:
            return c.shift(x, number * factor) if x is a else c.shift(c.scale(x, factor), number)
    return c.op("add", c.val(a), c.scale(c.val(b), float(alpha)))


@lowers("sub")
def _sub(c: Context, a: Any, b: Any, alpha: float = 1) -> str:
    if c.whole_result() or c.number(a) is not None or c.number(b) is not None:
        return _add(c, a, b, -alpha)
    a, b = c.operand(a), c.operand(b)
    return c.op("sub", c.val(a), c.scale(c.val(b), float(alpha)))


@lowers("rsub")
def _rsub(c: Context, a: Any, b: Any, alpha: float = 1) -> str:
    return _sub(c, b, a, alpha)


@lowers("mul")
def _mul(c: Context, a: Any, b: Any) -> str:
    if c.whole_result():
        return str(c.whole_of("mul", a, b))
    a, b = c.operand(a), c.operand(b)
    for x, y in ((a, b), (b, a)):
        number = c.number(y)
        if isinstance(x, str) and number is not None:
            return c.scale(x, number)
    return c.op("mul", c.val(a), c.val(b))


@lowers("div")
def _div(c: Context, a: Any, b: Any, rounding: str | None = None) -> str:
    if rounding is not None:
        return divided(c, a, b, rounding)
    a, b = c.operand(a), c.operand(b)
    number = c.number(b)
    if number is not None:
        require(number != 0, "a division by zero")
        return c.scale(c.val(a), 1 / number)
    number = c.number(a)
    if number is not None:
        return c.scale(c.op("reciprocal", b), number)
    return c.op("div", c.val(a), c.val(b))


@lowers("maximum")
def _maximum(c: Context, a: Any, b: Any) -> str:
    return c.larger(a, b)


@lowers("minimum")
def _minimum(c: Context, a: Any, b: Any) -> str:
    return c.larger(a, b, -1)


@lowers("pow")
def _pow(c: Context, a: Any, b: Any) -> str:
    exponent, base = c.number(b), c.number(a)
    if c.whole_result():
        require(exponent is not None and 1 <= exponent < 64, "whole numbers to another power than one from 1 to 63")
        return str(reduce(lambda power, _: c.whole_of("mul", power, a), range(1, int(exponent or 0)), a))
    if exponent is not None:
        return c.power(c.floating(a), exponent)
    if base is not None and base > 0:
        return c.op("exp", c.scale(c.floating(b), log(base)))
    return c.op("pow", c.floating(a), c.floating(b))


@lowers("fmax")
def _fmax(c: Context, a: Any, b: Any) -> str:
    return _not_nan(c, a, b, "ge")


@lowers("fmin")
def _fmin(c: Context, a: Any, b: Any) -> str:
    return _not_nan(c, a, b, "le")


def _not_nan(c: Context, a: Any, b: Any, relation: str) -> str:
    """a where it stands in the relation to b, or b is NaN; else b."""
    a, b = c.floating(a), c.floating(b)
    first = c.op("maximum", c.compare(relation, a, b), c.compare("ne", b, b))
    return c.where(first, a, b)


@lowers("ldexp")
def _ldexp(c: Context, x: Any, exponent: Any) -> str:
    return c.op("mul", c.floating(x), c.op("exp", c.scale(c.floating(exponent), log(2))))


@lowers("addcmul")
def _addcmul(c: Context, x: Any, a: Any, b: Any, value: float) -> str:
    return _add(c, x, _mul(c, a, b), value)


@lowers("addcdiv")
def _addcdiv(c: Context, x: Any, a: Any, b: Any, value: float) -> str:
    return _add(c, x, _div(c, a, b), value)


@lowers("lerp")
def _lerp(c: Context, a: Any, b: Any, weight: Any) -> str:
    return _add(c, a, _mul(c, _sub(c, b, a), weight))


# -- masks -----------------------------------------------------------------------------------------------------
@lowers("where")
def _where(c: Context, condition: Any, a: Any, b: Any) -> str:
    """With a constant mask and constants on one side, before which nothing else counts, a sum with those."""
    if c.whole_result():
        return c.chosen_whole(c.truth(condition, 0), a, b)
    if c.is_constant(condition):
        for x, other, mask in ((a, b, condition), (b, a, ~condition)):
            if isinstance(x, str) and not isinstance(other, str):
                rest = _masked(c, other, ~mask)
                if _vanishes(c, mask, rest[~mask]):
                    return c.op("add", c.floating(x), c.val(rest))
    mask = c.truth(condition, 0)
    return c.where(mask, c.floating(a), c.floating(b))


def _masked(c: Context, x: Any, mask: Any) -> Any:
    torch = c.torch
    value = x if c.is_constant(x) else torch.tensor(float(x))
    return torch.where(mask, value.float(), torch.zeros(()))


def _vanishes(c: Context, kept: Any, filled: Any) -> bool:
    """Whether what is filled in has no weight in anything that reads the result: then neither has what stands beside
    it, and a sum with it will do, as attention has it."""
    return _is_weighed(c) and bool((filled <= SHUT).all()) and bool(kept.any(-1).all())


def _is_weighed(c: Context) -> bool:
    """Whether only softmax over rows reads the result."""
    softmax = {c.torch.ops.aten.softmax.int, c.torch.ops.aten._softmax.default}
    return all(n.target in softmax and n.args[1] in (-1, len(n.meta["val"].shape) - 1) for n in c.node.users)


_PRODUCTS = {"aten.matmul", "aten.bmm", "aten.mm"}
_PASSING = {
    *("aten.dropout", "aten.to", "aten._to_copy", "aten.clone", "aten.contiguous", "aten.view", "aten._unsafe_view"),
    *("aten.reshape", "aten.expand", "aten.unsqueeze", "aten.squeeze", "aten.permute", "aten.transpose"),
}


def _is_multiplied(node: Any) -> bool:
    """Whether products alone read the result, as they do attention's weights: what is not a number stays that."""
    read = ((n, packet(n.target)) for n in node.users)
    return all(name in _PRODUCTS or (name in _PASSING and _is_multiplied(n)) for n, name in read)


@lowers("masked_fill")
def _masked_fill(c: Context, x: Any, mask: Any, value: Any) -> str:
    if c.whole_result():
        return c.chosen_whole(c.truth(mask, 1), value, x)
    if c.is_constant(mask):
        return _where(c, mask, value, x)
    # A finite number would let gradients through rows without others. This sum lets those through that are not numbers.
    if c.number(value) == -inf and _is_weighed(c) and all(map(_is_multiplied, c.node.users)):
        return c.op("add", c.floating(x), c.where(c.floating(mask), c.val(value), c.fill((), 0.0)))
    return c.where(c.floating(mask), c.floating(value), c.floating(x))


for _relation in ("eq", "ne", "lt", "le", "gt", "ge"):
    lowers(_relation)(lambda c, a, b, relation=_relation: c.compare(relation, a, b))


@lowers("logical_not", "bitwise_not")
def _not(c: Context, x: str) -> str:
    if c.whole_result():  # of whole numbers, whose bits are those of -x - 1
        require(c.dtype(0) is not c.torch.uint8, "bytes")
        return str(c.whole_of("sub", c.torch.tensor(-1), x))
    return c.shift(c.op("neg", c.truth(x, 0)), 1)


def _bit_by_bit(function: Function, of_truths: Handler) -> Handler:
    """Of whole numbers their bits; of booleans `of_truths`."""

    def handler(c: Context, a: Any, b: Any) -> str:
        return str(c.whole_of(function, a, b)) if c.whole_result() else of_truths(c, c.truth(a, 0), c.truth(b, 1))

    return handler


lowers("logical_and", "bitwise_and", "__and__")(_bit_by_bit("bitwise_and", lambda c, a, b: c.op("mul", a, b)))
lowers("logical_or", "bitwise_or", "__or__")(_bit_by_bit("bitwise_or", lambda c, a, b: c.op("maximum", a, b)))
lowers("logical_xor", "bitwise_xor", "__xor__")(_bit_by_bit("bitwise_xor", lambda c, a, b: c.compare("ne", a, b)))


@lowers("bitwise_left_shift", "__lshift__")
def _left_shift(c: Context, a: Any, b: Any) -> str:
    require(c.dtype(0) is not c.torch.uint8, "bytes")
    return str(c.whole_of("bitwise_left_shift", a, b))


@lowers("bitwise_right_shift", "__rshift__")
def _right_shift(c: Context, a: Any, b: Any) -> str:
    return str(c.whole_of("bitwise_right_shift", a, b))
