"""Versions of PyTorch: too old ones are told, and what older ones get wrong is mended."""

from types import SimpleNamespace

import pytest
import torch
from torch.torch_version import TorchVersion

from planner.errors import UserError
from planner.frontends.torch_versions import closes_at_bounds, mended, require_version


@pytest.mark.parametrize("version", ["1.13.1", "2.8.0+cu128"])
def test_too_old(version: str) -> None:
    with pytest.raises(UserError, match=r"SP1012.*2\.9 or newer") as error:
        require_version(SimpleNamespace(__version__=TorchVersion(version)))
    assert version in error.value.problem


@pytest.mark.parametrize("version", ["2.9.1+cu128", "2.15.0", torch.__version__])
def test_new_enough(version: str) -> None:
    require_version(SimpleNamespace(__version__=TorchVersion(version)))


@pytest.mark.parametrize("version, mends", [("2.12.1", True), ("2.13.0", False)])
@pytest.mark.parametrize("batch", [1, 4])
def test_last_states_of_lstms(version: str, mends: bool, batch: int) -> None:
    """As they were before: a dimension of times is left where there are several sequences."""

    def layer(x: torch.Tensor) -> tuple[torch.Tensor, tuple[torch.Tensor, torch.Tensor]]:
        state = x[-1:].squeeze(1)
        return x, (state, state)

    old = SimpleNamespace(one_layer_lstm=layer)
    pytorch = SimpleNamespace(__version__=TorchVersion(version), _decomp=SimpleNamespace(decompositions=old))
    x = torch.randn(3, batch, 5)
    with mended(pytorch):
        output, states = old.one_layer_lstm(x)
    assert output is x
    assert {s.dim() for s in states} == ({2} if mends or batch == 1 else {3})
    if mends:
        assert all(s.equal(x[-1]) for s in states)
    assert old.one_layer_lstm is layer


def test_clamp_is_asked_what_it_does_at_bounds() -> None:
    with torch.no_grad():
        assert closes_at_bounds(torch) == (TorchVersion(torch.__version__) >= (2, 14))
