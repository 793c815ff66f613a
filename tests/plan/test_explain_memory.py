"""`explain VALUE` says what was decided about it and why."""

from planner.plan.explain import explain
from planner.report.html import html_page
from planner.report.perfetto import perfetto_trace
from planner.report.table import plan_table
from tests.graphs import small_net
from tests.rewrites import Rewriter

GRAPH = small_net()
REWRITER = Rewriter(GRAPH, 2)
PLAN = REWRITER.plan({"bn1.y": "fresh", "conv1.y": "move"})


def told(name: str) -> str:
    return " ".join(explain(name, GRAPH, PLAN).text().split())


def test_a_recomputed_value() -> None:
    text = told("bn1.y")
    assert "made again by bn1.recompute (batch_norm_apply" in text and "for conv2.backward_weights" in text
    assert "are free from bn2 on until then" in text


def test_a_moved_value() -> None:
    text = told("conv1.y")
    assert "moved to slow by conv1.y.offload" in text
    assert "moved back by conv1.y.prefetch for bn1.recompute, bn1.backward" in text


def test_a_kept_value_and_one_without_a_choice() -> None:
    assert "kept until bn2.backward: making it again would take" in told("conv2.y")
    assert "only the forward pass reads it" in told("maxpool.y")


def test_an_instance() -> None:
    assert "a result of bn1 once more, for conv2.backward_weights" in told("bn1.y.recompute")
    assert "a copy of conv1.y.away, for bn1.recompute, bn1.backward" in told("conv1.y.back")


def test_tables_pages_and_traces_show_what_was_added() -> None:
    table = plan_table(PLAN, GRAPH)
    assert "1 nodes run again, 1 times in all" in table and "1 values move between pools, 16.0 KiB in all" in table
    assert "2 that copy between pools" in table
    assert "bn1.recompute" in html_page(PLAN, GRAPH)
    assert '"transfer"' in perfetto_trace(PLAN, GRAPH)
