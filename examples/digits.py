"""Train a small convolutional network on scikit-learn's handwritten digits with a generated executor.

Detects this machine, captures the network, profiles it, plans, checks, emits, builds, imports and trains; then prints
the plan's summary, predicted against measured step time, and planned against actual memory. About a minute.
"""

import argparse
import time
from pathlib import Path
from statistics import median

import numpy as np
from rich.console import Console
from rich.progress import track
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

from codegen.bench import anonymous_bytes
from codegen.executor import Executor
from codegen.initial import give_back_memory
from codegen.load import executor_class
from codegen.make import make
from planner.console import positive, progress, script
from planner.report.table import summary_lines
from planner.units import format_bytes, format_ns

BATCH, EPOCHS = 64, 20


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--epochs", type=positive, default=EPOCHS)
    parser.add_argument("--out", type=Path, default=Path("generated"))
    options = parser.parse_args()
    console = Console(stderr=True)

    with progress() as update:
        made = make("digits_cnn", batch=BATCH, out=options.out, progress=update)
    console.print(f"built {made.folder}")

    give_back_memory()
    before = anonymous_bytes()
    executor = executor_class(made.folder)(seed=0)
    images, labels = digits()
    train_x, test_x, train_y, test_y = train_test_split(images, labels, test_size=0.2, random_state=0, stratify=labels)
    rng = np.random.default_rng(0)
    times: list[float] = []
    loss = float("nan")
    for epoch in track(range(options.epochs), "training", console=console):
        order = rng.permutation(len(train_x))
        rate = 0.05 * 0.5 * (1 + np.cos(np.pi * epoch / options.epochs))
        for start in range(0, len(order) - BATCH + 1, BATCH):
            chosen = order[start : start + BATCH]
            batch, truth = train_x[chosen], train_y[chosen]
            begun = time.perf_counter_ns()
            loss = executor.step(batch, truth, lr=float(rate))
            times.append(time.perf_counter_ns() - begun)
    accuracy = evaluate(executor, test_x, test_y)
    gained = anonymous_bytes() - before

    predicted = made.plan.program["train_step"].predicted_ns
    measured = median(times[len(times) // 4 :])
    planned = made.plan.pools[0].arena
    print("\n".join(summary_lines(made.plan)))
    print(f"last loss          {loss:.4f}")
    print(f"held-out accuracy  {accuracy:.2%} of {len(test_y)} digits")
    print(f"step time          {format_ns(predicted)} predicted, {format_ns(measured)} measured")
    print(f"memory             {format_bytes(planned)} planned, {format_bytes(gained)} gained by the process")
    return 0 if accuracy >= 0.97 else 1


def digits() -> tuple[np.ndarray, np.ndarray]:
    """Images (N, 1, 8, 8) scaled to mean 0, deviation 1, and labels."""
    data = load_digits()
    images = data.images.astype(np.float32)
    images = (images - images.mean()) / images.std()
    return images[:, None], data.target.astype(np.int64)


def evaluate(executor: Executor, images: np.ndarray, labels: np.ndarray) -> float:
    """Share of right predictions; the last batch is padded, because shapes are part of a plan."""
    right = 0
    for start in range(0, len(images), BATCH):
        batch = images[start : start + BATCH]
        padded = np.concatenate([batch, np.zeros((BATCH - len(batch), *batch.shape[1:]), np.float32)])
        answers = executor.predict(padded).argmax(axis=1)[: len(batch)]
        right += int((answers == labels[start : start + BATCH]).sum())
    return right / len(images)


if __name__ == "__main__":
    script(main)
