"""Nodes with the same text share a function: which do, which do not, and that each reads and writes its own values."""

import re
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from codegen.cpu import tables
from codegen.cpu.emit import render
from codegen.cpu.render import environment, render_node
from codegen.cpu.sharing import PARAMETER, SCRATCH
from planner.capturing import capture
from planner.graph.optimizer import Optimizer
from planner.plan.text import plan_text
from tests.codegen.plans import every_case, graph_of, make, plan_for, plan_of, target_of

STEPS = 9


class Steps(nn.Module):
    """The same layers over and over, each with parameters of its own."""

    def __init__(self, width: int = 40) -> None:
        super().__init__()
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(STEPS))
        self.gates = nn.ParameterList(nn.Parameter(torch.randn(width)) for _ in range(STEPS))
        self.linears = nn.ModuleList(nn.Linear(width, width) for _ in range(STEPS))

    def forward(self, x: Tensor, target: Tensor) -> Tensor:
        for norm, gate, linear in zip(self.norms, self.gates, self.linears, strict=True):
            x = x + linear(torch.tanh(norm(x) * gate).cumsum(1))
        return ((x - target) ** 2).mean()


def test_steps_of_a_loop_share_functions_and_have_their_own_operands(tmp_path: Path) -> None:
    module, given = Steps(), (torch.randn(33, 40), torch.randn(33, 40))
    captured = capture(module, given, loss=None, optimizer=Optimizer(kind="adam", lr=1e-2), name="steps")
    executor_type = make(captured.graph, tmp_path)
    captured.write_weights(tmp_path / "weights.npz")
    texts = {f.name: f.read_text() for f in tmp_path.glob("*.cpp")}
    calls = {name: len(re.findall(r"^  shared::", text, re.M)) for name, text in texts.items()}
    assert calls["forward.cpp"] >= 2 * STEPS and calls["backward.cpp"] >= 2 * STEPS and calls["update.cpp"] >= 5 * STEPS
    assert "int64_t own_scratch" in texts["backward.cpp"] and "int64_t own_parameter" in texts["update.cpp"]

    exact = Steps().double()
    exact.load_state_dict(module.state_dict())
    wide = tuple(x.double() for x in given)
    adam = torch.optim.Adam(exact.parameters(), lr=1e-2)
    with executor_type(pin=False) as executor:
        _, gradients = executor.gradients(*given)
        for step in range(3):
            adam.zero_grad()
            loss = exact(*wide)
            loss.backward()
            if step == 0:
                for name, parameter in exact.named_parameters():
                    assert parameter.grad is not None
                    wanted = parameter.grad.numpy()
                    assert np.abs(gradients[name] - wanted).max() <= 1e-4 * np.abs(wanted).max(), name
            adam.step()
            assert abs(executor.step(*given) - loss.item()) <= 1e-5 * loss.item()


def test_what_differs_in_more_than_places_is_not_shared() -> None:
    """Dropout draws other numbers in every layer, and sizes are part of the text."""

    class Layers(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drops = nn.ModuleList(nn.Dropout(0.5) for _ in range(STEPS))
            self.gates = nn.ParameterList(nn.Parameter(torch.randn(i + 2, 1)) for i in range(STEPS))

        def forward(self, x: Tensor) -> Tensor:
            dropped = [drop(x) for drop in self.drops]
            return sum(((gate + d) ** 4).sum() for gate, d in zip(self.gates, dropped, strict=True))

    captured = capture(Layers(), torch.randn(1, 24), loss=None)
    plan, target = plan_for(captured.graph)
    files = render(plan, captured.graph, target)
    ops = [n.op for n in captured.graph.program["train_step"].nodes]
    assert ops.count("dropout") == STEPS
    assert not re.search(r"shared::(dropout|sgd_update)", "".join(files.values()))


def test_no_template_has_a_variable_that_is_called_like_a_parameter() -> None:
    cases = every_case((1, 2))
    graph = graph_of(cases)
    model = tables.build(plan := plan_of(cases, graph, target_of(2)), graph, plan_text(plan))
    words = {
        word
        for view in model.all_views
        if not view.uses_library
        for word in re.findall(r"\w+", render_node(environment(), view))
    }
    assert "scratch" in words and not {w for w in words if re.fullmatch(rf"(in|out|up)\d+|{SCRATCH}|{PARAMETER}", w)}
