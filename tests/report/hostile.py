"""A plan and a graph whose free texts try to break out of whatever prints them."""

from planner.graph.model import Graph
from planner.plan.schema import Plan
from tests.plan.example import small_plan

NASTY = "</script><img src=http://evil.example/x onerror=alert(1)>\x1b[31m\n\u202e"


def hostile() -> tuple[Graph, Plan]:
    """Origins, names, kernels, pools and policies are free text in the schemas; ids of graphs are not."""
    graph, plan, _ = small_plan()
    programs = tuple(
        p.model_copy(update={"nodes": tuple(n.model_copy(update={"origin": NASTY}) for n in p.nodes)})
        for p in graph.programs
    )
    plans = tuple(
        p.model_copy(update={"nodes": tuple(n.model_copy(update={"kernel": NASTY}) for n in p.nodes)})
        for p in plan.programs
    )
    update = {"programs": plans, "name": NASTY, "policy": NASTY, "target": NASTY}
    pools = tuple(p.model_copy(update={"name": NASTY}) for p in plan.pools)
    return graph.model_copy(update={"programs": programs}), plan.model_copy(update={**update, "pools": pools})
