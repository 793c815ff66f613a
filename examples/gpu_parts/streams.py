"""Nodes side by side on streams."""

from codegen.cuda.bench import device_inputs
from codegen.cuda.pairs import profile_pairs, time_pair
from codegen.cuda.turns import turn
from codegen.steps import paired, random_inputs
from gpu_parts.memory import run_briefly
from gpu_parts.study import Study
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Init, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.conv import ConvAttrs
from planner.ops.pool import AdaptivePoolAttrs, MaxPoolAttrs
from planner.ops.shape import ReshapeAttrs
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan


def two_of_each(batch: int = 32, channels: int = 64, size: int = 56) -> Graph:
    """Table VII's five operators (convolution, its two gradients, bias, max pooling), two instances of each that may
    run side by side."""
    b = GraphBuilder("two_of_each")
    x = b.input("images", TensorType(shape=(batch, channels, size, size), layout=Layout.CHANNELS_LAST))
    small, ends = Init(kind="normal", value=0.05), []
    for side in ("left", "right"):
        weight = b.parameter(f"{side}.weight", (channels, channels, 3, 3), small)
        (y,) = b.op("conv2d", [x, weight], ConvAttrs(padding=(1, 1, 1, 1)), name=f"{side}.conv1")
        weight = b.parameter(f"{side}.weight2", (channels, channels, 3, 3), small)
        bias = b.parameter(f"{side}.bias2", (1, channels, 1, 1), small)
        (y,) = b.op("conv2d", [y, weight], ConvAttrs(padding=(1, 1, 1, 1)), name=f"{side}.conv2")
        (y,) = b.op("add", [y, bias], name=f"{side}.bias_add")
        (y,) = b.op("max_pool2d", [y], MaxPoolAttrs(kernel=(2, 2), stride=(2, 2)), name=f"{side}.pool")[:1]
        ends.append(y)
    (y,) = b.op("add", ends, name="join")
    (y,) = b.op("adaptive_avg_pool2d", [y], AdaptivePoolAttrs(output=(1, 1)), name="mean")
    (y,) = b.op("reshape", [y], ReshapeAttrs(shape=(batch, channels)), name="flat")
    labels = b.input("labels", TensorType(shape=(batch,), dtype=DType.INT64))
    loss = b.op("cross_entropy", [y, labels], name="loss")[0]
    return b.finish(loss, y, Optimizer(lr=0.1))


TABLE_VII = ("conv2", "conv2.backward_data", "conv2.backward_weights", "bias_add", "pool")


def streams(study: Study) -> None:
    """Bar: what `auto` takes on two streams is never slower than one stream. Reported: table VII's pairs."""
    parts = {"table VII": _table_vii, "auto against one stream": _auto}
    for key in study.open(parts):
        try:
            parts[key](study, key)
        except Exception as error:
            study.failed(key, error)


def _table_vii(study: Study, key: str) -> None:
    graph = two_of_each(2, 8, 8) if study.null else two_of_each()
    _, made = study.make(graph, "tf32", lanes=2, policy="liu", strategies=(1, 3))
    found = {}
    with study.executor(made) as executor:
        float(executor.step(*random_inputs(graph)))
        for op in TABLE_VII:
            pair = time_pair(executor, "train_step", f"left.{op}", f"right.{op}")
            found[op] = {"gain": pair.gain, **pair._asdict()}
    study.keep(key, found)


def _auto(study: Study, key: str) -> None:
    graph = study.graph("inception_v3", batch=32)
    target, costs = study.target, study.costs([graph], "tf32", brief=True)
    paired_costs = profile_pairs([graph], target, costs, device=study.device, null_device=study.null)
    made_of = {}
    for lanes, policy in ((1, "sequential"), (2, "auto")):
        plan = make_plan(graph, target, paired_costs, PlanOptions.model_validate({"lanes": lanes, "policy": policy}))
        made_of[lanes] = study.built(plan, graph)
        study.keep(
            f"{graph.name} on {lanes}, {policy}",
            {"lanes": len(plan.lanes), **run_briefly(study, made_of[lanes], graph)},
        )
    with study.executor(made_of[1]) as one, study.executor(made_of[2]) as several:
        inputs = device_inputs(graph, study.device, study.null)
        mine, other = (lambda e=e: float(e.step(*inputs)) for e in (several, one))
        with turn(study.device, study.null):
            found = paired(mine, other, 2 if study.null else 30)
    study.keep(key, {"slowdowns": len(paired_costs.coruns), **found})
