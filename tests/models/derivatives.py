"""Networks that are trained by derivatives which they compute themselves: residuals of a differential equation (Raissi
et al., 2019), forces on atoms (SchNet; Schuett et al., 2017), a penalty on a critic's gradients (Gulrajani et al.,
2017)."""

import torch
from torch import Tensor, nn
from torch.func import hessian, vmap

from tests.models.parts import ADAM, Made


def field(inputs: int, width: int, depth: int) -> nn.Sequential:
    """A number for every point."""
    inner = [layer for _ in range(depth) for layer in (nn.Linear(width, width), nn.Tanh())]
    return nn.Sequential(nn.Linear(inputs, width), nn.Tanh(), *inner, nn.Linear(width, 1))


class Burgers(nn.Module):
    """Values at the border, and what is left of u_t + u u_x - u_xx / 100 inside."""

    def __init__(self, width: int = 8, depth: int = 1) -> None:
        super().__init__()
        self.u = field(2, width, depth)

    def forward(self, inside: Tensor, border: Tensor) -> Tensor:
        inside = inside.requires_grad_()
        u = self.u(inside)
        first = torch.autograd.grad(u.sum(), inside, create_graph=True)[0]
        second = torch.autograd.grad(first[:, 0].sum(), inside, create_graph=True)[0]
        residual = first[:, 1:] + u * first[:, :1] - 0.01 * second[:, :1]
        return torch.cat([residual, self.u(border)])


class Laplacian(nn.Module):
    """Poisson's equation in two dimensions: the trace of every point's Hessian."""

    def __init__(self, width: int = 8, depth: int = 1) -> None:
        super().__init__()
        self.u = field(2, width, depth)

    def forward(self, points: Tensor) -> Tensor:
        def one(point: Tensor) -> Tensor:
            return self.u(point[None])[0, 0]

        return vmap(hessian(one))(points).diagonal(dim1=1, dim2=2).sum(1)


class Distance(nn.Module):
    """Signed distances to a surface by sines (SIREN; Sitzmann et al., 2020), and their gradients."""

    def __init__(self, width: int = 8, depth: int = 1, frequency: float = 30.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(3, width), *(nn.Linear(width, width) for _ in range(depth))])
        self.last, self.frequency = nn.Linear(width, 1), frequency
        with torch.no_grad():
            for i, layer in enumerate((*self.layers, self.last)):
                layer.weight.uniform_(-1, 1).mul_((6 / layer.in_features) ** 0.5 / frequency if i else 1 / 3)

    def forward(self, points: Tensor) -> Tensor:
        y = points = points.requires_grad_()
        for layer in self.layers:
            y = torch.sin(self.frequency * layer(y))
        y = self.last(y)
        return torch.cat([y, torch.autograd.grad(y.sum(), points, create_graph=True)[0]], 1)


class Forces(nn.Module):
    """The energy of every molecule, and the forces on its atoms."""

    def __init__(self, molecules: int = 2, atoms: int = 4, width: int = 6, layers: int = 1) -> None:
        super().__init__()
        first = torch.arange(molecules).repeat_interleave(atoms * (atoms - 1)) * atoms
        pairs = torch.tensor([(i, j) for i in range(atoms) for j in range(atoms) if i != j]).repeat(molecules, 1)
        self.register_buffer("target", first + pairs[:, 0])
        self.register_buffer("source", first + pairs[:, 1])
        self.register_buffer("kinds", torch.randint(0, 3, (molecules * atoms,)))
        self.register_buffer("of", torch.arange(molecules).repeat_interleave(atoms))
        self.register_buffer("centers", torch.linspace(0, 3, 5))
        self.molecules = molecules
        self.kind = nn.Embedding(3, width)
        self.sent = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))
        self.filters = nn.ModuleList(
            nn.Sequential(nn.Linear(5, width), nn.Softplus(), nn.Linear(width, width)) for _ in range(layers)
        )
        self.energy = nn.Sequential(nn.Linear(width, width), nn.SiLU(), nn.Linear(width, 1))

    def forward(self, places: Tensor) -> Tensor:
        places = places.requires_grad_()
        distance = (places[self.target] - places[self.source]).norm(dim=1)
        near = torch.exp(-2 * (distance[:, None] - self.centers) ** 2)
        atoms = self.kind(self.kinds)
        for sent, weigh in zip(self.sent, self.filters, strict=True):
            messages = sent(atoms)[self.source] * weigh(near) * torch.cos(distance / 2)[:, None]
            atoms = atoms + torch.zeros_like(atoms).index_add(0, self.target, messages)
        energies = places.new_zeros(self.molecules).index_add(0, self.of, self.energy(atoms)[:, 0])
        forces = -torch.autograd.grad(energies.sum(), places, create_graph=True)[0]
        return torch.cat([energies[:, None], forces.view(self.molecules, -1)], 1)


class Critic(nn.Module):
    """Scores of images between real ones and others, and the norms of their gradients."""

    def __init__(self, width: int = 4, depth: int = 1, size: int = 8) -> None:
        super().__init__()
        inner = [layer for i in range(depth) for layer in (nn.Conv2d(width << i, width << i + 1, 4, 2, 1), nn.SiLU())]
        self.body = nn.Sequential(nn.Conv2d(3, width, 4, 2, 1), nn.LeakyReLU(0.2), *inner, nn.Flatten())
        self.score = nn.Linear((width << depth) * (size >> depth + 1) ** 2, 1)

    def forward(self, images: Tensor) -> Tensor:
        images = images.requires_grad_()
        scores = self.score(self.body(images))
        slopes = torch.autograd.grad(scores.sum(), images, create_graph=True)[0]
        return torch.cat([scores, slopes.flatten(1).norm(dim=1, keepdim=True)], 1)


def burgers(batch: int = 6) -> Made:
    return Burgers(), (torch.rand(batch, 2), torch.rand(3, 2)), {**ADAM, "loss": "mse"}


def laplacian(batch: int = 5) -> Made:
    return Laplacian(), (torch.rand(batch, 2),), {**ADAM, "loss": "mse"}


def distance(batch: int = 5) -> Made:
    return Distance(), (torch.rand(batch, 3),), {**ADAM, "loss": "mse"}


def forces() -> Made:
    return Forces(), (torch.randn(8, 3),), {**ADAM, "loss": "mse"}


def critic(batch: int = 2) -> Made:
    return Critic(), (torch.randn(batch, 3, 8, 8),), {**ADAM, "loss": "mse"}


FACTORIES = (burgers, laplacian, distance, forces, critic)
