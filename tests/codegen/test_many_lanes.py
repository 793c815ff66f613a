"""Far more lanes than this machine has processors: two NUMA nodes, nodes side by side on odd numbers of lanes."""

import random
from pathlib import Path

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.facts import facts
from codegen.load import executor_class
from planner.costs.model import candidate_modes
from planner.costs.table import CostEntry, CostTable
from planner.graph.model import Graph
from planner.ops.base import op_named
from planner.ops.signature import signatures_of
from planner.solve.options import PlanOptions
from planner.target.model import Target
from planner.target.text import load_target
from planner.target.topology import Core
from tests.codegen.following import assert_follows_reference
from tests.codegen.plans import plan_for, runnable
from tests.codegen.quick import quick
from tests.codegen.test_rewrites import assert_same, run
from tests.graphs import small_net

CORES = 22


def two_sockets() -> Target:
    base = load_target("cpu16")
    cores = tuple(Core(id=i, cpus=(i,), tile=i // 2, l3=i // 4, numa=i // 12) for i in range(CORES))
    document = base.model_dump() | {"name": "sockets", "cpu": base.cpu.model_dump() | {"cores": cores}}
    return runnable(Target.model_validate(document))


def invented(graph: Graph, target: Target, rng: random.Random) -> CostTable:
    """Half of the kernels want all lanes, the others any number."""
    entries = {}
    for signature in signatures_of([graph]):
        op, whole, best = op_named(signature.op), 10 ** rng.uniform(3, 6), rng.choice([CORES, rng.randint(1, CORES)])
        for widest in candidate_modes(op, signature, CORES):
            mode = widest._replace(slices=rng.randint(1, widest.slices) if rng.random() < 0.7 else widest.slices)
            known = facts(signature, mode)
            stages = op.stage_count(signature, mode, known)
            took = (round(whole * (1 / min(mode.slices, best) + mode.slices / 1e4) / stages, 1),) * stages
            entries[signature.text, mode] = CostEntry(
                signature=signature.text,
                kernel=mode.kernel,
                dim=mode.dim,
                slices=mode.slices,
                warm_ns=took,
                cold_ns=took,
                facts=dict(known),
                source="modelled",
            )
    found = tuple(entries[key] for key in sorted(entries))
    return CostTable(target=target.name, fingerprint=target.fingerprint(), entries=found)


def test_a_step_on_two_sockets_is_right_and_repeats_itself(tmp_path: Path) -> None:
    graph, target = small_net(), two_sockets()
    options = PlanOptions(policy="liu", strategies=(1, 3), search=True)
    plan, _ = plan_for(graph, options=options, costs=invented(graph, target, random.Random(2)), target=target)
    step = plan.program["train_step"]
    assert sum(map(bool, step.lanes)) > 16 and len({n.slices for n in step.nodes}) > 6
    emit(plan, graph, target, tmp_path)
    build(tmp_path, flags=quick(target))
    make = executor_class(tmp_path)
    with make(pin=False, poison=True) as executor:
        executor.delays(5)
        assert_follows_reference(executor, graph, steps=2)
    expected = run(make, graph)
    for delays in (1, 2):
        assert_same(run(make, graph, delays), expected)
