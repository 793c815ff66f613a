"""A small network, its modelled costs and plans of it, for tests of what reads plans."""

import random

from planner.costs.model import modelled_costs
from planner.costs.table import CostTable
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Graph, Init, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.conv import ConvAttrs
from planner.ops.normalization import BatchNormAttrs
from planner.ops.shape import ReshapeAttrs
from planner.plan.schema import Plan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target
from planner.target.text import load_target

UNIFORM = Init(kind="uniform", value=0.1)


def small_graph(batch: int = 4, name: str = "small") -> Graph:
    """conv 3x3, batch-norm + relu, conv 1x1, linear, cross entropy; SGD with momentum."""
    b = GraphBuilder(name)
    x = b.input("image", TensorType(shape=(batch, 3, 8, 8), layout=Layout.CHANNELS_LAST))
    labels = b.input("labels", TensorType(shape=(batch,), dtype=DType.INT64))
    w1 = b.parameter("conv1.weight", (16, 3, 3, 3), UNIFORM)
    (x,) = b.op("conv2d", [x, w1], ConvAttrs(padding=(1, 1, 1, 1)), name="conv1")
    gamma = b.parameter("bn1.weight", (16,), Init(kind="ones"))
    beta = b.parameter("bn1.bias", (16,), Init(kind="zeros"))
    running = [b.state(f"bn1.running_{n}", (16,), Init(kind=k)) for n, k in (("mean", "zeros"), ("var", "ones"))]
    x, *_ = b.op("batch_norm", [x, gamma, beta], BatchNormAttrs(activation="relu"), name="bn1", updates=running)
    w2 = b.parameter("conv2.weight", (8, 16, 1, 1), UNIFORM)
    (x,) = b.op("conv2d", [x, w2], ConvAttrs(), name="conv2", origin="model.py:12 conv2")
    (x,) = b.op("reshape", [x], ReshapeAttrs(shape=(batch, 512)), name="flatten")
    fc, bias = b.parameter("fc.weight", (10, 512), UNIFORM), b.parameter("fc.bias", (10,), Init(kind="zeros"))
    (x,) = b.op("linear", [x, fc, bias], name="fc")
    loss, *_ = b.op("cross_entropy", [x, labels], name="loss")
    return b.finish(loss, x, Optimizer(lr=0.1, momentum=0.9))


def target(name: str = "cpu2") -> Target:
    return load_target(name)


def costs(graph: Graph, machine: Target, seed: int | None = None) -> CostTable:
    """Modelled costs; with a seed every entry is scaled by its own factor between 0.3 and 3."""
    table = modelled_costs(graph, machine)
    if seed is None:
        return table
    rng = random.Random(seed)
    entries = []
    for entry in table.entries:
        factor = rng.uniform(0.3, 3)
        update = {k: tuple(t * factor for t in getattr(entry, k)) for k in ("warm_ns", "cold_ns")}
        entries.append(entry.model_copy(update=update))
    return table.model_copy(update={"entries": tuple(entries)})


def planned(
    graph: Graph, machine: Target, table: CostTable, policy: str = "liu", strategies: tuple[int, ...] = (1,)
) -> Plan:
    options = PlanOptions.model_validate({"policy": policy, "strategies": strategies if policy == "liu" else ()})
    return make_plan(graph, machine, table, options)


def small_plan(policy: str = "liu", machine: str = "cpu2", batch: int = 4) -> tuple[Graph, Plan, CostTable]:
    graph, hardware = small_graph(batch), target(machine)
    table = costs(graph, hardware)
    return graph, planned(graph, hardware, table, policy), table
