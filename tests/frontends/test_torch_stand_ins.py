"""What stands in for PyTorch's functions while a module is exported computes what they do."""

import pytest
import torch
from torch import Tensor, nn

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree


class Teacher(nn.Module):
    """Features that are not trained, computed in inference mode, but for a part."""

    def __init__(self) -> None:
        super().__init__()
        self.features, self.own, self.after = nn.Linear(5, 4), nn.Linear(5, 4), nn.Linear(4, 3)

    @torch.inference_mode()
    def told(self, x: Tensor) -> tuple[Tensor, Tensor]:
        with torch.inference_mode(False):
            trained = self.own(x)
        return self.features(x), trained

    def forward(self, x: Tensor) -> Tensor:
        with torch.inference_mode():
            scale = self.features(x).square().mean()
        features, trained = self.told(x)
        return self.after(features.clone() * trained * scale.clone())


def test_no_gradient_passes_inference_mode() -> None:
    agree(Teacher(), torch.randn(4, 5))
    assert torch.inference_mode.__enter__.__module__ == "torch.autograd.grad_mode"


class Decoder(nn.Module):
    """x (N, 6, 8) -> (N, 8), by PyTorch's own transformer layers, which are given masks and no hint."""

    def __init__(self, given: bool) -> None:
        super().__init__()
        settings = {"dim_feedforward": 16, "dropout": 0.0, "batch_first": True}
        self.encoder = nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, **settings), 2, enable_nested_tensor=False
        )
        self.decoder = nn.TransformerDecoder(nn.TransformerDecoderLayer(8, 2, **settings), 1)
        self.mask = None if given else nn.Transformer.generate_square_subsequent_mask(6)

    def forward(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        mask = mask if self.mask is None else self.mask.to(x.dtype)
        return self.decoder(x, self.encoder(x, mask), tgt_mask=mask).mean(1)


@pytest.mark.parametrize("given", [False, True])
def test_masks_of_transformers_need_no_hint(given: bool) -> None:
    mask = nn.Transformer.generate_square_subsequent_mask(6)
    graph = agree(Decoder(given), (torch.randn(2, 6, 8), *([mask] * given)))
    attend = [n.attrs for n in graph.program["train_step"].nodes if n.op == "attention"]
    assert [getattr(a, "causal", None) for a in attend] == [not given, not given, not given, False]


class Diagonals(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(5, 6), nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        z = self.before(x)
        likeness = z @ z.T
        likeness.fill_diagonal_(float("-inf"))
        z = 2 * z
        z.fill_diagonal_(0.5, wrap=True)
        z[:, 1].fill_(float("-inf"))
        return self.after(likeness.softmax(1)) + self.after(z.softmax(1)[:, :4])


def test_diagonals_are_filled() -> None:
    agree(Diagonals(), torch.randn(4, 5))


class Autocast(nn.Module):
    """Blocks of autocast that change nothing, in which something is detached, something has no gradient, and a buffer
    moves; one within another, one for another device, and a function's."""

    moved: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(5, 4), nn.Linear(4, 3)
        self.register_buffer("moved", torch.ones(4))

    @torch.autocast("cpu", enabled=False)
    def rounded(self, z: Tensor) -> Tensor:
        with torch.no_grad():
            scale = z.square().mean()
        return z + (z.round() - z).detach() * scale

    def forward(self, x: Tensor) -> Tensor:
        z = self.rounded(self.before(x))
        with torch.autocast("cpu", enabled=False):
            if self.training:
                with torch.no_grad():
                    self.moved.mul_(0.9).add_(z.mean(0))
            with torch.autocast("cuda", torch.float16):
                z = z * self.moved + z.detach().tanh()
            z = z * z.detach().exp()
        return self.after(z)


@pytest.mark.filterwarnings("ignore:.*CUDA is not available")
def test_autocast_that_changes_nothing() -> None:
    agree(Autocast(), torch.randn(4, 5))
    assert torch.autocast.__enter__.__module__ == "torch.amp.autocast_mode"


class Moving(nn.Module):
    """Parts that are moved to where they are, in a forward pass that does not know where that is."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.Linear(5, 4), nn.Linear(4, 3)
        self.norm = nn.BatchNorm1d(4)

    def forward(self, x: Tensor) -> Tensor:
        z = self.norm.to(x.device)(self.before.to(x)(x))
        return self.after.cpu().to(x.dtype, non_blocking=True)(z)


def test_parts_that_are_where_they_should_be() -> None:
    agree(Moving(), torch.randn(4, 5))


def test_parts_that_are_converted_are_refused() -> None:
    class Half(Moving):
        def forward(self, x: Tensor) -> Tensor:
            return self.after(self.before(x).half()) if self.after.half() else x

    with pytest.raises(UserError, match="SP1013"):
        capture_module(Half(), torch.randn(4, 5), CaptureOptions())


class Tried(nn.Module):
    """Its parts are called with an argument that one of them does not know."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList([Told(), nn.Linear(5, 3)])

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts:
            try:
                x = part(x, scale=2.0)
            except TypeError:
                x = part(x)
        return x


class Told(nn.Linear):
    def __init__(self) -> None:
        super().__init__(5, 5)

    def forward(self, x: Tensor, scale: float = 1.0) -> Tensor:
        return super().forward(x) * scale


def test_parts_that_are_called_again() -> None:
    agree(Tried(), torch.randn(4, 5))


class Likelihood(nn.Module):
    """Of a Gaussian process, whose matrix gets more on its diagonal until it has a factor."""

    def __init__(self) -> None:
        super().__init__()
        self.before, self.noise = nn.Linear(5, 2), nn.Parameter(torch.tensor(0.3))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.before(x)
        covariance = torch.exp(-torch.cdist(z, z).square()) + self.noise * torch.eye(len(z), dtype=z.dtype)
        factor, info = torch.linalg.cholesky_ex(covariance)
        while torch.any(info):
            covariance = covariance + 1e-3 * torch.eye(len(z), dtype=z.dtype)
            factor, info = torch.linalg.cholesky_ex(covariance)
        solved = torch.linalg.solve_triangular(factor, y[:, None], upper=False)
        return solved.square().sum() / 2 + factor.diagonal().log().sum()


def test_factors_are_there() -> None:
    agree(Likelihood(), (torch.randn(4, 5), torch.randn(4)), loss=None)


class Listed(nn.Module):
    """Functions of lists of tensors, with numbers, lists of numbers and of tensors, and in place."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.layer(x)
        parts, others = [y[:2], y[2:]], [y[:2].exp(), y[2:].sin()]
        found = torch._foreach_add(torch._foreach_mul(parts, 0.5), others, alpha=2.0)
        found = torch._foreach_lerp(found, torch._foreach_sub(others, [1.0, 2.0]), 0.25)
        torch._foreach_clamp_min_(found, -0.5)
        torch._foreach_div_(found, others)
        return torch.cat(found) * torch._foreach_neg(found)[0][:1]


def test_functions_of_lists() -> None:
    agree(Listed(), torch.randn(4, 5))
