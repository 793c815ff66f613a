"""Losses of rows that a mask of data picks: of each row, then summed, or divided by their number."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from planner.frontends.torch_picked import Picked

_CLASSES = frozenset({"cross_entropy", "nll_loss"})
_WITH_WEIGHTS = _CLASSES | {"binary_cross_entropy", "binary_cross_entropy_with_logits"}
"""Losses that take weights as their third argument. Others divide by the sum of theirs."""
_OF_THREE = frozenset({"cosine_embedding_loss", "margin_ranking_loss", "triplet_margin_loss"})
LOSSES = (
    _WITH_WEIGHTS
    | _OF_THREE
    | {
        "ctc_loss", "gaussian_nll_loss", "hinge_embedding_loss", "huber_loss", "kl_div", "l1_loss", "mse_loss",
        "multi_margin_loss", "multilabel_margin_loss", "multilabel_soft_margin_loss", "poisson_nll_loss",
        "smooth_l1_loss", "soft_margin_loss",
    }
)  # fmt: skip


def loss(first: "Picked", function: Any, name: str, args: Any, kwargs: dict[str, Any]) -> Any:
    picked = type(first)
    if name == "ctc_loss":
        return _ctc(first, function, *args, **kwargs)
    most = 3 if name in _WITH_WEIGHTS | _OF_THREE else 2
    if kwargs.get("size_average") is not None or kwargs.get("reduce") is not None or len(args) > most:
        raise first.refuse(f"{name} with more arguments in order, or reduce")
    if kwargs.get("weight") is not None and name not in _WITH_WEIGHTS:
        raise first.refuse(f"{name} with weights")
    target = args[1] if len(args) > 1 else kwargs.get("target")
    if not isinstance(target, picked) or not isinstance(args[0], picked):
        raise first.refuse(f"{name} of them and of other rows")
    reduction = kwargs.get("reduction", "mean")
    by_label = name in _CLASSES and not target.rows.is_floating_point()
    if not by_label or reduction == "none":
        if by_label:  # where no row is picked, what stands for one may have any label
            args, kwargs = _with_target(args, kwargs, target.like(_labels(target, target.mask.flat, kwargs)))
        found = first.apply(function, name, args, kwargs | {"reduction": "none"})
        if reduction == "none":
            return found
        if reduction == "batchmean":
            return found.sum() / first.mask.count
        return found.sum() if reduction == "sum" else found.mean()
    if args[0].axis or target.axis or not args[0].mask.same(target.mask):
        raise first.refuse(f"{name} of rows that different masks pick")
    counted = target.mask.flat if reduction == "sum" else target.mask.flat | ~target.mask.any
    labels = _labels(target, counted, kwargs)
    rest = {k: x for k, x in kwargs.items() if k != "target"}
    if any(isinstance(x, picked) for x in (*args[2:], *rest.values())):
        raise first.refuse(f"{name} with weights that are such rows")
    found = function(args[0].rows, labels, *args[2:], **rest)
    if reduction == "sum":
        return found
    return target.torch.where(target.mask.any, found, target.torch.full((), float("nan"), dtype=found.dtype))


def _labels(target: "Picked", counted: Any, kwargs: dict[str, Any]) -> Any:
    """Labels of all rows, ignored where they do not count."""
    wide = counted.reshape(target.mask.wide(target.dim(), target.axis).shape)
    return target.torch.where(wide, target.rows, kwargs.get("ignore_index", -100))


def _with_target(args: Any, kwargs: dict[str, Any], target: "Picked") -> tuple[Any, dict[str, Any]]:
    return ((args[0], target, *args[2:]), kwargs) if len(args) > 1 else (args, kwargs | {"target": target})


def _ctc(
    first: "Picked",
    function: Any,
    log_probs: Any,
    targets: Any,
    input_lengths: Any,
    target_lengths: Any,
    *options: Any,
    **named: Any,
) -> Any:
    """Of labels one behind the other, which a mask of [sequences, labels] picks. They are padded again; the loss is NaN
    where a sequence has more than that mask has for one."""
    torch, others = first.torch, (log_probs, input_lengths, target_lengths)
    sequences = 1 if any(isinstance(x, type(first)) for x in others) else log_probs.shape[-2]
    alone = log_probs.dim() == 3 and target_lengths.dim() == 1 and targets is first and first.dim() == 1
    if not alone or first.mask.size % sequences:
        raise first.refuse("ctc_loss of them and of other rows")
    most = first.mask.size // sequences
    begin = target_lengths.cumsum(0) - target_lengths
    places = (begin[:, None] + torch.arange(most)).clamp(max=first.mask.size - 1)
    padded = first.rows[first.mask.order][places]
    found = function(log_probs, padded, input_lengths, target_lengths, *options, **named)
    return torch.where((target_lengths > most).any(), torch.full((), float("nan"), dtype=found.dtype), found)
