"""ATen's losses: classes, with weights, smoothing and labels to ignore, and numbers against numbers."""

from math import prod
from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.ops.loss import ClassLossAttrs, LabelAttrs, LossAttrs
from planner.ops.rectifier import SoftplusAttrs

_REDUCTIONS = {1: "mean", 2: "sum"}
NO_LABEL = -(2**62)
"""What is ignored where every row counts."""


def class_loss(c: Context, op: str, x: str, labels: Any, attrs: LabelAttrs) -> str:
    """Classes are dimension 1 (0 of a vector); further dimensions are rows."""
    rank = c.rank(x)
    labels = c.val(labels)
    if rank > 2:
        x = c.permute(x, (0, *range(2, rank), 1))
    if rank != 2:
        x, labels = c.reshape(x, (-1, c.shape(x)[-1])), c.reshape(labels, (-1,))
    return c.op(op, x, labels, attrs=attrs)


def row_losses(c: Context, x: str, labels: Any, ignored: int = NO_LABEL, smoothing: float = 0.0) -> str:
    """The cross-entropy of every row, in the labels' shape."""
    attrs = LabelAttrs(ignore_index=ignored, label_smoothing=smoothing)
    return c.reshape(class_loss(c, "cross_entropy_rows", x, labels, attrs), c.shape_of(labels))


def before_log_softmax(c: Context, log_probs: str) -> str | None:
    """What the rows are the logarithms of probabilities of."""
    maker = c.maker(log_probs)
    return maker.inputs[0] if maker is not None and maker.op == "log_softmax" else None


def _loss_attrs(reduction: int, ignore_index: int = -100, smoothing: float = 0.0) -> ClassLossAttrs:
    require(reduction in _REDUCTIONS, "reduction='none'")
    values = {"reduction": _REDUCTIONS[reduction], "ignore_index": ignore_index, "label_smoothing": smoothing}
    return ClassLossAttrs.model_validate(values)


@lowers("cross_entropy_loss")
def cross_entropy(c: Context, x: str, target: Any, weight: Any, reduction: int, ignored: int, smoothing: float) -> str:
    classes_at = 1 if c.rank(x) > 1 else 0
    if c.b.type(c.val(target)).dtype.value != "int64":
        return _soft_cross_entropy(c, x, target, weight, reduction, smoothing, classes_at)
    if weight is None and reduction in _REDUCTIONS:
        return class_loss(c, "cross_entropy", x, target, _loss_attrs(reduction, ignored, smoothing))
    if weight is None:
        return row_losses(c, x, target, ignored, smoothing)
    log_probs = c.along_last("log_softmax", x, classes_at)
    return _weighted_nll(c, log_probs, target, weight, reduction, ignored, smoothing)


def _soft_cross_entropy(
    c: Context, x: str, target: Any, weight: Any, reduction: int, smoothing: float, classes_at: int
) -> str:
    """Of probabilities; the mean is over rows."""
    classes = c.shape(x)[classes_at]
    target = c.shift(c.scale(c.val(target), 1 - smoothing), smoothing / classes) if smoothing else c.val(target)
    each = c.op("mul", c.along_last("log_softmax", x, classes_at), target)
    each = each if weight is None else c.op("mul", each, _per_class(c, weight, c.rank(x)))
    if reduction not in _REDUCTIONS:
        return c.op("neg", c.reduce("reduce_sum", each, [classes_at]))
    return c.scale(c.reduce("reduce_sum", each, None), -classes / prod(c.shape(x)) if reduction == 1 else -1)


def _per_class(c: Context, weight: Any, rank: int) -> str:
    """A weight per class, for rows whose classes are dimension 1."""
    return c.reshape(c.val(weight), (-1, *([1] * (rank - 2))))


def _weighted_nll(
    c: Context, log_probs: str, target: Any, weight: Any, reduction: int, ignored: int, smoothing: float = 0.0
) -> str:
    """Class weights scale the log-probabilities; the mean is over the weights of the labels, which are the same sum
    over rows of minus the weights. Without reduction, the label's element is picked by comparison."""
    rank = c.rank(log_probs)
    if weight is not None:
        log_probs = c.op("mul", log_probs, _per_class(c, weight, rank))
    if reduction in _REDUCTIONS:
        attrs = _loss_attrs(2, ignored, smoothing)
        total = class_loss(c, "nll_loss", log_probs, target, attrs)
        if reduction == 2:
            return total
        weights = c.expand(c.op("neg", _per_class(c, weight, rank)), c.shape(log_probs))
        return c.op("div", total, class_loss(c, "nll_loss", weights, target, _loss_attrs(2, ignored)))
    axis, labels = (1 if rank > 1 else 0), c.val(target)
    classes = c.torch.arange(c.shape(log_probs)[axis]).reshape(-1, *([1] * (rank - 2)))
    own = c.compare("eq", c.unsqueeze(labels, axis), classes)
    each = c.reduce("reduce_sum", c.op("mul", own, log_probs), [axis])
    if smoothing:
        everywhere = c.scale(c.reduce("reduce_sum", log_probs, [axis]), smoothing / c.shape(log_probs)[axis])
        each = c.op("add", c.scale(each, 1 - smoothing), everywhere)
    return c.op("neg", c.op("mul", each, c.compare("ne", labels, ignored)))


@lowers("nll_loss", "nll_loss_nd", "nll_loss2d")
def _nll(c: Context, x: str, target: Any, weight: Any, reduction: int, ignored: int) -> str:
    if weight is None and reduction not in _REDUCTIONS and c.rank(x) == 2 and (logits := before_log_softmax(c, x)):
        return row_losses(c, logits, target, ignored)
    if weight is not None or reduction not in _REDUCTIONS:
        return _weighted_nll(c, x, target, weight, reduction, ignored)
    return class_loss(c, "nll_loss", x, target, _loss_attrs(reduction, ignored))


@lowers("nll_loss_forward", "nll_loss2d_forward")
def _nll_forward(c: Context, *arguments: Any) -> Any:
    return (_nll(c, *arguments), None)


def _pair_loss(c: Context, op: str, x: Any, target: Any, reduction: int) -> str:
    x, target = c.val(x), c.val(target)
    require(reduction in _REDUCTIONS, "reduction='none'")
    require(c.shape(x) == c.shape(target), "operands of different shapes")
    return c.op(op, x, target, attrs=LossAttrs.model_validate({"reduction": _REDUCTIONS[reduction]}))


@lowers("mse_loss")
def mse(c: Context, x: Any, target: Any, reduction: int) -> str:
    if reduction not in _REDUCTIONS:
        return c.op("square", c.op("sub", c.val(x), c.val(target)))
    return _pair_loss(c, "mse_loss", x, target, reduction)


@lowers("binary_cross_entropy_with_logits")
def bce(c: Context, x: Any, target: Any, weight: Any, positive: Any, reduction: int) -> str:
    """With weights, or without reduction: (1 - t) x + (1 + (p - 1) t) log(1 + exp(-x)), times the weight."""
    if weight is None and positive is None and reduction in _REDUCTIONS:
        return _pair_loss(c, "bce_with_logits", x, target, reduction)
    x, target = c.val(x), c.val(target)
    curve = c.op("softplus", c.op("neg", x), attrs=SoftplusAttrs())
    if positive is not None:
        more = c.op("mul", c.shift(c.val(positive), -1), target)
        curve = c.op("mul", c.shift(more, 1), curve)
    each = c.op("add", c.op("mul", c.shift(c.op("neg", target), 1), x), curve)
    each = each if weight is None else c.op("mul", each, c.val(weight))
    return c.reduce(f"reduce_{_REDUCTIONS[reduction]}", each, None) if reduction in _REDUCTIONS else each


@lowers("binary_cross_entropy")
def _bce_of_probabilities(c: Context, x: Any, target: Any, weight: Any, reduction: int) -> str:
    """Logarithms are at least -100; the gradient is PyTorch's, (x - t) / max(x (1 - x), 1e-12). That of the logarithms
    would be 0 / 0 where a probability is 0 or 1, as a sigmoid's is that has gone too far. So they are taken of what is
    detached, and the gradient is that of a difference which is 0."""
    x, target = c.floating(c.val(x)), c.floating(c.val(target))
    fixed, given = c.op("detach", x), c.op("detach", target)
    other, opposite = c.shift(c.op("neg", target), 1), c.op("neg", fixed)
    likely, unlikely = (c.clamp(c.op(name, p), -100.0, None) for name, p in (("log", fixed), ("log1p", opposite)))
    each = c.op("neg", c.op("add", c.op("mul", target, likely), c.op("mul", other, unlikely)))
    spread = c.clamp(c.op("mul", fixed, c.shift(opposite, 1)), 1e-12, None)
    slope = c.op("div", c.op("sub", fixed, given), spread)
    each = c.op("add", each, c.op("mul", c.op("sub", x, fixed), slope))
    each = each if weight is None else c.op("mul", each, c.val(weight))
    return c.reduce(f"reduce_{_REDUCTIONS[reduction]}", each, None) if reduction in _REDUCTIONS else each


@lowers("l1_loss")
def _l1(c: Context, x: Any, target: Any, reduction: int) -> str:
    distance = c.op("abs", c.op("sub", c.val(x), c.val(target)))
    if reduction not in _REDUCTIONS:
        return distance
    return c.reduce(f"reduce_{_REDUCTIONS[reduction]}", distance, None)


@lowers("multilabel_margin_loss")
def _multilabel_margin(c: Context, x: str, target: Any, reduction: int) -> str:
    """What every other class lacks to the margin of every label, of which a row has those in front of its first -1.
    (PyTorch's decomposition also counts class 0 for each place behind that.)"""
    single = c.rank(x) == 1
    x, target = (c.unsqueeze(v, 0) if single else v for v in (x, c.val(target)))
    classes = c.shape(x)[1]
    order = c.torch.arange(classes)
    ended = c.matmul(c.compare("lt", target, 0), c.val((order[:, None] <= order).float()))
    label = c.op("mul", c.compare("eq", c.unsqueeze(target, 2), order), c.compare("eq", c.unsqueeze(ended, 2), 0))
    own = c.reduce("reduce_sum", c.op("mul", label, c.unsqueeze(x, 1)), [2], True)
    lacking = c.op("relu", c.shift(c.op("sub", c.unsqueeze(x, 1), own), 1))
    other = c.compare("eq", c.reduce("reduce_sum", label, [1], True), 0)
    counts = c.op("mul", c.reduce("reduce_sum", label, [2], True), other)
    each = c.scale(c.reduce("reduce_sum", c.op("mul", lacking, counts), [1, 2]), 1 / classes)
    if reduction not in _REDUCTIONS:
        return c.reshape(each, ()) if single else each
    return c.reduce(f"reduce_{_REDUCTIONS[reduction]}", each, None)


@lowers("multilabel_margin_loss_forward")
def _multilabel_margin_forward(c: Context, *arguments: Any) -> Any:
    return (_multilabel_margin(c, *arguments), None)
