"""The loss behind a captured module: a named one, one of PyTorch's loss objects, or the caller's own."""

from collections.abc import Callable, Sequence
from typing import Any

from planner.errors import UserError
from planner.frontends import aten_losses
from planner.frontends.aten import Context
from planner.graph.builder import live_nodes
from planner.graph.model import DType
from planner.ops.caller_gradient import CallerGradientAttrs
from planner.ops.loss import ClassLossAttrs, LossAttrs

CALLERS = "caller"
GIVEN = "d_prediction"
"""The input that the caller's gradient of the prediction goes to."""
Loss = str | Callable[..., Any] | None
"""`cross_entropy` or `mse` (of the prediction and `labels`), a callable (prediction, labels) -> scalar tensor, or
None: the module returns the loss itself. `caller`: the caller's own, outside of the plan: the step takes the gradient
of the prediction instead of labels (codegen/autograd.py)."""


def append_loss(torch: Any, context: Context, loss: Loss, predictions: Sequence[str], labels: Any) -> str:
    """`cross_entropy` or `mse` of the prediction and a new input `labels`; None: the prediction is the loss."""
    prediction = predictions[0]
    if loss is None:
        return prediction
    context.name = "loss"
    if loss == CALLERS:
        return _callers_loss(context, predictions)
    shape = context.shape(prediction)
    by_class = loss == "cross_entropy" or isinstance(loss, torch.nn.CrossEntropyLoss)
    if by_class and not shape:
        fix = "return a score for every class; loss=None where the module computes its loss itself"
        raise UserError("SP1016", "the prediction is one number, which has no classes", fix)
    classes = (shape[:1] + shape[2:] if len(shape) > 1 else ()) if by_class else shape
    if labels is not None and tuple(labels.shape) != classes:
        raise UserError(
            "SP1016", f"labels of shape {tuple(labels.shape)} do not fit a prediction of shape {shape}",
            f"{loss} needs labels of shape {classes}",
        )  # fmt: skip
    target = context.input("labels", classes, DType.INT64 if by_class else DType.FLOAT32)
    if not isinstance(loss, str):
        return _known_loss(torch, context, loss, prediction, target)
    if loss == "mse":
        return context.op("mse_loss", prediction, target, attrs=LossAttrs())
    return aten_losses.class_loss(context, "cross_entropy", prediction, target, ClassLossAttrs())


def _callers_loss(context: Context, predictions: Sequence[str]) -> str:
    """A sum of products, of which the predictions' gradients are what the caller gives, when all predictions and
    running statistics are there: `d_prediction`, `d_prediction_1`, ..."""
    builder = context.b
    needed = {n.id for n in live_nodes(builder.nodes, set(predictions), updates=False)}
    beside = [n.outputs[0] for n in builder.nodes if n.updates and n.id not in needed]
    attrs = CallerGradientAttrs(predictions=len(predictions))
    parts = []
    for prediction in predictions:
        if builder.type(prediction).dtype is DType.FLOAT32:
            given = context.input(GIVEN, context.shape(prediction))
            gradient = context.op("caller_gradient", given, *predictions, *beside, attrs=attrs)
            parts.append(context.reduce("reduce_sum", context.op("mul", prediction, gradient), None))
    if not parts:
        raise UserError("SP1015", "the module returns no tensor of floats", "return what the loss depends on")
    total = parts[0]
    for part in parts[1:]:
        total = context.op("add", total, part)
    return total


def _known_loss(torch: Any, context: Context, loss: Any, prediction: str, target: str) -> str:
    """A loss object of PyTorch as its operator, with the object's options."""
    nn = torch.nn
    reduction = {"none": 0, "mean": 1, "sum": 2}[loss.reduction]
    if reduction == 0:
        raise UserError("SP1016", "the loss has reduction='none'", "train on one number: reduction='mean' or 'sum'")
    for name, buffer in loss.named_buffers():
        context.buffers[id(buffer)] = f"loss.{name}"
    if isinstance(loss, nn.MSELoss):
        return aten_losses.mse(context, prediction, target, reduction)
    if isinstance(loss, nn.BCEWithLogitsLoss):
        return aten_losses.bce(context, prediction, target, loss.weight, loss.pos_weight, reduction)
    options = (loss.weight, reduction, loss.ignore_index, loss.label_smoothing)
    return aten_losses.cross_entropy(context, prediction, target, *options)
