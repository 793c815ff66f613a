"""ATen's random numbers: what the ops `random` and `random_whole` draw, and what is made of it.

Every operator is a node, and so a stream, of its own. Masks of one probability are dropout's.

Other distributions (Poisson, Cauchy) are SP1001 (aten.call).
"""

from typing import Any

from planner.frontends.aten import HANDLERS, Context, dtype_error, lowers, require
from planner.frontends.aten_order import argsort
from planner.graph.model import Layout
from planner.ops.dropout import DropoutAttrs
from planner.ops.masks import CastAttrs
from planner.ops.random import RandomAttrs, RandomWholeAttrs


def numbers(c: Context, distribution: str, of: Any = None) -> str:
    """In the shape of the operator's result, images in the memory order of the value `of`, or of inputs."""
    result = _result(c)
    if result.dtype is not c.torch.float32:
        raise dtype_error(f"what {c.node.name!r} draws", result.dtype)
    fields = {"distribution": distribution, "shape": tuple(result.shape)}
    return c.op("random", attrs=RandomAttrs.model_validate({**fields, "layout": _layout(c, of)}))


def _result(c: Context) -> Any:
    """PyTorch's own result, of several the first."""
    value = c.node.meta["val"]
    return value[0] if isinstance(value, list | tuple) else value


def _layout(c: Context, of: Any) -> Layout:
    if len(_result(c).shape) != 4:
        return Layout.ROW_MAJOR
    alike = isinstance(of, str) and c.rank(of) == 4
    return c.b.type(of).layout if alike else Layout.CHANNELS_LAST


@lowers("rand", "rand_like")
def _rand(c: Context, of: Any, *_: Any) -> str:
    return numbers(c, "uniform", of)


@lowers("randn", "randn_like")
def _randn(c: Context, of: Any, *_: Any) -> str:
    return numbers(c, "normal", of)


@lowers("uniform")
def _uniform(c: Context, x: Any, low: float, high: float, *_: Any) -> str:
    return c.shift(c.scale(numbers(c, "uniform", x), high - low), low)


@lowers("exponential")
def _exponential(c: Context, x: Any, rate: float, *_: Any) -> str:
    return c.scale(numbers(c, "exponential", x), 1 / rate)


@lowers("normal")
def _normal(c: Context, mean: Any, std: Any, *_: Any) -> str:
    """mean + std z. PyTorch gives neither of them a gradient."""
    of = next((x for x in (mean, std) if isinstance(x, str)), None)
    z = numbers(c, "normal", of)
    same = _same(c, std)
    z = c.op("mul", z, _fixed(c, std)) if same is None else c.scale(z, same)
    same = _same(c, mean)
    return c.op("add", z, _fixed(c, mean)) if same is None else c.shift(z, same)


def _fixed(c: Context, x: Any) -> str:
    return c.op("detach", c.floating(x)) if isinstance(x, str) else c.val(x.float())


def _same(c: Context, x: Any) -> float | None:
    """The one number that a parameter of a distribution is everywhere; None where it differs."""
    if c.is_constant(x) and x.numel() and bool((x == x.reshape(-1)[0]).all()):
        return float(x.reshape(-1)[0])
    return c.number(x)


@lowers("normal_functional")
def _normal_in_place(c: Context, x: Any, mean: float, std: float, *_: Any) -> str:
    return c.shift(c.scale(numbers(c, "normal", x), std), mean)


@lowers("log_normal")
def _log_normal(c: Context, x: Any, mean: float, std: float, *_: Any) -> str:
    return c.op("exp", _normal_in_place(c, x, mean, std))


# -- whole numbers ---------------------------------------------------------------------------------------------
@lowers("randint", "randint_like")
def _randint(c: Context, *arguments: Any) -> str:
    """The overloads (high, ...) and (low, high, ...), behind the tensor that the result is like."""
    of = None if isinstance(arguments[0], int) else arguments[0]
    bounds = _leading(arguments[of is not None :])
    require(len(bounds) in (1, 2), "bounds that are no numbers")
    return _between(c, of, bounds[0] if len(bounds) > 1 else 0, bounds[-1])


@lowers("random")
def _random(c: Context, x: Any, high: Any, *_: Any) -> str:
    """Tensor.random_ below a bound."""
    require(isinstance(high, int), "no upper bound")
    return _between(c, x, 0, high)


def _leading(arguments: tuple[Any, ...]) -> list[int]:
    found: list[int] = []
    for argument in arguments:
        if not isinstance(argument, int):
            break
        found.append(argument)
    return found


def _between(c: Context, of: Any, low: int, high: int) -> str:
    attrs = RandomWholeAttrs(low=low, high=high, shape=tuple(_result(c).shape), layout=_layout(c, of))
    found = c.op("random_whole", attrs=attrs)
    return found if c.whole_result() else c.op("cast", found, attrs=CastAttrs(dtype="float32"))


@lowers("randperm")
def _randperm(c: Context, count: int, *_: Any) -> str:
    """Where numbers that are drawn come in their order. Equal ones keep theirs: one permutation in n^2 / 2^25."""
    drawn = c.op("random", attrs=RandomAttrs(distribution="uniform", shape=(count,)))
    return str(argsort(c, drawn, 0, False))


@lowers("multinomial")
def _multinomial(c: Context, weights: Any, count: int, replacement: bool = False, *_: Any) -> str:
    """The places of the largest quotients of weights and exponential numbers, as PyTorch has it: `count` of them, or,
    where one may come again, as often the largest one, of (..., count, classes) numbers."""
    weights = _fixed(c, weights)
    shape, several = c.shape(weights), replacement and count > 1
    if several:
        weights = c.expand(c.unsqueeze(weights, len(shape) - 1), shape := (*shape[:-1], count, shape[-1]))
    drawn = c.op("random", attrs=RandomAttrs(distribution="exponential", shape=shape))
    quotients = c.op("div", weights, drawn)
    if several:
        return str(HANDLERS["aten.argmax"](c, quotients, len(shape) - 1, False))
    return str(HANDLERS["aten.topk"](c, quotients, count, len(shape) - 1, True, True)[1])


# -- masks and slopes ------------------------------------------------------------------------------------------
@lowers("dropout")
def _dropout(c: Context, x: Any, p: float, train: bool | None) -> str:
    value = c.val(x)
    if train is False or not p:
        return value
    if c.evaluating:  # it drops in both modes, which the op does not
        return c.op("mul", value, c.scale(_mask(c, c.shape(value), 1.0 - p), 1 / (1.0 - p) if p < 1 else 0.0))
    return c.op("dropout", value, attrs=DropoutAttrs(p=float(p)))


@lowers("native_dropout")
def _native_dropout(c: Context, x: Any, p: float, train: bool | None) -> Any:
    return (_dropout(c, x, p, train), None)


@lowers("bernoulli")
def _bernoulli(c: Context, x: Any, *rest: Any) -> str:
    """1 with a probability: one for all elements, or one each, where numbers below it are drawn."""
    p = next((r for r in rest if c.number(r) is not None), None)
    of = rest[0] if rest and (isinstance(rest[0], str) or c.is_constant(rest[0])) else x
    same = _same(c, of) if p is None else c.number(p)
    if same is not None:
        return _mask(c, c.shape_of(x), same)
    return c.compare("lt", numbers(c, "uniform", of), of)


def _mask(c: Context, shape: tuple[int, ...], p: float) -> str:
    """Dropout of ones, brought back to 1; in evaluation mode, where the op does nothing, numbers below p."""
    if c.evaluating:
        attrs = RandomAttrs(distribution="uniform", shape=shape)
        return c.compare("lt", c.op("random", attrs=attrs), p)
    ones = c.fill(shape, 1.0)
    return c.scale(c.op("dropout", ones, attrs=DropoutAttrs(p=1.0 - p)), p) if p < 1 else ones


@lowers("rrelu_with_noise", "rrelu_with_noise_functional")
def _rrelu(c: Context, x: str, noise: Any, low: float, high: float, training: bool, *_: Any) -> Any:
    """The slope below 0 is drawn; in evaluation mode it is the mean."""
    slope = c.shift(c.scale(numbers(c, "uniform", x), high - low), low) if training else None
    below = c.op("relu", c.op("neg", x))
    below = c.scale(below, (low + high) / 2) if slope is None else c.op("mul", below, slope)
    y = c.op("sub", c.op("relu", x), below)
    return (y, None) if isinstance(c.node.meta["val"], list | tuple) else y
