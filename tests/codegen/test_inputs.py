"""What executors take for inputs: in any layout, from any library, and what is said of those that are wrong."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from codegen.executor import Executor
from planner.errors import UserError
from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Layout, TensorType
from planner.graph.optimizer import Optimizer
from planner.ops.scalar import ScalarAttrs
from tests.codegen.following import batch
from tests.codegen.plans import make
from tests.graphs import small_net

Array = np.ndarray[Any, Any]


def test_layouts_and_libraries_give_the_same_bits(small_class: type[Executor]) -> None:
    torch = pytest.importorskip("torch")
    images, labels = batch(small_net())
    last = np.ascontiguousarray(images.transpose(0, 2, 3, 1)).transpose(0, 3, 1, 2)
    odd = np.zeros((4, 3, 8, 16), np.float32)[..., ::2]
    odd[...] = images
    unaligned = np.frombuffer(b"x" + last.transpose(0, 2, 3, 1).tobytes(), np.uint8)[1:].view(np.float32)
    readonly = images.copy()
    readonly.flags.writeable = False
    tensor = torch.from_numpy(images)
    variants = [
        images,
        last,
        odd,
        unaligned.reshape(4, 8, 8, 3).transpose(0, 3, 1, 2),
        images[::-1].copy()[::-1],
        readonly,
        tensor,
        tensor.contiguous(memory_format=torch.channels_last),
    ]
    losses = set()
    for variant in variants:
        with small_class(seed=1, pin=False) as executor:
            executor.step(variant, torch.from_numpy(labels))
            losses.add(executor.step(variant, labels))
    assert len(losses) == 1


def test_large_inputs_are_staged_by_the_lanes(tmp_path: Path) -> None:
    b = GraphBuilder("doubled")
    x = b.input("x", TensorType(shape=(7, 5, 40, 30), layout=Layout.CHANNELS_LAST))
    graph = b.finish_inference(b.op("scale", [x], ScalarAttrs(value=2.0), name="double")[0])
    images = np.random.default_rng(0).standard_normal((7, 5, 40, 30)).astype(np.float32)
    with make(graph, tmp_path / "net", lanes=2)(pin=False) as executor:
        for variant in (images, np.asfortranarray(images), images[:, ::-1].copy()[:, ::-1], images[::-1].copy()[::-1]):
            assert np.array_equal(executor.predict(variant), 2 * images)
        assert executor.input_names == ("x",)
        for call in (executor.step, executor.gradients):
            with pytest.raises(UserError, match="SP1612"):
                call(images)


@pytest.mark.parametrize(
    ("inputs", "expected"),
    [
        (lambda x, y: (x.astype(np.float64), y), "images must be float32 of shape (4, 3, 8, 8), not float64"),
        (lambda x, y: (x[:2], y), "not float32 of shape (2, 3, 8, 8)"),
        (lambda x, y: (x[0], y), "not float32 of shape (3, 8, 8)"),
        (lambda x, y: (x, y.astype(np.int32)), "labels must be int64 of shape (4), not int32"),
        (lambda x, y: (x, "labels"), "not an object of type str"),
        (lambda x, y: (x, None), "not an object of type NoneType"),
        (lambda x, y: (x, [1, 2, 3, 4]), "not an object of type list"),
        (lambda x, y: (x.astype(">f4"), y), "not an object of type ndarray, dtype >f4"),
        (lambda x, y: (x,), "takes the inputs images, labels, and was given 1 in order"),
        (lambda x, y: (x, y, y), "labels, and was given 3 in order"),
    ],
)
def test_wrong_inputs_are_named(small: Executor, inputs: Any, expected: str) -> None:
    images, labels = batch(small_net())
    with pytest.raises(UserError, match="SP1601") as error:
        small.step(*inputs(images, labels))
    assert expected in error.value.problem
    assert small.steps_done == 0
    with pytest.raises(UserError, match="and was given 1 in order and target by name"):
        small.step(images, target=labels)
    with pytest.raises(UserError, match="and was given none"):
        small.step()
    with pytest.raises(UserError, match=r"(?s)not int64 of shape \(4\).*order of executor.input_names"):
        small.step(labels, images)
    small.step(images, labels)


def test_tensors_that_lie_otherwise_than_they_read(small: Executor) -> None:
    """A negated view, as imaginary parts are, has the sign beside its memory; some tensors have no memory at all."""
    torch = pytest.importorskip("torch")
    images, _ = batch(small_net())
    negated = torch.complex(torch.zeros(images.shape), torch.from_numpy(-images)).conj().imag
    assert negated.is_neg()
    np.testing.assert_array_equal(small.predict(negated), small.predict(images))
    for odd, told in ((negated.to("meta"), "device meta"), (negated.to_sparse(), "layout torch.sparse_coo")):
        with pytest.raises(UserError, match=f"SP1601.*an object of type Tensor, dtype torch.float32.*{told}"):
            small.predict(odd)
    gone = torch.from_numpy(images).clone()
    gone.untyped_storage().resize_(0)
    with pytest.raises(UserError, match=r"SP1601.*an array without memory"):  # not what the last call left there
        small.predict(gone)


def test_inputs_that_are_parameters(tmp_path: Path) -> None:
    """They change while others still read them: such inputs are copied first."""
    b = GraphBuilder("own")
    x, labels = b.input("x", TensorType(shape=(6, 12))), b.input("labels", TensorType(shape=(6,), dtype=DType.INT64))
    hidden = layers.relu(b, layers.linear(b, x, 12, name="first"), name="relu")
    logits = layers.linear(b, hidden, 6, name="second")
    graph = b.finish(layers.cross_entropy(b, logits, labels), logits, Optimizer(lr=0.5))
    with make(graph, tmp_path / "net")(pin=False) as executor:
        start, given, truth = executor.state_dict(), executor.shared("second.weight"), np.arange(6)
        executor.step(given.copy(), truth)
        wanted = executor.state_dict()
        executor.load_state_dict(start)
        executor.step(given, truth)
        assert all(array.tobytes() == wanted[name].tobytes() for name, array in executor.state_dict().items())


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_are_read_where_they_lie(small: Executor) -> None:
    """As arrays of the same elements, however they are strided; what cannot be read so is named like an array."""
    torch = pytest.importorskip("torch")
    images, labels = batch(small_net())
    tensor = torch.from_numpy(images)
    wide = torch.zeros(4, 3, 8, 16)
    wide[..., ::2] = tensor
    expected = small.predict(images)
    other = tensor.contiguous(memory_format=torch.channels_last)
    for lies in (tensor, other, wide[..., ::2], tensor.clone().requires_grad_(), torch.nn.Parameter(tensor)):
        np.testing.assert_array_equal(small.predict(lies), expected)
    start = small.state_dict()
    loss = small.step(tensor, torch.from_numpy(labels))
    small.load_state_dict(start)
    assert small.step(images, labels) == loss
    for wrong, told in (
        (tensor.double(), "not float64 of shape (4, 3, 8, 8)"),
        (tensor.half(), "not float16 of shape (4, 3, 8, 8)"),
        (tensor[None], "not float32 of shape (1, 4, 3, 8, 8)"),
        (tensor[(None,) * 6], "not float32 of shape (1, 1, 1, 1, 1, 1, 4, 3, 8, 8)"),
        (torch.nested.nested_tensor([torch.zeros(2), torch.zeros(3)]), "not an object of type Tensor"),
    ):
        with pytest.raises(UserError, match="SP1601") as error:
            small.predict(wrong)
        assert told in error.value.problem
    with pytest.raises(UserError, match="SP1601"):  # one of several that a function is mapped over
        torch.vmap(small.predict)(tensor[None])


def test_inputs_by_name(small: Executor) -> None:
    images, labels = batch(small_net())
    assert small.predict(images=images).shape == (4, 5)
    small.step(images, labels=labels)
    with pytest.raises(UserError, match="SP1601"):
        small.step(images, label=labels)


@pytest.mark.parametrize("label", [5, -1, 2**40])
def test_a_bad_label_is_named_and_changes_nothing(small: Executor, label: int) -> None:
    images, labels = batch(small_net())
    before = small.state_dict()
    labels[2] = label
    with pytest.raises(UserError, match="SP1608") as error:
        small.step(images, labels, lr=0.75)
    assert small.lr == before["stepplan.lr"] != 0.75
    assert f"labels has the value {label} at position 2" in error.value.problem
    assert all(np.array_equal(before[k], v) for k, v in small.state_dict().items())
    labels[2] = -100  # PyTorch's index to ignore
    small.step(images, labels)
