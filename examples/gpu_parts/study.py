"""What all parts of the study share: tables, plans and executors of a network, and results that are kept at once."""

import fcntl
import hashlib
import json
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from codegen.build import build
from codegen.cuda.executor import CudaExecutor
from codegen.cuda.probe import probe
from codegen.cuda.profile import profile
from codegen.cuda.toolchain import require_driver
from codegen.emit import emit
from codegen.load import executor_class
from planner import zoo
from planner.artefact import write_text
from planner.costs.table import CostTable, read_costs, write_costs
from planner.errors import UserError
from planner.graph.model import Graph
from planner.graph.precision import mixed_precision
from planner.graph.text import graph_text
from planner.plan.schema import Plan
from planner.plan.text import plan_hash, plan_text, read_plan
from planner.solve.options import PlanOptions
from planner.solve.pipeline import make_plan
from planner.target.model import Target
from planner.target.text import load_target

TARGETS = {"H100": "h100", "H200": "h200"}
"""What the driver calls a GPU, in part, and the target that describes it; another one of their architecture runs as the
last."""
TRIES = 2
"""So often a row is tried that fails, or that did not end."""


class GpuLost(Exception):
    """The process can ask its GPU for nothing more: an access out of bounds, for one, ends a context for good. A new
    process has a new one."""


@dataclass
class Study:
    """One part on one GPU, or on the null device, where small networks take the place of large ones."""

    device: int
    null: bool
    folder: Path
    file: Path
    """Where the part's results go, each as soon as it is there."""
    deadline: float
    """When nothing new is begun; time.monotonic()."""
    found: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.file.exists():
            self.found = json.loads(self.file.read_text())

    # -- results -----------------------------------------------------------------------------------------------
    def keep(self, key: str, row: Any) -> None:
        self.found[key] = row
        self._write()
        print(f"  {key}: {brief(row)}", flush=True)

    def _write(self) -> None:
        write_text(self.file, json.dumps(self.found, indent=1, default=str) + "\n")

    def open(self, keys: Iterable[str]) -> Iterator[str]:
        """Those that no earlier run has measured, while there is time: first what was never tried, then what failed or
        did not end. One that fails is told, and the next tried; GpuLost where it took the GPU with it."""
        keys = list(keys)
        for key in (*(k for k in keys if k not in self.found), *(k for k in keys if self.is_failed(k))):
            tries = self._tries(key)
            if time.monotonic() < self.deadline and tries < TRIES and (key not in self.found or self.is_failed(key)):
                self._require_context()
                self.found[key] = {"error": "did not end", "tries": tries + 1}
                self._write()
                yield key

    def _require_context(self) -> None:
        """Rows are not tried where all of them would fail."""
        try:
            probe(self.arch, self.null).describe(self.device)
        except RuntimeError as error:
            raise GpuLost(str(error)) from error

    def is_failed(self, key: str) -> bool:
        row = self.found.get(key)
        return isinstance(row, dict) and "error" in row

    def may_try(self, key: str) -> bool:
        return self.is_failed(key) and self._tries(key) < TRIES

    def _tries(self, key: str) -> int:
        row = self.found.get(key)
        return int(row.get("tries", 0)) if isinstance(row, dict) else 0

    def failed(self, key: str, error: Exception) -> None:
        told = f"{error.code}: {error.problem}" if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        self.keep(key, {"error": told[:1000], "tries": self._tries(key)})

    @property
    def left_s(self) -> float:
        return self.deadline - time.monotonic()

    # -- executors ---------------------------------------------------------------------------------------------
    def costs(self, graphs: list[Graph], precision: str, own_kernels: bool = True, brief: bool = False) -> CostTable:
        """The table of one precision with everything of these graphs in it. Without `own_kernels` only the libraries'
        algorithms are measured: the others' times are modelled, and nothing is built for it. `brief`: few algorithms,
        roughly timed, in a table of their own: for steps that are to be right, not fast."""
        file = self.folder / f"costs_{precision}{'_brief' * brief}.json"

        def keep(table: CostTable) -> CostTable:
            """With what other parts, side by side with this one, have measured meanwhile."""
            with open(self.folder / f".{file.name}.lock", "w") as lock:
                fcntl.flock(lock, fcntl.LOCK_EX)
                merged = read_costs(file).with_entries(table.entries) if file.exists() else table
                write_costs(merged.model_copy(update={"bandwidth": table.bandwidth or merged.bandwidth}), file)
            return table

        measured = profile(
            graphs,
            self.target,
            read_costs(file) if file.exists() else None,
            tf32=precision == "tf32",
            own_kernels=own_kernels,
            brief=brief,
            device=self.device,
            null_device=self.null,
            save=keep,
        )
        return keep(measured)

    def graph(self, name: str, precision: str = "float32", **sizes: Any) -> Graph:
        """A zoo network; on the null device a small one in its place."""
        graph = zoo.build("digits_cnn", 4) if self.null else zoo.build(name, **sizes)
        return mixed_precision(graph) if precision == "bf16" else graph

    def make(
        self, graph: Graph, precision: str = "float32", *, rough: bool = False, **options: Any
    ) -> tuple[Plan, type[CudaExecutor]]:
        """Profile, plan, emit, build. `rough`: for steps that are to be right, not fast."""
        costs = self.costs([graph], precision, own_kernels=not rough, brief=rough)
        plan = self.planned(graph, costs, PlanOptions.model_validate(options))
        return plan, self.built(plan, graph)

    def planned(self, graph: Graph, costs: CostTable, options: PlanOptions) -> Plan:
        """Kept: under a budget, planning takes a while."""
        asked = (graph_text(graph), costs.model_dump_json(), options.model_dump_json(), self.target.name)
        file = self.folder / f"plan_{hashlib.sha256(repr(asked).encode()).hexdigest()[:24]}.json"
        if not file.exists():
            write_text(file, plan_text(make_plan(graph, self.target, costs, options)))
        return read_plan(file)

    def built(self, plan: Plan, graph: Graph) -> type[CudaExecutor]:
        folder = self.folder / f"{graph.name}_{plan_hash(plan)}"
        emit(plan, graph, self.target, folder)
        build(folder, null_device=self.null)
        found = executor_class(folder)
        assert issubclass(found, CudaExecutor)
        return found

    def executor(self, made: type[CudaExecutor], **options: Any) -> CudaExecutor:
        return made(device=self.device, null_device=self.null, **options)

    @property
    def torch_device(self) -> str:
        return "cpu" if self.null else f"cuda:{self.device}"

    # -- the GPU -----------------------------------------------------------------------------------------------
    @property
    def target(self) -> Target:
        named = [] if self.null else [t for model, t in TARGETS.items() if model in str(self.describe()["name"])]
        return load_target([*named, "h200"][0])

    @property
    def arch(self) -> str:
        return load_target("h200").gpus[0].arch

    def describe(self) -> dict[str, Any]:
        return dict(probe(self.arch, self.null).describe(self.device))

    def require_gpu(self) -> None:
        """SP1851, SP1853, SP1854: there is none that the target describes."""
        if self.null:
            return
        require_driver()
        found = self.describe()
        if not 0 <= self.device < found["devices"]:
            problem = f"there is no GPU {self.device} on this machine"
            raise UserError("SP1853", problem, "run on one with a GPU, or with --null for a dry run")
        if found["arch"] != self.arch:
            raise UserError(
                "SP1854", f"the GPU is {found['arch']}, the study plans for {self.arch}", "use an H100 or H200"
            )

    def free_bytes(self) -> int:
        """Of the GPU's memory, as the driver tells it."""
        return int(self.describe()["free_bytes"])


def brief(row: Any, inner: bool = False) -> str:
    """A row in one line of a report: few digits, and long lists by their length. An error is told in full."""
    if isinstance(row, float):
        return f"{row:.4g}"
    if isinstance(row, list):
        return f"{len(row)} entries"
    if not isinstance(row, dict):
        return str(row)
    if isinstance(row.get("error"), str):
        return f"FAILED: {row['error'][:600]}"
    if len(row) > 12:
        return f"{len(row)} entries"
    text = ", ".join(f"{k} {brief(v, True)}" for k, v in row.items())
    return f"({text})" if inner else text[:300]
