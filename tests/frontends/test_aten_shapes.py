"""Views, joins, masks and constants, captured, compute what PyTorch computes."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import planner
from tests.frontends.torch_agreement import Function, agree


def many_dimensions(x: Tensor) -> Tensor:
    apart = x.reshape(2, 2, 1, 2, 3, 2, 2, 2).permute(0, 1, 5, 2, 3, 6, 4, 7)
    return (apart.reshape(4, 6, 8) * torch.arange(8)).sum(2)


def written(x: Tensor, a: Tensor, b: Tensor) -> Tensor:
    """x with columns of others, of whatever type, which become of its own."""
    x = x.clone()
    x[:, 0], x[:, 1:3], x[:, 3::2] = a[:, 0], b[:, 1:3], b[:, 3::2]
    return x


FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "in_place": lambda x: x.clone().mul_(2).add_(1).relu_().mul(3),
    "in_place_view": lambda x: (x.view(-1)[2:5].mul_(3), x)[1],
    "in_place_rows": lambda x: (x[:, 1].zero_(), x[0].add_(2), x.clone())[-1],
    "assign": lambda x: (x.__setitem__((slice(None), slice(1, 3)), x[:, 3:5] * 2), x)[1],
    "views": lambda x: x.reshape(-1, 2, 3).transpose(1, 2).contiguous().view(x.shape[0], -1).t().t(),
    "permute": lambda x: x.view(-1, 1, 2, 3).permute(0, 3, 1, 2).flatten(1),
    "permute_many": lambda x: many_dimensions(x[:, :, None] * torch.arange(8)),
    "squeeze": lambda x: x.unsqueeze(1).unsqueeze(-1).squeeze().squeeze(0),
    "split": lambda x: torch.cat(list(x.split(4, 1))[::-1], 1),
    "split_sizes": lambda x: sum((p.sum(1, keepdim=True) for p in x.split([1, 2, 3], 1)), x),
    "nothing": lambda x: torch.cat((x[:, :6].exp(), x[:, 6:].sin().neg()), 1) + x[:0].sum(),
    "assign_nothing": lambda x: (x.__setitem__((slice(None), slice(6, None)), x[:, 6:] + 1), x)[1],
    "split_nothing": lambda x: torch.cat([2 * p for p in x.split([2, 0, 4], 1)], 1),
    "masked_rows": lambda x: x.view(-1, 3, 2).index_put((x.view(-1, 3, 2)[..., 0] > 0,), x[0, :2]).flatten(1),
    "masked_whole": lambda x: x + x.argsort(1).index_put((x > 0,), torch.tensor(7)),
    "chunk": lambda x: torch.stack(x.chunk(3, dim=1), 1).flatten(1),
    "unbind": lambda x: torch.stack(x.unbind(1)[::-1], 1),
    "index": lambda x: torch.cat([x[:, -2:], x[:, None, 0], x[..., 1:4:2], x[:, 5:]], 1),
    "pad": lambda x: F.pad(x, (1, -1), value=0.5),
    "pad_alone": lambda x: x + F.pad(x[:, :1], (1, -1), value=0.5) * F.pad(x[:, None], (0, 0, -1, 1), value=2.0)[:, 0],
    "pad_alone_infinite": lambda x: x + F.pad(x[:, :1], (-1, 6), value=-torch.inf).exp(),
    "pad_alone_whole": lambda x: x + F.pad(x.argsort(1)[:, :1], (6, -1), value=2),
    "expand": lambda x: x + x[:1].expand(x.shape[0], -1) + x[:, :1].expand_as(x),
    "repeat": lambda x: x.repeat(2, 3)[: x.shape[0], 4:10],
    "repeat_interleave": lambda x: x.repeat_interleave(2, 1)[:, 3:9],
    "roll": lambda x: x.roll(2, 1) + x.roll((1, 3), (0, 1)),
    "flip": lambda x: x.flip(0, -1) * x,
    "flip_long": lambda x: (x.repeat(1, 3) * torch.arange(18)).flip(-1)[:, 3:9],
    "tile": lambda x: x.tile(2)[:, 2:8],
    "masked": lambda x: x.masked_fill(torch.eye(6)[: x.shape[0]] > 0, -3.0),
    "where": lambda x: torch.where(torch.arange(6) % 2 == 0, x, x * x),
    "tril": lambda x: x[:3, :3].tril().mean() + x * torch.triu(torch.ones(6, 6))[: x.shape[0]],
    "zeros_like": lambda x: x + torch.zeros_like(x) + torch.full_like(x, 2.0) * torch.ones_like(x),
    "new_full_whole": lambda x: x + torch.cat([x.argsort(1).new_full((x.shape[0], 1), 7), x.argsort(1)[:, :-1]], 1),
    "zeros_like_mask": lambda x: x * ~torch.zeros_like(x, dtype=torch.bool),
    "max_whole": lambda x: torch.cat([x, x])[x.argsort(1).max(1)[0]],
    "put_whole": lambda x: x[torch.zeros(8, dtype=torch.int64).index_put((x[:, 0].argsort(),), torch.arange(len(x)))],
    "scatter_add_whole": lambda x: x + torch.zeros_like(x.argsort(1)).scatter_add(1, x.argsort(1), x.argsort(1)),
    "written_whole": lambda x: written(x, x.argsort(1), x.argsort(1)),
    "written_into_whole": lambda x: x * written(x.argsort(1), 3 * x, 3 * x),
    "written_into_masks": lambda x: x * written(x > 0, x.argsort(1), 2 * x.relu()),
    "constants": lambda x: x * torch.linspace(0, 1, 6) + torch.tensor(2.0) - torch.tensor([[1.0] * 6]),
    "constant_quotients": lambda x: x * torch.div(torch.arange(-3, 3), torch.tensor(2), rounding_mode="floor"),
    "scalar_types": lambda x: x * True + x * 2 + x.float() + x.to(x.dtype),
}  # fmt: skip


@pytest.mark.parametrize("name", FUNCTIONS)
def test_function(name: str) -> None:
    agree(Function(FUNCTIONS[name]), torch.randn(4, 5))


def test_a_long_axis_is_turned_over_by_few_nodes() -> None:
    captured = planner.capture(Function(lambda x: x[:, :, None].expand(-1, -1, 400).flip(2).mean(2)), torch.randn(4, 5))
    assert len(captured.graph.programs[0].nodes) < 50


class Parts(nn.Module):
    """What Res2Net does with images: parts of them, written to in place; one is left out."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.fc = nn.Conv2d(3, 8, 3), nn.Linear(6, 4)

    def forward(self, x: Tensor) -> Tensor:
        parts = F.relu(self.conv(x), inplace=True).split(2, 1)
        first = F.relu(parts[0] - 0.5, inplace=True)
        second = F.relu(first + parts[1], inplace=True)
        return self.fc(torch.cat((first, second, parts[3]), 1).mean((2, 3)))


def test_parts_are_made_once_and_the_gradients_of_unused_ones_are_laid_out_alike() -> None:
    """torch.export splits anew for every part that it hands on."""
    graph = agree(Parts(), torch.randn(2, 3, 9, 7))
    ops = [node.op for node in graph.program["train_step"].nodes]
    assert ops.count("split") == 1 and "convert_layout" not in ops


def test_constants_of_one_number_are_not_written_out() -> None:
    class Bounded(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv = nn.Conv2d(3, 4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.conv(x)
            return torch.where(y > torch.zeros_like(y), torch.full_like(y, 2), y).flatten(1)

    graph = agree(Bounded(), torch.randn(2, 3, 6, 6))
    forward = [n for n in graph.program["train_step"].nodes if n.phase == "forward"]
    assert [n.attrs.text() for n in forward if n.op == "chain"] == ["where(compare(a,0.0,'gt'),2.0,a)"]
    assert "ones" not in {n.op for n in forward}
    assert [n.op for n in forward].count("convert_layout") <= 1


class Turned(nn.Module):
    def __init__(self, axes: list[int]) -> None:
        super().__init__()
        self.axes, self.scale = axes, nn.Parameter(torch.rand([2] * len(axes)))

    def forward(self, x: Tensor) -> Tensor:
        turned = (x.reshape(self.scale.shape) * self.scale).permute(self.axes).flatten()
        return (turned * torch.arange(turned.numel()))[None, ::9]


@pytest.mark.parametrize("rank", [7, 7, 8, 8, 9])
def test_many_dimensions_change_places(rank: int) -> None:
    """More than any kernel walks."""
    agree(Turned(torch.randperm(rank).tolist()), torch.randn(2**rank))


@pytest.mark.parametrize("step", [1, 2])
def test_windows_of_several_axes(step: int) -> None:
    """Of volumes, in eight dimensions: parts are cut out of them, and put into them."""
    weights = torch.arange(8.0).view(2, 2, 2)

    def windows(x: Tensor) -> Tensor:
        y = x.view(2, 2, 3, 3, 3).unfold(2, 2, step).unfold(3, 2, step).unfold(4, 2, step)
        return ((y * weights).square()[:, :, ..., :1, 1:] + y[..., :1, ::2]).mean((-3, -2, -1)).flatten(1).mean(1)

    agree(Windows(windows), torch.randn(4, 27))


class Windows(nn.Module):
    def __init__(self, function: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.layer, self.function = nn.Linear(27, 27), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.layer(x))[:, None] * torch.arange(3)


def enlarged(masks: Tensor, flow: Tensor) -> Tensor:
    """Pixels as weighted sums of their neighbours, as networks of optical flow enlarge their results."""
    n, _, h, w = flow.shape
    around = F.unfold(flow, 3, padding=1).view(n, 2, 9, 1, 1, h, w)
    y = (masks.view(n, 1, 9, 2, 2, h, w).softmax(2) * around).sum(2)
    return y.permute(0, 1, 4, 2, 5, 3).reshape(n, 2, 2 * h, 2 * w).mean((2, 3))


def chosen(masks: Tensor, flow: Tensor) -> Tensor:
    """Choices, repeated operands and parts of an axis; sums with the dimensions and without."""
    n, _, h, w = flow.shape
    a, b = masks.view(n, 1, 9, 2, 2, h, w), flow.view(n, 2, 1, 1, 1, h, w)
    y = torch.where(a > 0.1, a.expand(n, 2, 9, 2, 2, h, w), -b) + torch.maximum(a, b)[:, :, 1::2].sum(2, keepdim=True)
    return torch.cat([y[:, 1].mean((1, 2, 3)).flatten(1), y.sum((1, 2)).flatten(1)], 1)


class Enlarged(nn.Module):
    def __init__(self, function: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.masks, self.flow, self.function = nn.Conv2d(3, 36, 3, padding=1), nn.Conv2d(3, 2, 1), function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self.masks(x), self.flow(x))


@pytest.mark.parametrize("function", [enlarged, chosen])
def test_more_dimensions_than_kernels_walk_are_joined(function: Callable[[Tensor, Tensor], Tensor]) -> None:
    agree(Enlarged(function), torch.randn(2, 3, 4, 3))
