"""Transformed functions (torch.func) within modules: PyTorch's numbers, and the gradients of what is made of them."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, grad_and_value, hessian, jacfwd, jacrev, jvp, linearize, vjp, vmap

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from tests.frontends.test_torch_derivatives import Field, slope
from tests.frontends.torch_agreement import agree
from tests.torch_functions import rounded

scaled = vmap(lambda x, factor: x * factor, in_dims=(0, None))
"""Transformed before anything is captured."""


def at(body: nn.Module) -> Callable[[Tensor], Tensor]:
    """The field's value at one point."""
    return lambda point: body(point[None])[0, 0]


def of_the_sum(body: nn.Module, x: Tensor) -> Tensor:
    return grad(lambda p: body(p).sum())(x)


def with_value(body: nn.Module, x: Tensor) -> Tensor:
    slopes, values = vmap(grad_and_value(at(body)))(x)
    return slopes * values[:, None]


def jacobians(body: nn.Module, x: Tensor) -> Tensor:
    return scaled(vmap(jacrev(at(body)))(x), 0.5)


def forward_jacobians(body: nn.Module, x: Tensor) -> Tensor:
    return vmap(jacfwd(lambda point: torch.cat([point, at(body)(point)[None]])))(x).sum(1)


def laplacian(body: nn.Module, x: Tensor) -> Tensor:
    return torch.stack([torch.trace(h) for h in vmap(hessian(at(body)))(x)])


def nested(body: nn.Module, x: Tensor) -> Tensor:
    return vmap(lambda p: grad(lambda q: grad(at(body))(q)[0] * q[1])(p))(x)


def whole_hessian(body: nn.Module, x: Tensor) -> Tensor:
    return hessian(lambda p: body(p).sum())(x[:1]).reshape(3, 3)


def whole_jacobian(body: nn.Module, x: Tensor) -> Tensor:
    return jacrev(body)(x[:2]).reshape(2, 6)


def directional(body: nn.Module, x: Tensor) -> Tensor:
    y, dy = jvp(body, (x,), (torch.cos(x),))
    return y * dy


def with_detached(body: nn.Module, x: Tensor) -> Tensor:
    return vmap(grad(lambda p: at(body)(p) * at(body)(p).detach()))(x)


def of_parameters(body: nn.Module, x: Tensor) -> Tensor:
    """Weights that a gradient step has moved, for every point its own (MAML)."""
    weights = dict(body.named_parameters())

    def loss(w: dict[str, Tensor], point: Tensor) -> Tensor:
        return functional_call(body, w, (point[None],)).pow(2).sum()

    def one(point: Tensor) -> Tensor:
        moved = {k: w - 0.1 * g for (k, w), g in zip(weights.items(), grad(loss)(weights, point).values(), strict=True)}
        return loss(moved, point)

    return vmap(one)(x)


def between(body: nn.Module, x: Tensor) -> Tensor:
    """What autograd differentiates has a transform in it, and comes from one."""
    x = vmap(torch.sin)(x).detach().requires_grad_()
    return slope(vmap(at(body))(x) * x[:, 0], x)


FIELDS = (
    *(of_the_sum, with_value, jacobians, forward_jacobians, laplacian, nested, whole_hessian, whole_jacobian),
    *(directional, with_detached, of_parameters, between),
)


@pytest.mark.parametrize("field", FIELDS, ids=lambda f: f.__name__)
def test_transforms_and_their_gradients(field: Callable[[nn.Module, Tensor], Tensor]) -> None:
    agree(Field(field), torch.randn(4, 3), lambda y, t: (y**2).mean() * t, torch.rand(()) + 1)


def convolved(body: nn.Module, x: Tensor) -> Tensor:
    return vmap(lambda image: grad(lambda p: body(p[None]).sum())(image))(x)


def test_images() -> None:
    body = nn.Sequential(nn.Conv2d(2, 4, 3, 2), nn.GroupNorm(2, 4), nn.SiLU(), nn.Conv2d(4, 1, 3))
    agree(Field(convolved, body), torch.randn(2, 2, 8, 8), "mse")


def without_gradients(body: nn.Module, x: Tensor) -> Tensor:
    def one(point: Tensor) -> Tensor:
        with torch.no_grad():
            weight = at(body)(point)
        return weight * point

    return vmap(one)(x)


@torch.no_grad()
def weight_of(body: nn.Module, point: Tensor) -> Tensor:
    return at(body)(point)


REFUSED: dict[str, tuple[Callable[[nn.Module, Tensor], Tensor], str]] = {
    "vjp": (lambda body, x: vjp(body, x)[1](torch.ones(4, 1))[0], "torch.func.vjp"),
    "linearize": (lambda body, x: linearize(body, x)[1](x), "torch.func.linearize"),
    "function": (lambda body, x: vmap(rounded)(x), "Round, within a transformed function"),
    "no_grad": (without_gradients, "torch.no_grad"),
    "decorator": (lambda body, x: vmap(lambda point: point * weight_of(body, point))(x), "torch.no_grad"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str) -> None:
    what, told = REFUSED[name]
    with pytest.raises(UserError, match=told) as error:
        capture_module(Field(what), torch.randn(4, 3), CaptureOptions(loss="mse"))
    assert error.value.code == ("SP1024" if name == "function" else "SP1025")


def test_transforms_are_pytorchs_again() -> None:
    capture_module(Field(jacobians), torch.randn(4, 3), CaptureOptions(loss="mse"))
    x = torch.randn(4)
    torch.testing.assert_close(jacrev(torch.sin)(x), torch.cos(x).diag())
    torch.testing.assert_close(vmap(grad(torch.sin))(x), torch.cos(x))
    with torch.no_grad():
        assert not (nn.Linear(2, 2)(torch.ones(1, 2))).requires_grad
