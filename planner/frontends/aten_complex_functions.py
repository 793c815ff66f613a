"""Layers and functions of complex numbers: products, convolutions, powers, roots, logarithms, angles, variances."""

from typing import Any

from planner.errors import UserError
from planner.frontends.aten import HANDLERS, Context, packet
from planner.frontends.aten_complex import (
    COMPLEX,
    FIX,
    Complex,
    of_complex,
    operands,
    parts,
    product,
    total,
    turned,
    values,
)


# -- products --------------------------------------------------------------------------------------------------
@of_complex("dot", "mv")
def _vector_product(c: Context, a: Any, b: Any) -> Any:
    return COMPLEX["aten.matmul"](c, a, b)


@of_complex("vdot")
def _conjugated_product(c: Context, a: Any, b: Any) -> Any:
    return COMPLEX["aten.matmul"](c, COMPLEX["aten.conj"](c, a), b)


@of_complex("outer")
def _outer(c: Context, a: Any, b: Any) -> Complex:
    column = values(c, parts(c, a))
    return product(c, Complex(c.unsqueeze(column.re, 1), c.unsqueeze(column.im, 1)), parts(c, b))


@of_complex("linear")
def _linear(c: Context, x: Any, weight: Any, bias: Any) -> Complex:
    rows = values(c, parts(c, weight))
    y = COMPLEX["aten.matmul"](c, x, Complex(c.transpose(rows.re, 0, 1), c.transpose(rows.im, 0, 1)))
    return y if bias is None else total(c, y, parts(c, bias))


@of_complex("addmm", "addmv", "baddbmm")
def _product_added(c: Context, x: Any, a: Any, b: Any, beta: Any, alpha: Any) -> Complex:
    found = COMPLEX["aten.matmul"](c, a, b)
    return total(c, product(c, parts(c, x), parts(c, beta)), product(c, found, parts(c, alpha)))


@of_complex("conv1d", "conv2d", "conv3d", "conv_transpose1d", "conv_transpose2d", "conv_transpose3d", "convolution")
def _convolution(c: Context, x: Any, weight: Any, bias: Any, *rest: Any) -> Complex:
    z, w = values(c, parts(c, x)), values(c, parts(c, weight))

    def filtered(image: str, by: str) -> str:
        return str(HANDLERS[packet(c.node.target)](c, image, by, None, *rest))

    re = c.op("sub", filtered(z.re, w.re), filtered(z.im, w.im))
    y = Complex(re, c.op("add", filtered(z.re, w.im), filtered(z.im, w.re)))
    if bias is None:
        return y
    shift, inner = values(c, parts(c, bias)), [1] * (c.rank(w.re) - 2)
    return total(c, y, Complex(*(c.reshape(p, (*c.shape(p), *inner)) for p in (shift.re, shift.im))))


@of_complex("lerp")
def _lerp(c: Context, a: Any, b: Any, weight: Any) -> Complex:
    x, y, w = (parts(c, v) for v in (a, b, weight))
    return total(c, product(c, x, total(c, Complex(1.0), product(c, w, Complex(-1.0)))), product(c, y, w))


# -- functions of one number -----------------------------------------------------------------------------------
@of_complex("square")
def _square(c: Context, z: Any) -> Complex:
    return product(c, parts(c, z), parts(c, z))


@of_complex("pow")
def _pow(c: Context, z: Any, exponent: Any) -> Complex:
    """Whole powers are products, others by size and angle."""
    power = exponent if isinstance(exponent, int | float) else None
    if power is None:
        raise UserError("SP1017", f"node {c.node.name!r} (aten.pow) has complex numbers to a power that is none", FIX)
    if power != int(power) or abs(power) > 64:
        return _to_the(c, z, float(power))
    found, factor, left = Complex(1.0), parts(c, z), abs(int(power))
    while left:
        found = product(c, found, factor) if left % 2 else found
        left //= 2
        factor = product(c, factor, factor) if left else factor
    return found if power >= 0 else COMPLEX["aten.reciprocal"](c, found)


@of_complex("sqrt")
def _sqrt(c: Context, z: Any) -> Complex:
    return _to_the(c, z, 0.5)


@of_complex("rsqrt")
def _rsqrt(c: Context, z: Any) -> Complex:
    return _to_the(c, z, -0.5)


def _to_the(c: Context, z: Any, power: float) -> Complex:
    size, angle = COMPLEX["aten.abs"](c, z), COMPLEX["aten.angle"](c, z)
    return turned(c, c.power(size, power), c.scale(angle, power))


@of_complex("log")
def _log(c: Context, z: Any) -> Complex:
    return Complex(c.op("log", COMPLEX["aten.abs"](c, z)), COMPLEX["aten.angle"](c, z))


@of_complex("exp")
def _exp(c: Context, z: Any) -> Complex:
    found = operands(c, z)
    return turned(c, c.op("exp", found.re), found.im)


@of_complex("tanh")
def _tanh(c: Context, z: Any) -> Complex:
    """(t + i (1 - t^2) uv) / (u^2 + t^2 v^2), where t is tanh of the real part, u and v cos and sin of the other's."""
    found = operands(c, z)
    u, v = (HANDLERS[f"aten.{name}"](c, found.im) for name in ("cos", "sin"))
    t = c.op("tanh", found.re)
    square = c.op("square", t)
    below = c.op("add", c.op("square", u), c.op("mul", square, c.op("square", v)))
    im = c.op("mul", c.shift(c.op("neg", square), 1.0), c.op("mul", u, v))
    return Complex(c.op("div", t, below), c.op("div", im, below))


_CIRCULAR = {
    "aten.sin": (("sin", "cosh"), ("cos", "sinh"), 1.0),
    "aten.cos": (("cos", "cosh"), ("sin", "sinh"), -1.0),
    "aten.sinh": (("sinh", "cos"), ("cosh", "sin"), 1.0),
    "aten.cosh": (("cosh", "cos"), ("sinh", "sin"), 1.0),
}
"""Of a + ib both parts, as products of a function of a and one of b; the imaginary part's sign."""


@of_complex("sin", "cos", "sinh", "cosh")
def _circular(c: Context, z: Any) -> Complex:
    found, (re, im, sign) = values(c, parts(c, z)), _CIRCULAR[packet(c.node.target)]

    def both(names: tuple[str, str]) -> str:
        first, second = (HANDLERS[f"aten.{name}"](c, p) for name, p in zip(names, (found.re, found.im), strict=True))
        return c.op("mul", first, second)

    return Complex(both(re), c.scale(both(im), sign))


@of_complex("sgn")
def _sgn(c: Context, z: Any) -> Complex:
    """z / |z|, and 0 at 0."""
    found, size = values(c, parts(c, z)), COMPLEX["aten.abs"](c, z)
    size = c.op("add", size, c.compare("eq", size, 0.0))
    return Complex(c.op("div", found.re, size), c.op("div", found.im, size))


# -- statistics ------------------------------------------------------------------------------------------------
@of_complex("var")
def _var(c: Context, z: Any, *rest: Any) -> str:
    found = values(c, parts(c, z))
    return c.op("add", *(HANDLERS["aten.var"](c, part, *rest) for part in (found.re, found.im)))


@of_complex("std")
def _std(c: Context, z: Any, *rest: Any) -> str:
    return c.root(_var(c, z, *rest))
