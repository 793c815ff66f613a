"""ATen's functions of single elements that are compositions: rounding, signs, logarithms, angles, tests for NaN.

To rounding no gradient flows, as to comparisons and conversions to whole numbers.
"""

from math import copysign, inf, log, pi
from typing import Any

from planner.frontends.aten import Context, lowers, require

for _name in ("erf", "sin", "cos", "atan", "lgamma", "digamma"):
    lowers(_name)(lambda c, x, op=_name: c.op(op, c.floating(x)))


@lowers("polygamma")
def _polygamma(c: Context, order: int, x: Any) -> str:
    require(order in (0, 1), f"order {order}")
    return c.op("trigamma" if order else "digamma", c.floating(x))


@lowers("tan")
def _tan(c: Context, x: str) -> str:
    return c.op("div", c.op("sin", x), c.op("cos", x))


@lowers("erfc", "special_erfc")
def _erfc(c: Context, x: str) -> str:
    return c.shift(c.op("neg", c.op("erf", x)), 1)


@lowers("sinh")
def _sinh(c: Context, x: str) -> str:
    return c.scale(c.op("sub", c.op("expm1", x), c.op("expm1", c.op("neg", x))), 0.5)


@lowers("cosh")
def _cosh(c: Context, x: str) -> str:
    return c.scale(c.op("add", c.op("exp", x), c.op("exp", c.op("neg", x))), 0.5)


@lowers("asin")
def _asin(c: Context, x: str) -> str:
    """atan(x / sqrt((1 - x) (1 + x)))."""
    rest = c.op("mul", c.shift(c.op("neg", x), 1), c.shift(x, 1))
    return c.op("atan", c.op("div", x, c.op("sqrt", rest)))


@lowers("acos")
def _acos(c: Context, x: str) -> str:
    return c.shift(c.op("neg", _asin(c, x)), pi / 2)


@lowers("asinh")
def _asinh(c: Context, x: str) -> str:
    """sign(x) log(1 + |x| + x^2 / (1 + sqrt(x^2 + 1))), so that nothing cancels."""
    square = c.op("square", x)
    more = c.op("div", square, c.shift(c.op("sqrt", c.shift(square, 1)), 1))
    return c.op("mul", _direction(c, x), c.op("log1p", c.op("add", _size(c, x), more)))


@lowers("acosh")
def _acosh(c: Context, x: str) -> str:
    above = c.shift(x, -1)
    return c.op("log1p", c.op("add", above, c.op("sqrt", c.op("mul", above, c.shift(x, 1)))))


@lowers("atanh")
def _atanh(c: Context, x: str) -> str:
    """sign(x) log(1 + 2 |x| / (1 - |x|)) / 2."""
    size = _size(c, x)
    grown = c.op("log1p", c.op("div", c.scale(size, 2), c.shift(c.op("neg", size), 1)))
    return c.scale(c.op("mul", _direction(c, x), grown), 0.5)


def _direction(c: Context, x: Any) -> str:
    """1, or -1 below 0."""
    return c.shift(c.scale(c.compare("lt", x, 0), -2), 1)


def _size(c: Context, x: str) -> str:
    """|x|, whose gradient at 0 is 1: times the direction, that of x."""
    return c.op("mul", _direction(c, x), x)


@lowers("atan2")
def _atan2(c: Context, y: Any, x: Any) -> str:
    """The smaller of the two is divided by the larger, so that no quotient is infinite."""
    y, x = c.floating(y), c.floating(x)
    zero, one = c.fill((), 0.0), c.fill((), 1.0)
    flat = c.compare("gt", c.op("abs", x), c.op("abs", y))
    upright = c.shift(c.op("neg", flat), 1)
    none = c.op("mul", c.compare("eq", x, 0), c.compare("eq", y, 0))
    low = c.op("atan", c.op("div", c.where(flat, y, zero), c.where(flat, x, one)))
    half = c.op("mul", c.compare("lt", x, 0), _direction(c, y))
    steep = c.op("atan", c.op("div", c.where(upright, x, zero), c.op("add", c.where(upright, y, one), none)))
    high = c.where(none, zero, c.op("sub", c.scale(sign(c, y), pi / 2), steep))
    return c.where(flat, c.op("add", low, c.scale(half, pi)), high)


@lowers("hypot")
def _hypot(c: Context, x: Any, y: Any) -> str:
    return c.root(c.op("add", c.op("square", c.val(x)), c.op("square", c.val(y))))


@lowers("xlogy", "special_xlogy")
def _xlogy(c: Context, x: Any, y: Any) -> str:
    """x log y, which is 0 where x is, also where the logarithm is infinite."""
    x, y = c.floating(x), c.floating(y)
    shut = c.op("mul", c.compare("eq", x, 0), c.compare("le", y, 0))
    return c.op("mul", x, c.op("log", c.where(shut, c.fill((), 1.0), y)))


for _name, _base in (("log2", 2.0), ("log10", 10.0)):
    lowers(_name)(lambda c, x, base=_base: c.scale(c.op("log", x), 1 / log(base)))


@lowers("exp2", "special_exp2")
def _exp2(c: Context, x: str) -> str:
    return c.op("exp", c.scale(x, log(2)))


# -- signs and rounding ----------------------------------------------------------------------------------------
@lowers("sign", "sgn")
def sign(c: Context, x: str) -> str:
    if c.whole_result():
        return c.op("sub", c.compare("gt", x, 0), c.compare("lt", x, 0))
    return c.op("sign", c.floating(x))


@lowers("sinc", "special_sinc")
def _sinc(c: Context, x: str) -> str:
    """sin(pi x) / (pi x), and 1 at 0, where nothing is divided: no gradient is NaN."""
    angle, one = c.scale(c.floating(x), pi), c.fill((), 1.0)
    none = c.compare("eq", angle, 0)
    return c.where(none, one, c.op("div", c.op("sin", angle), c.where(none, one, angle)))


@lowers("signbit")
def _signbit(c: Context, x: str) -> str:
    return _negative(c, c.floating(x))


def _negative(c: Context, x: str) -> str:
    """1 where the sign is one, be it of a zero, whose reciprocal has it."""
    return c.op("maximum", c.compare("lt", x, 0), c.compare("lt", c.op("reciprocal", x), 0))


@lowers("angle")
def _angle(c: Context, x: str) -> str:
    """Of a real number: 0, or pi below 0; NaN stays."""
    return c.where(c.compare("ne", x, x), x, c.scale(c.compare("lt", x, 0), pi))


@lowers("copysign")
def _copysign(c: Context, x: Any, of: Any) -> str:
    size, number = c.op("abs", c.floating(x)), c.number(of)
    if number is not None:
        return c.scale(size, copysign(1.0, number))
    return c.op("mul", size, c.shift(c.scale(_negative(c, c.floating(of)), -2), 1))


@lowers("trunc", "fix")
def trunc(c: Context, x: str) -> str:
    return x if c.whole_result() else c.op("trunc", x)


@lowers("floor")
def floor(c: Context, x: str) -> str:
    return x if c.whole_result() else c.op("floor", x)


@lowers("ceil")
def _ceil(c: Context, x: str) -> str:
    return x if c.whole_result() else c.op("neg", floor(c, c.op("neg", x)))


@lowers("round")
def _round(c: Context, x: str, decimals: int = 0) -> str:
    if c.whole_result():
        return x
    return c.scale(c.op("round", c.scale(x, 10.0**decimals)), 10.0**-decimals)


@lowers("frac")
def _frac(c: Context, x: str) -> str:
    return c.op("sub", x, trunc(c, x))


def whole_abs(c: Context, x: Any) -> Any:
    """The absolute value of whole numbers."""
    return c.whole_of("maximum", x, c.whole_of("sub", c.torch.tensor(0), x))


def divided(c: Context, a: Any, b: Any, rounding: str) -> str:
    """a / b, rounded down (`floor`) or towards 0 (`trunc`)."""
    if c.whole_result():
        if rounding == "floor":
            return str(c.whole_of("floor_divide", a, b))
        divisor = c.number(b)
        require(divisor is not None and divisor > 0, "a quotient of whole numbers rounded to 0")
        up = c.to_whole(c.shift(c.scale(c.compare("lt", a, 0), -2), 1))
        return str(c.whole_of("mul", c.whole_of("floor_divide", whole_abs(c, a), b), up))
    quotient = c.op("div", c.floating(a), c.floating(b))
    return floor(c, quotient) if rounding == "floor" else trunc(c, quotient)


@lowers("floor_divide")
def _floor_divide(c: Context, a: Any, b: Any) -> str:
    return divided(c, a, b, "floor")


@lowers("remainder")
def _remainder(c: Context, a: Any, b: Any) -> str:
    if c.whole_result():
        return str(c.whole_of("remainder", a, b))
    return c.op("remainder", c.floating(a), c.floating(b))


@lowers("fmod")
def _fmod(c: Context, a: Any, b: Any) -> str:
    if c.whole_result():
        return str(c.whole_of("sub", a, c.whole_of("mul", divided(c, a, b, "trunc"), b)))
    return c.op("fmod", c.floating(a), c.floating(b))


# -- tests -----------------------------------------------------------------------------------------------------
@lowers("isnan")
def _isnan(c: Context, x: str) -> str:
    return c.compare("ne", x, x)


@lowers("isinf")
def _isinf(c: Context, x: str) -> str:
    return c.compare("eq", c.op("abs", x), inf)


@lowers("isfinite")
def _isfinite(c: Context, x: str) -> str:
    return c.compare("lt", c.op("abs", x), inf)


@lowers("heaviside")
def _heaviside(c: Context, x: str, at_zero: Any) -> str:
    return c.op("add", c.compare("gt", x, 0), c.op("mul", c.compare("eq", x, 0), c.val(at_zero)))
