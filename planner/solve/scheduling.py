"""From graph and policy to schedules: route, warmth, threads and corun in their order, before memory is looked at."""

from collections.abc import Mapping
from dataclasses import replace
from difflib import get_close_matches
from typing import NamedTuple

from planner.errors import UserError
from planner.graph.model import Graph, Node, Program
from planner.solve.assemble import Setting
from planner.solve.corun import PUBLISHED, SEARCHED, Ended, run_by
from planner.solve.corunning.interference import Interference
from planner.solve.corunning.simulated_step import Work
from planner.solve.options import PlanOptions
from planner.solve.parallel_op import parallel_ops
from planner.solve.route import route
from planner.solve.schedule import Schedule, corun_summary, one_at_a_time, parallel_summary
from planner.solve.threads import Choice, Options, choose_modes, node_options
from planner.solve.warmth import coldness
from planner.units import format_ns


class Modes(NamedTuple):
    """The nodes of a program in an order to start from, and every way to run each."""

    order: tuple[Node, ...]
    options: Options


def base_schedules(setting: Setting) -> dict[str, Schedule]:
    """When and how every node of the graph runs, program by program, before memory is looked at."""
    return Scheduler(setting).schedules(setting.options)


class Scheduler:
    """Schedules of one graph on one target by one policy after the other; what they have in common is found once."""

    def __init__(self, setting: Setting) -> None:
        """SP1202: a node was never profiled. SP1302: a pinned node does not exist."""
        graph, cache, self._setting = setting.graph, setting.cache, setting
        _require_nodes(graph, setting.options.pins.slices)
        orders = {p.name: route(graph, p) for p in graph.programs}
        for name, order in orders.items():
            setting.say(f"route: {len(order)} nodes in {name}")
        cold, lanes = coldness(graph, orders, cache), len(setting.cpus)
        self._modes = {
            n: Modes(o, node_options(graph, o, cold[n], setting.costs, lanes, cache, gpu=bool(setting.target.gpus)))
            for n, o in orders.items()
        }
        self._ended: dict[tuple[object, ...], Ended] = {}

    def schedules(self, options: PlanOptions) -> dict[str, Schedule]:
        """`options`: with the lanes and pins of the setting that this was made for."""
        setting = replace(self._setting, options=options)
        return {p.name: self._schedule(setting, p) for p in setting.graph.programs}

    def _schedule(self, setting: Setting, program: Program) -> Schedule:
        options, lanes, (order, modes) = setting.options, len(setting.cpus), self._modes[program.name]
        pinned = {k: v for k, v in options.pins.slices.items() if k in program.node}
        choices = choose_modes(
            order,
            modes,
            lanes,
            policy=options.policy,
            strategies=options.strategies,
            pinned=pinned,
            uniform=options.uniform,
        )
        setting.say(f"threads: {options.policy}, {lanes} lanes")
        if not options.coruns:
            plain = one_at_a_time(program.name, order, choices)
            if options.parallel_ops is None:
                return plain
            together = parallel_ops(plain, setting.graph, modes, lanes, setting.sharing(), options.parallel_ops, pinned)
            setting.say(f"parallel_op: {parallel_summary(together)}")
            return together
        best = self._best(setting, program, choices, pinned)
        summary = corun_summary(best.schedule)
        setting.say(f"corun: {program.name}, {best.rules.name}, {format_ns(round(best.end_ns))}; {summary}")
        return best.schedule

    def _best(
        self, setting: Setting, program: Program, choices: Mapping[str, Choice], pinned: Mapping[str, int]
    ) -> Ended:
        """The run that ends first by simulation; the first of the rules wins a tie."""
        options, lanes, (order, modes) = setting.options, len(setting.cpus), self._modes[program.name]
        work = Work(
            graph=setting.graph,
            program=program,
            order=order,
            options=modes,
            base=choices,
            pinned=pinned if options.uniform is None else {n: c.mode.slices for n, c in choices.items()},
            lanes=tuple(range(lanes)),
            siblings=tuple(range(lanes, lanes + len(setting.siblings))),
            tiles=tuple(setting.tiles),
            interference=Interference(setting.graph, order, setting.costs, setting.sharing()),
            sync_ns=setting.costs.sync_ns,
        )
        chosen = tuple((c.mode, c.affinity) for c in choices.values())
        runs = []
        for rules in SEARCHED if options.search else (PUBLISHED,):
            # Policies that choose the same modes run the same way, and the published rules are among those searched.
            key = (program.name, rules, work.siblings, chosen, options.uniform is None)
            if key not in self._ended:
                self._ended[key] = run_by(work, rules)
            runs.append(self._ended[key])
        return min(runs, key=lambda run: run.end_ns)


def _require_nodes(graph: Graph, pinned: Mapping[str, int]) -> None:
    """SP1302: a pin names no node."""
    names = [n.id for p in graph.programs for n in p.nodes]
    for name in sorted(set(pinned).difference(names)):
        near = get_close_matches(name, names, 1, 0.0)
        fix = f"name a node of graph.json; the nearest is {near[0]!r}" if near else "the graph has no node to pin"
        raise UserError("SP1302", f"there is no node {name[:200]!r} to pin", fix)
