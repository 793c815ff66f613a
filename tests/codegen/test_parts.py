"""Programs that stop for their caller's gradients."""

import pytest
import torch
from torch import Tensor, nn

from codegen.parts import parts, predictions
from planner.capturing import capture
from planner.graph.model import Graph
from planner.plan.expand import expanded
from planner.plan.schema import Plan, parse_slice
from planner.solve.options import PlanOptions
from tests.codegen.plans import plan_for


class Heads(nn.Module):
    """Two results, and a batch norm that neither depends on."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(12, 16), nn.BatchNorm1d(16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh())
        self.a, self.b, self.beside = nn.Linear(16, 3), nn.Linear(16, 2), nn.BatchNorm1d(12)

    def forward(self, x: Tensor) -> dict[str, Tensor]:
        self.beside(x * x)
        y = self.body(x)
        return {"kind": self.a(y), "place": self.b(y)}


def heads() -> Graph:
    torch.manual_seed(0)
    return capture(Heads(), torch.randn(32, 12), loss="caller").graph


@pytest.mark.parametrize("lanes", [1, 2, 3])
@pytest.mark.parametrize(
    "options", [PlanOptions(policy="sequential"), PlanOptions(policy="liu", strategies=frozenset({1, 2, 3}))]
)
def test_the_second_run_is_what_follows_from_the_gradients(lanes: int, options: PlanOptions) -> None:
    graph = heads()
    plan, _ = plan_for(graph, lanes, options)
    program = plan.program["train_step"]
    known = expanded(graph, plan)
    first, second = parts(plan, known, program)
    assert tuple(a + b for a, b in zip(first.lanes, second.lanes, strict=True)) == program.lanes
    assert first.inputs == ("x",)
    assert second.inputs == ("x", "d_prediction", "d_prediction_1")
    early = {e.run for lane in first.lanes for e in lane}
    assert all(w in early for lane in first.lanes for e in lane for w in e.wait if not w.endswith("#*"))
    done, nodes = {parse_slice(run)[0] for run in early}, known.program["train_step"].node
    assert not any(nodes[n].phase == "update" or nodes[n].op.endswith("_backward") for n in done)
    assert {n.id for n in nodes.values() if n.updates and n.phase == "forward"} <= done
    makers = {v: n.id for n in nodes.values() for v in n.outputs}
    assert {makers[v] for v in predictions(known)} <= done


def test_a_program_with_a_loss_is_one_part() -> None:
    graph = capture(Heads().body, torch.randn(32, 12), loss="mse").graph
    plan: Plan = plan_for(graph)[0]
    for program in plan.programs:
        (only,) = parts(plan, graph, program)
        assert (only.name, only.lanes) == (program.name, program.lanes)
