"""From schedules to a plan: lifetimes, byte offsets, waits, and the time that a replay of the result takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from planner.costs.table import CostTable, costs_hash
from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.text import graph_hash
from planner.plan.bounds import bounds
from planner.plan.contention import contention_of
from planner.plan.schema import Lane, NodePlan, Placement, Plan, PoolUse, ProgramPlan, Sharing
from planner.plan.simulate import simulate
from planner.solve.keep import kept_values
from planner.solve.liveness import Liveness, liveness, scratch_id
from planner.solve.offsets import Packing, most_alive, pack
from planner.solve.options import PlanOptions
from planner.solve.schedule import Schedule
from planner.solve.sync import lane_programs
from planner.target.model import Target
from planner.target.text import target_hash
from planner.units import format_bytes

Say = Callable[[str], None]


@dataclass(frozen=True)
class Setting:
    """What is planned for: the same for every candidate."""

    graph: Graph
    target: Target
    costs: CostTable
    options: PlanOptions
    say: Say

    @property
    def cpus(self) -> tuple[int, ...]:
        """Logical processor of every lane that has a core of its own."""
        return self.target.lanes(self.options.lanes)

    @property
    def siblings(self) -> tuple[int, ...]:
        """With strategy 4: the second thread of every lane's core, in the same order. Empty unless all have one."""
        if 4 not in self.options.strategies:
            return ()
        threads = [self.target.core_of[cpu].cpus[1:2] for cpu in self.cpus]
        return tuple(t[0] for t in threads) if all(threads) else ()

    @property
    def tiles(self) -> tuple[int, ...]:
        """For every lane the smallest cache that its core shares."""
        return tuple(self.target.core_of[cpu].tile for cpu in self.cpus)

    def sharing(self, cpus: Sequence[int] = ()) -> Sharing:
        """What the lanes on `cpus` share."""
        cores = tuple(self.target.core_of[cpu].id for cpu in cpus)
        return Sharing(
            bandwidth=round(self.costs.bandwidth) or self.target.memory_bandwidth,
            thread_bandwidth=round(self.costs.thread_bandwidth) or self.target.cpu.thread_bandwidth,
            smt_gain=self.costs.smt_gain,
            cores=cores if len(set(cores)) < len(cores) else (),
        )

    @property
    def capacity(self) -> int:
        """Bytes that the plan may use in the first pool."""
        pool, budget = self.target.memory.capacity, self.options.memory_budget
        return pool if budget is None else min(pool, budget)


def assemble(setting: Setting, schedules: Mapping[str, Schedule], threads: tuple[int, ...] = ()) -> Plan:
    """Complete one schedule per program to a plan. SP1301: it needs more memory than the budget or the pool.
    SP1304: a value that cannot be kept.

    `threads`: processors of further lanes, on the second threads of some lanes' cores.
    """
    cpus = setting.cpus + threads
    sharing = setting.sharing(cpus)
    graph, target, options = setting.graph, setting.target, setting.options
    keep = kept_values(graph, options.keep)
    live = liveness(graph, schedules, frozenset(keep))
    setting.say(f"liveness: {len(live.blocks)} blocks, {len(live.shares)} values in place")
    packing = pack(live.blocks)
    setting.say(f"offsets: {format_bytes(packing.height)}, lower bound {format_bytes(packing.lower_bound)}")
    if packing.height > setting.capacity:
        raise _too_small(schedules, live, packing, setting.capacity)
    pool = target.memory
    return Plan(
        name=graph.name,
        policy=options.policy,
        strategies=options.strategies,
        target=target.name,
        graph_hash=graph_hash(graph),
        target_hash=target_hash(target),
        costs_hash=costs_hash(setting.costs),
        keep=keep,
        pools=(PoolUse(name=pool.name, capacity=setting.capacity, arena=packing.height),),
        lanes=tuple(Lane(id=i, cpu=cpu) for i, cpu in enumerate(cpus)),
        placements=_placements(graph, live, packing, pool.name),
        programs=tuple(_program(setting, schedules, p.name, live, packing, len(cpus), sharing) for p in graph.programs),
        sharing=sharing,
    )


def _program(
    setting: Setting,
    schedules: Mapping[str, Schedule],
    name: str,
    live: Liveness,
    packing: Packing,
    count: int,
    sharing: Sharing,
) -> ProgramPlan:
    schedule, costs = schedules[name], setting.costs
    lanes = lane_programs(setting.graph, schedule, live, packing.offsets, count)
    setting.say(f"sync: {name} waits {sum(len(e.wait) for lane in lanes for e in lane)} times")
    draft = ProgramPlan(
        name=name,
        nodes=_nodes(schedule, live, packing),
        lanes=lanes,
        predicted_ns=0,
        peak_bytes=_peak(schedules, name, live),
        bounds=bounds(
            setting.graph,
            name,
            costs,
            count,
            costs.bandwidth or setting.target.memory_bandwidth,
            cache_bytes=setting.target.cache_bytes,
        ),
        slowdowns=schedule.slowdowns,
        parallel=schedule.parallel,
    )
    total = simulate(draft, sync_ns=costs.sync_ns, contention=contention_of(sharing, draft)).total_ns + costs.launch_ns
    return draft.model_copy(update={"predicted_ns": round(total)})


def _nodes(schedule: Schedule, live: Liveness, packing: Packing) -> tuple[NodePlan, ...]:
    sizes = {b.id: b.size for b in live.blocks}
    nodes = []
    for node in schedule.order:
        choice, scratch = schedule.choices[node.id], scratch_id(schedule.program, node.id)
        nodes.append(
            NodePlan(
                node=node.id,
                kernel=choice.mode.kernel,
                dim=choice.mode.dim,
                slices=choice.mode.slices,
                implementation=choice.mode.implementation,
                stage_ns=choice.stage_ns,
                scratch_offset=packing.offsets.get(scratch, 0),
                scratch_bytes=sizes.get(scratch, 0),
                facts=dict(choice.facts),
                traffic=choice.traffic,
            )
        )
    return tuple(nodes)


def _peak(schedules: Mapping[str, Schedule], name: str, live: Liveness) -> int:
    """Most aligned bytes alive while this program runs: what stays, plus what its own nodes keep."""
    starts, position = {}, 0
    for schedule in schedules.values():
        starts[schedule.program] = position
        position += len(schedule.order) + 1
    first = starts[name]
    window = range(first, first + len(schedules[name].order) + 1)
    inside = [b for b in live.blocks if b.lower < window.stop and b.upper > window.start]
    return most_alive(inside)


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


def _too_small(schedules: Mapping[str, Schedule], live: Liveness, packing: Packing, capacity: int) -> UserError:
    """SP1301, naming the node at which most bytes are alive."""
    position, binding, most = 0, "", -1
    for name, schedule in schedules.items():
        for node in schedule.order:
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
