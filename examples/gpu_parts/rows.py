"""One row of gpu_rows.py in a process of its own: prepared beside all others, timed when it is told to.

    python examples/gpu_parts/rows.py ROW FOLDER DEVICE [null]

It says `ROW.ready` in the folder, waits for `ROW.go` there, and leaves `ROW.json`.
"""

import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from codegen.cuda.bench import CONTENDERS, device_inputs, host_ms, step_times, torch_contenders  # noqa: E402
from codegen.cuda.turns import turn  # noqa: E402
from codegen.steps import Step, paired, timed  # noqa: E402
from gpu_parts.accuracy import NATURAL, TOY, built, judged, judged_mixed  # noqa: E402
from gpu_parts.memory import BATCHES, CAP, DEPTHS, SHARES, TORCH_SHARES, of_depth, run_briefly, torch_under  # noqa: E402
from gpu_parts.speed import PLAIN_ROWS, ROWS  # noqa: E402
from gpu_parts.study import Study  # noqa: E402
from gpu_parts.tuners import tuned_side_by_side  # noqa: E402
from planner import zoo  # noqa: E402
from planner.graph.model import Graph  # noqa: E402
from planner.graph.precision import full_precision, is_mixed  # noqa: E402

Measure = Callable[[], dict[str, Any]]
REPETITIONS = 20
TUNERS, TUNED_S = 6, 240.0
"""Processes that tune PyTorch's kernels for max-autotune, and for how long at most."""


def steps(study: Study, contender: str, batch: int, precision: str) -> Measure:
    """ResNet-50's step beside one of PyTorch's, which is compiled last, for that takes longest: what is wrong with the
    plan is told before."""
    graph = study.graph("resnet50", precision, batch=batch)
    plan, made = study.make(graph, precision)
    their_step = _contender(study, graph, contender, precision)
    executor = study.executor(made, seed=0)
    inputs = device_inputs(graph, study.device, study.null)

    def step() -> float:
        return float(executor.step(*inputs))

    def measure() -> dict[str, Any]:
        with turn(study.device, study.null):
            row = step_times(plan, list(timed(step, _repetitions(study))))
            row |= {"host_ms": host_ms(executor, inputs, _repetitions(study)), "recorded": executor.recorded_nodes()}
            row["against"] = {contender: paired(step, their_step, _repetitions(study))}
        return row | {"nodes": executor.node_times(repetitions=5)}  # takes a turn of its own

    for _ in range(4):  # the third replays what was recorded
        step()
    return measure


def _contender(study: Study, graph: Graph, contender: str, precision: str) -> Step:
    import torch

    from codegen.torch_twin import Twin

    model = full_precision(graph) if is_mixed(graph) else graph
    state = {name: 0.02 * torch.rand_like(tensor) for name, tensor in Twin(model).named_values()}
    inputs = device_inputs(graph, study.device, study.null)
    tuned = contender == CONTENDERS[-1] and not study.null
    with tuned_side_by_side(study.device, TUNERS, TUNED_S) if tuned else nullcontext():
        _, step = next(
            torch_contenders(model, inputs, state, precision, study.device, (contender,), null_device=study.null)
        )
    return step


def truth(study: Study, batch: int, precision: str) -> Measure:
    """ResNet-50 beside float64, in the algorithms that its step is timed in."""
    graph = study.graph("resnet50", batch=batch)
    judge = partial(judged_mixed, draws=2) if precision == "bf16" else judged
    row = judge(study, graph, rough=False)
    return lambda: row


def natural_truth(study: Study, name: str) -> Measure:
    """A network in a size that is trained, beside float64, float32 without TF32."""
    row = judged(study, built("mlp", **TOY["mlp"]) if study.null else built(name, **NATURAL[name]), rough=True)
    return lambda: row


def budget(study: Study, share: float) -> Measure:
    graph = zoo.build("digits_cnn", 64) if study.null else zoo.build("resnet50", 184)
    plan, made = study.make(graph, "tf32")
    if share < 1.0:
        plan, made = study.make(graph, "tf32", memory_budget=int(plan.pools[0].arena * (0.8 if study.null else share)))
    return lambda: {"arena": plan.pools[0].arena, **run_briefly(study, made, graph, _repetitions(study))}


def cap(study: Study, name: str, batch: int) -> Measure:
    graph = zoo.build("mlp", 4) if study.null else zoo.build(name, batch)
    plan, made = study.make(graph, "tf32", rough=True, memory_budget=CAP)
    return lambda: {"arena": plan.pools[0].arena, **run_briefly(study, made, graph, 3)}


def _repetitions(study: Study) -> int:
    return 2 if study.null else REPETITIONS


ALL: dict[str, Callable[[Study], Measure]] = {
    **{
        f"{contender}_{batch}_{precision}": partial(steps, contender=contender, batch=batch, precision=precision)
        for contender in reversed(CONTENDERS)
        for batch, precision in (*ROWS, *PLAIN_ROWS)
    },
    **{f"truth_32_{precision}": partial(truth, batch=32, precision=precision) for precision in ("float32", "bf16")},
    **{f"truth_{name}": partial(natural_truth, name=name) for name in NATURAL},
    **{f"budget_{share}": partial(budget, share=share) for share in (1.0, *SHARES.values())},
    **{f"torch_budget_{share}": partial(torch_under, share=share) for share in TORCH_SHARES},
    **{f"cap_{name}": partial(cap, name=name, batch=batch) for name, batch in BATCHES.items()},
    "cap_deepest": partial(cap, name=of_depth(DEPTHS[-1]), batch=16),
}


def main(name: str, folder: Path, device: int, null: bool) -> None:
    study = Study(device, null, folder, folder / f"{name}.json", time.monotonic() + 3600)
    try:
        measure = ALL[name](study)
        (folder / f"{name}.ready").touch()
        while not (folder / f"{name}.go").exists():
            time.sleep(0.05)
        study.keep(name, measure())
    except Exception as error:
        study.failed(name, error)
        raise


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), int(sys.argv[3]), sys.argv[4:] == ["null"])
