"""The paper's memory accounting: bytes and live tensors at each of the 2L steps of a training iteration.

Stages, each on top of the one before (SuperNeurons, figure 10):
- baseline: every tensor has bytes of its own for the whole iteration;
- liveness: a tensor lives from the step that makes it to the last step that reads it;
- offload: outputs of convolutions leave after the forward pass and come back one convolution ahead of their use;
- recompute: outputs of layers between checkpoints are dropped and recomputed (recompute.py).

Counted: outputs of layers, gradients with respect to activations (that of the images included). Not counted: the
images, parameters and their gradients, dropout masks, workspaces. Activation and LRN layers write their input's
gradient over their output's, a join passes its gradient on, a fork adds into the first gradient that arrives, the
softmax's gradient takes over its output.
"""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from planner.solve.superneurons.paper_layers import IN_PLACE, Kind, Layer, Layers, backward_id, work_of_layers
from planner.solve.superneurons.recompute import Step, Strategy, expand, original, plan
from planner.units import Bytes

Stage = Literal["baseline", "liveness", "offload", "recompute"]
STAGES: tuple[Stage, ...] = ("baseline", "liveness", "offload", "recompute")


@dataclass(frozen=True)
class StepMemory:
    """What is alive at one of the 2L steps; with recomputation, at its worst moment."""

    step: int
    """1 .. 2L."""
    layer: str
    """`conv1`, `conv1.backward`."""
    bytes: Bytes
    tensors: int
    live: tuple[str, ...]
    """The tensors, by name; a gradient is `gradient:LAYER` after the layer whose output it belongs to."""


@dataclass(frozen=True)
class Profile:
    stage: Stage
    steps: tuple[StepMemory, ...]
    recomputed: int
    """Layers that run again."""

    @property
    def peak(self) -> StepMemory:
        return max(self.steps, key=lambda s: s.bytes)


def profile(
    found: Layers, stage: Stage, strategy: Strategy = "cost", leaving: Collection[Kind] = (Kind.CONV,)
) -> Profile:
    """Memory over the steps of one iteration. `strategy` counts for the stage `recompute` only; `leaving`: the kinds of
    checkpoints whose outputs are offloaded (the paper's text says convolutions only)."""
    work = work_of_layers(found)
    again = plan(work, strategy, found.largest()[1]) if stage == "recompute" else ()
    steps = expand(work, again)
    uses = _uses(found, steps)
    sizes = {t: found.by_id[original(t).removeprefix("gradient:")].bytes for t in uses}
    lives = {t: [(min(at), max(at))] for t, at in uses.items()}
    if stage == "baseline":
        lives = {t: [(0, len(steps) - 1)] for t in lives}
    if stage in ("offload", "recompute"):
        lives.update(_offloaded(found, steps, uses, leaving))
    return Profile(stage, _by_layer(steps, lives, sizes), sum(len(r.tasks) for r in again))


def offload_bytes(found: Layers) -> int:
    """Bytes that the basic protocol moves in one iteration: every convolution's output out and back."""
    return 2 * sum(layer.bytes for layer in found.steps if layer.kind is Kind.CONV)


def published_offload_bytes(found: Layers, images: int, parameters: int) -> int:
    """What table 3 prints without the cache, to its last digit at all six batches: convolutions' outputs three times,
    the batch twice, the parameters once. All in bytes.

    The paper gives no rule. This one was found by trying every sum of tensor kinds with factors 0 to 2, and parameters
    0 to 3 times. It reads: an output leaves and comes back twice, for recomputation and for backward; the batch comes
    for forward and for backward; parameters come once.
    """
    outputs = sum(layer.bytes for layer in found.steps if layer.kind is Kind.CONV)
    return 3 * outputs + 2 * images + parameters


def _uses(found: Layers, steps: Sequence[Step]) -> dict[str, list[int]]:
    """Tensor -> positions in `steps` at which it is written or read."""
    data = {layer.id for layer in found.all if layer.kind is Kind.DATA}
    gradients = _gradients(found)
    uses: dict[str, list[int]] = {}
    for position, step in enumerate(steps):
        touched = [v for v in (*step.reads, *step.writes) if v not in data]
        for tensor in (*touched, *gradients.get(step.task, ())):
            uses.setdefault(tensor, []).append(position)
    return uses


def _gradients(found: Layers) -> dict[str, tuple[str, ...]]:
    """Backward step -> the gradient tensors that it touches, each under the name of the first value it belongs to."""
    arrived: dict[str, list[str]] = {}
    """Layer -> tensors that hold gradients of its output"""
    readers: dict[str, int] = {}
    """Tensor -> layers that have yet to read it: a join passes one on to several, which must not write over it."""
    touched: dict[str, tuple[str, ...]] = {}
    for layer in reversed(found.steps):
        own = arrived.get(layer.id, [])
        for tensor in own:
            readers[tensor] -= 1
        given = [_gradient_of_input(found, layer, source, own, readers) for source in layer.inputs]
        for source, tensor in zip(layer.inputs, given, strict=True):
            arrived.setdefault(source, []).append(tensor)
            readers[tensor] = readers.get(tensor, 0) + 1
        touched[backward_id(layer.id)] = tuple(dict.fromkeys((*own, *given)))
    return touched


def _gradient_of_input(found: Layers, layer: Layer, source: str, own: Sequence[str], readers: Mapping[str, int]) -> str:
    if layer.kind is Kind.SOFTMAX:
        return layer.id
    if layer.kind is Kind.JOIN or (layer.kind in IN_PLACE | {Kind.FORK} and not readers[own[0]]):
        return own[0]
    # Branches of a fork have one each, told apart like copies.
    return f"gradient:{source}@{layer.id}" if found.by_id[source].kind is Kind.FORK else f"gradient:{source}"


def _offloaded(
    found: Layers, steps: Sequence[Step], uses: Mapping[str, Sequence[int]], leaving: Collection[Kind]
) -> dict[str, list[tuple[int, int]]]:
    """Checkpoints' outputs: resident up to the next convolution or FC layer, and again from that one's backward."""
    position = {s.task: i for i, s in enumerate(steps) if not s.before}
    first = {s.before: i for i, s in reversed(list(enumerate(steps))) if s.before}
    turn = position[backward_id(found.steps[-1].id)]
    following = ""
    """The next convolution or FC layer."""
    result = {}
    for layer in reversed(found.steps):
        if layer.kind in leaving and following:
            forward = [p for p in uses[layer.id] if p < turn]
            backward = [p for p in uses[layer.id] if p >= turn]
            spans = [(forward[0], max(forward[-1], position[following] - 1))]
            if backward:
                step = backward_id(following)
                spans.append((min(backward[0], first.get(step, position[step])), backward[-1]))
            result[layer.id] = spans
        if layer.kind in (Kind.CONV, Kind.FC):
            following = layer.id
    return result


def _by_layer(
    steps: Sequence[Step], lives: Mapping[str, Sequence[tuple[int, int]]], sizes: Mapping[str, int]
) -> tuple[StepMemory, ...]:
    """Per layer step the moment with most bytes alive: recomputations count for the backward step they are for."""
    starts: dict[int, list[str]] = {}
    ends: dict[int, list[str]] = {}
    for tensor, spans in lives.items():
        for begin, end in spans:
            starts.setdefault(begin, []).append(tensor)
            ends.setdefault(end, []).append(tensor)
    live: dict[str, None] = {}
    total = 0
    best: dict[str, tuple[int, tuple[str, ...]]] = {}
    for position, step in enumerate(steps):
        for tensor in starts.get(position, ()):
            live[tensor] = None
            total += sizes[tensor]
        layer = step.before or step.task
        if layer not in best or total > best[layer][0]:
            best[layer] = (total, tuple(live))
        for tensor in ends.get(position, ()):
            del live[tensor]
            total -= sizes[tensor]
    return tuple(
        StepMemory(number, layer, Bytes(size), len(tensors), tensors)
        for number, (layer, (size, tensors)) in enumerate(best.items(), start=1)
    )
