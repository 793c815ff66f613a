"""What modules return, described by a capture and made again: what PyTorch's own call returns."""

from collections import OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils import _pytree as tree

from planner.capturing import capture
from planner.errors import UserError
from planner.frontends.torch_results import Results
from planner.graph.results import tensors


class Latent(NamedTuple):
    mean: Tensor
    rest: Any = None


@dataclass
class Output:
    logits: Tensor
    loss: Tensor | None = None
    hidden: tuple[Tensor, ...] | None = None


torch.export.register_dataclass(Output)


@dataclass
class Unknown:
    logits: Tensor


class Fields(OrderedDict[str, Any]):
    """As transformers' results are: a dict whose entries are attributes, too, without those that are None."""

    def __getattr__(self, name: str) -> Any:
        return self[name]


tree.register_pytree_node(
    Fields, lambda x: (list(x.values()), list(x)), lambda parts, names: Fields(zip(names, parts, strict=True))
)


class Kind(Enum):
    A = 1


class Name(str, Enum):  # noqa: UP042
    A = "a"


class Sized:
    """A class with a context that JSON does not know, and what makes it that."""

    def __init__(self, x: Tensor, size: tuple[int, ...]) -> None:
        self.x, self.size = x, size


def register_sized() -> None:
    tree.register_pytree_node(
        Sized,
        lambda s: ([s.x], s.size),
        lambda parts, size: Sized(next(iter(parts)), size),
        serialized_type_name="tests.Sized",
        to_dumpable_context=list,
        from_dumpable_context=tuple,
    )


class Opaque(list[Any]):
    """A class with a context that is no JSON."""


tree.register_pytree_node(Opaque, lambda x: (list(x), frozenset([1])), lambda parts, context: Opaque(parts))


class Returning(nn.Module):
    def __init__(self, result: Callable[[Tensor], Any], evaluated: Callable[[Tensor], Any] | None = None) -> None:
        super().__init__()
        self.fc, self.result, self.evaluated = nn.Linear(3, 4), result, evaluated or result

    def forward(self, x: Tensor) -> Any:
        y = self.fc(x)
        return self.result(y) if self.training else self.evaluated(y)


def grouped(y: Tensor) -> Any:
    found = defaultdict[str, list[Tensor]](list)
    found["boxes"] += [y, y * 2]
    return found


RESULTS: dict[str, Callable[[Tensor], Any]] = {
    "tensor": lambda y: y,
    "tuple": lambda y: (y, y.exp()),
    "one": lambda y: (y,),
    "list": lambda y: [y, y.exp(), y],
    "dict": lambda y: {"z": y, "a": y.exp(), 3: [None, y]},
    "ordered": lambda y: OrderedDict(z=y, a=y.exp()),
    "default": grouped,
    "queue": lambda y: deque([y, y], 3),
    "named": lambda y: Latent(y, {"parts": (y, [y.exp()])}),
    "dataclass": lambda y: Output(y, hidden=(y, y.exp())),
    "fields": lambda y: Fields(logits=y, hidden=(y,)),
    "maximum": lambda y: y.max(1),
    "constants": lambda y: (y, None, 3, "text", 2.5, True, y.shape[0], [], {}),
    "types": lambda y: (y, y > 0, y.argmax(1), y.argmax(1).int()),
    "alone": lambda y: [y],
}


def typed(found: Any) -> Any:
    """With the types of all that it consists of."""
    if isinstance(found, Tensor):
        return found.dtype
    if isinstance(found, Output | Sized):
        return type(found), typed(vars(found))
    if isinstance(found, dict):
        return type(found), [(key, typed(value)) for key, value in found.items()]
    return (type(found), [typed(x) for x in found]) if isinstance(found, list | tuple | deque) else found


@pytest.mark.parametrize("name", RESULTS)
def test_what_the_module_returns(name: str) -> None:
    module, x = Returning(RESULTS[name]), torch.randn(5, 3)
    graph = capture(module, x, loss="caller").graph
    expected = module(x)
    leaves = [leaf for leaf in tree.tree_leaves(expected) if isinstance(leaf, Tensor)]
    for program in graph.programs:
        assert (program.results is None) == (name in ("tensor", "tuple"))
        stored = [leaf.float() if leaf.dtype is torch.bool else leaf for leaf in leaves]
        found = Results(torch, program.results, module).of(stored)
        assert typed(found) == typed(expected)
        kept = [leaf for leaf in tree.tree_leaves(found) if isinstance(leaf, Tensor)]
        torch.testing.assert_close(kept, leaves)


def test_modes_with_results_of_their_own() -> None:
    module = Returning(lambda y: {"logits": y, "aux": [y.exp()]}, lambda y: Latent(y, 7))
    graph = capture(module, torch.randn(5, 3), loss="caller").graph
    train, predict = graph.program["train_step"].results, graph.program["predict"].results
    assert list(tensors(train)) == ["float32", "float32"] and train["kind"] == "dict"
    assert predict == {"kind": f"{__name__}:Latent", "parts": ["float32", {"constant": 7}]}


def test_numbers_of_data_come_back_as_pythons() -> None:
    module = Returning(
        lambda y: [y.mean().item(), {"hits": (y > 0).sum().item()}, (y > 9).any().item(), y, len(y[y > 0]), 2.5]
    )
    graph = capture(module, torch.randn(5, 3), loss="caller").graph
    structure = graph.program["train_step"].results
    assert list(tensors(structure)) == ["float32", "int64", "bool", "float32", "int64"]
    found = Results(torch, structure, module).of([torch.tensor(n) for n in (0.5, 3, 1.0, 4.0, 3)])
    assert found == [0.5, {"hits": 3}, True, torch.tensor(4.0), 3, 2.5]
    assert [type(n) for n in (found[0], found[1]["hits"], found[2])] == [float, int, bool]


def test_contexts_that_a_class_makes_json_of() -> None:
    register_sized()
    module, x = Returning(lambda y: Sized(y, (5, 4))), torch.randn(5, 3)
    structure = capture(module, x, loss="caller").graph.program["predict"].results
    assert structure["context"] == [5, 4]
    assert Results(torch, structure, module).of([x]).size == (5, 4)


def test_no_tensor_at_all() -> None:
    """In a mode, or where a loss follows."""
    x, told = torch.randn(5, 3), "SP1015: {}the module returns something that is no tensor, not one\n.*return a tensor"
    with pytest.raises(UserError, match=told.format("in evaluation mode, which predict computes: ")):
        capture(Returning(RESULTS["dict"], lambda y: None), x, loss="caller")
    with pytest.raises(UserError, match=told.format("")):
        capture(Returning(lambda y: 3), x, loss=lambda prediction, labels: labels.mean(), labels=torch.randn(5))
    with pytest.raises(UserError, match=r"SP1015: the module returns 2 tensors, not one\n.*loss='caller'"):
        capture(Returning(RESULTS["tuple"]), x)


def test_a_file_that_was_captured_under_its_name() -> None:
    """Its classes are those of the script that runs it, though the whole module is PyTorch's."""
    module, structure = nn.Sequential(Returning(RESULTS["tensor"])), {"kind": "__main__:Output", "parts": []}
    found = Results(torch, {**structure, "context": [[], ["logits"]]}, module).of([])
    assert found == Output(None)  # type: ignore[arg-type]


def local(y: Tensor) -> Any:
    class Local(NamedTuple):
        y: Tensor

    return Local(y)


@pytest.mark.parametrize(
    ("result", "told"),
    [
        (local, "SP1015: the module returns a local.<locals>.Local, which .* has under no such name"),
        (lambda y: Opaque([y]), "SP1015: the module returns a Opaque with what is no JSON"),
        (lambda y: {(1, 2): y}, r"SP1015: the module returns a dict with what is no JSON: \[\(1, 2\)\]"),
        (lambda y: (y, float("inf")), "SP1015: the module returns the number inf"),
        (lambda y: (y, Kind.A), "SP1013: .* it returns a Kind, of which PyTorch does not know what it holds"),
        (lambda y: (y, Name.A), r"SP1015: the module returns Name\.A, a member of an Enum\n.*return its value"),
        (lambda y: Unknown(y), r"(?s)SP1013.* it returns a \S*test_torch_results.Unknown.*register_dataclass"),
    ],
)
def test_what_nobody_could_make_again(result: Callable[[Tensor], Any], told: str) -> None:
    with pytest.raises(UserError, match=told):
        capture(Returning(result), torch.randn(5, 3), loss="caller")


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        ("no.such.place:Output", "cannot be imported: No module named 'no'"),
        (f"{__name__}:Gone", "is not there"),
        (f"{__name__}:RESULTS", "is not there"),
        (f"{__name__}:Unknown", "is not registered"),
    ],
)
def test_classes_that_are_gone(kind: str, told: str) -> None:
    structure = {"kind": kind, "parts": ["float32"]}
    with pytest.raises(UserError, match=f"SP1621: the module returned a {kind} when it was captured, which {told}"):
        Results(torch, structure, Returning(RESULTS["tensor"]))


def test_results_that_the_step_changes_too() -> None:
    """A running mean is returned, and left in its buffer."""

    class Returned(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.norm = nn.BatchNorm1d(3)

        def forward(self, x: Tensor) -> Any:
            return {"y": self.norm(x), "mean": self.norm.running_mean}

    graph = capture(Returned(), torch.randn(5, 3), loss="caller").graph
    assert list(tensors(graph.program["train_step"].results)) == ["float32", "float32"]


def test_a_file_that_runs_as_a_script() -> None:
    """Its classes are those of __main__, whatever it was called when it was captured; and the other way round."""
    here = Returning(RESULTS["tensor"])
    found = Results(torch, {"kind": "__main__:Latent", "parts": ["float32", {"constant": 1}]}, here).of([torch.ones(1)])
    assert type(found) is Latent and found.rest == 1
