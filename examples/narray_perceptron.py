"""Minerva's perceptron with hand-written backpropagation, on scikit-learn's handwritten digits, with lazy arrays.

The training loop is what one would write in NumPy; what it records is planned, built and run by an executor, in which
operations that do not need each other (s2, gw2 and gb2) run side by side. The same loop in NumPy gives the same losses.
`--no-dataflow` computes every operation when it is written, in order.
"""

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

import codegen.dataflow
from planner import narray as na
from planner.console import positive, script
from planner.plan.explain import explain
from planner.units import format_ns

BATCH, RATE = 128, 0.5


def step(f: Any, x: Any, target: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> tuple[Any, ...]:
    """(loss, new weights). `f` has softmax and the like, of lazy arrays or NumPy's."""
    # forward
    a2 = f.relu(x @ w1 + b1)
    a3 = f.softmax(a2 @ w2 + b2)
    # back propagation
    s3 = a3 - target
    s2 = f.relu_backward(f.named(s3 @ w2.T, "s2"), a2)
    # gradients
    gw2 = f.named(a2.T @ s3, "gw2") / BATCH
    gb2 = f.named(s3.sum(0), "gb2") / BATCH
    gw1 = f.named(x.T @ s2, "gw1") / BATCH
    gb1 = f.named(s2.sum(0), "gb1") / BATCH
    loss = -(f.log(a3) * target).sum() / BATCH
    return loss, w1 - RATE * gw1, b1 - RATE * gb1, w2 - RATE * gw2, b2 - RATE * gb2


class Lazy:
    relu, softmax, relu_backward, log = map(staticmethod, (na.relu, na.softmax, na.relu_backward, na.log))

    @staticmethod
    def named(array: na.NArray, name: str) -> na.NArray:
        return array.named(name)


class Plain:
    log = staticmethod(np.log)

    @staticmethod
    def relu(x: np.ndarray) -> np.ndarray:
        return np.maximum(x, 0)

    @staticmethod
    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(1, keepdims=True))
        return e / e.sum(1, keepdims=True)

    @staticmethod
    def relu_backward(dy: np.ndarray, y: np.ndarray) -> np.ndarray:
        return dy * (y > 0)

    @staticmethod
    def named(array: np.ndarray, name: str) -> np.ndarray:
        return array


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=positive, default=10)
    parser.add_argument("--hidden", type=positive, default=256)
    parser.add_argument("--no-dataflow", action="store_true")
    parser.add_argument("--recorded", action="store_true", help="record the step once, as a function (na.step)")
    parser.add_argument("--memory-limit", default="64MiB")
    parser.add_argument("--measured", action="store_true", help="profile this machine before planning")
    parser.add_argument("--out", type=Path, default=Path("generated"))
    options = parser.parse_args()

    engine: dict[str, Any] = {"folder": options.out, "costs": "measured" if options.measured else "modelled"}
    session = na.start(
        dataflow=not options.no_dataflow,
        memory_limit=options.memory_limit,
        name="perceptron",
        **({} if options.no_dataflow else engine),
    )
    weights = initial(options.hidden)
    batches = digits()

    recorded = na.step(lambda *a: step(Lazy, *a)) if options.recorded else None
    lazy = [na.array(w, name=n) for n, w in weights.items()]
    lazy_losses, lazy_ns = train(batches, options.epochs, lazy, lambda *a: run_lazy(recorded, *a))
    plain_losses, plain_ns = train(batches, options.epochs, list(weights.values()), lambda *a: step(Plain, *a))

    difference = float(np.abs(np.subtract(lazy_losses, plain_losses)).max())
    accuracy = evaluate(batches, lazy)
    print(f"last loss     {lazy_losses[-1]:.5f} lazy, {plain_losses[-1]:.5f} NumPy; differ by at most {difference:.1e}")
    print(f"accuracy      {accuracy:.1%} of what it was trained on")
    print(f"time          {format_ns(lazy_ns)} per step lazy, {format_ns(plain_ns)} NumPy")
    if isinstance(session.engine, codegen.dataflow.Dataflow):
        made = next(iter(session.engine.steps.values()))
        print(f"planned       {session.engine.planned} graphs for {len(lazy_losses)} steps: {made.folder}")
        for name in ("s2", "gw2", "gb2"):
            (node,) = explain(name, made.graph, made.plan).nodes
            print(f"{name:13} runs beside {', '.join(node.beside) or 'nothing'}")
        print(f"memory        {session.held + session.allocated} of {session.limit} bytes")
    return 0 if difference < 1e-4 and accuracy > 0.9 else 1


def run_lazy(recorded: Callable[..., Any] | None, x: np.ndarray, target: np.ndarray, *weights: Any) -> tuple[Any, ...]:
    found = (
        recorded(x, target, *weights)
        if recorded
        else step(Lazy, na.asarray(x, name="x"), na.asarray(target, name="target"), *weights)
    )
    na.wait_for_all()
    return tuple(found)


def train(
    batches: list[tuple[np.ndarray, np.ndarray]], epochs: int, weights: list[Any], run: Callable[..., tuple[Any, ...]]
) -> tuple[list[float], float]:
    """Losses of all steps, and the median time of one, ns. `weights` become the trained ones."""
    losses, times = [], []
    for _ in range(epochs):
        for x, target in batches:
            begun = time.perf_counter_ns()
            loss, *weights[:] = run(x, target, *weights)
            losses.append(float(loss))
            times.append(time.perf_counter_ns() - begun)
    return losses, median(times[len(times) // 4 :])


def initial(hidden: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        "w1": rng.standard_normal((64, hidden)).astype(np.float32) / 8,
        "b1": np.zeros(hidden, np.float32),
        "w2": rng.standard_normal((hidden, 10)).astype(np.float32) / 16,
        "b2": np.zeros(10, np.float32),
    }


def digits() -> list[tuple[np.ndarray, np.ndarray]]:
    """Batches of images (64 numbers each, 0 to 1) and one-hot rows."""
    from sklearn.datasets import load_digits  # takes seconds, and what imports the classes above may not want it

    data = load_digits()
    images, classes = (data.data / 16).astype(np.float32), np.eye(10, dtype=np.float32)[data.target]
    starts = range(0, len(images) - BATCH + 1, BATCH)
    return [(images[s : s + BATCH], classes[s : s + BATCH]) for s in starts]


def evaluate(batches: list[tuple[np.ndarray, np.ndarray]], weights: list[na.NArray]) -> float:
    """Share of right answers: places of the largest scores, compared and averaged by lazy arrays."""
    w1, b1, w2, b2 = weights
    shares = []
    for x, target in batches:
        scores = na.relu(na.asarray(x) @ w1 + b1) @ w2 + b2
        shares.append(float(na.equal(scores.argmax(1), na.asarray(target).argmax(1)).mean()))
    return float(np.mean(shares))


if __name__ == "__main__":
    script(main)
