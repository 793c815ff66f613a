"""What do chains of element-wise nodes bring? Their kernels against the machine's copy bandwidth, and whole steps.

python examples/chain_study.py kernels [--mebibytes N]
python examples/chain_study.py steps {gpt2,gpt2_library_gelu,mobilenet_hard_swish} [--budget SECONDS] [--prepare]

kernels: every chain on arrays larger than the cache, on all cores, by each of its schedules, in turn with a copy: the
chain `a` by each of its schedules, of which the plain one is memcpy. The quickest count, as in a plan. Bytes are what a
chain must read and write, each array once: fetching lines that are written counts for nothing. Beside it the ops that
it replaces, one after the other. steps: a network captured with chains and without, both planned from one cost table;
their steps alternate. Then PyTorch.
"""

import argparse
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from codegen.bench import bench
from codegen.load import executor_class
from codegen.make import make
from codegen.measure import Bench
from codegen.profile_cases import Case
from codegen.steps import random_inputs
from planner.capturing import Captured, capture
from planner.console import positive, progress, script
from planner.graph import chains
from planner.graph.model import TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.base import Mode, Signature, op_named
from planner.ops.chain import ChainAttrs
from planner.ops.expression import parse
from planner.ops.expression_gradient import DY, Y, backward_of
from planner.ops.expression_sigmoid import with_sigmoids
from planner.target.detect import detect
from planner.units import format_bytes

GELU = "a * 0.5 * (tanh((a + a ** 3.0 * 0.044715) * 0.7978846) + 1.0)"
CHAINS = {
    "copy": ("a", 1),
    "hard-swish": ("a * clamp(a + 3.0, 0.0, 6.0) * 0.16666667", 1),
    "gate and residual": ("a * sigmoid(b) + c", 3),
    "layer scale and residual": ("a * b + c", 3),
    "gelu from tanh": (GELU, 1),
    "gelu from tanh, as captured": (with_sigmoids(parse(GELU, 1)).text, 1),
    "smooth l1": ("u = abs(a - b); v = minimum(u, clamp(u, None, 1.0)); v * (u - v * 0.5)", 2),
}
"""name -> expression, operands; of the layer scale, the second one is a vector"""
VECTOR = 256
REPETITIONS = 9


def signatures(name: str, elements: int) -> Iterator[Signature]:
    """A chain forward, and backward where there is anything to compute."""
    text, inputs = CHAINS[name]
    t = TensorType(shape=(elements // VECTOR, VECTOR))
    vector = TensorType(shape=(VECTOR,))
    types = [vector if name.startswith("layer scale") and i == 1 else t for i in range(inputs)]
    yield Signature("chain", ChainAttrs(expression=text), tuple(types), (t,))
    backward = backward_of(parse(text, inputs), range(inputs), [x.elements for x in types])
    if backward.expression.results:
        leaves = tuple(t if leaf in (DY, Y) else types[int(leaf)] for leaf in backward.reads)
        results = (t,) * len(backward.expression.results)
        yield Signature("chain_backward", ChainAttrs(expression=backward.expression.text), leaves, results)


def apart(chain: Signature) -> list[Signature]:
    """The ops that the chain stands for, each as a node of its own."""
    op: Any = op_named(chain.op)
    expression, y = op.expression(chain.attrs, chain.inputs), chain.outputs[0]
    types = [*chain.inputs, *(y,) * len(expression.steps)]
    return [Signature(s.op, s.attrs, tuple(types[v] for v in s.operands), (y,)) for s in expression.steps]


def kernels(elements: int) -> None:
    target = detect(measure=False)
    cpus = target.lanes(target.physical_cores)
    found = [(name, s) for name in CHAINS for s in signatures(name, elements)]
    flat = list(dict.fromkeys(s for _, chain in found for s in (chain, *apart(chain))))
    schedules = {s: ("", *op_named(s.op).schedules(s)) for s in flat}
    cases = [Case(s, Mode("loops", "elements", len(cpus), schedule), {}) for s in flat for schedule in schedules[s]]
    index = {(c.signature, c.mode.implementation): i for i, c in enumerate(cases)}
    print(f"{len(cpus)} threads, arrays of {format_bytes(4 * elements)}")
    columns = f"{'plain':>6} {'best':>6} {'schedule':10} {'copy':>6} {'schedule':10} {'ratio':>6}"
    print(f"{'chain':28} {'direction':9} {columns}   {'apart / chain':>13}")
    with tempfile.TemporaryDirectory() as folder:
        timer = Bench(cases, target, cpus, Path(folder))

        def rates(signature: Signature) -> dict[str, float]:
            """By schedule, bytes per ns."""
            bytes_ = op_named(signature.op).bytes_moved(signature)
            return {s: bytes_ / timer.quickest(index[signature, s], 0.01) for s in schedules[signature]}

        copy = found[0][1]
        for name, chain in found:
            # The best runs: of a virtual machine's memory others take their part as they like.
            runs = [(rates(chain), rates(copy)) for _ in range(REPETITIONS)]
            plain, (schedule, own) = _best([r for r, _ in runs])
            _, (copied, best) = _best([r for _, r in runs])
            took = op_named(chain.op).bytes_moved(chain) / own
            parts = sum(op_named(s.op).bytes_moved(s) / _best([rates(s)] * 3)[1][1] for s in apart(chain))
            direction = "backward" if chain.op.endswith("backward") else "forward"
            print(
                f"{name:28} {direction:9} {plain:6.1f} {own:6.1f} {schedule or 'plain':10} {best:6.1f} "
                f"{copied or 'plain':10} {own / best:6.2f}   {parts / took:13.2f}"
            )
        timer.close()


def _best(runs: Sequence[dict[str, float]]) -> tuple[float, tuple[str, float]]:
    """The plain schedule's best rate, and the best schedule with its own."""
    best = {s: max(r[s] for r in runs) for s in runs[0]}
    return best[""], max(best.items(), key=lambda item: item[1])


def gpt(library_gelu: bool) -> Callable[[], Any]:
    """12 layers, width 256, sequence 128, batch 8."""
    import torch
    from torch import Tensor, nn
    from torch.nn import functional as F

    width, length, vocabulary, heads = 256, 128, 512, 4

    def gelu(x: Tensor) -> Tensor:
        """As GPT-2's code spells it."""
        return 0.5 * x * (1.0 + torch.tanh(0.7978845608028654 * (x + 0.044715 * torch.pow(x, 3.0))))

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
            self.qkv, self.project = nn.Linear(width, 3 * width), nn.Linear(width, width)
            self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

        def forward(self, x: Tensor) -> Tensor:
            b, t, c = x.shape
            parts = self.qkv(self.norm1(x)).view(b, t, 3, heads, c // heads)
            q, k, v = parts.permute(2, 0, 3, 1, 4).unbind(0)
            seen = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.project(seen.transpose(1, 2).reshape(b, t, c))
            wide = self.up(self.norm2(x))
            return x + self.down(F.gelu(wide, approximate="tanh") if library_gelu else gelu(wide))

    class Gpt(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Parameter(torch.randn(length, width))
            self.blocks = nn.ModuleList(Block() for _ in range(12))
            self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)

        def forward(self, ids: Tensor) -> Tensor:
            x = self.tokens(ids) + self.positions
            for block in self.blocks:
                x = block(x)
            return self.head(self.norm(x)).flatten(0, 1)

    return lambda: (Gpt(), torch.zeros(8, length, dtype=torch.int64), Optimizer(kind="adamw", lr=1e-3))


def mobilenet() -> Callable[[], Any]:
    """MobileNetV2 with hard-swish, as MobileNetV3 has it, in place of relu6; batch 16."""
    import torch
    from torch import Tensor, nn

    def block(inputs: int, outputs: int, kernel: int, stride: int = 1, groups: int = 1, act: bool = True) -> list[Any]:
        conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
        return [conv, nn.BatchNorm2d(outputs), *([nn.Hardswish()] if act else [])]

    class Inverted(nn.Module):
        def __init__(self, inputs: int, outputs: int, stride: int, factor: int) -> None:
            super().__init__()
            wide, self.skip = inputs * factor, stride == 1 and inputs == outputs
            layers = block(inputs, wide, 1) if factor > 1 else []
            self.net = nn.Sequential(*layers, *block(wide, wide, 3, stride, wide), *block(wide, outputs, 1, act=False))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.net(x) if self.skip else self.net(x)

    class MobileNet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers, width = block(3, 32, 3, 2), 32
            shapes = ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2))
            for factor, outputs, count, stride in (*shapes, (6, 320, 1, 1)):
                for number in range(count):
                    layers.append(Inverted(width, outputs, stride if number == 0 else 1, factor))
                    width = outputs
            self.features = nn.Sequential(*layers, *block(width, 1280, 1))
            self.classifier = nn.Linear(1280, 1000)

        def forward(self, x: Tensor) -> Tensor:
            return self.classifier(self.features(x).mean((2, 3)))

    return lambda: (MobileNet(), torch.zeros(16, 3, 224, 224), Optimizer(lr=0.05, momentum=0.9))


NETWORKS: dict[str, Callable[[], Callable[[], Any]]] = {
    "gpt2": lambda: gpt(False),
    "gpt2_library_gelu": lambda: gpt(True),
    "mobilenet_hard_swish": mobilenet,
}


def both(name: str) -> tuple[Captured, Captured]:
    """The network with chains and without."""
    import torch

    found = []
    for steps in (chains.MOST_STEPS, 1):
        chains.MOST_STEPS = steps
        torch.manual_seed(0)
        module, inputs, optimizer = NETWORKS[name]()()
        called = name if steps > 1 else f"{name}_apart"
        found.append(capture(module, (inputs,), optimizer=optimizer, name=called))
    return found[0], found[1]


def steps(name: str, out: Path, budget: float | None, prepare: bool) -> None:
    with progress() as update:
        made = [make(c, out=out, budget_s=budget, progress=update) for c in both(name)]
    for one in made:
        nodes = len(one.plan.program["train_step"].nodes)
        print(f"{one.plan.name:28} {nodes:5} nodes, {format_bytes(one.plan.pools[0].arena)} of memory")
    if prepare:
        return
    executors = [executor_class(one.folder)(seed=0) for one in made]
    inputs = random_inputs(capture_inputs(made[0].folder))
    times = alternate([lambda e=e: e.step(*inputs) for e in executors])
    for executor in executors:
        executor.close()
    ratio = median(a / b for a, b in zip(*times, strict=True))
    print(f"step {median(times[0]):.2f} ms with chains, {median(times[1]):.2f} ms without: {ratio:.3f}")
    result = bench(made[0].folder, against="torch", repetitions=REPETITIONS)
    for contender, numbers in result["against"].items():
        print(f"against {contender}: {numbers['stepplan_ms']:.2f} ms, {numbers['ms']:.2f} ms, {numbers['ratio']:.3f}")
    print(f"executor / fastest ({result['fastest']['name']}): {result['fastest']['ratio']:.3f}")


def capture_inputs(folder: Path) -> Any:
    from planner.bundle import read_bundle

    return read_bundle(folder).graph


def alternate(steps: Sequence[Callable[[], object]]) -> list[list[float]]:
    """Milliseconds of every step, one after the other, in turn."""
    times: list[list[float]] = [[] for _ in steps]
    for repetition in range(3 + 2 * REPETITIONS):
        for step, own in zip(steps, times, strict=True):
            start = time.perf_counter()
            step()
            if repetition >= 3:
                own.append((time.perf_counter() - start) * 1e3)
    return times


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("kernels")
    one.add_argument("--mebibytes", type=positive, default=64, help="of every array")
    two = commands.add_parser("steps")
    two.add_argument("network", choices=NETWORKS)
    two.add_argument("--budget", type=float, default=None, help="seconds for profiling each")
    two.add_argument("--prepare", action="store_true", help="profile, plan and build only")
    two.add_argument("--out", type=Path, default=Path("generated"))
    options = parser.parse_args()
    if options.command == "kernels":
        kernels(options.mebibytes * 2**18)
    else:
        steps(options.network, options.out, options.budget, options.prepare)
    return 0


if __name__ == "__main__":
    script(main)
