"""LSTM and GRU modules: several layers, both directions, either order of the dimensions."""

import torch
from torch import Tensor, nn

from tests.models.parts import ADAM, SGD, Made


class Tagger(nn.Module):
    """A class per position from an LSTM that reads in both directions."""

    def __init__(self, vocabulary: int = 20, width: int = 8, hidden: int = 10, classes: int = 4) -> None:
        super().__init__()
        self.embedding = nn.Embedding(vocabulary, width)
        self.lstm = nn.LSTM(width, hidden, num_layers=2, bidirectional=True, batch_first=True)
        self.fc = nn.Linear(2 * hidden, classes)

    def forward(self, words: Tensor) -> Tensor:
        y, _ = self.lstm(self.embedding(words))
        return self.fc(y).transpose(1, 2)


class LastState(nn.Module):
    """The last hidden state of every layer; time comes first, dropout between the layers."""

    def __init__(self, inputs: int = 6, hidden: int = 12, layers: int = 3) -> None:
        super().__init__()
        self.lstm = nn.LSTM(inputs, hidden, layers, dropout=0.1)
        self.fc = nn.Linear(layers * hidden, 3)

    def forward(self, x: Tensor) -> Tensor:
        _, (h, c) = self.lstm(x.transpose(0, 1))
        return self.fc((h + 0.1 * c).transpose(0, 1).flatten(1))


class Gru(nn.Module):
    def __init__(self, inputs: int = 6, hidden: int = 12, bidirectional: bool = False) -> None:
        super().__init__()
        self.gru = nn.GRU(inputs, hidden, num_layers=2, batch_first=True, bidirectional=bidirectional)
        self.fc = nn.Linear(hidden * (1 + bidirectional), 3)

    def forward(self, x: Tensor) -> Tensor:
        y, h = self.gru(x)
        return self.fc(y[:, -1])


class Stepped(nn.Module):
    """Cells in a loop over time, from a learned first state."""

    def __init__(self, inputs: int = 5, hidden: int = 8) -> None:
        super().__init__()
        self.lstm, self.gru = nn.LSTMCell(inputs, hidden), nn.GRUCell(hidden, hidden)
        self.start = nn.Parameter(torch.zeros(hidden))
        self.fc = nn.Linear(hidden, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.start.expand(x.shape[0], -1)
        c, g, found = torch.zeros_like(h), torch.zeros_like(h), []
        for t in range(x.shape[1]):
            h, c = self.lstm(x[:, t], (h, c))
            g = self.gru(h, g)
            found.append(g)
        return self.fc(torch.stack(found, dim=1))


def lstm_tagger(batch: int = 3) -> Made:
    return Tagger(), (torch.randint(0, 20, (batch, 5)),), ADAM


def lstm_last(batch: int = 4) -> Made:
    return LastState(), (torch.randn(batch, 5, 6),), SGD


def gru(batch: int = 4) -> Made:
    return Gru(), (torch.randn(batch, 5, 6),), SGD


def gru_both(batch: int = 2) -> Made:
    return Gru(hidden=9, bidirectional=True), (torch.randn(batch, 4, 6),), ADAM


def cells(batch: int = 3) -> Made:
    return Stepped(), (torch.randn(batch, 4, 5),), {**ADAM, "loss": "mse"}


FACTORIES = (lstm_tagger, lstm_last, gru, gru_both, cells)
