"""The passes in their order, and nothing else: graph + target + cost table in, plan out (DESIGN section 6).

Fusion happens when a graph is captured (graph/fuse.py), so that gradient rules see fused nodes. Parallel operators,
co-running, SMT, placement, recomputation and workspaces take their places here as they are added.
"""

from planner.costs.table import CostTable
from planner.graph.model import Graph, Program
from planner.plan.schema import Plan
from planner.solve.assemble import Say, Setting, assemble
from planner.solve.options import PlanOptions
from planner.solve.route import route
from planner.solve.schedule import Schedule, one_at_a_time
from planner.solve.threads import choose_modes
from planner.target.model import Target


def make_plan(
    graph: Graph,
    target: Target,
    costs: CostTable,
    options: PlanOptions | None = None,
    say: Say = lambda text: None,
) -> Plan:
    """Solve the complete static schedule of every program of the graph.

    SP1202: a node was never profiled. SP1301: the plan needs more memory than the budget or the pool.
    SP1302: a pinned decision cannot be honoured. SP1304: a value cannot be kept. `say` receives one line per pass.
    """
    options = options or PlanOptions()
    if options.policy == "auto":
        plans = [make_plan(graph, target, costs, o, say) for o in options.candidates()]
        return min(plans, key=lambda p: sum(q.predicted_ns for q in p.programs))
    setting = Setting(graph, target, costs, options, say)
    return assemble(setting, {p.name: _schedule(setting, p) for p in graph.programs})


def _schedule(setting: Setting, program: Program) -> Schedule:
    options, order = setting.options, route(setting.graph, program)
    setting.say(f"route: {len(order)} nodes in {program.name}")
    choices = choose_modes(
        setting.graph,
        order,
        setting.costs,
        len(setting.cpus),
        setting.target.last_level_cache,
        policy=options.policy,
        strategies=options.strategies,
        pinned={k: v for k, v in options.pins.slices.items() if k in program.node},
    )
    setting.say(f"threads: {options.policy}, {len(setting.cpus)} lanes")
    return one_at_a_time(program.name, order, choices)
