"""PyTorch's functions that look at numbers where they are exported, each with an operator in its place that does not:
it has a handler of its own (aten_ctc.py), and runs as the function does."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def stand_ins(torch: Any) -> Iterator[None]:
    """Within it, ctc_loss is `stepplan::ctc_loss`: PyTorch's own reads the lengths of the sequences."""
    original = torch.ctc_loss

    def ctc_loss(
        log_probs: Any,
        targets: Any,
        input_lengths: Any,
        target_lengths: Any,
        blank: int = 0,
        reduction: int = 1,
        zero_infinity: bool = False,
    ) -> Any:
        frames, labels = (torch.as_tensor(x, dtype=torch.int64) for x in (input_lengths, target_lengths))
        return _ctc_loss(torch, original)(log_probs, targets, frames, labels, blank, reduction, zero_infinity)

    torch.ctc_loss = ctc_loss
    try:
        yield
    finally:
        torch.ctc_loss = original


@cache
def _ctc_loss(torch: Any, original: Any) -> Any:
    schema = (
        "(Tensor log_probs, Tensor targets, Tensor frames, Tensor labels, int blank, int reduction, bool zero_infinity)"
        " -> Tensor"
    )
    made = torch.library.custom_op("stepplan::ctc_loss", original, mutates_args=(), schema=schema)

    def result(log_probs: Any, targets: Any, frames: Any, labels: Any, blank: int, reduction: int, zero: bool) -> Any:
        return log_probs.new_empty(() if reduction or log_probs.dim() == 2 else (log_probs.shape[1],))

    def gradient(context: Any, slope: Any) -> Any:
        raise NotImplementedError("an exported program is differentiated by stepplan")

    made.register_fake(result)
    made.register_autograd(gradient)
    return made
