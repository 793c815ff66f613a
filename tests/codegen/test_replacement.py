"""A module in another one's place, as training frameworks see it: stand-ins do what these do."""

import copy
import inspect
import io
import pickle
from types import MethodType, SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from codegen.replacement import Replacement
from planner.errors import UserError


class Pretrained(nn.Module):
    """As a model of a hub: with a configuration, methods that save, tied weights, and ways of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.config = SimpleNamespace(vocabulary=7)
        self.inner, self.head, self.norm = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.BatchNorm1d(3)
        self.head.weight, self.scale = self.inner.weight, 2.0
        self.register_buffer("passing", torch.zeros(1), persistent=False)
        self.told: list[str] = []

    @property
    def dtype(self) -> torch.dtype:
        return self.head.weight.dtype

    def forward(self, ids: torch.Tensor, labels: torch.Tensor | None = None, *, use_cache: bool = False) -> Any:
        return self.head(self.norm(self.inner(ids)))

    def save(self, state: dict[str, Any]) -> list[str]:
        return sorted(state.keys() - {"head.weight"})

    def train(self, mode: bool = True) -> "Pretrained":
        super().train(mode)
        self.norm.eval()
        return self

    def _apply(self, *arguments: Any, **named: Any) -> "Pretrained":
        self.told.append("moved")
        return super()._apply(*arguments, **named)  # type: ignore[no-any-return]

    def get_extra_state(self) -> Any:
        return {"seen": 3}

    def set_extra_state(self, state: Any) -> None:
        self.told.append(f"loaded {state['seen']}")


class Doubled(Replacement):
    factor: float

    def __init__(self, module: nn.Module) -> None:
        super().__init__(module)
        self.factor = 2.0

    def forward(self, *inputs: Any, **named: Any) -> Any:
        return self.factor * self.module(*inputs, **named)


class Whole(nn.Module):
    def __init__(self, net: nn.Module) -> None:
        super().__init__()
        self.net, self.last = net, nn.Linear(7, 1)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.last(self.net(ids))


def test_names_are_the_modules() -> None:
    """Alone and within another module; a checkpoint of either fits the other, bits, modes and ways of its own."""
    for wrap in (lambda net: net, Whole):
        other, net = Pretrained(), Pretrained()
        plain = wrap(other)
        made = wrap(Doubled(net))
        for names in ("named_parameters", "named_buffers", "named_modules"):
            told = [[n for n, _ in getattr(m, names)(remove_duplicate=False)] for m in (plain, made)]
            assert told[0] == told[1]
        assert list(plain.state_dict()) == list(made.state_dict())
        for source in (plain, made):
            state = copy.deepcopy(source.state_dict())
            with torch.no_grad():
                net.inner.weight.zero_()
            made.load_state_dict(state)
            assert torch.equal(net.inner.weight, other.inner.weight)
        assert net.told == ["loaded 3"] * 2
        missing = made.state_dict()
        gone = next(iter(missing))
        del missing[gone]
        with pytest.raises(RuntimeError, match=gone):
            made.load_state_dict(missing)


def test_modes_and_moves_are_the_modules() -> None:
    net = Pretrained()
    made = Doubled(net)
    whole = Whole(made)
    whole.train()
    assert net.training and made.training and not net.norm.training
    whole.eval()
    assert not net.training and not made.training
    for part in whole.modules():  # as frameworks bring modes back
        part.training = True
    assert net.training and made.training
    whole.double()
    assert net.told == ["moved"] and made.dtype is torch.float64
    seen: list[type] = []
    whole.apply(lambda part: seen.append(type(part)))
    assert Pretrained in seen and Doubled not in seen


def test_attributes_are_the_modules() -> None:
    net = Pretrained()
    made = Doubled(net)
    assert made.config is net.config and made.dtype is torch.float32 and made.inner is net.inner
    assert made.save(made.state_dict())[:2] == ["_extra_state", "inner.weight"]
    made.scale, made.own, made.factor = 3.0, 1, 4.0
    assert net.scale == 3.0 and not hasattr(net, "own") and not hasattr(net, "factor")
    made.norm.weight = nn.Parameter(torch.ones(3))
    with pytest.raises(AttributeError, match="'Pretrained' object has no attribute 'absent'"):
        made.absent  # noqa: B018
    assert repr(made).startswith("Doubled(\n  (inner): Embedding(7, 4)")
    vars(net)["factor"], net.own = 5.0, 2
    assert made.factor == 4.0 and made.own == 1


def test_frameworks_take_it_for_the_module() -> None:
    """They choose by its class and by what `forward` takes, and put functions of their own around that."""
    net = Pretrained()
    made = Doubled(net)
    assert isinstance(made, Pretrained) and isinstance(made, Doubled) and type(made).__name__ == "Doubled"
    taken = inspect.signature(net.forward)
    assert inspect.signature(made.forward) == taken
    assert list(inspect.signature(made.__class__.forward).parameters) == ["self", *taken.parameters]
    ids = torch.arange(6).reshape(2, 3)
    torch.testing.assert_close(made(ids), 2 * net(ids))
    original = made.forward
    function = original.__func__  # type: ignore[attr-defined]
    made.forward = MethodType(lambda self, *inputs: function(self, *inputs).half(), made)
    assert made(ids).dtype is torch.float16 and net(ids).dtype is torch.float32
    while hasattr(original, "__wrapped__"):  # as who takes such functions away again
        original = original.__wrapped__
    made.forward = MethodType(getattr(original, "__func__", original), made)
    torch.testing.assert_close(made(ids), 2 * net(ids))


def test_hooks_of_its_own_see_its_calls() -> None:
    net = Pretrained()
    made, seen = Doubled(net), list[str]()
    made.register_forward_pre_hook(lambda part, given: seen.append("before"))
    made.register_forward_hook(lambda part, given, found: found + 1)
    made.register_full_backward_hook(lambda part, given, found: seen.append("backward"))
    net.inner.weight.register_hook(lambda gradient: seen.append("gradient"))
    ids = torch.arange(6).reshape(2, 3)
    found = made(ids)
    torch.testing.assert_close(found, 2 * net(ids) + 1)
    found.sum().backward()
    assert seen == ["before", "backward", "gradient"] or seen == ["before", "gradient", "backward"]


@pytest.mark.parametrize("use", [copy.copy, pickle.dumps, lambda made: torch.save(made, io.BytesIO())])
def test_what_would_need_another_executor(use: Any) -> None:
    with pytest.raises(UserError, match=r"SP1619: a planned module cannot be pickled"):
        use(Doubled(Pretrained()))


def test_copies_are_weights() -> None:
    """Frameworks average them: of the module alone, or of what it is a part of."""
    net, ids = Pretrained(), torch.arange(6).reshape(2, 3)
    for made in (Doubled(net), Whole(Doubled(net))):
        plain = copy.deepcopy(net)
        averages = [AveragedModel(m, multi_avg_fn=get_ema_multi_avg_fn(0.9)) for m in (made, plain)]
        with torch.no_grad():
            net.inner.weight += 1
        for average, model in zip(averages, (made, net), strict=True):
            average.update_parameters(model)
            average.update_parameters(model)
        copied = averages[0].module if isinstance(made, Doubled) else averages[0].module.net
        assert isinstance(copied, Pretrained) and type(copied) is not Pretrained
        assert list(averages[0].module.state_dict()) == list(made.state_dict())
        assert torch.equal(copied.inner.weight, averages[1].module.inner.weight)
        assert copied.head.weight is copied.inner.weight and copied.inner.weight is not net.inner.weight
        with pytest.raises(UserError, match="SP1619: a copy of a planned module has its weights, and no executor"):
            averages[0](ids)
        copied.module(ids)
        made.load_state_dict(averages[0].module.state_dict())
        assert torch.equal(net.inner.weight, copied.inner.weight)
        assert torch.equal(copy.deepcopy(copied).inner.weight, copied.inner.weight)
