"""Packed sequences against PyTorch: lengths that are an input, and others that are known."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pack_sequence, pad_packed_sequence

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree, graph_values
from tests.interpreter import run_program

STEPS = 5
LENGTHS = torch.tensor([5, 3, 1])
OTHERS = (torch.tensor([2, 2, 2]), torch.tensor([4, 3, 2]), torch.tensor([5, 5, 5]))


class Sequences(nn.Module):
    """(3, STEPS, 4) and lengths -> 3 numbers each. read: of what is padded again, and of the last states."""

    def __init__(self, layer: nn.Module, width: int, read: Callable[..., Tensor], is_sorted: bool = True) -> None:
        super().__init__()
        self.layer, self.last, self.read, self.is_sorted = layer, nn.Linear(width, 3), read, is_sorted

    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(x, lengths.cpu(), batch_first=True, enforce_sorted=self.is_sorted)
        rows, states = self.layer(packed)
        y, _ = pad_packed_sequence(rows, batch_first=True, total_length=STEPS)
        return self.last(self.read(y, states))


def outputs(y: Tensor, states: Any) -> Tensor:
    return y.mean(1)


def ends(y: Tensor, states: Any) -> Tensor:
    return torch.cat(states if isinstance(states, tuple) else (states,)).sum(0)


def given(lengths: Tensor) -> tuple[Tensor, Tensor]:
    return torch.randn(3, STEPS, 4), lengths


@pytest.mark.parametrize("both", [False, True])
@pytest.mark.parametrize("read", [outputs, ends])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_lengths_are_data(kind: type[nn.RNNBase], read: Callable[..., Tensor], both: bool) -> None:
    layer = kind(4, 6, num_layers=2, batch_first=True, bidirectional=both)
    module = Sequences(layer, 6 * (1 + (both and read is outputs)), read)
    agree(module, given(LENGTHS), "mse", others=[given(lengths) for lengths in OTHERS])


@pytest.mark.parametrize("read", [outputs, ends])
def test_in_any_order(read: Callable[..., Tensor]) -> None:
    module = Sequences(nn.GRU(4, 6, batch_first=True), 6, read, is_sorted=False)
    agree(module, given(LENGTHS.flip(0)), "mse", others=[given(torch.tensor([3, 5, 4]))])


def test_projections_and_plain_layers_of_rectifiers() -> None:
    agree(Sequences(nn.LSTM(4, 6, proj_size=2, batch_first=True), 2, outputs), given(LENGTHS), "mse")
    agree(Sequences(nn.RNN(4, 6, nonlinearity="relu", batch_first=True), 6, ends), given(LENGTHS), "mse")


def test_who_leaves_no_states_needs_no_lengths() -> None:
    def counted(read: Callable[..., Tensor]) -> Counter[str]:
        graph = agree(Sequences(nn.GRU(4, 6, batch_first=True), 6, read), given(LENGTHS), "mse")
        return Counter(n.op for n in graph.program["predict"].nodes)

    def last(y: Tensor, states: Any) -> Tensor:
        return y[:, 0]

    assert sum(counted(last).values()) < sum(counted(ends).values()) - STEPS


class Rows(nn.Module):
    """What a packed sequence has of single rows: a loss of labels that are packed alike."""

    def __init__(self) -> None:
        super().__init__()
        self.table, self.layer, self.last = nn.Embedding(9, 4), nn.GRU(4, 6), nn.Linear(6, 3)

    def forward(self, ids: Tensor, classes: Tensor, lengths: Tensor) -> Tensor:
        packed = pack_padded_sequence(ids, lengths, enforce_sorted=False)
        rows, _ = self.layer(packed._replace(data=F.relu(self.table(packed.data))))
        wanted = pack_padded_sequence(classes, lengths, enforce_sorted=False)
        return F.cross_entropy(self.last(rows.data), wanted.data)


def test_rows_may_be_read() -> None:
    def drawn(lengths: Tensor) -> tuple[Tensor, ...]:
        return torch.randint(0, 9, (STEPS, 3)), torch.randint(0, 3, (STEPS, 3)), lengths

    agree(Rows(), drawn(LENGTHS), None, others=[drawn(torch.tensor([2, 4, 3]))])


class Known(nn.Module):
    """Lengths that are none of the data: those of the sequences themselves."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.last = nn.LSTM(4, 6, bidirectional=True), nn.Linear(12, 3)

    def forward(self, a: Tensor, b: Tensor, c: Tensor) -> Tensor:
        rows, (h, _) = self.layer(pack_sequence([a, b, c], enforce_sorted=False))
        y, lengths = pad_packed_sequence(rows)
        assert y.shape == (max(len(a), len(b), len(c)), 3, 12)
        return self.last(y.sum(0) / lengths[:, None] + rows.data.mean(0)) + h.mean((0, 2))[:, None]


def test_lengths_are_known() -> None:
    agree(Known(), (torch.randn(2, 4), torch.randn(4, 4), torch.randn(3, 4)), "mse")


class Longest(Sequences):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        rows, _ = self.layer(pack_padded_sequence(x, lengths, batch_first=True))
        return self.last(pad_packed_sequence(rows, batch_first=True)[0].mean(1))


def test_what_is_as_long_as_the_longest_sequence() -> None:
    """It is right where that has all times, else not a number."""
    module, options = Longest(nn.GRU(4, 6, batch_first=True), 6, outputs), CaptureOptions(loss="mse")
    with pytest.warns(RuntimeWarning, match="SP1014.*padded to the longest"):
        graph, weights = capture_module(module, given(LENGTHS), options)
    with pytest.warns(RuntimeWarning, match="SP1014"):
        agree(module, given(LENGTHS), "mse", others=[given(OTHERS[2])])
    values, step = graph_values(graph, weights), graph.program["predict"]
    for lengths in (LENGTHS, OTHERS[0]):
        feed = dict(zip(step.inputs, (np.ones((3, STEPS, 4)), lengths.numpy()), strict=True))
        found = run_program(graph, "predict", {**values, **feed})[step.outputs[0]]
        assert np.isnan(found).all() == (lengths is not LENGTHS)


def of_sizes(packed: PackedSequence) -> Any:
    return packed.data * packed.batch_sizes.sum()


def of_some(packed: PackedSequence) -> Any:
    return pad_packed_sequence(packed._replace(data=packed.data[packed.data[:, 0] > 0]))[0]


@pytest.mark.parametrize("read", [of_sizes, of_some])
def test_refused(read: Callable[[PackedSequence], Any]) -> None:
    class Refused(nn.Module):
        def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
            return read(pack_padded_sequence(x, lengths)).sum()

    with pytest.raises(UserError, match=r"(?s)SP1014: a packed sequence is asked for .*test_torch_packed.py.*padded"):
        capture_module(
            Refused(), (torch.randn(STEPS, 3, 4, requires_grad=True), LENGTHS), CaptureOptions(loss="caller")
        )
