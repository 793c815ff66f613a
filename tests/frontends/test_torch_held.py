"""Parameters that a module holds in lists and dicts, too, are trained."""

import torch
from torch import Tensor, nn

from tests.frontends.torch_agreement import agree


class Held(nn.Module):
    """As liquid networks hold theirs; a layer's, and a constant among them."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.scale = nn.Linear(5, 4), nn.Parameter(torch.rand(4))
        self.by_name = {"scale": self.scale, "half": torch.tensor(0.5), "name": "held"}
        self.listed = [(self.layer.weight, self.layer.bias), self.by_name["half"]]

    def forward(self, x: Tensor) -> Tensor:
        y = nn.functional.linear(x, *self.listed[0]) * self.by_name["scale"] * self.listed[1]
        return y + self.layer(x)


def test_parameters_in_lists_and_dicts() -> None:
    module = Held()
    held = dict(module.by_name), list(module.listed)
    agree(module, torch.randn(6, 5))
    assert all(module.by_name[k] is v for k, v in held[0].items()) and module.listed == held[1]
    assert module.by_name["scale"] is module.scale and module.listed[0][0] is module.layer.weight
