"""Plans under memory budgets beside PyTorch's own activation memory budget: memory and time of a step, side by side.

python examples/torch_budget_study.py FOLDER [FOLDER ...] [--shares 1,0.7,0.5,0.35,0.2] [--rounds 9] [--json]

FOLDERs are built executors of one model (`stepplan make`, `plan --memory-budget`, `emit`, `build`); times are ratios to
the first. For every share torch.compile gets `activation_memory_budget`, once in NCHW and once channels-last. Each
contender is a process of its own that stays; they step in turn, round by round, so that a machine that slows down slows
all of them.

Memory is what the system sees: of an executor what its process gains until it has stepped, of PyTorch how far its
resident set rises within a step, and parameters, optimizer state and statistics on top, at their size. Both
without libraries, the model's code and what compiling left behind.
"""

import argparse
import gc
import json
import re
import subprocess
import sys
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

from codegen.bench import anonymous_bytes
from codegen.initial import give_back_memory
from codegen.load import executor_class
from codegen.steps import Step, random_inputs, settled
from planner.bundle import read_bundle
from planner.console import script
from planner.graph.precision import is_mixed

WARM_STEPS = 3
FORMATS = ("NCHW", "NHWC")


class Contender:
    """A process that steps when it is asked to."""

    def __init__(self, name: str, *arguments: str) -> None:
        self.name = name
        command = [sys.executable, __file__, "--worker", *arguments]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.bytes = int(self._answer())
        self.times: list[float] = []

    def step(self) -> None:
        assert self._process.stdin
        print(file=self._process.stdin, flush=True)
        self.times.append(float(self._answer()))

    def close(self) -> None:
        self._process.communicate()

    def _answer(self) -> str:
        assert self._process.stdout
        line = self._process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.name} ended with status {self._process.wait()}; what it said is above")
        return line


def study(folders: list[Path], shares: list[str], rounds: int) -> list[dict[str, Any]]:
    graphs = {read_bundle(folder).plan.graph_hash for folder in folders}
    if len(graphs) > 1:
        raise SystemExit("these executors are of different graphs: make all plans from one graph.json")
    contenders = [Contender(str(folder), str(folder)) for folder in folders]
    contenders += [
        Contender(f"PyTorch {share} {format_}", str(folders[0]), share, format_)
        for share in shares
        for format_ in FORMATS
    ]
    for _ in range(rounds):
        for contender in contenders:
            contender.step()
    first, rows = contenders[0], []
    for contender in contenders:
        contender.close()
        ratios = [mine / its for mine, its in zip(contender.times, first.times, strict=True)]
        row = {"name": contender.name, "bytes": contender.bytes, "ms": median(contender.times) / 1e6}
        rows.append({**row, "to_first": median(ratios)})
    return rows


def serve(step: Step, memory: int) -> None:
    """A contender's side: its memory, and the time of a settled step per line that is read, ns."""
    print(memory, flush=True)
    for _ in sys.stdin:
        print(settled(step), flush=True)


def executor(folder: str) -> None:
    inputs = random_inputs(read_bundle(folder).graph)
    made = executor_class(folder)
    give_back_memory()
    before = anonymous_bytes()
    running = made(seed=0)
    step = partial(running.step, *inputs)
    for _ in range(WARM_STEPS):
        step()
    serve(step, anonymous_bytes() - before)


def compiled(folder: str, share: str, format_: str) -> None:
    import torch
    import torch._functorch.config as functorch

    from codegen.torch_steps import ORDERS, tensor_of, train
    from codegen.torch_twin import Twin, optimizer_for, parts_of

    bundle = read_bundle(folder)
    if is_mixed(bundle.graph) or len(parts_of(bundle.graph.program["train_step"])) > 1:
        raise SystemExit("this study knows float32 networks with one loss")
    torch.set_num_threads(sum(lane.kind == "core" for lane in bundle.plan.lanes))
    functorch.activation_memory_budget = float(share)
    memory = ORDERS[format_]
    module = Twin(bundle.graph).of_images(memory)
    for value in module.parameters():
        torch.nn.init.normal_(value, 0.0, 0.01)
    for value in module.buffers():
        torch.nn.init.ones_(value)
    tensors = [tensor_of(each, memory) for each in random_inputs(bundle.graph)]
    optimizer, run = optimizer_for(bundle.graph, module), torch.compile(module, dynamic=False)
    step = partial(train, run, optimizer, tensors)
    for _ in range(WARM_STEPS):
        step()
    optimizer.zero_grad(set_to_none=True)
    gc.collect()
    state = [t for kept in optimizer.state.values() for t in kept.values() if isinstance(t, torch.Tensor)]
    lasting = sum(t.nbytes for t in (*module.parameters(), *module.buffers(), *state))
    serve(step, lasting + _rise(step))


def _rise(step: Step) -> int:
    """How far the process's resident set rises within a step, bytes."""
    give_back_memory()
    Path("/proc/self/clear_refs").write_text("5")  # the peak so far is forgotten: proc(5)
    before = _status("VmHWM")
    step()
    return _status("VmHWM") - before


def _status(what: str) -> int:
    found = re.search(rf"{what}:\s*(\d+) kB", Path("/proc/self/status").read_text())
    assert found, f"no {what} in the process's status"
    return int(found[1]) * 1024


def text(rows: list[dict[str, Any]]) -> str:
    lines = [f"{'':>40} {'MiB':>8} {'ms':>9} {'to first':>9}"]
    lines += [f"{r['name']:>40} {r['bytes'] / 2**20:>8.1f} {r['ms']:>9.1f} {r['to_first']:>9.3f}" for r in rows]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+")
    parser.add_argument("--shares", default="1,0.7,0.5,0.35,0.2")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.worker:
        (compiled if len(arguments.folders) > 1 else executor)(*arguments.folders)
        return
    rows = study([Path(folder) for folder in arguments.folders], arguments.shares.split(","), arguments.rounds)
    print(json.dumps(rows) if arguments.json else text(rows))


if __name__ == "__main__":
    script(main)
