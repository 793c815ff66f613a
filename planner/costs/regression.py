"""Regression baselines (Liu et al., section III-B and table IV): what hill climbing is compared with.

One model per slice count predicts a kernel's time at that count from features. The paper's features are hardware
counters of N sample runs (cycles, last-level cache misses and accesses, first-level hits) with their times. Counters
are read nowhere here: a kernel of some microseconds is too short for them (the paper's own finding), and virtual
machines rarely offer them. Instead: the times of the N sample counts, FLOPs, bytes and their ratio, which is what the
counters stand for. All in logarithms: times span five orders of magnitude and the score is relative, and in plain
units most of these models miss small kernels a hundredfold. Needs scikit-learn.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from planner.costs.curves import Curve
from planner.costs.hill_climb import accuracy

Array = np.ndarray[Any, Any]


class Work(NamedTuple):
    """What is known of a signature without running it."""

    flops: int
    bytes: int


class Score(NamedTuple):
    model: str
    accuracy: float
    """1 - mean(|predicted - actual| / actual); below 0 where predictions are far off."""
    r2: float
    """Coefficient of determination."""


def baselines() -> dict[str, Callable[[], Any]]:
    """The ten kinds of section III-B with scikit-learn's defaults, each behind a scaler."""
    from sklearn import ensemble, linear_model, neighbors, neural_network, pipeline, preprocessing, svm, tree

    def scaled(make: Callable[[], Any]) -> Callable[[], Any]:
        return lambda: pipeline.make_pipeline(preprocessing.StandardScaler(), make())

    kinds: dict[str, Callable[[], Any]] = {
        "gradient boosting": lambda: ensemble.GradientBoostingRegressor(random_state=0),
        "random forest": lambda: ensemble.RandomForestRegressor(random_state=0),
        "decision tree": lambda: tree.DecisionTreeRegressor(random_state=0),
        "k-neighbours": neighbors.KNeighborsRegressor,
        "SVR, linear": lambda: svm.SVR(kernel="linear"),
        "SVR, polynomial": lambda: svm.SVR(kernel="poly"),
        "SVR, radial": lambda: svm.SVR(kernel="rbf"),
        "ARD": linear_model.ARDRegression,
        "OLS": linear_model.LinearRegression,
        "passive aggressive": lambda: linear_model.SGDRegressor(
            loss="epsilon_insensitive", penalty=None, learning_rate="pa1", eta0=1.0, random_state=0
        ),
        "Theil-Sen": lambda: linear_model.TheilSenRegressor(random_state=0),
        "perceptron": lambda: neural_network.MLPRegressor(solver="lbfgs", max_iter=5000, random_state=0),
    }
    return {name: scaled(make) for name, make in kinds.items()}


def sample_counts(counts: Sequence[int], number: int) -> tuple[int, ...]:
    """`number` of the counts, evenly spread over the range."""
    ordered = sorted(counts)
    if number == 1:
        return (ordered[-1],)
    return tuple(sorted({ordered[round(i * (len(ordered) - 1) / (number - 1))] for i in range(number)}))


def scores(train: Sequence[Curve], test: Sequence[Curve], work: Mapping[str, Work], samples: int) -> list[Score]:
    """Every baseline's accuracy and R^2 over the counts that are not samples. Curves must share their counts."""
    counts = sorted(set.intersection(*(set(c.times) for c in (*train, *test))))
    known = sample_counts(counts, samples)
    targets = [c for c in counts if c not in known]
    if not targets:
        return []
    seen, asked = _features(train, work, known), _features(test, work, known)
    found = []
    for name, make in baselines().items():
        predicted: list[float] = []
        actual: list[float] = []
        for count in targets:
            model = make().fit(seen, np.log([c.times[count] for c in train]))
            predicted += [float(p) for p in np.exp(model.predict(asked))]
            actual += [c.times[count] for c in test]
        found.append(Score(name, accuracy(predicted, actual), _r2(predicted, actual)))
    return found


def _features(some: Sequence[Curve], work: Mapping[str, Work], known: Sequence[int]) -> Array:
    rows = []
    for curve in some:
        flops, moved = work[curve.signature]
        rows.append([*(curve.times[c] for c in known), max(1, flops), max(1, moved), max(1, flops) / max(1, moved)])
    return np.log(np.array(rows, dtype=np.float64))


def _r2(predicted: Sequence[float], actual: Sequence[float]) -> float:
    p, a = np.array(predicted), np.array(actual)
    total = float(((a - a.mean()) ** 2).sum())
    return 1.0 - float(((a - p) ** 2).sum()) / total if total else 0.0
