"""Train your own PyTorch module with a generated executor: capture, make, train, and take the weights back.

The module is an ordinary one; its training loop keeps its shape, with `executor.step` in place of forward, backward
and optimizer. At the end the trained weights return to the module, which PyTorch then evaluates.
"""

import argparse
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn

import planner
from codegen.load import executor_class
from codegen.make import make
from planner.console import positive, progress, script
from planner.graph.optimizer import Optimizer

BATCH = 32


class Net(nn.Module):
    def __init__(self, width: int = 32) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.MaxPool2d(2),
        )
        self.classifier = nn.Sequential(nn.Flatten(), nn.Dropout(0.2), nn.Linear(16 * width, 10))

    def forward(self, images: Tensor) -> Tensor:
        return self.classifier(self.features(images))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=positive, default=12)
    parser.add_argument("--width", type=positive, default=32)
    parser.add_argument("--budget", type=float, default=None, help="seconds for profiling")
    parser.add_argument("--out", type=Path, default=Path("generated"))
    options = parser.parse_args()

    torch.manual_seed(0)
    module = Net(options.width)
    captured = planner.capture(
        module, torch.zeros(BATCH, 1, 8, 8), optimizer=Optimizer(kind="adamw", lr=2e-3), name="torch_digits"
    )
    with progress() as update:
        made = make(captured, out=options.out, budget_s=options.budget, progress=update)

    images, labels = digits()
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0)
    with executor_class(made.folder)(seed=0) as executor:
        for epoch in range(options.epochs):
            losses = []
            for chosen in torch.randperm(len(train_x)).split(BATCH):
                if len(chosen) == BATCH:  # the shapes are part of the plan
                    losses.append(executor.step(train_x[chosen], train_y[chosen]))
            print(f"epoch {epoch + 1:2}  loss {np.mean(losses):.4f}")
        module.load_state_dict(executor.torch_state_dict())
        answers = executor.predict(test_x[:BATCH])

    module.eval()
    with torch.no_grad():
        logits = module(test_x)
    accuracy = float((logits.argmax(1) == test_y).float().mean())
    print(f"held-out accuracy  {accuracy:.2%} of {len(test_y)} digits, by PyTorch with the trained weights")
    print(f"executor and PyTorch predict the same within {np.abs(answers - logits[:BATCH].numpy()).max():.1e}")
    return 0 if accuracy >= 0.9 else 1


def digits() -> tuple[Tensor, Tensor]:
    """Images (N, 1, 8, 8) scaled to mean 0, deviation 1, and labels."""
    data = load_digits()
    images = torch.tensor(data.images, dtype=torch.float32)[:, None]
    return (images - images.mean()) / images.std(), torch.tensor(data.target)


if __name__ == "__main__":
    script(main)
