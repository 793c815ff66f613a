"""From schedules to a plan: lifetimes, byte offsets, waits, and the time that a replay of the result takes."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate

from planner.costs.table import CostTable, costs_hash
from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.text import graph_hash
from planner.plan.bounds import bounds
from planner.plan.contention import contention_of
from planner.plan.crossing import Crossing
from planner.plan.expand import expand, pools_of
from planner.plan.schema import Crossed, Lane, NodePlan, Placement, Plan, PoolUse, ProgramPlan, Rewrite, Sharing
from planner.plan.simulate import simulate
from planner.solve.crossing import crossed_bytes
from planner.solve.keep import kept_values
from planner.solve.liveness import Liveness, liveness, scratch_id
from planner.solve.offsets import Effort, most_alive
from planner.solve.options import PlanOptions
from planner.solve.pools import Arenas, arenas, unshared
from planner.solve.rewriting import Copies, copies_of, links_of, rescheduled
from planner.solve.schedule import Schedule
from planner.solve.stored import layouts_of
from planner.solve.sync import lane_programs
from planner.solve.together import SHARES, together
from planner.target.model import Target
from planner.target.text import target_hash
from planner.units import format_bytes

Say = Callable[[str], None]

GLANCE = Effort(search=2_000_000)
"""For a packing that there is another for."""


@dataclass(frozen=True)
class Setting:
    """What is planned for: the same for every candidate."""

    graph: Graph
    target: Target
    costs: CostTable
    options: PlanOptions
    say: Say
    unlimited: bool = False
    """Plan as if the first pool had no end."""

    @property
    def cpus(self) -> tuple[int, ...]:
        """Logical processor of every lane that has a core of its own; on a GPU the numbers of the streams, one unless
        more are asked for."""
        if self.target.gpus:
            return self.target.streams(self.options.lanes)
        return self.target.lanes(self.options.lanes)

    @property
    def siblings(self) -> tuple[int, ...]:
        """With strategy 4: the second thread of every lane's core, in the same order. Empty unless all have one."""
        if 4 not in self.options.strategies or self.target.gpus:
            return ()
        threads = [self.target.core_of[cpu].cpus[1:2] for cpu in self.cpus]
        return tuple(t[0] for t in threads) if all(threads) else ()

    @property
    def tiles(self) -> tuple[int, ...]:
        """For every lane the smallest cache that its core shares."""
        if self.target.gpus:
            return (0,) * len(self.cpus)
        return tuple(self.target.core_of[cpu].tile for cpu in self.cpus)

    @property
    def cache(self) -> int:
        """Bytes of the last cache that a node's operands may still lie in; a GPU's is not counted on."""
        return 0 if self.target.gpus else self.target.last_level_cache

    @property
    def same_bits(self) -> bool:
        """Whether a budget must not change in which modes nodes run."""
        wanted = self.options.same_bits
        return not self.target.gpus if wanted is None else wanted

    def sharing(self, cpus: Sequence[int] = ()) -> Sharing:
        """What the lanes on `cpus` share. One stream alone can use all of a GPU's bandwidth."""
        if self.target.gpus:
            bandwidth = round(self.costs.bandwidth) or self.target.memory_bandwidth
            return Sharing(bandwidth=bandwidth, thread_bandwidth=bandwidth)
        cores = tuple(self.target.core_of[cpu].id for cpu in cpus)
        return Sharing(
            bandwidth=round(self.costs.bandwidth) or self.target.memory_bandwidth,
            thread_bandwidth=round(self.costs.thread_bandwidth) or self.target.cpu.thread_bandwidth,
            smt_gain=self.costs.smt_gain,
            fetch_ns=self.costs.fetch_ns,
            reclaim_ns=self.costs.reclaim_ns,
            cores=cores if len(set(cores)) < len(cores) else (),
        )

    @property
    def capacity(self) -> int:
        """Bytes that the plan may use in the first pool."""
        if self.unlimited:
            return 2**60 - 1
        pool, budget = self.target.memory.capacity, self.options.memory_budget
        return pool if budget is None else min(pool, budget)


@dataclass(frozen=True)
class Draft:
    """What the last passes work on: the expanded graph with a schedule for each of its programs."""

    graph: Graph
    schedules: Mapping[str, Schedule]
    rewrites: Mapping[str, Rewrite]
    cpus: tuple[int, ...]
    """Of the lanes with a processor of their own."""
    copies: Copies
    keep: tuple[str, ...] = ()
    """Values that stay until their program ends."""

    @cached_property
    def live(self) -> Liveness:
        """Lifetimes in the order of the schedules."""
        return liveness(self.graph, self.schedules, frozenset(self.keep))

    @property
    def pools(self) -> dict[str, str]:
        """instance -> pool, for those outside the first."""
        return {v: p for r in self.rewrites.values() for v, p in pools_of(r).items()}


def draft(
    setting: Setting,
    schedules: Mapping[str, Schedule],
    threads: tuple[int, ...] = (),
    rewrites: Mapping[str, Rewrite] | None = None,
    *,
    overlap: bool = True,
) -> Draft:
    """The schedules of the graph's own programs, rewritten."""
    wanted = {name: r for name, r in (rewrites or {}).items() if r}
    graph, cpus = setting.graph, setting.cpus + threads
    larger = expand(graph, wanted)
    copies = copies_of(links_of(wanted), setting.target, setting.costs, len(cpus))
    changed = {
        name: rescheduled(graph, larger, s, wanted[name], setting.costs, copies, overlap=overlap)
        for name, s in schedules.items()
        if name in wanted
    }
    keep = kept_values(graph, setting.options.keep)
    return Draft(larger, {**schedules, **changed}, wanted, cpus, copies, keep)


def assemble(
    setting: Setting,
    schedules: Mapping[str, Schedule],
    threads: tuple[int, ...] = (),
    rewrites: Mapping[str, Rewrite] | None = None,
    *,
    overlap: bool = True,
) -> Plan:
    """Complete one schedule per program to a plan. SP1301: it needs more memory than the budget or the pool.
    SP1304: a value that cannot be kept.

    `schedules` are those of the graph's own programs. `threads`: processors of further lanes, on the second threads
    of some lanes' cores. `rewrites`: program -> what runs besides (plan/expand.py); `overlap`: whether transfers may
    hold memory longer to run beside the nodes.
    """
    return completed(setting, draft(setting, schedules, threads, rewrites, overlap=overlap))


def completed(setting: Setting, drafted: Draft) -> Plan:
    """As `assemble`, of a draft."""
    graph, target, options = setting.graph, setting.target, setting.options
    layouts = layouts_of(graph, drafted.schedules)
    setting.say(f"stored: {len(layouts)} values as kernels want them")
    made, placed, pools = _fitting(setting, drafted)
    live = made.live
    sharing = setting.sharing(made.cpus)
    return Plan(
        name=graph.name,
        policy=options.policy,
        strategies=options.strategies,
        target=target.name,
        graph_hash=graph_hash(graph),
        target_hash=target_hash(target),
        costs_hash=costs_hash(setting.costs),
        keep=made.keep,
        pools=pools,
        lanes=(
            *_lanes(target, made.cpus),
            *(Lane(id=i, kind="copy") for i in sorted(made.copies.lanes.values())),
        ),
        placements=_placements(made.graph, live, placed, layouts),
        programs=tuple(_program(setting, made, p.name, live, placed, sharing) for p in graph.programs),
        sharing=sharing,
    )


def arena_of(setting: Setting, made: Draft) -> int:
    """Bytes of the first pool in what comes of `completed`, without the waits and times that take the longest to find
    out. SP1301, SP1304: as there."""
    _, _, pools = _fitting(setting, made)
    return pools[0].arena


def alive_bytes(made: Draft) -> int:
    """Most bytes of the first pool alive at once, in the order of the schedules: told much quicker than what packing
    comes to, which is no less."""
    pools = made.pools
    return most_alive([b for b in made.live.blocks if b.id not in pools])


def unpacked_ns(setting: Setting, made: Draft, name: str) -> int:
    """How long a program of a draft takes where no value takes over another one's bytes: nothing waits for those to be
    free, and no cache has them. Much quicker to tell than what comes of packing."""
    live = made.live
    sharing = setting.sharing(made.cpus).model_copy(update={"fetch_ns": 0.0, "reclaim_ns": 0.0})
    quiet = replace(setting, say=lambda text: None)
    return _program(quiet, made, name, live, unshared(live.blocks), sharing).predicted_ns


def _fitting(setting: Setting, drafted: Draft) -> tuple[Draft, Arenas, tuple[PoolUse, ...]]:
    """The draft in the order in which it will run, with offsets, and what that takes of every pool. SP1301."""
    made, placed = _packed(setting, drafted)
    live = made.live
    setting.say(f"liveness: {len(live.blocks)} blocks, {len(live.shares)} values in place")
    first = placed.packing[setting.target.memory.name]
    setting.say(f"offsets: {format_bytes(first.height)}, lower bound {format_bytes(first.lower_bound)}")
    if first.height > setting.capacity:
        raise too_small(setting, made, first.height)
    return made, placed, _pools(setting, placed)


def _packed(setting: Setting, made: Draft) -> tuple[Draft, Arenas]:
    """The draft in the order in which it will run, with offsets."""
    first, keep = setting.target.memory.name, frozenset(made.keep)
    placed = arenas(made.live.blocks, made.pools, first)
    # No more bytes alive at once may still be harder to pack, and launches are not worth memory.
    for share in SHARES if setting.target.gpus else ():
        joint = replace(made, schedules=together(made.graph, made.schedules, keep, made.pools, share))
        found = arenas(joint.live.blocks, made.pools, first, capacity=placed.packing[first].height, effort=GLANCE)
        if found.packing[first].height <= placed.packing[first].height:
            return joint, found
    return made, placed


def _lanes(target: Target, cpus: tuple[int, ...]) -> tuple[Lane, ...]:
    if target.gpus:
        return tuple(Lane(id=i, kind="stream") for i in range(len(cpus)))
    return tuple(Lane(id=i, cpu=cpu) for i, cpu in enumerate(cpus))


def _pools(setting: Setting, placed: Arenas) -> tuple[PoolUse, ...]:
    """SP1301: a slower pool is too small for what is moved there."""
    found = []
    for name, packing in placed.packing.items():
        capacity = setting.capacity if name == setting.target.memory.name else setting.target.pool[name].capacity
        if packing.height > capacity:
            raise UserError(
                "SP1301",
                f"pool {name} would have to hold {packing.height} bytes but has {capacity}",
                "enlarge it in the target, or raise the memory budget so that less moves there",
            )
        found.append(PoolUse(name=name, capacity=capacity, arena=packing.height))
    return tuple(found)


def _program(setting: Setting, made: Draft, name: str, live: Liveness, placed: Arenas, sharing: Sharing) -> ProgramPlan:
    schedule, costs = made.schedules[name], setting.costs
    count = len(made.cpus) + len(made.copies.lanes)
    lanes = lane_programs(made.graph, schedule, live, placed.addresses, count)
    crossing = Crossing(sharing.fetch_ns, sharing.reclaim_ns)
    crossed = crossed_bytes(
        made.graph, schedule, live, placed.addresses, costs, crossing, setting.target.last_level_cache
    )
    planned = ProgramPlan(
        name=name,
        nodes=_nodes(schedule, live, placed, crossed, crossing),
        lanes=lanes,
        predicted_ns=0,
        peak_bytes=_peak(made, name, live),
        bounds=bounds(
            setting.graph,
            name,
            costs,
            len(made.cpus),
            costs.bandwidth or setting.target.memory_bandwidth,
            cache_bytes=0 if setting.target.gpus else setting.target.cache_bytes,
        ),
        slowdowns=schedule.slowdowns,
        parallel=schedule.parallel,
        rewrite=made.rewrites.get(name, Rewrite()),
    )
    replayed = simulate(planned, sync_ns=costs.sync_ns, contention=contention_of(sharing, planned))
    setting.say(f"sync: {name} waits {replayed.waits} times")
    total = replayed.total_ns + costs.launch_ns + _stolen(setting, made, schedule)
    return planned.model_copy(update={"predicted_ns": round(total)})


def _stolen(setting: Setting, made: Draft, schedule: Schedule) -> float:
    """ns that copy lanes take from the others: copying is a processor's work, and where every processor has a lane
    already it is missed there. The system spreads it over all of them. A GPU has copy engines for it."""
    if setting.target.gpus:
        return 0.0
    copying = sum(schedule.choices[t.node].total_ns for t in made.rewrites.get(schedule.program, Rewrite()).transfers)
    spare = setting.target.logical_cpus - len(made.cpus)
    return copying / len(made.cpus) if spare <= 0 else 0.0


def _nodes(
    schedule: Schedule, live: Liveness, placed: Arenas, crossed: Mapping[str, tuple[Crossed, ...]], crossing: Crossing
) -> tuple[NodePlan, ...]:
    sizes = {b.id: b.size for b in live.blocks}
    nodes = []
    for node in schedule.order:
        choice, scratch = schedule.choices[node.id], scratch_id(schedule.program, node.id)
        stages = crossed.get(node.id, ())
        more = [round(crossing.price(stage)) for stage in stages] or [0] * len(choice.stage_ns)
        nodes.append(
            NodePlan(
                node=node.id,
                kernel=choice.mode.kernel,
                dim=choice.mode.dim,
                slices=choice.mode.slices,
                implementation=choice.mode.implementation,
                stage_ns=tuple(map(sum, zip(choice.stage_ns, more, strict=True))),
                scratch_offset=placed.offsets.get(scratch, 0),
                scratch_bytes=sizes.get(scratch, 0),
                facts=dict(choice.facts),
                traffic=choice.traffic,
                crossed=stages,
            )
        )
    return tuple(nodes)


def _peak(made: Draft, name: str, live: Liveness) -> int:
    """Most aligned bytes of the first pool alive while this program runs: what stays, plus what its own nodes keep."""
    starts, position = {}, 0
    for schedule in made.schedules.values():
        starts[schedule.program] = position
        position += len(schedule.order) + 1
    first = starts[name]
    window = range(first, first + len(made.schedules[name].order) + 1)
    pools = made.pools
    inside = [b for b in live.blocks if b.lower < window.stop and b.upper > window.start and b.id not in pools]
    return most_alive(inside)


def _placements(graph: Graph, live: Liveness, placed: Arenas, layouts: Mapping[str, str]) -> tuple[Placement, ...]:
    return tuple(
        Placement(
            value=value.id,
            pool=placed.pool_of(live.root[value.id]),
            offset=placed.offsets[live.root[value.id]],
            bytes=value.type.bytes,
            shares=live.shares.get(value.id, ""),
            layout=layouts.get(value.id, ""),
        )
        for value in graph.values
        if live.root[value.id] in placed.offsets
    )


def too_small(setting: Setting, made: Draft, height: int) -> UserError:
    """SP1301 of what packs into `height` bytes, naming the node at which most are alive."""
    names: list[str] = []
    """By position; what lies between two programs' nodes has none."""
    for name, schedule in made.schedules.items():
        names += [*(f"{node.id} ({name})" for node in schedule.order), ""]
    change, elsewhere = [0] * (len(names) + 1), made.pools
    for block in made.live.blocks:
        if block.id not in elsewhere:
            change[min(block.lower, len(names))] += block.size
            change[min(block.upper, len(names))] -= block.size
    alive = [(size, -at) for at, size in enumerate(accumulate(change[:-1])) if names[at]]
    most, at = max(alive, default=(0, 0))
    binding = names[-at]
    return UserError(
        "SP1301",
        f"the plan needs {height} bytes ({format_bytes(height)}), but the budget is {setting.capacity} "
        f"({format_bytes(setting.capacity)}); most is alive at node {binding}: {format_bytes(most)}",
        f"the smallest budget that this policy can meet is {height} bytes ({format_bytes(height)})",
    )
