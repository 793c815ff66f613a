"""What is captured besides the computation: names, state, modes, inputs, losses."""

import copy
import json
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codegen.cpu.tables import first_lr
from planner.capturing import capture
from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.model import Role
from planner.graph.text import graph_text, parse_graph
from planner.ops.optimizer import AdamAttrs
from tests.frontends.torch_agreement import STEP, agree, graph_values
from tests.interpreter import run_program


class Shared(nn.Module):
    """One layer three times, tied weights, a parameter nobody uses, a nested container."""

    def __init__(self) -> None:
        super().__init__()
        self.encode, self.decode = nn.Linear(5, 7, bias=False), nn.Linear(7, 5, bias=False)
        self.decode.weight = nn.Parameter(torch.randn(5, 7))
        self.again = nn.Linear(5, 7, bias=False)
        self.again.weight = self.encode.weight
        self.unused = nn.Linear(2, 2)
        self.blocks = nn.ModuleList([nn.Sequential(nn.Linear(7, 7), nn.Tanh()) for _ in range(2)])
        self.scale = nn.Parameter(torch.tensor(1.5))

    def forward(self, x: Tensor) -> Tensor:
        y = self.encode(x) + self.again(2 * x)
        for block in (self.blocks[0], self.blocks[1], self.blocks[0]):
            y = block(y)
        return self.decode(y) * self.scale


class Buffers(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.linspace(1, 2, 5))
        self.register_buffer("offset", torch.ones(5), persistent=False)
        self.register_buffer("mask", torch.ones(4, 4).tril() == 0)
        self.register_buffer("unused", torch.zeros(3))
        self.constant = torch.tensor([1.0, 2.0, 3.0, 4.0, 5.0])
        self.fc = nn.Linear(5, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.fc(x * self.scale + self.offset * 2 - self.constant)
        return y.masked_fill(self.mask, float("-1e4")).log_softmax(1)


def test_shared_modules_tied_and_unused_parameters() -> None:
    graph = agree(Shared(), torch.randn(4, 5))
    names = {v.name for v in graph.values if v.role is Role.PARAMETER}
    assert "again.weight" not in names and "unused.weight" in names
    assert [v.aliases for v in graph.values if v.name == "encode.weight"] == [("again.weight",)]


class Borrowed(nn.Module):
    """A batch norm and its layer also under the names that the backbone has them by."""

    def __init__(self) -> None:
        super().__init__()
        self.backbone = nn.Sequential(nn.Linear(5, 5), nn.BatchNorm1d(5))
        self.fc, self.norm = self.backbone

    def forward(self, x: Tensor) -> Tensor:
        return self.norm(self.backbone(x) + self.fc(x))


@pytest.mark.parametrize("loss", ["cross_entropy", F.cross_entropy])
def test_a_batch_norm_under_two_names(loss: Any) -> None:
    graph = agree(Borrowed(), torch.randn(4, 5), loss, None if isinstance(loss, str) else torch.tensor([0, 1, 2, 0]))
    assert [v.aliases for v in graph.values if v.name == "backbone.1.running_mean"] == [("norm.running_mean",)]


def test_names_with_other_characters_are_kept() -> None:
    """Keys of a ModuleDict, such as relations of a graph; `x y` and `x_y` are two."""
    layers = {"x y": nn.Linear(4, 4), "x_y": nn.Linear(4, 4), "<a__to__b>": nn.Linear(4, 4), "größe/2": nn.Linear(4, 3)}
    module = nn.ModuleDict(layers)
    module.forward = lambda x: [x := layer(x) for layer in layers.values()][-1]  # type: ignore[method-assign]
    graph, weights = capture_module(module, torch.randn(2, 4), CaptureOptions(optimizer=STEP))
    assert weights.keys() == module.state_dict().keys() == {v.name for v in graph.values if v.name}
    assert parse_graph(json.loads(graph_text(graph))) == graph
    assert weights["x y.weight"].tolist() == module["x y"].weight.tolist()  # type: ignore[union-attr, operator]


def test_buffers_and_constants() -> None:
    """What the module saves is told from what its code fixes, and the rest of its state travels with the weights."""
    graph = agree(Buffers(), torch.randn(4, 5))
    states = {v.name: v.constant for v in graph.values if v.role is Role.STATE and "momentum" not in v.name}
    assert {n for n, constant in states.items() if not constant} == {"scale"} and len(states) > 1
    _, weights = capture_module(Buffers(), torch.randn(4, 5))
    assert weights["mask"].dtype == bool and weights["unused"].shape == (3,) and "offset" not in weights


def test_frozen_parts() -> None:
    """Evaluation mode of a part, and parameters that need no gradient, are kept."""
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    module[0].weight.requires_grad_(False)
    module[1].eval()
    module[1].running_mean.uniform_()
    module[1].running_var.uniform_(1, 2)
    graph = agree(module, torch.randn(6, 5))
    nodes = {n.id for n in graph.program["train_step"].nodes}
    assert "_0.bias.update" in nodes and "_0.weight.update" not in nodes
    assert module.training and not module[1].training


@pytest.mark.parametrize("loss", ["cross_entropy", None])
def test_statistics_move_where_nobody_reads_the_result(loss: str | None) -> None:
    class Auxiliary(nn.Module):
        """A head whose result the loss does not take."""

        def __init__(self) -> None:
            super().__init__()
            self.trunk, self.norm, self.head = nn.Linear(5, 4), nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x: Tensor) -> Tensor:
            y = self.trunk(x)
            F.relu(self.norm(y.tanh()))
            return self.head(y) if loss else self.head(y).square().mean()

    graph = agree(Auxiliary(), torch.randn(6, 5), loss=loss)
    assert [n.op for n in graph.program["train_step"].nodes].count("batch_norm") == 1
    assert {n.op for n in graph.program["predict"].nodes}.isdisjoint({"batch_norm", "batch_norm_inference", "tanh"})


def test_evaluation_mode_is_restored() -> None:
    module = nn.Sequential(nn.Linear(5, 4), nn.BatchNorm1d(4)).eval()
    before = {k: v.clone() for k, v in module.state_dict().items()}
    agree(module, torch.randn(6, 5))
    assert not module.training and not module[1].training
    assert all(torch.equal(before[k], v) for k, v in module.state_dict().items())


def test_parts_in_training_mode_are_told() -> None:
    """Whether the others are to stay as they are, nobody knows. In a training module they do (test_frozen_parts)."""
    module = nn.Sequential(nn.BatchNorm1d(5), nn.Linear(5, 4)).eval()
    module[1].train()
    with pytest.warns(RuntimeWarning, match=r"but '1' is not"):
        graph, _ = capture_module(module, torch.randn(6, 5))
    assert "batch_norm" in {n.op for n in graph.program["train_step"].nodes} and not module[0].training


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(5, 5)
        self.register_buffer("offset", torch.randn(4, 5))

    def forward(self, a: Tensor, b: dict[str, list[Tensor]]) -> Tensor:
        return self.fc(a) * self.offset - b["c"][0] / (2 + b["c"][1].square())


def test_examples_that_are_one_tensor_are_inputs_of_their_own() -> None:
    """As an autoencoder's, whose labels are its inputs; or one that is a tensor of the module itself."""
    module = Apart()
    for x in (torch.randn(4, 5), module.offset):
        options = CaptureOptions(loss=F.mse_loss, labels=x, optimizer=STEP)
        graph, weights = capture_module(module, (x, {"c": [x, x]}), options)
        assert graph.program["train_step"].inputs == ("a", "b_c_0", "b_c_1", "labels")
        values = graph_values(graph, weights)
        given = torch.randn(4, 4, 5, dtype=torch.float64)
        values |= zip(graph.program["train_step"].inputs, given.numpy(), strict=True)
        y = copy.deepcopy(module).double()(given[0], {"c": [given[1], given[2]]})
        loss = run_program(graph, "train_step", values)[graph.program["train_step"].outputs[0]]
        assert float(loss) == pytest.approx(float(F.mse_loss(y, given[3])), rel=1e-6)


def test_several_inputs_and_keywords() -> None:
    class Two(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.a, self.b = nn.Linear(5, 3), nn.Bilinear(2, 2, 3)

        def forward(self, x: Tensor, labels: Tensor, *, weight: float = 2.0) -> Tensor:
            return self.a(x) * weight + labels

    module = Two()
    graph, _ = capture_module(module, {"x": torch.randn(4, 5), "labels": torch.randn(4, 3)})
    assert graph.program["train_step"].inputs == ("x", "labels", "labels_1")


class Focal(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.temperature = nn.Parameter(torch.tensor(2.0))

    def forward(self, logits: Tensor, labels: Tensor) -> Tensor:
        return F.nll_loss(F.log_softmax(logits * self.temperature, 1), labels, reduction="sum")


LOSSES: dict[str, tuple[Any, Callable[[], Tensor | None]]] = {
    "cross_entropy": ("cross_entropy", lambda: None),
    "labels_given": ("cross_entropy", lambda: torch.tensor([0, 1, 2, 0])),
    "probabilities": ("cross_entropy", lambda: torch.rand(4, 3).softmax(1)),
    "mse": ("mse", lambda: None),
    "smooth": (
        lambda p, t: F.cross_entropy(p, t, label_smoothing=0.1, reduction="sum"),
        lambda: torch.tensor([0, 1, 2, 0]),
    ),
    "ignored": (lambda p, t: F.cross_entropy(p, t, ignore_index=1), lambda: torch.tensor([0, 1, 2, 0])),
    "contrastive": (
        lambda p, t: F.cross_entropy((p @ p.T).masked_fill(torch.eye(4) > 0, float("-inf")), t),
        lambda: torch.tensor([1, 0, 3, 2]),
    ),
    "bce": (lambda p, t: F.binary_cross_entropy_with_logits(p, t), lambda: torch.rand(4, 3)),
    "l1": (nn.L1Loss(), lambda: torch.randn(4, 3)),
    "nll": (lambda p, t: F.nll_loss(F.log_softmax(p, 1), t), lambda: torch.tensor([0, 1, 2, 0])),
    "own": (lambda p, t: ((p - t) ** 2).sum(1).mean() + 0.01 * p.abs().sum(), lambda: torch.randn(4, 3)),
    "mse_none": (lambda p, t: F.mse_loss(p, t, reduction="none").sum(), lambda: torch.randn(4, 3)),
}


@pytest.mark.parametrize("name", LOSSES)
def test_loss(name: str) -> None:
    loss, labels = LOSSES[name]
    torch.manual_seed(0)
    agree(nn.Sequential(nn.Linear(5, 4), nn.ReLU(), nn.Linear(4, 3)), torch.randn(4, 5), loss, labels())


def test_a_loss_with_parameters_trains_them() -> None:
    graph, weights = capture_module(
        nn.Linear(5, 3),
        torch.randn(4, 5),
        CaptureOptions(loss=Focal(), labels=torch.tensor([0, 1, 2, 0]), optimizer=STEP),
    )
    assert "loss.temperature" in weights
    assert "loss.temperature.update" in {n.id for n in graph.program["train_step"].nodes}


@pytest.mark.parametrize("trained", [True, False])
def test_an_optimizer_may_have_the_parameters_of_a_loss(trained: bool) -> None:
    """As in PyTorch they are trained if it has them, here with another rate."""
    module, loss = nn.Linear(5, 3), Focal()
    groups: list[dict[str, Any]] = [{"params": [*module.parameters()]}, {"params": [*loss.parameters()], "lr": 0.5}]
    optimizer = torch.optim.SGD(groups if trained else module.parameters(), lr=0.1)
    labels = torch.tensor([0, 1, 2, 0])
    graph = capture(module, torch.randn(4, 5), loss=loss, labels=labels, optimizer=optimizer).graph
    rates = {n.id: n.attrs.lr for n in graph.program["train_step"].nodes if n.phase == "update"}
    of_loss = {"loss.temperature.update": 0.5} if trained else {}
    assert rates == {"weight.update": 0.1, "bias.update": 0.1, **of_loss}


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.loss = nn.Linear(5, 3), Focal()

    def forward(self, x: Tensor) -> Tensor:
        return self.fc(x) * self.loss.temperature


def test_a_loss_with_the_names_of_a_part() -> None:
    graph = agree(Scaled(), torch.randn(4, 5), loss=Focal(), labels=torch.tensor([0, 1, 2, 0]))
    assert {"loss.temperature", "loss_.temperature"} <= {v.name for v in graph.values}


def test_a_module_that_returns_its_loss() -> None:
    class Own(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(5, 3)

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return F.mse_loss(self.fc(x), y)

    agree(Own(), (torch.randn(4, 5), torch.randn(4, 3)), None)


def test_names_follow_the_layers() -> None:
    module = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
    graph, weights = capture_module(module, torch.randn(2, 1, 4, 4))
    assert graph.name == "sequential_b2"
    assert [n.id for n in graph.program["train_step"].nodes][:2] == ["_0", "_1"]
    assert set(weights) == set(module.state_dict())
    assert parse_graph(json.loads(graph_text(graph))) == graph


@pytest.mark.parametrize("loss", ["mse", F.l1_loss])
def test_inputs_are_called_as_forward_has_them(loss: Any) -> None:
    """Also in front of a loss that is a function."""

    class Inputs(nn.Linear):
        def forward(self, pair: list[Tensor], x: Tensor, *more: Tensor) -> Tensor:
            return super().forward(pair[0] * pair[1] + x + more[0] * more[1])

    one = torch.ones(2, 3)
    graph = capture(Inputs(3, 3), ([one, one], one, one, one), loss=loss, labels=one).graph
    assert graph.program["train_step"].inputs == ("pair_0", "pair_1", "x", "more_0", "more_1", "labels")
    compiled = capture(torch.compile(nn.Linear(3, 3)), one, loss=loss, labels=one).graph  # has no len()
    assert compiled.program["train_step"].inputs == ("args_0", "labels")


def test_the_same_module_gives_the_same_bytes() -> None:
    script = """
        import sys, torch
        from planner.frontends.torch_export import capture_module
        from planner.graph.text import graph_text
        from torch import nn
        net = nn.Sequential(nn.Conv2d(1, 2, 3), nn.BatchNorm2d(2), nn.Flatten(), nn.Linear(8, 3))
        sys.stdout.write(graph_text(capture_module(net, torch.randn(2, 1, 4, 4))[0]))
    """
    run, path = [sys.executable, "-c", textwrap.dedent(script)], ":".join(sys.path)
    texts = [
        subprocess.run(run, env={"PYTHONHASHSEED": seed, "PYTHONPATH": path}, capture_output=True, check=True).stdout
        for seed in ("1", "2")
    ]
    assert texts[0] == texts[1] and texts[0]


def test_other_types_are_refused() -> None:
    with pytest.raises(UserError, match=r"SP1017.*weight.*float64"):
        capture_module(nn.Linear(5, 3).double(), torch.randn(4, 5).double())
    with pytest.raises(UserError, match=r"SP1017.*input"):
        capture_module(nn.Embedding(5, 3), torch.zeros(4, dtype=torch.int32))
    with pytest.raises(UserError, match=r"(?s)SP1017.*input.*complex64.*torch.view_as_real"):
        capture_module(nn.Linear(5, 3), torch.zeros(4, 5, dtype=torch.complex64))
    with pytest.raises(UserError, match=r"(?s)SP1017.*(weight|running_mean).*float16.*--precision bf16"):
        capture_module(nn.Sequential(nn.Linear(5, 3), nn.BatchNorm1d(3)).half(), torch.randn(4, 5).half())


def test_empty_inputs_are_refused() -> None:
    with pytest.raises(UserError, match=r"SP1011.*\(0, 5\)"):
        capture_module(nn.Linear(5, 3), torch.zeros(0, 5))


def test_losses_that_do_not_fit() -> None:
    module, x = nn.Linear(5, 3), torch.randn(4, 5)
    with pytest.raises(UserError, match="SP1016"):
        capture_module(module, x, CaptureOptions(loss="hinge"))
    with pytest.raises(UserError, match="SP1016"):
        capture_module(module, x, CaptureOptions(loss=F.mse_loss))
    with pytest.raises(UserError, match=r"SP1016.*\(5,\)"):
        capture_module(module, x, CaptureOptions(labels=torch.zeros(5, dtype=torch.int64)))
    with pytest.raises(UserError, match="SP1005"):
        capture_module(module, x, CaptureOptions(loss=None))
    with pytest.raises(UserError, match="SP1006"):
        capture_module(nn.ReLU(), x)
    with pytest.raises(UserError, match="SP1018"):
        capture_module(F.relu, x)
    other = CaptureOptions(loss=F.binary_cross_entropy, labels=torch.zeros(4, 2))
    with pytest.raises(UserError, match=r"SP1013: torch.export cannot capture the module: .*target size") as raised:
        capture_module(module, x, other)  # the line that calls the loss is nobody's to change
    assert "the loss behind it" in raised.value.fix


def test_without_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    with pytest.raises(UserError, match="SP1012"):
        capture_module(object(), ())


LOSS_OBJECTS: dict[str, tuple[nn.Module, bool]] = {
    "weighted": (nn.CrossEntropyLoss(weight=torch.tensor([0.5, 2.0, 1.0])), True),
    "weighted_smooth_sum": (
        nn.CrossEntropyLoss(torch.tensor([0.5, 2.0, 1.0]), label_smoothing=0.2, reduction="sum", ignore_index=1), True,
    ),
    "weighted_ignoring": (
        nn.CrossEntropyLoss(torch.tensor([0.5, 2.0, 1.0]), label_smoothing=0.1, ignore_index=2), True,
    ),
    "smooth_ignoring": (nn.CrossEntropyLoss(label_smoothing=0.1, ignore_index=0), True),
    "mse_sum": (nn.MSELoss(reduction="sum"), False),
    "bce": (nn.BCEWithLogitsLoss(), False),
    "bce_weighted": (nn.BCEWithLogitsLoss(pos_weight=torch.tensor([1.0, 3.0, 0.5])), False),
    "bce_sum": (nn.BCEWithLogitsLoss(torch.tensor([0.5, 1.5, 1.0]), reduction="sum"), False),
}  # fmt: skip


@pytest.mark.parametrize("name", LOSS_OBJECTS)
@pytest.mark.parametrize("with_labels", [False, True])
def test_loss_objects(name: str, with_labels: bool) -> None:
    """Their labels follow from the prediction; with example labels they are callables like any other."""
    loss, classes = LOSS_OBJECTS[name]
    labels = torch.tensor([0, 1, 2, 2]) if classes else torch.rand(4, 3)
    torch.manual_seed(0)
    module = nn.Linear(5, 3)
    if with_labels:
        agree(module, torch.randn(4, 5), loss, labels)
    else:
        given = capture_module(module, torch.randn(4, 5), CaptureOptions(loss=loss))[0].value["labels"].type
        assert (given.shape, given.dtype.value) == ((4,), "int64") if classes else ((4, 3), "float32")


@pytest.mark.parametrize("options", [{}, {"weight": torch.tensor([0.5, 2.0, 1.0]), "label_smoothing": 0.1}])
def test_a_loss_per_example(options: dict[str, Any]) -> None:
    """reduction='none', and a mean that the user takes; one label is ignored."""

    def loss(logits: Tensor, labels: Tensor) -> Tensor:
        own = {k: v.to(logits.dtype) if isinstance(v, Tensor) else v for k, v in options.items()}
        return (F.cross_entropy(logits, labels, reduction="none", ignore_index=1, **own) * 0.5).sum()

    agree(nn.Linear(5, 3), torch.randn(4, 5), loss, torch.tensor([0, 1, 2, 2]))


def test_probabilities_as_labels() -> None:
    loss = nn.CrossEntropyLoss(torch.tensor([0.5, 2.0, 1.0]), label_smoothing=0.1)
    agree(nn.Linear(5, 3), torch.randn(4, 5), loss, torch.rand(4, 3).softmax(1))


def test_parameter_groups() -> None:
    """Rates and decays of their own; what the optimizer does not hold is not trained."""
    module = nn.Sequential(nn.Linear(4, 5), nn.LayerNorm(5), nn.Linear(5, 3), nn.Linear(3, 3))
    decayed = [p for n, p in module.named_parameters() if p.dim() > 1 and not n.startswith("3")]
    rest = [p for p in module[:3].parameters() if p.dim() == 1]
    groups = [{"params": decayed}, {"params": rest, "weight_decay": 0.0, "lr": 5e-3}]
    graph = capture(module, torch.randn(2, 4), optimizer=torch.optim.AdamW(groups, lr=1e-3, weight_decay=0.1)).graph
    updates = {
        graph.value[n.updates[0]].name: n.attrs for n in graph.program["train_step"].nodes if n.phase == "update"
    }
    assert set(updates) == {n for n, _ in module[:3].named_parameters()}
    for name, attrs in updates.items():
        assert isinstance(attrs, AdamAttrs) and attrs.decoupled
        assert (attrs.lr, attrs.weight_decay) == ((1e-3, 0.1) if "weight" in name and name[0] != "1" else (5e-3, 0.0))


def test_the_learning_rate_is_the_first_group_s() -> None:
    """Not that of the parameter whose gradient is ready first; also from a file, and in bfloat16."""
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    groups = [{"params": module[0].parameters()}, {"params": module[1].parameters(), "lr": 0.5}]
    captured = capture(module, torch.randn(2, 4), optimizer=torch.optim.SGD(groups, lr=0.1))
    graph = captured.graph
    assert next(n.attrs.lr for n in graph.program["train_step"].nodes if n.phase == "update") == 0.5
    assert graph.lr == first_lr(graph) == 0.1
    assert parse_graph(json.loads(graph_text(graph))).lr == captured.in_precision("bf16").graph.lr == 0.1
    alike = capture(module, torch.randn(2, 4), optimizer=torch.optim.SGD(module.parameters(), lr=0.1)).graph
    assert alike.lr is None and first_lr(alike) == 0.1


def test_learning_rates_that_a_scheduler_has_set_to_zero() -> None:
    module = nn.Sequential(nn.Linear(4, 5), nn.Linear(5, 3))
    groups = [{"params": module[0].parameters()}, {"params": module[1].parameters(), "lr": 0.5}]
    optimizer = torch.optim.SGD(groups, lr=0.1)
    torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: step / 10)
    with pytest.raises(UserError, match="SP1023"):
        capture(module, torch.randn(2, 4), optimizer=optimizer)
