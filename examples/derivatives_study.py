"""Steps of networks that are trained by derivatives which they compute themselves (tests/models/derivatives.py,
larger), beside PyTorch's: eager, and compiled where its compiler does that. In turn, from the same weights; the losses
of the first three steps are shown, PyTorch's in brackets."""

import argparse
import copy
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from codegen.load import executor_class
from codegen.make import make
from planner.capturing import capture
from planner.console import one_of, positive, script
from planner.graph.optimizer import Optimizer
from tests.models.derivatives import Burgers, Critic, Distance, Forces, Laplacian

LR = 1e-3
NETWORKS: dict[str, Callable[[], tuple[nn.Module, tuple[Tensor, ...]]]] = {
    "burgers": lambda: (Burgers(64, 6), (torch.rand(4096, 2), torch.rand(256, 2))),
    "laplacian": lambda: (Laplacian(64, 4), (torch.rand(2048, 2),)),
    "distance": lambda: (Distance(256, 3), (torch.rand(8192, 3) * 2 - 1,)),
    "forces": lambda: (Forces(64, 12, 64, 3), (torch.randn(64 * 12, 3) * 1.5,)),
    "critic": lambda: (Critic(32, 2, 32), (torch.randn(64, 3, 32, 32),)),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    known: dict[str, Any] = {"type": one_of(NETWORKS), "metavar": "NETWORK", "help": ", ".join(NETWORKS)}
    parser.add_argument("networks", nargs="*", default=list(NETWORKS), **known)
    parser.add_argument("--repetitions", type=positive, default=15)
    parser.add_argument("--out", type=Path, default=Path("generated"))
    options = parser.parse_args()
    torch.set_num_threads(2)
    print(f"{'network':12}{'nodes':>6}{'predicted':>11}{'step':>9}{'eager':>9}{'compiled':>10}{'ratio':>7}  losses")
    for name in options.networks:
        print(measured(name, options.out, options.repetitions), flush=True)
    return 0


def measured(name: str, out: Path, repetitions: int) -> str:
    torch.manual_seed(0)
    module, inputs = NETWORKS[name]()
    labels = torch.randn(module(*inputs).shape) / 4
    optimizer = Optimizer(kind="adam", lr=LR)
    captured = capture(module, inputs, loss="mse", optimizer=optimizer, name=f"derivatives_{name}")
    folder = make(captured, out=out).folder
    eager, compiled = trained(module, inputs, labels), trained(module, inputs, labels, torch.compile)
    with executor_class(folder)(seed=0) as executor:
        contenders = {"step": lambda: float(executor.step(*inputs, labels)), "eager": eager, "compiled": compiled}
        losses, times = in_turn(contenders, repetitions)
        predicted = executor.plan.program["train_step"].predicted_ns / 1e6
    ms = {k: median(t) * 1e3 for k, t in times.items()}
    shown = f"{ms['compiled']:7.1f} ms" if "compiled" in ms else "fails".rjust(10)
    return (
        f"{name:12}{len(captured.graph.program['train_step'].nodes):6}{predicted:8.1f} ms{ms['step']:6.1f} ms"
        f"{ms['eager']:6.1f} ms{shown}{ms['step'] / min(ms['eager'], ms.get('compiled', ms['eager'])):7.2f}  "
        + ", ".join(f"{a:.7g} ({b:.7g})" for a, b in zip(losses["step"], losses["eager"], strict=True))
    )


def trained(
    module: nn.Module,
    inputs: tuple[Tensor, ...],
    labels: Tensor,
    wrapped: Callable[[nn.Module], Callable[..., Tensor]] = lambda module: module,
) -> Callable[[], float]:
    """A step of PyTorch's from the same weights; the loss before it."""
    twin = copy.deepcopy(module)
    optimizer, called = torch.optim.Adam(twin.parameters(), lr=LR, fused=True), wrapped(twin)

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = F.mse_loss(called(*(x.detach().clone() for x in inputs)), labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def in_turn(
    contenders: dict[str, Callable[[], float]], repetitions: int
) -> tuple[dict[str, list[float]], dict[str, list[float]]]:
    """Losses of the first three steps, and seconds of the others; those that fail are left out."""
    losses: dict[str, list[float]] = {}
    for name, step in list(contenders.items()):
        try:
            losses[name] = [step() for _ in range(3)]
        except Exception as error:  # of whatever PyTorch's compiler meets
            if name == "step":
                raise
            print(f"{name}: {type(error).__name__}: {str(error).splitlines()[0]}")
            del contenders[name]
    times: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(repetitions):
        for name, step in contenders.items():
            time.sleep(0.05)  # the others' threads go on spinning for a while
            start = time.perf_counter()
            step()
            times[name].append(time.perf_counter() - start)
    return losses, times


if __name__ == "__main__":
    script(main)
