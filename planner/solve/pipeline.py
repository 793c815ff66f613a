"""The passes in their order, and nothing else: graph + target + cost table in, plan out (DESIGN section 6).

Fusion happens when a graph is captured (graph/fuse.py), so that gradient rules see fused nodes. Parallel operators,
co-running, SMT, placement, recomputation and workspaces take their places here as they are added.
"""

from collections.abc import Callable, Mapping, Sequence

from planner.costs.table import CostTable, costs_hash
from planner.errors import UserError
from planner.graph.model import Graph, Node, Program
from planner.graph.text import graph_hash
from planner.plan.bounds import bounds
from planner.plan.schema import Entry, Lane, NodePlan, Placement, Plan, PoolUse, ProgramPlan
from planner.plan.simulate import simulate
from planner.solve.liveness import Liveness, liveness, scratch_id
from planner.solve.offsets import Packing, most_alive, pack
from planner.solve.options import PlanOptions
from planner.solve.route import route
from planner.solve.sync import lane_programs
from planner.solve.threads import Choice, choose_modes
from planner.target.model import Target
from planner.target.text import target_hash
from planner.units import format_bytes

Say = Callable[[str], None]


def make_plan(
    graph: Graph,
    target: Target,
    costs: CostTable,
    options: PlanOptions | None = None,
    say: Say = lambda text: None,
) -> Plan:
    """Solve the complete static schedule of every program of the graph.

    SP1202: a node was never profiled. SP1301: the plan needs more memory than the budget or the pool.
    SP1302: a pinned decision cannot be honoured. `say` receives one line per pass.
    """
    options = options or PlanOptions()
    if options.policy == "auto":
        plans = [make_plan(graph, target, costs, o, say) for o in options.candidates()]
        return min(plans, key=lambda p: sum(q.predicted_ns for q in p.programs))
    cpus = target.lanes(options.lanes)
    orders = {p.name: route(graph, p) for p in graph.programs}
    say(f"route: {sum(map(len, orders.values()))} nodes in {len(orders)} programs")
    choices = {
        name: choose_modes(
            graph,
            order,
            costs,
            len(cpus),
            last_level_cache(target),
            policy=options.policy,
            strategies=options.strategies,
            pinned={k: v for k, v in options.pins.slices.items() if any(n.id == k for n in order)},
        )
        for name, order in orders.items()
    }
    say(f"threads: {options.policy}, {len(cpus)} lanes")
    live = liveness(graph, orders, choices)
    say(f"liveness: {len(live.blocks)} blocks, {len(live.shares)} values in place")
    packing = pack(live.blocks)
    say(f"offsets: {format_bytes(packing.height)}, lower bound {format_bytes(packing.lower_bound)}")
    pool = target.memory
    capacity = pool.capacity if options.memory_budget is None else min(pool.capacity, options.memory_budget)
    if packing.height > capacity:
        raise _too_small(graph, orders, live, packing, capacity)
    programs = []
    for program in graph.programs:
        order, chosen = orders[program.name], choices[program.name]
        lanes = lane_programs(graph, program.name, order, chosen, live, packing.offsets, len(cpus))
        say(f"sync: {program.name} waits {sum(len(e.wait) for lane in lanes for e in lane)} times")
        programs.append(_program_plan(graph, program, order, chosen, lanes, live, packing, costs, target, len(cpus)))
    return Plan(
        name=graph.name,
        policy=options.policy,
        strategies=options.strategies,
        target=target.name,
        graph_hash=graph_hash(graph),
        target_hash=target_hash(target),
        costs_hash=costs_hash(costs),
        pools=(PoolUse(name=pool.name, capacity=capacity, arena=packing.height),),
        lanes=tuple(Lane(id=i, cpu=cpu) for i, cpu in enumerate(cpus)),
        placements=_placements(graph, live, packing, pool.name),
        programs=tuple(programs),
    )


def _program_plan(
    graph: Graph,
    program: Program,
    order: Sequence[Node],
    choices: Mapping[str, Choice],
    lanes: tuple[tuple[Entry, ...], ...],
    live: Liveness,
    packing: Packing,
    costs: CostTable,
    target: Target,
    cores: int,
) -> ProgramPlan:
    sizes = {b.id: b.size for b in live.blocks}
    nodes = []
    for node in order:
        choice, scratch = choices[node.id], scratch_id(program.name, node.id)
        used = packing.offsets.get(scratch, 0)
        nodes.append(
            NodePlan(
                node=node.id,
                kernel=choice.mode.kernel,
                dim=choice.mode.dim,
                slices=choice.mode.slices,
                implementation=choice.mode.implementation,
                stage_ns=choice.stage_ns,
                scratch_offset=used,
                scratch_bytes=sizes.get(scratch, 0),
                facts=dict(choice.facts),
            )
        )
    bandwidth = costs.bandwidth or target.memory_bandwidth
    draft = ProgramPlan(
        name=program.name,
        nodes=tuple(nodes),
        lanes=lanes,
        predicted_ns=0,
        peak_bytes=_peak(graph, program, order, live),
        bounds=bounds(graph, program.name, costs, cores, bandwidth, cache_bytes=all_caches(target)),
    )
    total = simulate(draft, sync_ns=costs.sync_ns).total_ns + costs.launch_ns
    return draft.model_copy(update={"predicted_ns": round(total)})


def _peak(graph: Graph, program: Program, order: Sequence[Node], live: Liveness) -> int:
    """Most aligned bytes alive while this program runs: what stays, plus what its own nodes keep."""
    starts, position = {}, 0
    for other in graph.programs:
        starts[other.name] = position
        position += len(other.nodes) + 1
    first = starts[program.name]
    window = range(first, first + len(order) + 1)
    inside = [b for b in live.blocks if b.lower < window.stop and b.upper > window.start]
    return most_alive(inside)


def last_level_cache(target: Target) -> int:
    """Bytes of the outermost cache."""
    caches = target.cpu.caches
    return caches.l3 or caches.l2 or caches.l1d


def all_caches(target: Target) -> int:
    """Bytes of all data caches together: what need not come from memory again within a step."""
    caches = target.cpu.caches
    shared = caches.l3 * len(target.sharing("l3")) + caches.l2 * len(target.sharing("l2"))
    return shared + caches.l1d * target.physical_cores


def _placements(graph: Graph, live: Liveness, packing: Packing, pool: str) -> tuple[Placement, ...]:
    return tuple(
        Placement(
            value=value.id,
            pool=pool,
            offset=packing.offsets[live.root[value.id]],
            bytes=value.type.bytes,
            shares=live.shares.get(value.id, ""),
        )
        for value in graph.values
        if live.root[value.id] in packing.offsets
    )


def _too_small(
    graph: Graph, orders: Mapping[str, Sequence[Node]], live: Liveness, packing: Packing, capacity: int
) -> UserError:
    """SP1301, naming the node at which most bytes are alive."""
    position, binding, most = 0, "", -1
    for name, order in orders.items():
        for node in order:
            alive = sum(b.size for b in live.blocks if b.lower <= position < b.upper)
            if alive > most:
                binding, most = f"{node.id} ({name})", alive
            position += 1
        position += 1
    return UserError(
        "SP1301",
        f"the plan needs {packing.height} bytes but the budget is {capacity}; "
        f"most is alive at node {binding}: {format_bytes(most)}",
        f"the smallest budget that this policy can meet is {packing.height} bytes ({format_bytes(packing.height)})",
    )
