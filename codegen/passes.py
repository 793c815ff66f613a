"""The forward and the backward pass as runs of their own, where the loss is the caller's. They are started here; on a
GPU they may still be under way then (`Executor._finish`)."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codegen.arguments import Call, matched
from codegen.parts import predictions
from planner.errors import UserError
from planner.graph.model import Graph, Value
from planner.ops.caller_gradient import CallerGradient

if TYPE_CHECKING:
    from codegen.executor import Executor


def start_forward(executor: "Executor", inputs: tuple[Any, ...], named: dict[str, Any]) -> int:
    """The number of its step. What it predicts lies where it was planned."""
    executor._require_open()
    _require_callers_loss(executor)
    progress = executor._progress
    executor._start(Call("train_step", matched("forward", model_inputs(executor), inputs, named), parts=slice(1)))
    executor._trained()
    executor._ran, executor._paused = None, progress.batches
    return progress.batches


def start_backward(
    executor: "Executor", step: int, inputs: tuple[Any, ...], targets: Sequence[Any], lasting: bool = False
) -> None:
    """Goes on where the forward pass of that step ended, if nothing ran since. `targets`: an array per trained
    parameter, which becomes its gradient. `lasting`, on a GPU: addresses in its memory instead, where further passes
    leave them, too."""
    _require_callers_loss(executor)
    arguments, progress = executor._arguments("train_step", inputs, {}), executor._progress
    rest = slice(1 if executor._paused == step else 0, None)
    done, progress.batches = progress.batches, step - 1
    try:
        executor._start(Call("train_step", arguments, targets, rest, lasting=lasting))
    finally:
        progress.batches = done


def _require_callers_loss(executor: "Executor") -> None:
    if not executor.takes_gradients:
        raise UserError("SP1612", f"plan {executor.plan.name} has a loss of its own", "capture with loss='caller'")


def model_inputs(executor: "Executor") -> tuple[str, ...]:
    """What the model itself takes: behind it, the step takes the gradients of the predictions."""
    program = executor._program("train_step")
    return program.inputs[: -sum(n.op == CallerGradient.name for n in program.nodes)]


def sources(graph: Graph) -> list[frozenset[str]]:
    """Of every prediction, in order: the inputs, parameters and states that it is computed from, other than through
    what has no gradients in PyTorch either. `graph`: not expanded."""
    found: dict[str, frozenset[str]] = {}
    for node in graph.program["train_step"].nodes:
        if node.op in ("compare", "detach"):
            found |= dict.fromkeys(node.outputs, frozenset())
        elif node.phase == "forward":
            read = frozenset[str]().union(*(found.get(v, frozenset([v])) for v in node.inputs))
            found |= dict.fromkeys(node.outputs, read)
    return [found.get(v, frozenset([v])) for v in predictions(graph)]


def input_gradients(executor: "Executor") -> tuple[Value, ...]:
    """What the backward pass returns besides, each `gradient_of` an input."""
    return tuple(executor._graph.value[v] for v in executor._program("train_step").outputs[1:])
