"""Bags of embeddings against PyTorch: even and uneven ones, empty ones, offsets that are an input."""

import pytest
import torch
from torch import Tensor, nn

from tests.frontends.torch_agreement import agree

IDS = torch.tensor([4, 1, 1, 0, 6, 4, 2, 2, 3, 5, 0, 1])


class Bags(nn.Module):
    """`offsets`: None where they are an input."""

    def __init__(self, offsets: list[int] | None, weighted: bool = False, **options: object) -> None:
        super().__init__()
        self.bag, self.fc, self.weighted = nn.EmbeddingBag(7, 3, **options), nn.Linear(3, 4), weighted
        if offsets is not None:
            self.register_buffer("offsets", torch.tensor(offsets))
        self.weight = nn.Parameter(torch.rand(len(IDS)))

    def forward(self, ids: Tensor, offsets: Tensor | None = None) -> Tensor:
        given = self.offsets if offsets is None else offsets
        return self.fc(self.bag(ids, given, self.weight if self.weighted else None))


@pytest.mark.parametrize("offsets", [[0, 4, 8], [0, 3, 3, 10], [0, 5, 12], [0], list(range(12))])
@pytest.mark.parametrize(
    "options",
    [
        {"mode": "sum"},
        {"mode": "mean"},
        {"mode": "mean", "padding_idx": 1},
        {"mode": "max"},
        {"mode": "max", "padding_idx": 1},
    ],
)
def test_offsets_that_are_known(offsets: list[int], options: dict[str, object]) -> None:
    agree(Bags(offsets, **options), IDS, loss="mse")


@pytest.mark.parametrize("offsets", [[0, 4, 8], [0, 3, 3, 10], [0, 0, 12]])
@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_offsets_that_are_an_input(offsets: list[int], mode: str) -> None:
    agree(Bags(None, mode=mode), (IDS, torch.tensor(offsets)), loss="mse")


@pytest.mark.parametrize("offsets", [[0, 6, 12], [0, 5, 5, 12]])
def test_the_last_offset_ends_the_last_bag(offsets: list[int]) -> None:
    agree(Bags(offsets, include_last_offset=True, mode="sum", weighted=True), IDS, loss="mse")


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.fc = nn.EmbeddingBag(50, 4, mode="mean"), nn.Linear(4, 3)

    def forward(self, ids: Tensor) -> Tensor:
        return self.fc(self.bag(ids))


def test_ids_in_rows_take_no_more_than_their_embeddings() -> None:
    """Who is in which bag is no matrix: of 40 bags of 20 ids that would have 32000 elements."""
    graph = agree(Rows(), torch.randint(0, 50, (40, 20)))
    assert max(v.type.elements for v in graph.values) == 40 * 20 * 4
