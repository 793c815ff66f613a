"""What forward assigns to buffers and other attributes."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.torch_agreement import agree


class Exchange(nn.Module):
    """Two buffers that change places, one of them changed, beside one that is None."""

    even: Tensor
    odd: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("nothing", None)
        self.register_buffer("even", torch.rand(6))
        self.register_buffer("odd", torch.rand(6))

    def forward(self, y: Tensor) -> Tensor:
        if self.training:
            self.even, self.odd = self.odd, self.even * 0.5 + y.mean(0)
        return y * self.even + self.odd


class Outer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.inner = nn.Linear(5, 6), Exchange()
        self.register_buffer("nothing", None)
        self.register_buffer("share", torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        y, before = self.inner(self.fc(x)), self.get_buffer("share")
        if self.training:
            self.share = before * 0.9
        return y * before + self.share  # type: ignore[operator]


@pytest.mark.parametrize("loss", ["cross_entropy", lambda p, labels: 2 * F.cross_entropy(p, labels)])
def test_buffers_of_all_parts(loss: Any) -> None:
    torch.manual_seed(3)
    module, labels = Outer(), torch.randint(0, 6, (4,))
    held = dict(module.named_buffers())
    start = {n: t.clone() for n, t in held.items()}
    agree(module, torch.randn(4, 5), loss, None if isinstance(loss, str) else labels)
    assert all(t is held[n] and torch.equal(t, start[n]) for n, t in module.named_buffers())
    assert "forward" not in vars(module)


class Assigning(nn.Module):
    """`assign(self, y)` in training mode."""

    def __init__(self, assign: Callable[[Any, Tensor], Any]) -> None:
        super().__init__()
        self.assign, self.fc = assign, nn.Linear(5, 6)
        self.register_buffer("none", None)
        self.register_buffer("kept", torch.rand(6))
        self.plain, self.listed, self.seen = torch.rand(6), [torch.rand(6)], torch.rand(6)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        y = y * self.plain + self.listed[0] * self.kept  # type: ignore[operator]
        if self.training:
            self.assign(self, y)
        return y


def plain(module: Any, y: Tensor) -> None:
    module.plain = y.detach().mean(0)


def listed(module: Any, y: Tensor) -> None:
    module.listed[0] = y.detach().mean(0)


def made(module: Any, y: Tensor) -> None:
    module.none = y.detach().mean(0)


def reshaped(module: Any, y: Tensor) -> None:
    module.kept = y.detach().mean(0, keepdim=True)


@pytest.mark.parametrize(
    ("assign", "told"),
    [
        (plain, "keeps a tensor from one step for the next in 'plain'"),
        (listed, r"keeps a tensor from one step for the next in 'listed\[0\]'"),
        (made, "buffer 'none' is None before or after"),
        (reshaped, r"buffer 'kept' is float32 \[6\], and becomes float32 \[1, 6\]"),
        (lambda module, y: module.register_buffer("fresh", torch.ones(6)), "makes 'fresh', which it did not have"),
        (lambda module, y: setattr(module, "weight", nn.Parameter(torch.ones(6))), "makes 'weight'"),
        (lambda module, y: module.fc.add_module("part", nn.Linear(6, 6)), "makes 'fc.part'"),
    ],
)
def test_refused(assign: Callable[[Any, Tensor], Any], told: str) -> None:
    module = Assigning(assign)
    held, state, parts = module.kept, list(module.state_dict()), list(module.modules())
    with pytest.raises(UserError, match=f"SP1020.*{told}"):
        capture_module(module, torch.randn(4, 5))
    assert module.none is None and module.kept is held
    assert list(module.state_dict()) == state and list(module.modules()) == parts


def test_what_is_only_shown_may_be_assigned() -> None:
    def show(module: Any, y: Tensor) -> None:
        module.seen, module.fresh = y.detach(), y
        module.history.append(y)

    torch.manual_seed(8)
    module: Any = Assigning(show)
    module.history, seen = [], module.seen
    with pytest.warns(RuntimeWarning, match="SP1020.*'fresh', where a plan's steps leave none"):
        agree(module, torch.randn(4, 5))
    assert module.seen is seen and module.history == [] and not hasattr(module, "fresh")


class Membrane(nn.Module):
    """Its potential is a buffer that is not saved, empty at first: as spiking networks' libraries have it."""

    def __init__(self, begins_anew: bool) -> None:
        super().__init__()
        self.begins_anew, self.fc = begins_anew, nn.Linear(5, 6)
        self.potential: Tensor
        self.register_buffer("potential", torch.zeros(0 if begins_anew else 6), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        if self.begins_anew:
            self.potential = torch.zeros_like(self.potential)
        y = self.fc(x)
        if self.begins_anew and self.potential.shape != y.shape:
            self.potential = torch.zeros_like(y)
        for _ in range(3):
            self.potential = (0.9 * self.potential + y).tanh()
        return self.potential.mean(0, keepdim=True) + y


@pytest.mark.parametrize("run_before", [False, True])
def test_a_buffer_that_is_not_saved_may_be_a_variable_of_forward(run_before: bool) -> None:
    torch.manual_seed(8)
    module, x = Membrane(begins_anew=True), torch.randn(4, 5)
    if run_before:
        module(x)
        module.potential = module.potential.detach()  # as deep copies want it
    held = module.potential
    agree(module, x)
    assert module.potential is held
    assert capture_module(module, x, CaptureOptions(loss="caller")), "nothing is left for a caller to move on"


def test_a_buffer_that_is_not_saved_may_not_outlive_a_step() -> None:
    module = nn.Sequential(Membrane(begins_anew=False))
    with pytest.raises(UserError, match=r"SP1020.*buffer '0\.potential' in forward, but does not save it"):
        capture_module(module, torch.randn(4, 5))


class Lazy(nn.Module):
    """Makes something in its first step and finds it in the next: `make(module, y)`. `missing`: it has no attribute for
    it before."""

    def __init__(self, make: Callable[[Any, Tensor], Any], missing: bool) -> None:
        super().__init__()
        self.make, self.fc, self.rate = make, nn.Linear(5, 6), 0.5
        self.found: Any = None
        if missing:
            del self.found
        self.register_buffer("steps", torch.rand(6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        if not hasattr(self, "found") or self.found is None:
            self.found = self.make(self, y)
        found = self.found[0] if isinstance(self.found, tuple) else self.found
        return y + found * self.rate


REMEMBERED: list[Callable[[Any, Tensor], Any]] = [
    lambda _, y: y.detach(),
    lambda _, y: (y.detach().mean(0), 1),
    lambda module, _: module.fc.weight.sum(),
]
MADE_ONCE: list[Callable[[Any, Tensor], Any]] = [
    lambda module, _: module.steps.cos(),
    lambda _, y: torch.ones_like(y).cumsum(1),
    lambda _, y: torch.arange(6, dtype=y.dtype).sin(),
]


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("make", REMEMBERED)
def test_what_the_next_step_would_find(make: Callable[[Any, Tensor], Any], missing: bool) -> None:
    module = Lazy(make, missing)
    with pytest.raises(UserError, match=r"SP1020.*for the next in '0\.found"):
        capture_module(nn.Sequential(module), torch.randn(4, 5))
    options = CaptureOptions(loss=lambda p, labels: (p - labels).square().mean(), labels=torch.zeros(4, 6))
    with pytest.raises(UserError, match=r"SP1020.*for the next in 'found"):
        capture_module(module, torch.randn(4, 5), options)
    assert getattr(module, "found", None) is None


@pytest.mark.parametrize("missing", [False, True])
@pytest.mark.parametrize("make", MADE_ONCE)
def test_tables_are_made_once(make: Callable[[Any, Tensor], Any], missing: bool) -> None:
    torch.manual_seed(9)
    agree(Lazy(make, missing), torch.randn(4, 5))


class Defaults(nn.Module):
    """An attribute that is None here and a number by the class's default."""

    scale: float | None = 3.0

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 6)
        self.scale = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x)
        return y if self.scale is None else y * self.scale


def test_none_hides_the_default_of_the_class() -> None:
    torch.manual_seed(10)
    agree(Defaults(), torch.randn(4, 5))
