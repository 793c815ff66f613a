"""PyTorch's own samples of its operators, captured and compared with what PyTorch computes in float64.

`python -m tests.frontends.torch_samples [--ties] [operator ...]` goes through all of them and prints which are not
supported. With `--ties`, tensors hold halves from -1 to 1: many are equal, or lie where functions bend.
"""

import contextlib
import copy
import sys
import warnings
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_flatten, tree_unflatten

from planner.errors import UserError
from planner.frontends.torch_export import capture_module
from planner.frontends.torch_lowering import CaptureOptions
from planner.graph.model import Role
from planner.ops.dropout import DropoutAttrs
from planner.ops.random import DrawAttrs
from tests.frontends.torch_agreement import STEP, graph_values
from tests.interpreter import run_program

with patch.object(torch.backends, "disable_global_flags"):  # for other tests' sake
    from torch.testing._internal import common_utils
    from torch.testing._internal.common_methods_invocations import op_db

patch.object(common_utils, "extract_test_fn", lambda: None).start()  # looks for a unittest on the stack, for 0.1 s

LEFT_OUT = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"})
"""What these return is whatever was in memory."""


class Sampled(nn.Module):
    """An operator of a sample's tensors: parameters if they are of real numbers, else buffers. Its result is the sum
    of its results, each element with a random weight. `ties`: the numbers are halves."""

    def __init__(self, function: Callable[..., Any], arguments: Any, ties: bool = False) -> None:
        super().__init__()
        self.function = function
        leaves, self.spec = tree_flatten(arguments)
        self.leaves = [leaf for leaf in leaves if not isinstance(leaf, Tensor)]
        self.places = [isinstance(leaf, Tensor) for leaf in leaves]
        for i, tensor in enumerate(leaf.detach().clone() for leaf in leaves if isinstance(leaf, Tensor)):
            if tensor.is_floating_point():
                tensor = (2 * tensor).round().clamp(-2, 2) / 2 + 0.0 if ties else tensor
                self.register_parameter(f"p{i}", nn.Parameter(tensor))
            else:
                self.register_buffer(f"p{i}", tensor)
        with torch.no_grad():
            results = self.results()
        for i, result in enumerate(results):
            self.register_buffer(f"weight{i}", torch.randn(result.shape))

    def results(self) -> list[Tensor]:
        rest, index, leaves = iter(self.leaves), 0, []
        for tensor in self.places:
            leaves.append(getattr(self, f"p{index}") if tensor else next(rest))
            index += tensor
        args, kwargs = tree_unflatten(leaves, self.spec)
        return [r for r in tree_flatten(self.function(*args, **kwargs))[0] if isinstance(r, Tensor)]

    def told(self) -> str:
        tensors = [f"{tuple(p.shape)} {p.dtype}" for n, p in self.state_dict().items() if n.startswith("p")]
        return ", ".join((*tensors, *(repr(leaf) for leaf in self.leaves)))

    def forward(self, x: Tensor) -> Tensor:
        total = x.sum()
        for i, result in enumerate(self.results()):
            kind = result if result.is_floating_point() else result.to(x.dtype)
            total = total + (kind * getattr(self, f"weight{i}")).sum()
        return total


def samples(
    names: frozenset[str] | None = None, ties: bool = False
) -> Iterator[tuple[str, Callable[[], Iterator[Sampled]]]]:
    """(operator, what makes its samples) of every operator that takes float32."""
    for info in op_db:
        if torch.float32 not in info.dtypes or info.name in LEFT_OUT or (names is not None and info.name not in names):
            continue
        yield f"{info.name}.{info.variant_test_name}".rstrip("."), lambda info=info: _modules(info, ties)  # type: ignore[misc]


def _modules(info: Any, ties: bool) -> Iterator[Sampled]:
    for sample in info.sample_inputs("cpu", torch.float32, requires_grad=False):
        tensors = [leaf for leaf in tree_flatten((sample.input, sample.args))[0] if isinstance(leaf, Tensor)]
        if any(tensor.layout is not torch.strided for tensor in tensors):
            continue
        with contextlib.suppress(Exception):  # of numbers that are no tensors, or in place
            module = Sampled(info.op, ((sample.input, *sample.args), sample.kwargs), ties)
            if any(isinstance(p, nn.Parameter) for p in module.parameters()):
                yield module


def differs(module: Sampled) -> str | None:
    """Capture, run a training step with the ops' NumPy references, compare the loss and all gradients with PyTorch's:
    what differs, or None. UserError: not supported. ValueError: PyTorch has no numbers to compare with."""
    x = torch.zeros(())
    expected, gradients = _pytorch(module)
    graph, weights = capture_module(module, x, CaptureOptions(loss=None, optimizer=STEP, name="sample"))
    if any(
        isinstance(n.attrs, DrawAttrs | DropoutAttrs) or getattr(n.attrs, "dropout", 0)
        for n in graph.program["train_step"].nodes
    ):
        raise ValueError("it is random")
    values = graph_values(graph, weights)
    program = graph.program["train_step"]
    with np.errstate(all="ignore"):
        results = run_program(graph, "train_step", {**values, program.inputs[0]: x.double().numpy()})
    loss = results[program.outputs[0]].reshape(())
    if not np.isclose(loss, expected, rtol=1e-5, atol=1e-6):
        return f"the loss is {loss} instead of {expected}"
    for value in (v for v in graph.values if v.role is Role.PARAMETER):
        moved = values[value.id] - results[value.id]
        wanted = gradients[value.name or ""]
        rounding = 1e-6 + 1e-5 * np.abs(wanted).max()  # constants are float32, as in PyTorch
        if not np.allclose(moved, wanted, rtol=1e-4, atol=rounding):
            return f"{value.name}: its gradient is off by {np.abs(moved - wanted).max()}"
    return None


def _pytorch(module: Sampled) -> tuple[float, dict[str, np.ndarray]]:
    """The loss and the gradients, twice the same, in float64."""
    if not all(p.isfinite().all() for p in module.parameters()):
        raise ValueError("what moves from infinity cannot be told")
    runs = []
    for seed in (0, 1):
        reference, x = copy.deepcopy(module).double(), torch.zeros((), dtype=torch.float64)
        torch.manual_seed(seed)
        try:
            loss = reference(x)
            if loss.requires_grad:
                loss.backward()
            given = {k: 0 if p.grad is None else p.grad.to_dense() for k, p in reference.named_parameters()}
            gradients = {k: (torch.zeros_like(p) + given[k]).detach().numpy() for k, p in reference.named_parameters()}
        except Exception as error:
            raise ValueError("PyTorch computes no gradients of it in float64") from error
        runs.append((loss.item(), gradients))
    (loss, gradients), (again, _) = runs
    if loss != again or not all(np.isfinite(g).all() for g in (np.array(loss), *gradients.values())):
        raise ValueError("it is random, or not finite")
    return loss, gradients


def main(names: frozenset[str] | None, ties: bool) -> int:
    warnings.simplefilter("ignore")
    tally: Counter[str] = Counter()
    refused, wrong = defaultdict[str, Counter[str]](Counter), []
    for name, modules in samples(names, ties):
        for number, module in enumerate(modules()):
            try:
                difference = differs(module)
            except ValueError:
                tally["not comparable"] += 1
            except UserError as error:
                refused[name][f"{str(error).splitlines()[0][:110]}"] += 1
                tally["refused"] += 1
            except Exception as error:
                wrong.append(f"{name} {number}: {type(error).__name__}: {str(error)[:200]}")
            else:
                tally["agrees" if difference is None else "wrong"] += 1
                wrong += [] if difference is None else [f"{name} {number}: {difference}"]
    for name, why in refused.items():
        print(f"refused {name}: " + "; ".join(f"{count} x {text}" for text, count in why.most_common(3)))
    print("\n".join(wrong))
    print(dict(tally))
    return len(wrong)


if __name__ == "__main__":
    chosen = frozenset(sys.argv[1:])
    sys.exit(min(main(chosen - {"--ties"} or None, "--ties" in chosen), 1))
