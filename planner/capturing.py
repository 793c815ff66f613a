"""`capture`: any model that stepplan accepts -> its training graph and initial weights.

A zoo name, `package.module:factory` (which runs the factory's code), a `torch.nn.Module`, an `.onnx` file, or a
finished graph.
"""

import importlib
import inspect
import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from planner.artefact import write_bytes
from planner.errors import UserError
from planner.frontends.coverage import OpUse, graph_uses
from planner.frontends.optimizers import optimizer_from
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.model import Graph
from planner.graph.precision import mixed_precision
from planner.ops.base import Array

_OPTIONS = frozenset(f.name for f in fields(CaptureOptions))


class Captured(NamedTuple):
    graph: Graph
    weights: dict[str, Array]
    """Parameter or state name -> its initial contents in the framework's layout; empty where the graph's own
    initialisation rules say everything."""

    def __repr__(self) -> str:
        """Short, for notebooks: the graph's has every node, the weights are numbers upon numbers."""
        programs = ", ".join(f"{len(p.nodes)} nodes in {p.name}" for p in self.graph.programs)
        return f"<Captured {self.graph.name}: {programs}>"

    def in_precision(self, precision: str) -> "Captured":
        """float32: as it is; bf16: mixed precision, with the same weights (planner/graph/precision.py). SP1033:
        there is no such precision, or not of this graph."""
        if precision not in ("float32", "bf16"):
            raise UserError("SP1033", f"there is no precision {precision!r}", "use 'float32' or 'bf16'")
        return self if precision == "float32" else self._replace(graph=mixed_precision(self.graph))

    def write_weights(self, path: Path | str) -> None:
        """Write the weights as .npz, atomically. Without weights, a file left by another model is removed: it would
        be taken for this one's."""
        if not self.weights:
            Path(path).unlink(missing_ok=True)
            return
        buffer = io.BytesIO()
        arrays: dict[str, Any] = dict(sorted(self.weights.items()))
        np.savez(buffer, **arrays)
        write_bytes(path, buffer.getvalue())


def capture(
    model: object,
    inputs: Any = None,
    *,
    batch: int | None = None,
    image_size: int | None = None,
    loss: str | Callable[..., Any] | None = "cross_entropy",
    labels: Any = None,
    optimizer: Any = None,
    name: str | None = None,
    fuse: bool = True,
    keep: Sequence[str] = (),
    clip_norm: float | None = None,
    accumulate: bool = False,
    evaluation: Any = None,
) -> Captured:
    """The training graph of `model` and its initial weights.

    inputs: a module's example arguments, which fix the shapes. batch: the batch size of a zoo network or an ONNX
    model, or passed to a factory that takes it. image_size: of a zoo network. loss: "cross_entropy" (classes are along
    dimension 1, as in PyTorch), "mse", one of torch.nn's losses, a function (prediction, labels) with an example of the
    labels as `labels`, None (the module returns it), or "caller" (codegen.autograd.Planned); a zoo network has its own.
    optimizer: an `Optimizer`, "sgd", "adam", "adamw", "rmsprop", "adagrad", or a torch.optim one of these, of which
    the hyper-parameters are read alone; None is SGD with the learning rate 0.1 and momentum 0.9, or a network's own.
    name, fuse, keep, clip_norm, accumulate, evaluation: as in planner.frontends.torch_lowering.CaptureOptions.

    A factory returns a module, (module, inputs), or (module, inputs, options), where the options are these keywords;
    arguments given here go before them. Errors: SP1010 and SP1018 (not a model), SP1011 (bad batch), SP1023 (not an
    optimizer), those of the frontends.
    """
    if batch is not None and batch < 1:
        raise UserError("SP1011", f"the batch is {batch}", "use a number of at least 1")
    if isinstance(model, Captured | Graph):
        given_late = {"inputs": inputs, "batch": batch, "image_size": image_size, "labels": labels}
        given_late |= {"optimizer": optimizer, "clip_norm": clip_norm, "accumulate": accumulate or None}
        given_late["evaluation"] = evaluation
        late = [name for name, option in given_late.items() if option is not None]
        if late:
            raise UserError("SP1018", f"too late for a captured graph: {', '.join(late)}", "capture the model with it")
        return model if isinstance(model, Captured) else Captured(model, {})
    if image_size is not None and (not isinstance(model, str) or ":" in model or model.endswith(".onnx")):
        raise UserError("SP1011", "only zoo networks take an image size", "choose it where the model is made")
    optimizer = optimizer_from(optimizer, model if hasattr(model, "named_parameters") else None, loss)
    given = CaptureOptions(
        loss=loss,
        labels=labels,
        optimizer=optimizer,
        name=name,
        fuse=fuse,
        keep=tuple(keep),
        clip_norm=clip_norm,
        accumulate=accumulate,
        evaluation=evaluation,
    )
    if isinstance(model, Path) or (isinstance(model, str) and model.endswith(".onnx")):
        from planner.frontends.onnx_relax import capture_onnx

        if callable(loss) or loss is None or labels is not None:
            raise UserError("SP1016", "an ONNX model takes 'cross_entropy' or 'mse'", "name one of them")
        if inputs is not None or evaluation is not None:
            raise UserError(
                "SP1011", "an ONNX model has the shapes of its inputs", "choose another batch with batch=..."
            )
        apart = ("labels", "evaluation")
        own: dict[str, Any] = {f.name: getattr(given, f.name) for f in fields(given) if f.name not in apart}
        return Captured(*capture_onnx(model, batch=batch, **own))
    if isinstance(model, str) and ":" in model:
        module, inputs, options = _call_factory(model, inputs, batch)
        chosen = {f.name: getattr(given, f.name) for f in fields(given) if getattr(given, f.name) is not f.default}
        return _module(module, inputs, batch, CaptureOptions(**{**options, **chosen}), model)
    if isinstance(model, str):
        return _zoo(model, batch, image_size, inputs, given)
    return _module(model, inputs, batch, given, type(model).__name__)


def explain_capture(model: object, inputs: Any = None, **options: Any) -> list[OpUse]:
    """What `capture` with these arguments would do with every operator of the model, as `stepplan capture --explain`
    lists it: a PyTorch module's operators, unsupported ones included, or the nodes of what is a graph already."""
    batch = options.pop("batch", None)
    if isinstance(model, str) and ":" in model:
        module, inputs, found = _call_factory(model, inputs, batch)
    else:
        module, found = model, {}
    if not hasattr(module, "named_parameters"):
        return graph_uses(capture(model, inputs, batch=batch, **options).graph)
    from planner.frontends.torch_export import explain_module

    if inputs is None:
        raise UserError("SP1018", "the module comes without example inputs", "pass inputs: they fix the shapes")
    chosen = CaptureOptions(**{**found, **{k: v for k, v in options.items() if v is not None}})
    optimizer = optimizer_from(chosen.optimizer, module, chosen.loss)
    return explain_module(module, inputs, replace(chosen, optimizer=optimizer))


def _zoo(name: str, batch: int | None, image_size: int | None, inputs: Any, given: CaptureOptions) -> Captured:
    from planner.zoo import build

    others = (inputs, given.labels, given.evaluation)
    if any(x is not None for x in others) or given.loss != "cross_entropy":
        fix = "choose the batch with batch=..., or name a module of your own as package.module:factory"
        raise UserError("SP1018", f"{name!r} names a zoo network, which has inputs and a loss of its own", fix)
    own = {option: getattr(given, option) for option in ("optimizer", "fuse", "keep", "clip_norm", "accumulate")}
    return Captured(build(name, batch, image_size=image_size, **own), {})


def _module(module: Any, inputs: Any, batch: int | None, options: CaptureOptions, what: str) -> Captured:
    from planner.frontends.torch_export import capture_module
    from planner.frontends.torch_program import import_torch

    torch = import_torch()
    if not isinstance(module, torch.nn.Module):
        found = type(module).__name__
        raise UserError(
            "SP1018",
            f"an object of type {found} is no model" if what == found else f"{what} gives a {found}, not a model",
            "pass a zoo name, package.module:factory, a torch.nn.Module or an .onnx file",
        )
    if inputs is None:
        raise UserError(
            "SP1018",
            f"{what} comes without example inputs",
            "return (module, inputs), or pass inputs: they fix the shapes",
        )
    # A factory may have named it.
    options = replace(options, optimizer=optimizer_from(options.optimizer, module, options.loss))
    graph, weights = capture_module(module, inputs, options)
    first = graph.value[graph.programs[0].inputs[0]].type.shape if graph.programs[0].inputs else ()
    if batch is not None and first[:1] != (batch,):
        raise UserError(
            "SP1011",
            f"the batch is {batch}, but the example inputs of {what} have {first[0] if first else 'no dimensions'}",
            "let the factory take `batch` and make its inputs of that size",
        )
    return Captured(graph, weights)


def _call_factory(text: str, inputs: Any, batch: int | None) -> tuple[Any, Any, dict[str, Any]]:
    """Import and call `package.module:factory`, which may lie in the working folder."""
    place, _, attribute = text.partition(":")
    folder = os.getcwd()  # what is called may go elsewhere
    sys.path.insert(0, folder)
    try:
        made = found = _found(place, attribute)
        if not _is_module(found):
            if not callable(found):
                raise UserError("SP1018", f"{text!r} cannot be called", "name a function that returns the module")
            with _told(f"{text} was called"):  # it may import more of the working folder
                made = found(**({"batch": batch} if batch is not None and _takes_batch(found) else {}))
    except _Missing as error:
        fix = "write package.module:factory; the working folder is searched first"
        raise UserError("SP1018", f"cannot find {text!r}: {error}", fix) from error
    finally:
        if folder in sys.path:
            sys.path.remove(folder)
    if not isinstance(made, tuple):
        return made, inputs, {}
    module, example, options = (*made, None, None)[:3]
    options = dict(options) if isinstance(options, Mapping) else options or {}
    unknown = sorted(set(options) - _OPTIONS) if isinstance(options, dict) else ["a third element that is no dict"]
    if unknown or not 1 <= len(made) <= 3:
        raise UserError(
            "SP1018",
            f"{text!r} returned {', '.join(map(str, unknown)) if unknown else f'{len(made)} elements'}",
            f"return (module, inputs, options) with options among {', '.join(sorted(_OPTIONS))}",
        )
    return module, example if inputs is None else inputs, options


class _Missing(Exception):
    """Nothing has that name."""


def _found(place: str, attribute: str) -> Any:
    if not all(part.isidentifier() for part in place.split(".")):
        raise _Missing(f"{place!r} is no name of a module")
    with _told(f"{place} was imported"):
        try:
            found: Any = importlib.import_module(place)
        except ImportError as error:
            raise _Missing(error) from error
    try:
        for part in attribute.split("."):
            found = getattr(found, part)
    except AttributeError as error:
        raise _Missing(error) from error
    return found


@contextmanager
def _told(when: str) -> Iterator[None]:
    """SP1018 for what the model's own code raises."""
    try:
        yield
    except (UserError, _Missing):
        raise
    except Exception as error:
        from planner.frontends.torch_places import raised_at

        line = raised_at(error)
        what = f"{type(error).__name__}{f' at {line}' if line else ''} when {when}: {error}"
        raise UserError("SP1018", what, "this is the model's own code: make it run in Python first") from error


def _is_module(found: Any) -> bool:
    """Whether it is a finished nn.Module (which can be called, too)."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(found, torch.nn.Module)


def _takes_batch(factory: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(factory).parameters.values()
    except (TypeError, ValueError):
        return False
    return any(p.name == "batch" or p.kind is p.VAR_KEYWORD for p in parameters)
