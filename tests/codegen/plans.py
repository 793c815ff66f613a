"""Plans for tests: nets through the pipeline, and every op's samples in one plan."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from codegen.build import build
from codegen.cpu.emit import emit
from codegen.executor import Executor
from codegen.facts import facts, implementations
from codegen.load import LEVELS, executor_class, processor_flags
from planner.costs.model import modelled_costs
from planner.costs.table import CostTable
from planner.graph.model import DType, Graph, Node, Program, Role, TensorType, Value
from planner.graph.precision import LIBRARY_FAMILIES
from planner.graph.text import graph_hash
from planner.ops import all_ops
from planner.ops.base import Mode, Op, Sample
from planner.ops.masks import CastAttrs
from planner.ops.signature import signature_of
from planner.plan.schema import Bounds, Lane, NodePlan, Placement, Plan, PoolUse, ProgramPlan
from planner.solve.liveness import liveness, scratch_id
from planner.solve.offsets import most_alive, pack
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.solve.schedule import one_at_a_time
from planner.solve.sync import lane_programs
from planner.solve.threads import Choice
from planner.target.detect import detect
from planner.target.model import Target
from planner.target.text import load_target, target_hash
from tests.codegen.quick import quick
from tests.ops.updates import update_count

OWN_CONVOLUTIONS = {"winograd", "depthwise", "pointwise"}
"""Implementations of convolutions that are not the library's."""
NO_BOUNDS = Bounds(critical_path_ns=0, work_ns=0, bandwidth_ns=0)


def target_of(lanes: int) -> Target:
    """cpu16's processor with fewer cores. Executors for more lanes than this machine has run with pin=False."""
    return runnable(load_target("cpu16").restrict(lanes))


def runnable(target: Target) -> Target:
    """The target, with this processor's instructions where it lacks some of the target's."""
    have = processor_flags()
    if have is None or have.issuperset(LEVELS[target.cpu.march]):
        return target
    here = detect().cpu
    return target.model_copy(update={"cpu": target.cpu.model_copy(update={"march": here.march, "isa": here.isa})})


def plan_for(
    graph: Graph,
    lanes: int = 2,
    options: PlanOptions | None = None,
    costs: CostTable | None = None,
    target: Target | None = None,
) -> tuple[Plan, Target]:
    """`costs`: modelled ones where there are none. `target`: `target_of(lanes)` where there is none."""
    target = target or target_of(lanes)
    costs = costs or modelled_costs(graph, target, facts)
    return make_plan(graph, target, costs, options or PlanOptions(policy="sequential")), target


def make(
    graph: Graph,
    folder: Path,
    lanes: int = 2,
    flags: tuple[str, ...] | None = None,
    options: PlanOptions | None = None,
    costs: CostTable | None = None,
) -> type[Executor]:
    """Plan, emit and build; returns the Executor class. `flags`: of the plan's own sources, `quick` ones by default."""
    plan, target = plan_for(graph, lanes, options, costs)
    emit(plan, graph, target, folder)
    build(folder, flags=quick(target) if flags is None else flags)
    return executor_class(folder)


def by_hand(
    graph: Graph,
    target: Target,
    choices: Mapping[str, Mapping[str, Choice]],
    places: Mapping[str, tuple[int, ...]] | None = None,
) -> Plan:
    """The pipeline's last passes for modes that somebody else chose. `places`: lanes of every node's slices, where
    nodes are to run side by side on bytes of their own."""
    lanes = target.lanes()
    schedules = {p.name: one_at_a_time(p.name, p.nodes, choices[p.name]) for p in graph.programs}
    if places:
        spans = dict.fromkeys(places, (0.0, 1.0))
        schedules = {name: replace(s, lanes=places, spans=spans) for name, s in schedules.items()}
    live = liveness(graph, schedules)
    packing = pack(live.blocks)
    sizes = {b.id: b.size for b in live.blocks}
    programs = []
    for program in graph.programs:
        nodes = []
        for node in program.nodes:
            choice, block = choices[program.name][node.id], scratch_id(program.name, node.id)
            nodes.append(
                NodePlan(
                    node=node.id,
                    kernel=choice.mode.kernel,
                    dim=choice.mode.dim,
                    slices=choice.mode.slices,
                    implementation=choice.mode.implementation,
                    stage_ns=choice.stage_ns,
                    scratch_offset=packing.offsets.get(block, 0),
                    scratch_bytes=sizes.get(block, 0),
                    facts=dict(choice.facts),
                )
            )
        entries = lane_programs(graph, schedules[program.name], live, packing.offsets, len(lanes))
        programs.append(
            ProgramPlan(
                name=program.name,
                nodes=tuple(nodes),
                lanes=entries,
                predicted_ns=0,
                peak_bytes=most_alive(live.blocks),
                bounds=NO_BOUNDS,
            )
        )
    return Plan(
        name=graph.name,
        policy="liu",
        target=target.name,
        graph_hash=graph_hash(graph),
        target_hash=target_hash(target),
        costs_hash="0" * 16,
        pools=(PoolUse(name=target.memory.name, capacity=target.memory.capacity, arena=packing.height),),
        lanes=tuple(Lane(id=i, cpu=cpu) for i, cpu in enumerate(lanes)),
        placements=tuple(
            Placement(
                value=v.id,
                pool=target.memory.name,
                offset=packing.offsets[live.root[v.id]],
                bytes=v.type.bytes,
                shares=live.shares.get(v.id, ""),
            )
            for v in graph.values
            if live.root[v.id] in packing.offsets
        ),
        programs=tuple(programs),
    )


class Case:
    """One sample of one op in one mode, as a node of a large graph."""

    def __init__(self, number: int, op: Op, sample: Sample, mode: Mode) -> None:
        self.op, self.sample, self.mode = op, sample, mode
        self.node_id = f"case{number}.{op.name}"
        inputs, updates = self.split()
        results = op.infer(sample.attrs, sample.inputs[:inputs])
        self.inputs = [f"{self.node_id}.in{i}" for i in range(inputs)]
        self.updates = [f"{self.node_id}.up{i}" for i in range(updates)]
        self.outputs = [f"{self.node_id}.out{i}" for i in range(len(results))]
        types = (*sample.inputs, *results)
        names = (*self.inputs, *self.updates, *self.outputs)
        self.values = tuple(
            Value(id=n, type=t, role=Role.ACTIVATION)
            if n in self.outputs
            else Value(id=n, type=t, role=Role.STATE, name=n)
            for n, t in zip(names, types, strict=True)
        )
        self.node = Node(
            id=self.node_id,
            op=op.name,
            inputs=tuple(self.inputs),
            outputs=tuple(self.outputs),
            updates=tuple(self.updates),
            attrs=sample.attrs,
            phase="update" if op.family == "optimizer" and self.updates else "forward",
        )

    def split(self) -> tuple[int, int]:
        """(inputs, updates) among the sample's types: what an update op changes comes last."""
        updates = update_count(self.op, self.sample)
        return len(self.sample.inputs) - updates, updates

    @property
    def label(self) -> str:
        return f"{self.node_id} {self.mode.text()} {[t.text() for t in self.sample.inputs]} {self.sample.attrs.text()}"


def in_bfloat16(op: Op, sample: Sample) -> Sample:
    """The sample with every input in bfloat16 that may be."""
    allowed = op.low_inputs(sample.attrs) or ()
    low = [
        t.model_copy(update={"dtype": DType.BFLOAT16}) if i in allowed and t.dtype is DType.FLOAT32 else t
        for i, t in enumerate(sample.inputs)
    ]
    wanted = zip(low, op.layouts(sample.attrs, low), strict=True)
    laid = [t.model_copy(update={"layout": w}) if w and len(t.shape) == 4 else t for t, w in wanted]
    return Sample(sample.attrs, tuple(laid))


def low_samples(op: Op) -> list[Sample]:
    """The op's samples in bfloat16, where it takes that; of casts, both ways."""
    if op.name == "cast":
        to, back = (CastAttrs.model_validate({"dtype": d}) for d in ("bfloat16", "float32"))
        wide = TensorType(shape=(4, 33))
        return [Sample(to, (wide,)), Sample(back, (wide.model_copy(update={"dtype": DType.BFLOAT16}),))]
    wide = [s for s in op.samples() if any(t.dtype is DType.FLOAT32 for t in s.inputs)]
    return [in_bfloat16(op, s) for s in wide if op.low_inputs(s.attrs) is not None]


EVERY_SHAPE = (
    *("relu", "relu_backward", "gelu", "gelu_backward", "sigmoid", "sigmoid_backward"),
    *("div", "div_backward"),
)


def every_case(slices: Sequence[int] = (1, 2, 3, 4, 5)) -> list[Case]:
    """Every sample, one in three in each number of slices, the others in the largest that they can have. Also in
    bfloat16, products where the processor has instructions for it. Functions of one element share their loops, and
    those of two elements theirs: most come in one shape (of two elements equal ones, and one of them broadcast), and in
    bfloat16 one sample in three does."""
    found: list[Case] = []
    able = detect().bfloat16
    for op in all_ops().values():
        low = low_samples(op) if able or op.family not in (*LIBRARY_FAMILIES, "attention") else ()
        whole = op.samples()
        if op.family in ("elementwise", "binary"):
            low = low[::3]
            if op.name not in EVERY_SHAPE:
                one = list({sample.attrs: sample for sample in whole}.values())
                whole = one if op.family == "elementwise" else [whole[0], whole[-1]]
        for position, sample in (*enumerate(whole), *enumerate(low)):
            probe = Case(0, op, sample, Mode("", "", 1))
            graph = graph_of([probe])
            signature = signature_of(graph, probe.node)
            if op.alias(signature) is not None:
                continue
            for (kernel, dim), limit in sorted(op.dims(signature).items()):
                counts = [count for count in slices if count <= limit]
                for count in counts if position % 3 == 0 else counts[-1:]:
                    mode = Mode(kernel, dim, count)
                    found.append(Case(len(found), op, sample, mode))
                    if op.family == "conv" and kernel == "onednn":
                        for name in OWN_CONVOLUTIONS & set(implementations(signature, mode)):
                            found.append(Case(len(found), op, sample, mode._replace(implementation=name)))
                if kernel == "loops":
                    for schedule in op.schedules(signature)[:1]:
                        count = counts[-1]
                        found.append(Case(len(found), op, sample, Mode(kernel, dim, count, schedule)))
    return found


def graph_of(cases: list[Case]) -> Graph:
    """All cases as nodes of one `predict` program; every result is kept until the end."""
    outputs = tuple(o for c in cases for o in c.outputs)
    program = Program(name="predict", nodes=tuple(c.node for c in cases), inputs=(), outputs=outputs)
    return Graph(name="every_op", values=tuple(v for c in cases for v in c.values), programs=(program,))


def plan_of(
    cases: list[Case], graph: Graph, target: Target, places: Mapping[str, tuple[int, ...]] | None = None
) -> Plan:
    choices = {}
    for case in cases:
        signature = signature_of(graph, case.node)
        known = facts(signature, case.mode)
        stages = case.op.stage_count(signature, case.mode, known)
        choices[case.node_id] = Choice(case.mode, known, (1,) * stages)
    return by_hand(graph, target, {"predict": choices}, places)
