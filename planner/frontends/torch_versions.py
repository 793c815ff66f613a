"""Versions of PyTorch: the oldest that modules are captured with, and what older ones get wrong, mended meanwhile."""

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from planner.errors import UserError

OLDEST = (2, 9)
_KNOWS_LSTM_STATES = (2, 13)


def require_version(torch: Any) -> None:
    """SP1012: PyTorch is too old; what it would refuse, or export otherwise, was never looked at."""
    if torch.__version__ < OLDEST:
        oldest = ".".join(map(str, OLDEST))
        what = f"PyTorch {torch.__version__} is too old to capture modules with: it takes {oldest} or newer"
        raise UserError("SP1012", what, f"pip install 'torch>={oldest}'")


@cache
def closes_at_bounds(torch: Any) -> bool:
    """Whether clamp has no gradient where its input is at a bound, as hardtanh, and half of it where that bound is a
    tensor, as maximum: from 2.14 on. Before, it has all of it."""
    with torch.enable_grad():
        x = torch.zeros((), requires_grad=True)
        (gradient,) = torch.autograd.grad(x.clamp(min=0), x)
    return bool(gradient == 0)


@contextmanager
def mended(torch: Any) -> Iterator[None]:
    """Within it, PyTorch knows the shapes of an LSTM's last states: 2.11 and older remove the dimension of
    sequences from them, which only goes if there is one, instead of that of times, as 2.13 does."""
    owner = torch._decomp.decompositions
    layer = owner.one_layer_lstm

    def mended_layer(*arguments: Any, **named: Any) -> Any:
        output, states = layer(*arguments, **named)
        return output, tuple(state.reshape(state.shape[-2:]) for state in states)

    if torch.__version__ < _KNOWS_LSTM_STATES:
        owner.one_layer_lstm = mended_layer
    try:
        yield
    finally:
        owner.one_layer_lstm = layer
