"""CTC loss: what its frames' states are, and how likely each is, from labels and log-probabilities of classes."""

from typing import Any

from planner.frontends.aten import Context, lowers, require
from planner.frontends.aten_picks import gather, read
from planner.ops.copy import PermuteAttrs


@lowers("stepplan.ctc_loss")
def _ctc_loss(
    c: Context, x: Any, targets: Any, frames: Any, labels: Any, blank: int, reduction: int, zero_infinity: bool
) -> str:
    """log-probabilities [frames, sequences, classes] or [frames, classes]; the lengths are `frames` and `labels`."""
    x = c.val(x)
    single = c.rank(x) == 2
    x = c.unsqueeze(x, 1) if single else x
    sequences = c.shape(x)[1]
    frames, count = (c.reshape(c.to_whole(c.val(v)), (sequences,)) for v in (frames, labels))
    targets = _in_rows(c, targets, labels, count, sequences, blank)
    states, skips = _states(c, targets, blank)
    scores = c.permute(x, (1, 0, 2))
    everywhere = c.expand(c.unsqueeze(states, 1), (*c.shape(scores)[:2], c.shape(states)[1]))
    loss = c.op("ctc_loss", gather(c, scores, 2, everywhere), skips, frames, count)
    if not _is_normalised(c, x):
        loss = c.op("add", loss, _as_if_normalised(c, scores, frames))
    if zero_infinity:
        loss = c.where(c.compare("lt", loss, float("inf")), loss, c.fill((), 0.0))
    if reduction == 1:
        return c.reduce("reduce_mean", c.op("div", loss, c.clamp(c.floating(count), 1.0, None)), None)
    if reduction == 2:
        return c.reduce("reduce_sum", loss, None)
    return c.reshape(loss, ()) if single else loss


def _in_rows(c: Context, targets: Any, labels: Any, count: str, sequences: int, blank: int) -> str:
    """[sequences, most labels], blanks behind a sequence's own. One behind the other, their numbers must be known."""
    shape = c.shape_of(targets)
    targets = c.to_whole(c.val(targets))
    if len(shape) == 2 or sequences == 1:
        rows = c.reshape(targets, (sequences, -1))
    else:
        require(c.is_constant(labels), "labels one behind the other whose numbers depend on the data")
        first = labels.cumsum(0) - labels
        places = first[:, None] + c.torch.arange(max(1, int(labels.max())))
        rows = read(c, targets, places.clamp(max=shape[0] - 1))
    inside = c.compare("lt", c.torch.arange(c.shape(rows)[1])[None], c.unsqueeze(count, 1))
    return c.chosen_whole(inside, rows, c.torch.tensor(blank))


def _states(c: Context, targets: str, blank: int) -> tuple[str, str]:
    """Classes of the labels with a blank before, between and behind them; and where the state before may be skipped: at
    labels that differ from the one before."""
    sequences, labels = c.shape(targets)
    before = c.concat([c.slice(targets, 1, 0, 1), c.slice(targets, 1, 0, labels - 1)], 1) if labels > 1 else targets
    differ = c.compare("ne", targets, before)  # not the first, which has none before
    blanks, never = c.val(c.torch.full((sequences, labels), blank)), c.fill((sequences, labels), 0.0)
    return _around(c, targets, blanks), _around(c, differ, never)


def _around(c: Context, labels: str, blanks: str) -> str:
    """Blanks before, between and behind labels."""
    rows, count = c.shape(labels)
    return c.concat([c.reshape(c.stack([blanks, labels], 2), (rows, 2 * count)), c.slice(blanks, 1, 0, 1)], 1)


def _is_normalised(c: Context, x: str) -> bool:
    """Whether x is a log-softmax over its last dimension, moved at most."""
    made = {v: node for node in c.b.nodes for v in node.outputs}
    axis = c.rank(x) - 1
    while (node := made.get(x)) is not None and node.op in ("permute", "reshape", "convert_layout"):
        before = node.inputs[0]
        if isinstance(node.attrs, PermuteAttrs):
            axis = node.attrs.axes[axis]
        elif node.op == "reshape":
            if axis != c.rank(x) - 1 or c.shape(before)[-1:] != c.shape(x)[-1:]:
                return False
            axis = c.rank(before) - 1
        x = before
    return node is not None and node.op == "log_softmax" and axis == c.rank(x) - 1


def _as_if_normalised(c: Context, scores: str, frames: str) -> str:
    """0, with the probabilities of a sequence's frames as its gradient: PyTorch differentiates as if a log-softmax made
    the scores, whose own gradient takes that away again."""
    within = c.compare("lt", c.torch.arange(c.shape(scores)[1])[None, :, None], c.reshape(frames, (-1, 1, 1)))
    likely = c.op("mul", c.op("exp", scores), within)
    return c.reduce("reduce_sum", c.op("sub", likely, c.op("detach", likely)), [1, 2])
