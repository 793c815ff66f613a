"""Every op's kernels beside each other, each whole on one of five lanes, against the NumPy references: what parallel
operators and co-running rely on."""

from itertools import groupby
from pathlib import Path

import numpy as np

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.load import executor_class
from planner.solve.parallel_op import THREAD_SAFE
from tests.codegen.plans import every_case, graph_of, plan_of, target_of
from tests.codegen.test_ops import LANES, load, mistakes, stored


def test_no_op_disturbs_another(tmp_path: Path) -> None:
    # What ops share, all of their samples do: every fourth takes a third of the time to compile.
    cases = [case for _, own in groupby(every_case((1,)), lambda case: case.op.name) for case in [*own][::4]]
    assert {case.op.name for case in cases} >= THREAD_SAFE
    rng, state = np.random.default_rng(0), {}
    for case in cases:
        drawn = case.op.draw(case.sample, rng)
        for name, array, type_ in zip(case.inputs + case.updates, drawn, case.sample.inputs, strict=True):
            state[name] = stored(array, type_.dtype)
    graph, target = graph_of(cases), target_of(LANES)
    places = {case.node_id: (number % LANES,) for number, case in enumerate(cases)}
    plan = plan_of(cases, graph, target, places)
    assert not [e for lane in plan.programs[0].lanes for e in lane if e.wait and e.run.endswith("/0#0")]
    emit(plan, graph, target, tmp_path)
    build(tmp_path, flags=("-Og",))  # neighbours are the point: test_ops compiles the same kernels to vector code
    wrong = []
    for seed in range(3):
        with executor_class(tmp_path)(pin=False, poison=True) as executor:
            executor.delays(seed)
            load(executor, state)
            executor.predict()
            wrong += [m for case in cases for m in mistakes(executor, case, state)]
    assert not wrong, "\n".join(wrong[:20])
