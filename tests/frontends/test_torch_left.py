"""What the first pass of forward leaves for the next one, wherever Python holds it."""

import functools
import random
import warnings
from collections import defaultdict, deque
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions

MEMO: dict[int, Any] = {}
FIRST: Any = None
Body = Callable[[Any, Tensor], Tensor]


class Keeps(nn.Module):
    by_class: Any = None
    by_kind: Any = None

    def __init__(self, body: Body) -> None:
        super().__init__()
        self.fc, self.body = nn.Linear(5, 6), body
        self.memo, self.history, self.state = dict[Any, Any](), list[Any](), SimpleNamespace(hidden=None)
        self.none: Any = None
        self.log, self.last = defaultdict[str, list[Any]](list), deque[Any](maxlen=2)
        self.register_buffer("moving", torch.rand(6))

    @functools.cached_property
    def weight(self) -> Tensor:
        return self.fc.weight.sum(1)

    @functools.lru_cache(maxsize=8)  # noqa: B019
    def bias(self) -> Tensor:
        return self.fc.bias * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.body(self, self.fc(x))


@functools.lru_cache
def table(number: int) -> Tensor:
    return torch.arange(number).float().sin()


def by_class(module: Any, y: Tensor) -> Tensor:
    if module.by_class is None:
        module.by_class = y.detach()
    return y * module.by_class


def by_kind(module: Any, y: Tensor) -> Tensor:
    if type(module).by_kind is None:
        type(module).by_kind = y.detach()
    return y * type(module).by_kind


def memo(module: Any, y: Tensor) -> Tensor:
    if y.shape not in module.memo:
        module.memo[y.shape] = y.detach(), 1
    return y * module.memo[y.shape][0]


def set_default(module: Any, y: Tensor) -> Tensor:
    return y * module.memo.setdefault("first", y.detach())


def history(module: Any, y: Tensor) -> Tensor:
    module.history.append(y.detach())
    return y * torch.stack(module.history).mean(0)


def counted(module: Any, y: Tensor) -> Tensor:
    module.history.append(y.detach())
    return y / len(module.history)


def asked(module: Any, y: Tensor) -> Tensor:
    if module.history and (module.history[-1] > 0).any():
        y = y * 2
    module.history.append(y.detach())
    return y


def by_name(module: Any, y: Tensor) -> Tensor:
    if 1 not in MEMO:
        MEMO[1] = {"of": y.detach()}
    return y * MEMO[1]["of"]


def by_global(module: Any, y: Tensor) -> Tensor:
    global FIRST
    if FIRST is None:
        FIRST = y.detach()
    return y * FIRST


def of_object(module: Any, y: Tensor) -> Tensor:
    module.state.hidden = y.detach() if module.state.hidden is None else module.state.hidden * 0.9 + y.detach() * 0.1
    return y * module.state.hidden


def of_arguments(module: Any, y: Tensor, found: dict[str, Tensor] = {}) -> Tensor:  # noqa: B006
    return y * found.setdefault("first", y.detach())


def drawn(module: Any, y: Tensor) -> Tensor:
    if module.none is None:
        module.none = torch.randn(6)
    return y * module.none


def written(module: Any, y: Tensor) -> Tensor:
    if module.none is None:
        module.none = torch.zeros(6)
        module.none[:3] = y.detach()[0, :3]
    return y * module.none


def of_moving(module: Any, y: Tensor) -> Tensor:
    if module.none is None:
        module.none = module.moving * 2
    module.moving.mul_(0.9)
    return y * module.none


def number(module: Any, y: Tensor) -> Tensor:
    if module.none is None:
        module.none = y.detach().mean().item()
    return y * module.none


KEPT: dict[str, Body] = {
    "by_class": by_class,
    "Keeps.by_kind": by_kind,
    "memo[": memo,
    "memo['first']": set_default,
    "history[0]": history,
    "history[0], asked": asked,
    "tests.frontends.test_torch_left.MEMO[1]['of']": by_name,
    "tests.frontends.test_torch_left.FIRST": by_global,
    "state.hidden": of_object,
    "of_arguments()['first']": of_arguments,
    "none": drawn,
    "none, in part": written,
    "none, of a buffer": of_moving,
    "none, a number": number,
    "weight": lambda module, y: y * module.weight,
    "Keeps.bias()": lambda module, y: y + module.bias(),
}


@pytest.mark.parametrize("name", KEPT)
def test_kept(name: str) -> None:
    module = Keeps(KEPT[name])
    with pytest.raises(UserError) as caught:
        capture_module(module, torch.randn(4, 5), CaptureOptions(loss="mse"))
    assert caught.value.code == "SP1020" and name.partition(",")[0] in caught.value.problem.replace('"', "'")
    as_before(module)


def test_another_second_step() -> None:
    module = Keeps(counted)
    with pytest.raises(UserError, match=r"SP1020.*second step is another.*leaves a tensor in '0\.history\[0\]'"):
        capture_module(nn.Sequential(module), torch.randn(4, 5), CaptureOptions(loss="mse"))
    as_before(module)


def as_before(module: Keeps) -> None:
    assert Keeps.by_class is None and Keeps.by_kind is None and FIRST is None and MEMO == {}
    assert module.memo == {} and module.history == [] and module.none is None and module.state.hidden is None
    assert not (vars(module).keys() & {"by_class", "weight"}) and of_arguments.__defaults__ == ({},)
    assert not module.log and not module.last


def shapes(module: Any, y: Tensor) -> Tensor:
    if y.shape not in module.memo:
        module.memo[y.shape] = torch.ones_like(y).cumsum(1)
        module.history.append(module.moving.cos())
    return y * module.memo[y.shape] + module.history[0] + table(6)


def of_class(module: Any, y: Tensor) -> Tensor:
    if module.by_kind is None:
        type(module).by_kind = torch.arange(6) > 2
        MEMO[1] = module.by_kind.float()
    return y[:, module.by_kind] * MEMO[1][3:]


def emptied(module: Any, y: Tensor) -> Tensor:
    module.history.append(y.mean())
    found = sum(module.history)
    module.history.clear()
    return y * found


@pytest.mark.parametrize("body", [shapes, of_class, emptied])
def test_nothing_is_kept(body: Body) -> None:
    module = Keeps(body)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        capture_module(module, torch.randn(4, 5), CaptureOptions(loss="mse"))
    as_before(module)
    assert type(table(6)) is Tensor and table(6)[1].item() == pytest.approx(0.8414710)


def logged(module: Any, y: Tensor) -> Tensor:
    module.history.append(y)
    return y * 2


def latest(module: Any, y: Tensor) -> Tensor:
    module.history.append(y.detach())
    return y * module.history[-1]


def named(module: Any, y: Tensor) -> Tensor:
    module.memo["y"] = y
    module.memo["z"] = module.memo["y"] * 2
    return module.memo["z"] + y


def anew(module: Any, y: Tensor) -> Tensor:
    module.memo = {"parts": [y]}
    module.memo["parts"].append(y * 2)
    return torch.stack(module.memo["parts"]).sum(0)


def several(module: Any, y: Tensor) -> Tensor:
    """Beside a table."""
    if module.none is None:
        module.none = torch.arange(6) > 2
    module.log["y"].append(y)
    module.last.append(y)
    module.state.hidden = y.mean(), 1
    return y[:, module.none] * 2


def of_another(module: Any, y: Tensor) -> Tensor:
    """An object that is no part of the module lacks an attribute of that name."""
    module.none = y * (1 if hasattr(nn.Identity(), "none") else 2)
    return y + module.none


@pytest.mark.parametrize("body", [logged, latest, named, anew, several, of_another])
def test_what_is_left_for_who_looks_there(body: Body) -> None:
    module = Keeps(body)
    history, log = module.history, module.log
    with pytest.warns(RuntimeWarning, match=r"SP1020.*leaves a tensor in .*, where a plan's steps leave none"):
        capture_module(module, torch.randn(4, 5), CaptureOptions(loss="mse"))
    as_before(module)
    assert module.history is history and module.log is log


def test_numbers_that_python_draws_are_the_same_in_both_passes() -> None:
    def drawn(module: Any, y: Tensor) -> Tensor:
        module.none = y
        return y * random.random() + float(np.random.rand())

    with pytest.warns(RuntimeWarning, match=r"SP1014[\s\S]*draws numbers"):
        capture_module(Keeps(drawn), torch.randn(4, 5), CaptureOptions(loss="mse"))


def test_what_was_kept_before_is_constant() -> None:
    module, x = Keeps(set_default), torch.randn(4, 5)
    first = module.fc(x).detach()
    module(x)
    _, weights = capture_module(module, x, CaptureOptions(loss="mse"))
    assert torch.equal(module.memo["first"], first)
    assert any(w.shape == (4, 6) and np.array_equal(w, first) for w in weights.values())
