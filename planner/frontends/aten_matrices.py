"""ATen's linear algebra of square matrices: inverses, systems, determinants, Cholesky factors, exponentials; products
of reflections.

Systems are products with inverses, which are computed in double precision and rounded once (ops/matrices.py). PyTorch
ends with an error where a matrix is singular, or not positive definite; here its results are not finite.
"""

from typing import Any

from planner.frontends.aten import Context, lowers
from planner.frontends.aten_order import evenly

_TERMS = 14
"""Of the series of a matrix's exponential: behind them it is below 1e-12 of a matrix whose norm is at most 1."""
_HALVINGS = 12
"""So often a matrix may be halved until its norm is that."""


@lowers("linalg_inv", "inverse")
def _inverse(c: Context, x: Any) -> str:
    return c.op("inverse", c.val(x))


@lowers("linalg_inv_ex")
def _inverse_ex(c: Context, x: Any, *_: Any) -> Any:
    return (_inverse(c, x), None)


@lowers("_linalg_slogdet")
def _slogdet(c: Context, x: Any) -> Any:
    logarithm, sign = c.outputs("log_determinant", c.val(x))
    return (sign, logarithm, None, None)


@lowers("_linalg_det")
def _det(c: Context, x: Any) -> Any:
    logarithm, sign = c.outputs("log_determinant", c.val(x))
    return (c.op("mul", c.op("exp", logarithm), sign), None, None)


@lowers("linalg_cholesky", "cholesky")
def _cholesky(c: Context, x: Any, upper: bool) -> str:
    found = c.op("cholesky", _turned(c, c.val(x)) if upper else c.val(x))
    return _turned(c, found) if upper else found


@lowers("linalg_cholesky_ex")
def _cholesky_ex(c: Context, x: Any, upper: bool, *_: Any) -> Any:
    return (_cholesky(c, x, upper), None)


@lowers("linalg_solve")
def _solve(c: Context, a: Any, b: Any, left: bool) -> str:
    """b may have vectors in the place of matrices."""
    a, b = c.val(a), c.val(b)
    vectors = c.rank(b) == 1 or (c.rank(b) == c.rank(a) - 1 and c.shape(b) == c.shape(a)[:-1])
    found = _product(c, c.op("inverse", a), c.unsqueeze(b, c.rank(b)) if vectors else b, left)
    return c.reshape(found, c.shape(found)[:-1]) if vectors else found


@lowers("_linalg_solve_ex")
def _solve_ex(c: Context, a: Any, b: Any, left: bool, *_: Any) -> Any:
    return (_solve(c, a, b, left), None, None, None)


@lowers("linalg_solve_triangular")
def _solve_triangular(c: Context, a: Any, b: Any, upper: bool, left: bool, unit: bool) -> str:
    """Of a only the triangle counts, of which the diagonal may be ones."""
    a = c.val(a)
    ones = c.torch.ones(c.shape(a)[-2:])
    counted = ones.triu(int(unit)) if upper else ones.tril(-int(unit))
    a = c.op("mul", a, c.val(counted))
    if unit:
        a = c.op("add", a, c.val(c.torch.eye(c.shape(a)[-1])))
    return _product(c, c.op("inverse", a), c.val(b), left)


@lowers("cholesky_solve")
def _cholesky_solve(c: Context, b: Any, factor: Any, upper: bool) -> str:
    inverse = c.op("inverse", c.val(factor))
    once, twice = (_turned(c, inverse), inverse) if upper else (inverse, _turned(c, inverse))
    return c.matmul(twice, c.matmul(once, c.val(b), exact=True), exact=True)


@lowers("cholesky_inverse")
def _cholesky_inverse(c: Context, factor: Any, upper: bool) -> str:
    inverse = c.op("inverse", c.val(factor))
    pair = (inverse, _turned(c, inverse))
    return c.matmul(*(pair if upper else pair[::-1]), exact=True)


@lowers("linalg_matrix_exp", "matrix_exp")
def _matrix_exp(c: Context, x: Any) -> str:
    """exp(x / 2^n)^(2^n), with as many halvings as bring the norm below 1: a squaring more doubles what was
    rounded. Every matrix has its own; a larger one than `_HALVINGS` allow is NaN."""
    x = c.val(x)
    rank, size = c.rank(x), c.shape(x)[-1]
    columns = c.reduce("reduce_sum", c.op("abs", c.op("detach", x)), [rank - 2], True)
    norm = evenly(c, columns, [rank - 1], True, 1)
    one = c.fill((), 1.0)
    scale, squared = one, list[str]()
    for halving in range(_HALVINGS):
        squared.append(c.compare("gt", norm, 2.0**halving))
        scale = c.op("mul", scale, c.where(squared[-1], c.fill((), 0.5), one))
    scale = c.where(c.compare("gt", norm, 2.0**_HALVINGS), c.val(float("nan")), scale)
    x, unit = c.op("mul", x, scale), c.val(c.torch.eye(size))
    y = c.op("add", unit, c.scale(x, 1 / _TERMS))
    for term in reversed(range(1, _TERMS)):
        y = c.op("add", unit, c.scale(c.matmul(x, y, exact=True), 1 / term))
    for wanted in squared:
        y = c.where(wanted, c.matmul(y, y, exact=True), y)
    return y


@lowers("linalg_householder_product")
def _householder_product(c: Context, x: Any, factors: Any) -> str:
    """The first columns of a product of reflections 1 - t v v': 1 - V T V', where the inverse of T is made of the
    products of all v with those behind them."""
    x, factors = c.val(x), c.val(factors)
    (rows, columns), count = c.shape(x)[-2:], c.shape(factors)[-1]
    if not count:
        return c.expand(c.val(c.torch.eye(rows, columns)), c.shape(x))
    below = c.op("mul", c.slice(x, c.rank(x) - 1, 0, count), c.val(c.torch.ones(rows, count).tril(-1)))
    v = c.op("add", below, c.val(c.torch.eye(rows, count)))
    turned, t = _turned(c, v), c.unsqueeze(factors, c.rank(factors))
    later = c.op("mul", c.matmul(turned, v, exact=True), c.val(c.torch.ones(count, count).triu(1)))
    inner = c.op("inverse", c.op("add", c.val(c.torch.eye(count)), c.op("mul", t, later)))
    weighted = c.op("mul", t, c.slice(turned, c.rank(x) - 1, 0, columns))
    return c.op(
        "sub", c.val(c.torch.eye(rows, columns)), c.matmul(v, c.matmul(inner, weighted, exact=True), exact=True)
    )


def _product(c: Context, inverse: str, b: str, left: bool) -> str:
    return c.matmul(inverse, b, exact=True) if left else c.matmul(b, inverse, exact=True)


def _turned(c: Context, x: str) -> str:
    rank = c.rank(x)
    return c.permute(x, (*range(rank - 2), rank - 1, rank - 2))
