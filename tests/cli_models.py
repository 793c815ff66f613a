"""Models that `package.module:factory` finds in tests, good and bad."""

from typing import Any

import torch


class Small(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = torch.nn.Linear(6, 3)

    def forward(self, x: Any) -> Any:
        return self.fc(x)


class Unsupported(Small):
    def forward(self, x: Any) -> Any:
        return self.fc(x.erfinv())


class Complex(Small):
    def forward(self, x: Any) -> Any:
        return self.fc(torch.fft.fft(x).atan().real)


class Dynamic(Small):
    def forward(self, x: Any) -> Any:
        return self.fc(x[x.sum(dim=1) > 0])


def small(batch: int = 4) -> Any:
    return Small(), (torch.zeros(batch, 6),)


def unsupported() -> Any:
    return Unsupported(), (torch.zeros(4, 6),)


def complex_numbers() -> Any:
    return Complex(), (torch.zeros(4, 6),)


def dynamic() -> Any:
    return Dynamic(), (torch.ones(4, 6),)
