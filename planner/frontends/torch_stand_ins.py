"""PyTorch's functions that look at numbers where they are exported, or are exported in many pieces, each with another
in its place that does not: an operator that has a handler of its own (aten_ctc.py, aten_borders.py) and runs as the
function does, or what it computes."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from typing import Any


@contextmanager
def stand_ins(torch: Any) -> Iterator[None]:
    """Within it, ctc_loss is `stepplan::ctc_loss`: PyTorch's own reads the lengths of sequences. Circular padding is
    `stepplan::circular_pad`, else copies of every border. Covariances without weights are products: PyTorch's own asks
    whether their number is positive. Its transformers do not look at masks: whether one is causal is no more than a
    hint, which their callers may give. Diagonals are filled by masks: PyTorch's own writes through strides. Cholesky
    factors that are asked whether there are any are there: as of `linalg.cholesky`, what has none is NaN in a step.
    Functions of lists of tensors (`_foreach_mul_`) go through them one by one. Instance norms move their statistics by
    what they are made of: PyTorch's own writes to them without saying so."""
    original, original_pad, fill_diagonal = torch.ctc_loss, torch.nn.functional.pad, torch.Tensor.fill_diagonal_
    factored = torch.linalg.cholesky_ex

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

    def padded(input: Any, pad: Any, mode: str = "constant", value: Any = None) -> Any:
        if mode != "circular":
            return original_pad(input, pad, mode, value)
        return _circular_pad(torch, original_pad)(input, list(pad))

    padded.__name__ = "pad"

    def filled(self: Any, fill_value: Any, wrap: bool = False) -> Any:
        if self.dim() != 2 or (wrap and self.shape[0] > self.shape[1]):
            return fill_diagonal(self, fill_value, wrap)
        return self.masked_fill_(torch.eye(*self.shape, dtype=torch.bool), fill_value)

    def cholesky_ex(A: Any, *, upper: bool = False, check_errors: bool = False, out: Any = None) -> Any:
        if out is not None:
            return factored(A, upper=upper, check_errors=check_errors, out=out)
        factor, fine = torch.linalg.cholesky(A, upper=upper), torch.zeros(A.shape[:-2], dtype=torch.int32)
        return torch.return_types.linalg_cholesky_ex((factor, fine))

    replaced: dict[tuple[Any, str], Any] = {
        (torch.linalg, "cholesky_ex"): cholesky_ex,
        (torch, "ctc_loss"): ctc_loss,
        (torch.nn.functional, "instance_norm"): _instance_norm(torch, torch.nn.functional.instance_norm),
        (torch.nn.functional, "pad"): padded,
        (torch.Tensor, "fill_diagonal_"): filled,
        (torch.nn.modules.transformer, "_detect_is_causal_mask"): lambda mask, hint=None, size=None: hint is True,
        **{(o, n): made(torch, getattr(o, n)) for n, made in _COVARIANCES.items() for o in (torch, torch.Tensor)},
        **_of_lists(torch),
    }
    with in_place_of(replaced):
        yield


@contextmanager
def in_place_of(replaced: Mapping[tuple[Any, str], Any]) -> Iterator[None]:
    """Within it, owners have other attributes of these names."""
    originals = {place: getattr(*place) for place in replaced}
    try:
        for (owner, name), stand_in in replaced.items():
            setattr(owner, name, stand_in)
        yield
    finally:
        for (owner, name), function in originals.items():
            setattr(owner, name, function)


def _instance_norm(torch: Any, original: Any) -> Any:
    def instance_norm(
        input: Any,
        running_mean: Any = None,
        running_var: Any = None,
        weight: Any = None,
        bias: Any = None,
        use_input_stats: bool = True,
        momentum: float = 0.1,
        eps: float = 1e-5,
    ) -> Any:
        if running_mean is None or running_var is None:
            return original(input, running_mean, running_var, weight, bias, use_input_stats, momentum, eps)
        if not use_input_stats:
            wide = (-1, *[1] * (input.dim() - 2))
            scale = (running_var + eps).rsqrt() if weight is None else (running_var + eps).rsqrt() * weight
            y = (input - running_mean.reshape(wide)) * scale.reshape(wide)
            return y if bias is None else y + bias.reshape(wide)
        with torch.no_grad():
            each = torch.var_mean(input.flatten(2), 2)  # of every image; the statistics are their means
            for statistic, new in zip((running_var, running_mean), each, strict=True):
                statistic.mul_(1 - momentum).add_(new.mean(0), alpha=momentum)
        return original(input, None, None, weight, bias, True, momentum, eps)

    return instance_norm


def _covariance(torch: Any, original: Any) -> Any:
    def cov(input: Any, *, correction: int = 1, fweights: Any = None, aweights: Any = None) -> Any:
        if fweights is not None or aweights is not None or input.dim() > 2:
            return original(input, correction=correction, fweights=fweights, aweights=aweights)
        rows = input.reshape(-1, input.shape[-1])
        apart = rows - rows.mean(1, keepdim=True)
        return (apart @ apart.mH / max(rows.shape[1] - correction, 0)).squeeze()

    return cov


def _correlation(torch: Any, original: Any) -> Any:
    def corrcoef(input: Any) -> Any:
        if input.dim() != 2 or input.is_complex():
            return original(input)
        found = torch.cov(input)
        if found.dim() == 0:
            return found / found
        deviation = found.diagonal().sqrt()
        return (found / deviation[:, None] / deviation).clip(-1, 1)

    return corrcoef


_COVARIANCES = {"cov": _covariance, "corrcoef": _correlation}


_LISTED = (
    *("abs", "add", "clamp_max", "clamp_min", "copy", "div", "exp"),
    *("lerp", "mul", "neg", "pow", "sqrt", "sub", "zero"),
)


def _of_lists(torch: Any) -> dict[tuple[Any, str], Any]:
    def each(method: Any) -> Any:
        def one_by_one(self: Any, *given: Any, **named: Any) -> list[Any]:
            def own(i: int, x: Any) -> Any:
                return x[i] if isinstance(x, list | tuple) else x

            return [
                method(tensor, *(own(i, x) for x in given), **{k: own(i, x) for k, x in named.items()})
                for i, tensor in enumerate(self)
            ]

        return one_by_one

    forms = [f"{name}{end}" for name in _LISTED for end in ("", "_")]
    known = [n for n in forms if hasattr(torch.Tensor, n) and hasattr(torch, f"_foreach_{n}")]
    return {(torch, f"_foreach_{name}"): each(getattr(torch.Tensor, name)) for name in known}


@cache
def _ctc_loss(torch: Any, original: Any) -> Any:
    schema = (
        "(Tensor log_probs, Tensor targets, Tensor frames, Tensor labels, int blank, int reduction, bool zero_infinity)"
        " -> Tensor"
    )
    made = torch.library.custom_op("stepplan::ctc_loss", original, mutates_args=(), schema=schema)

    def result(log_probs: Any, targets: Any, frames: Any, labels: Any, blank: int, reduction: int, zero: bool) -> Any:
        return log_probs.new_empty(() if reduction or log_probs.dim() == 2 else (log_probs.shape[1],))

    made.register_fake(result)
    made.register_autograd(_no_gradient)
    return made


@cache
def _circular_pad(torch: Any, original: Any) -> Any:
    def run(x: Any, pads: Any) -> Any:
        return original(x, pads, "circular")

    made = torch.library.custom_op(
        "stepplan::circular_pad", run, mutates_args=(), schema="(Tensor x, int[] pads) -> Tensor"
    )
    made.register_fake(run)
    made.register_autograd(_no_gradient)
    return made


def _no_gradient(context: Any, *slopes: Any) -> Any:
    raise NotImplementedError("an exported program is differentiated by stepplan")
