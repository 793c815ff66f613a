"""Packed sequences: how long sequences are is data, so PyTorch does not know how many rows it packs where a module is
exported. Here they stay as they were padded, and a mask says which of their rows are packed (torch_picked.py); of
lengths that are known those rows go on alone. Recurrent layers go through all times, and behind a sequence's end leave
its states as they are (`stepplan::recurrent`).

What PyTorch pads again is as long as the longest sequence; here it is as long as it was before, unless lengths are
known. Where no `total_length` asks for that, it is NaN in a step in which no sequence is so long, and this is told."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

from planner.errors import UserError
from planner.frontends.torch_alike import is_recorded
from planner.frontends.torch_picked import Picked
from planner.frontends.torch_places import bracketed, calling_line
from planner.frontends.torch_stand_ins import in_place_of

_KINDS = ("lstm", "gru", "rnn_tanh", "rnn_relu")
PADDED = "use padded sequences, and mask what lies behind their ends"


@contextmanager
def packed_sequences(torch: Any) -> Iterator[list[UserError]]:
    """Within it, sequences are packed so. Yields what is to be told."""
    told = list[UserError]()
    functions = torch._VF
    pack, pad = functions._pack_padded_sequence, functions._pad_packed_sequence

    def packed(x: Any, lengths: Any, batch_first: bool) -> Any:
        if not is_recorded(torch):
            return pack(x, lengths, batch_first)
        times = _Times(torch, x.transpose(0, 1) if batch_first else x, lengths)
        return times.packed, times

    def padded(data: Any, times: Any, batch_first: bool, value: float, total: int) -> Any:
        if not isinstance(times, _Times):
            return pad(data, times, batch_first, value, total)
        y = times.padded(data, value)
        if isinstance(total, _Longest) and times.known is None:
            told.append(_uncertain(len(y)))
            if y.is_floating_point():
                y = torch.where(times.lengths.max() == len(y), y, torch.full((), float("nan"), dtype=y.dtype))
        if total > len(y):
            y = torch.cat([y, y.new_full((total - len(y), *y.shape[1:]), value)])
        return y.transpose(0, 1) if batch_first else y, times.lengths

    def recurrent(kind: str, original: Callable[..., Any]) -> Callable[..., Any]:
        def run(x: Any, times: Any, *rest: Any) -> Any:
            if not isinstance(times, _Times):
                return original(x, times, *rest)
            first, parameters, *options = rest
            states = list(first) if kind == "lstm" else [first]
            y, *last = _recurrent(torch)(times.padded(x, 0), times.mask, states, list(parameters), kind, *options)
            return times.of(y), *last

        return run

    replaced: dict[tuple[Any, str], Any] = {
        (functions, "_pack_padded_sequence"): packed,
        (functions, "_pad_packed_sequence"): padded,
        **{(functions, kind): recurrent(kind, getattr(functions, kind)) for kind in _KINDS},
    }
    with in_place_of(replaced):
        yield told


def _uncertain(steps: int) -> UserError:
    problem = f"packed sequences are padded to the longest of them{bracketed(calling_line())}, which is data"
    fix = f"pass total_length={steps}: without, steps in which no sequence is so long have results that are NaN"
    return UserError("SP1014", problem, fix)


class _Longest(int):
    """How long the longest sequence may be."""


class _Times:
    """In the place of a packed sequence's batch sizes, of which the first is that of all sequences.

    mask: [times, sequences], what is packed of x [times, sequences, ...]; known: places of rows that are packed, where
    the lengths are known, None elsewhere."""

    def __init__(self, torch: Any, x: Any, lengths: Any) -> None:
        self.torch, self.lengths, self.device = torch, lengths, torch.device("cpu")
        self.mask = torch.arange(len(x))[:, None] < lengths
        self.packed, self.known = x.flatten(0, 1)[self.mask.flatten()], None
        if not isinstance(self.packed, Picked):
            longest = int(lengths.max())
            self.mask = self.mask[:longest]
            self.known = self.mask.flatten().nonzero()[:, 0]

    def __getitem__(self, place: int) -> int:
        if place != 0:
            raise self._refused("how many sequences have a time")
        return int(self.mask.shape[1])

    def size(self, axis: int = 0) -> int:
        return _Longest(self.mask.shape[0])

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        raise self._refused(f"{name} of batch_sizes")

    def padded(self, data: Any, value: float) -> Any:
        """[times, sequences, ...]"""
        if self.known is None:
            if not (isinstance(data, Picked) and data.axis == 0 and data.mask.same(self.packed.mask)):
                raise self._refused("what is no longer one row for every element")
            rows = data.mask.filled(data.rows, 0, value)
        else:
            rows = data.new_full((self.mask.numel(), *data.shape[1:]), value).index_copy(0, self.known, data)
        return rows.unflatten(0, tuple(self.mask.shape))

    def of(self, y: Any) -> Any:
        """The rows of [times, sequences, ...] that are packed."""
        rows = y.flatten(0, 1)
        if self.known is not None:
            return rows.index_select(0, self.known)
        return self.packed.like(self.packed.mask.copied(rows, 0))

    def _refused(self, what: str) -> UserError:
        return UserError("SP1014", f"a packed sequence is asked for {what}{bracketed(calling_line())}", PADDED)


@cache
def _recurrent(torch: Any) -> Any:
    """x [times, sequences, features] -> outputs, and the last states of each sequence (aten_recurrent.py)."""
    schema = (
        "(Tensor x, Tensor mask, Tensor[] first, Tensor[] parameters, str kind, bool biases, int layers, float dropout,"
        " bool train, bool both) -> Tensor[]"
    )

    def run(x: Any, mask: Any, first: Any, parameters: Any, kind: str, *options: Any) -> Any:
        lengths, order = mask.sum(0).sort(descending=True)
        data, sizes = torch._VF._pack_padded_sequence(x[:, order], lengths, False)
        states = [s[:, order] for s in first]
        y, *last = getattr(torch._VF, kind)(data, sizes, states if kind == "lstm" else states[0], parameters, *options)
        y, back = torch._VF._pad_packed_sequence(y, sizes, False, 0.0, len(x))[0], order.argsort()
        return [v[:, back] for v in (y, *last)]

    made = torch.library.custom_op("stepplan::recurrent", run, mutates_args=(), schema=schema)

    def results(x: Any, mask: Any, first: Any, parameters: Any, *options: Any) -> Any:
        width = first[0].shape[-1] * (1 + options[-1])
        return [x.new_empty((*x.shape[:2], width)), *(torch.empty_like(s) for s in first)]

    def no_gradient(context: Any, *slopes: Any) -> Any:
        raise NotImplementedError("an exported program is differentiated by stepplan")

    made.register_fake(results)
    made.register_autograd(no_gradient)
    return made
