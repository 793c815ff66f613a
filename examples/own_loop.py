"""Keep your own PyTorch loop, with its loss, optimizer and scheduler: `Planned` runs the module in it, planned.

A variational autoencoder of handwritten digits. The module returns a named tuple, and so does `Planned`; the loop would
be the same with the module in its place.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import planner
from codegen.autograd import Planned
from codegen.load import executor_class
from codegen.make import make
from planner.console import positive, progress, script

BATCH = 32


class Reconstruction(NamedTuple):
    images: Tensor
    mean: Tensor
    log_variance: Tensor


class Autoencoder(nn.Module):
    def __init__(self, width: int = 128, codes: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(64, width), nn.ReLU(), nn.Linear(width, 2 * codes))
        self.decoder = nn.Sequential(nn.Linear(codes, width), nn.ReLU(), nn.Linear(width, 64))

    def forward(self, images: Tensor) -> Reconstruction:
        mean, log_variance = self.encoder(images).chunk(2, dim=1)
        code = mean
        if self.training:
            code = mean + torch.randn_like(mean) * torch.exp(0.5 * log_variance)
        return Reconstruction(self.decoder(code), mean, log_variance)


def loss_of(found: Reconstruction, images: Tensor) -> Tensor:
    divergence = -0.5 * (1 + found.log_variance - found.mean**2 - found.log_variance.exp()).sum(1).mean()
    return F.mse_loss(found.images, images, reduction="sum") / len(images) + 0.1 * divergence


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=positive, default=10)
    parser.add_argument("--width", type=positive, default=128)
    parser.add_argument("--budget", type=float, default=None, help="seconds for profiling")
    parser.add_argument("--out", type=Path, default=Path("generated"))
    options = parser.parse_args()

    torch.manual_seed(0)
    module = Autoencoder(options.width)
    captured = planner.capture(module, torch.zeros(BATCH, 64), loss="caller", name="autoencoder")
    with progress() as update:
        made = make(captured, out=options.out, budget_s=options.budget, progress=update)

    digits = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    batches = DataLoader(TensorDataset(digits), BATCH, shuffle=True, drop_last=True)
    with executor_class(made.folder)(seed=0) as executor:
        planned = Planned(module, executor)
        optimizer = torch.optim.Adam(module.parameters(), lr=3e-3)
        scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.epochs)
        means = []
        for epoch in range(options.epochs):
            losses = []
            for (images,) in batches:
                loss = loss_of(planned(images), images)
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                losses.append(loss.item())
            scheduler.step()
            means.append(sum(losses) / len(losses))
            print(f"epoch {epoch + 1:2}  loss {means[-1]:.4f}")
        answers = planned.eval()(digits[:BATCH]).images

    with torch.no_grad():
        expected = module(digits[:BATCH]).images  # its weights are the trained ones
    print(f"executor and PyTorch reconstruct the same within {(answers - expected).abs().max():.1e}")
    return 0 if means[-1] < 0.8 * means[0] else 1


if __name__ == "__main__":
    script(main)
