"""PyTorch modules the whole way: captured, planned, built, and trained by the executor instead of PyTorch.

The truth is PyTorch in float64; the executor may be twice as far off as PyTorch in float32, or 1e-5.
"""

import copy
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from codegen.bench import anonymous_bytes
from codegen.executor import Executor
from codegen.initial import give_back_memory
from planner.capturing import Captured, capture
from planner.errors import UserError
from planner.frontends.naming import identifier
from planner.graph.model import DType, Graph, Role
from planner.graph.optimizer import Optimizer
from planner.ops.dropout import DropoutAttrs, dropout_mask
from tests.codegen.plans import make
from tests.torch_draws import Replayed
from tests.torch_modules import MODULES, in_dtype, in_pairs

STEPS, SEED = 3, 3


class Trained:
    """A module, what was captured of it, and its executor's class."""

    def __init__(self, name: str, folder: Path) -> None:
        torch.manual_seed(0)
        self.module, self.inputs, self.options = MODULES[name]()
        self.captured: Captured = capture(self.module, self.inputs, **self.options)
        self.graph = self.captured.graph
        self.executor = make(self.graph, folder)
        self.captured.write_weights(folder / "weights.npz")

    def batches(self) -> list[list[Tensor]]:
        """Other inputs than the example's, and labels where the loss takes some."""
        found = []
        for _ in range(STEPS):
            batch = [
                torch.randint(0, int(x.max()) + 1, x.shape) if x.dtype is torch.int64 else torch.randn_like(x)
                for x in self.inputs
            ]
            if "labels" in self.graph.program["train_step"].inputs:
                type_ = self.graph.value["labels"].type
                whole = type_.dtype is DType.INT64
                batch.append(torch.randint(0, 4, type_.shape) if whole else torch.randn(type_.shape))
            found.append(batch)
        return found


@pytest.fixture(scope="module", params=sorted(MODULES))
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(request.param, tmp_path_factory.mktemp("generated") / request.param)


@pytest.fixture
def executor(trained: Trained) -> Iterator[Executor]:
    torch.manual_seed(1)
    with trained.executor(seed=SEED, pin=False, poison=True) as made:
        yield made


class Masked(nn.Module):
    """Dropout with the executor's random numbers."""

    def __init__(self, graph: Graph, path: str, seed: int) -> None:
        super().__init__()
        attrs = graph.program["train_step"].node[identifier(path)].attrs
        assert isinstance(attrs, DropoutAttrs)
        self.attrs, self.seed, self.step = attrs, seed, 0

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return x
        self.step += 1
        drawn = dropout_mask(self.seed, self.attrs.stream, self.step, self.attrs.p, x.numel())
        if x.dim() == 4:  # counted in the executor's memory order
            n, c, h, w = x.shape
            drawn = drawn.reshape(n, h, w, c).transpose(0, 3, 1, 2)
        return x * torch.from_numpy(drawn.copy()).reshape(x.shape).to(x.dtype) / (1 - self.attrs.p)


def in_torch(trained: Trained, batches: Sequence[Sequence[Tensor]], dtype: torch.dtype) -> dict[str, Any]:
    """Losses, first gradients, final state and prediction of a copy of the module, trained by PyTorch."""
    module = in_dtype(copy.deepcopy(trained.module), dtype)
    for path, part in list(module.named_modules()):
        if isinstance(part, nn.Dropout):
            parent, _, name = path.rpartition(".")
            setattr(module.get_submodule(parent), name, Masked(trained.graph, path, SEED))
    o = trained.options["optimizer"]
    assert isinstance(o, Optimizer)
    optimizer: torch.optim.Optimizer
    if o.kind == "sgd":
        optimizer = torch.optim.SGD(
            module.parameters(), o.lr, o.momentum, weight_decay=o.weight_decay, nesterov=o.nesterov
        )
    elif o.kind == "rmsprop":
        options = (o.lr, o.alpha, o.eps, o.weight_decay, o.momentum, o.centered)
        optimizer = torch.optim.RMSprop(module.parameters(), *options)
    elif o.kind == "adagrad":
        options = (o.lr, o.lr_decay, o.weight_decay, o.initial_accumulator_value, o.eps)
        optimizer = torch.optim.Adagrad(module.parameters(), *options)
    else:
        kind = torch.optim.Adam if o.kind == "adam" else torch.optim.AdamW
        optimizer = kind(module.parameters(), o.lr, (o.beta1, o.beta2), o.eps, o.weight_decay)
    compute = nn.functional.mse_loss if trained.options.get("loss") == "mse" else nn.functional.cross_entropy
    found: dict[str, Any] = {"losses": []}
    for step, batch in enumerate(batches, 1):
        *inputs, labels = (t.to(dtype) if t.is_floating_point() else t for t in batch)
        optimizer.zero_grad()
        with Replayed(trained.graph, SEED, step):
            prediction = module(*inputs)
        loss = compute(prediction, labels)
        loss.backward()
        found["losses"].append(float(loss.detach()))
        found.setdefault("gradients", {n: p.grad.clone() for n, p in module.named_parameters() if p.grad is not None})
        if "clip_norm" in trained.options:
            norm = nn.utils.clip_grad_norm_(module.parameters(), trained.options["clip_norm"])
            assert norm > trained.options["clip_norm"]
        optimizer.step()
    found["state"] = {k: v.clone() for k, v in module.state_dict().items()}
    with torch.no_grad(), Replayed(trained.graph, SEED, STEPS + 1):
        inputs = [t.to(dtype) if t.is_floating_point() else t for t in batches[0][:-1]]
        found["prediction"] = module.eval()(*inputs)
    return found


def require_near(got: Any, plain: Any, exact: Any, what: str, scale: float | None = None) -> None:
    if np.iscomplexobj(got):
        got, plain, exact = (in_pairs(torch.as_tensor(a)) for a in (got, plain, exact))
    got, plain, exact = (np.asarray(a, np.float64) for a in (got, plain, exact))
    assert got.shape == exact.shape, what
    norm = scale or float(np.linalg.norm(exact)) or 1.0
    error, beside = float(np.linalg.norm(got - exact)) / norm, float(np.linalg.norm(plain - exact)) / norm
    assert error <= max(2 * beside, 1e-5), f"{what}: {error:.2e}, PyTorch's float32 {beside:.2e}"


def test_trains_as_pytorch_does(trained: Trained, executor: Executor) -> None:
    batches = trained.batches()
    exact, plain = (in_torch(trained, batches, d) for d in (torch.float64, torch.float32))
    _, gradients = executor.gradients(*batches[0])
    assert executor.steps_done == 0
    losses = [executor.step(*batch) for batch in batches]
    require_near(losses, plain["losses"], exact["losses"], "losses")
    assert set(gradients) == set(exact["gradients"])
    for name, gradient in gradients.items():
        layer = name.rpartition(".")[0]
        scale = max(float(g.norm()) for n, g in exact["gradients"].items() if n.rpartition(".")[0] == layer)
        vanishes = float(exact["gradients"][name].norm()) < 1e-9 * scale  # a bias in front of a batch norm
        require_near(gradient, plain["gradients"][name], exact["gradients"][name], name, scale if vanishes else None)
    state = executor.torch_state_dict()
    assert set(state) == set(trained.module.state_dict())
    for name, tensor in state.items():
        assert tensor.dtype == trained.module.state_dict()[name].dtype, name
        require_near(tensor, plain["state"][name], exact["state"][name], name)
    prediction = executor.predict(*batches[0][:-1])
    require_near(prediction, plain["prediction"], exact["prediction"], "prediction")


def test_save_load_and_go_on_gives_the_same_bits(trained: Trained, executor: Executor, tmp_path: Path) -> None:
    batches = trained.batches()
    for batch in batches:
        executor.step(*batch, lr=0.01)
    np.savez(tmp_path / "state.npz", **executor.state_dict())
    expected = [executor.step(*batch) for batch in batches]
    with trained.executor(seed=99, pin=False) as other, np.load(tmp_path / "state.npz") as saved:
        other.load_state_dict(saved)
        assert other.steps_done == STEPS and other.lr == 0.01
        assert [other.step(*batch) for batch in batches] == expected
        ours, theirs = executor.state_dict(), other.state_dict()
        assert list(ours) == list(theirs)
        assert all(np.array_equal(ours[k], theirs[k]) and ours[k].dtype == theirs[k].dtype for k in ours)


def test_into_the_module_and_back(trained: Trained, executor: Executor) -> None:
    batches = trained.batches()
    for batch in batches:
        executor.step(*batch)
    module = copy.deepcopy(trained.module)
    module.load_state_dict(executor.torch_state_dict(), strict=True)
    with torch.no_grad(), Replayed(trained.graph, SEED, STEPS + 1):
        in_torch = copy.deepcopy(module).eval()(*batches[0][:-1])
    np.testing.assert_allclose(executor.predict(*batches[0][:-1]), in_torch.numpy(), rtol=1e-4, atol=1e-5)
    drawing = {name: executor.state_dict()[name] for name in ("stepplan.seed", "stepplan.step")}
    with trained.executor(pin=False) as other:
        other.load_state_dict({**module.state_dict(), **drawing})
        assert all(torch.equal(v, module.state_dict()[k]) for k, v in other.torch_state_dict().items())
        assert np.array_equal(other.predict(*batches[0][:-1]), executor.predict(*batches[0][:-1]))


def test_starts_from_the_module(trained: Trained, executor: Executor) -> None:
    state = executor.torch_state_dict()
    assert all(torch.equal(state[k], v) and state[k].dtype == v.dtype for k, v in trained.module.state_dict().items())


def only(name: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("trained", [name], indirect=True)


@pytest.mark.parametrize("trained", ["diffusion", "vae"], indirect=True)
def test_numbers_change_with_the_step_and_the_seed(trained: Trained, executor: Executor) -> None:
    """`predict` draws those of the coming step."""
    batch = trained.batches()[0]
    first, again = executor.predict(*batch[:-1]), executor.predict(*batch[:-1])
    assert np.array_equal(first, again)
    loss, _ = executor.gradients(*batch)
    state = executor.state_dict()
    assert executor.step(*batch, lr=0.0) == loss
    assert executor.gradients(*batch)[0] != loss and not np.array_equal(executor.predict(*batch[:-1]), first)
    with trained.executor(seed=SEED + 1, pin=False) as other:
        assert other.gradients(*batch)[0] != loss
        other.load_state_dict(state)
        assert other.gradients(*batch)[0] == loss and np.array_equal(other.predict(*batch[:-1]), first)


@only("cnn")
def test_counters_of_batches(trained: Trained, executor: Executor) -> None:
    """A batch norm that runs twice counts twice, one in evaluation mode does not count; loading sets the counters."""
    batches = trained.batches()
    executor.step(*batches[0])
    executor.step(*batches[1])
    counts = {k.split(".")[0]: int(v) for k, v in executor.torch_state_dict().items() if "num_batches" in k}
    assert counts == {"stem": 2, "norm": 4, "frozen": 0}
    state = executor.torch_state_dict()
    state["norm.num_batches_tracked"] += 10
    executor.load_state_dict(state)
    executor.step(*batches[2])
    assert int(executor.state_dict()["norm.num_batches_tracked"]) == 16
    assert int(executor.state_dict()["stem.1.num_batches_tracked"]) == 3


@only("transformer")
def test_tied_parameters_that_differ(trained: Trained, executor: Executor) -> None:
    state = executor.torch_state_dict()
    state["head.weight"] = state["head.weight"] + 1
    before = executor.state_dict()
    with pytest.raises(UserError, match=r"SP1611.*tokens.weight and head.weight are one tensor"):
        executor.load_state_dict(state)
    assert all(np.array_equal(v, before[k]) for k, v in executor.state_dict().items())
    del state["tokens.weight"]
    executor.load_state_dict(state)
    assert np.array_equal(executor.state_dict()["tokens.weight"], state["head.weight"].numpy())


@only("transformer")
def test_constants_of_the_plan_cannot_be_loaded(trained: Trained, executor: Executor) -> None:
    state = executor.torch_state_dict()
    state["mask"] = ~state["mask"]
    with pytest.raises(UserError, match=r"SP1611.*mask was fixed when the model was captured"):
        executor.load_state_dict(state)
    executor.load_state_dict(state, strict=False)
    assert torch.equal(executor.torch_state_dict()["mask"], trained.module.mask)  # type: ignore[arg-type]


@only("transformer")
def test_integer_states(trained: Trained, executor: Executor) -> None:
    """An integer buffer is looked up at every step: with other contents, other rows are picked."""
    value = next(v for v in trained.graph.values if v.name == "reversed")
    assert value.type.dtype is DType.INT64 and value.role is Role.STATE and not value.constant
    batch = trained.batches()[0]
    before = executor.predict(batch[0])
    state = executor.torch_state_dict()
    state["reversed"] = torch.tensor([0, 0, 1, 1, 2, 2])
    executor.load_state_dict(state)
    module = copy.deepcopy(trained.module).eval()
    module.load_state_dict(state)
    after = executor.predict(batch[0])
    np.testing.assert_allclose(after, module(batch[0]).detach().numpy(), rtol=1e-4, atol=1e-5)
    assert not np.allclose(before, after)


@only("bag")
def test_a_sparse_update_still_has_its_gradient(trained: Trained, executor: Executor) -> None:
    """`gradients` has the dense gradient of a table that `step` updates row by row."""
    assert any(n.op == "embedding_sgd_update" for n in trained.graph.program["train_step"].nodes)
    batch = trained.batches()[0]
    before = executor.state_dict()["table.weight"]
    _, gradients = executor.gradients(*batch)
    assert np.array_equal(executor.state_dict()["table.weight"], before)
    assert gradients["table.weight"].shape == before.shape and not gradients["table.weight"][0].any()
    executor.step(*batch)
    moved = before - executor.state_dict()["table.weight"]
    np.testing.assert_allclose(moved, 0.5 * gradients["table.weight"], rtol=1e-5, atol=1e-6)  # rows move several times


def test_the_module_s_weights_are_held_once(tmp_path: Path) -> None:
    """Small arrays that are freed stay with the process, unless it is told to return them."""
    captured = capture(nn.Sequential(*(nn.Linear(600, 600) for _ in range(24))), torch.randn(2, 600), loss="mse")
    made = make(captured.graph, tmp_path)
    captured.write_weights(tmp_path / "weights.npz")
    weights = sum(v.type.bytes for v in captured.graph.values if v.name)
    del captured
    give_back_memory()
    before = anonymous_bytes()
    with made(pin=False) as executor:
        executor.step(np.ones((2, 600), np.float32), np.ones((2, 600), np.float32))
        gained = anonymous_bytes() - before
        assert gained < executor.plan.pools[0].arena + weights / 4
