"""The small language model of Zaremba et al. on the Penn Treebank: an embedding of 10,000 words, two LSTM layers of 200
units unrolled over 20 words, a softmax over the words.

Names are those of `nn.Embedding`, `nn.LSTM` and `nn.Linear`, with PyTorch's two biases per layer. Cells of different
layers and times do not wait for each other beyond what they read (the wavefront), so a planner may co-run them. The
last states are carried to the next batch (truncated back-propagation): they are states of the graph and can be set to
zero with `load_state_dict` where a text begins. The loss is the mean over all words; the paper adds up over time and
clips the norm of all gradients at 5, which needs an op over all of them that does not exist: here it is plain SGD
without clipping. The small model has no dropout.
"""

from collections.abc import Sequence

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Init, TensorType
from planner.ops.split import SplitAttrs
from planner.zoo.network import Ends, Model, Sizes


def lstm(steps: int = 20, depth: int = 2, hidden: int = 200) -> Model:
    """A model of `depth` layers over `steps` words; `sizes.classes` is the number of words it knows."""

    def model(b: GraphBuilder, sizes: Sizes) -> Ends:
        """Inputs: tokens and targets, int64 (time, batch). The prediction is (time x batch, words), before the
        softmax."""
        shape = (steps, sizes.batch)
        tokens = b.input("tokens", TensorType(shape=shape, dtype=DType.INT64))
        targets = b.input("targets", TensorType(shape=shape, dtype=DType.INT64))
        words = layers.embedding(b, tokens, sizes.classes, hidden, name="embedding")
        words = layers.reshape(b, words, (-1, hidden), name="words")
        times = b.op("split", [words], SplitAttrs(axis=0, sizes=(sizes.batch,) * steps), name="times")
        said = layers.concat(b, _unrolled(b, times, depth, hidden), 0, name="said")
        logits = layers.linear(b, said, sizes.classes, name="decoder")
        flat = layers.reshape(b, targets, (-1,), name="flat_targets")
        return Ends(layers.cross_entropy(b, logits, flat), logits)

    return model


def _unrolled(b: GraphBuilder, inputs: Sequence[str], depth: int, hidden: int) -> list[str]:
    """The last layer's h at every time. `inputs`: (N, features) at every time."""
    zeros = Init(kind="zeros")
    shape = (b.shape(inputs[0])[0], hidden)
    first = [
        (b.state(f"lstm.h_l{layer}", shape, zeros), b.state(f"lstm.c_l{layer}", shape, zeros)) for layer in range(depth)
    ]
    last, said = list(first), []
    for x in inputs:
        for layer in range(depth):
            last[layer] = _cell(b, x, *last[layer], layer)
            x = last[layer][0]
        said.append(x)
    for before, after in zip(first, last, strict=True):
        for state, value in zip(before, after, strict=True):
            b.carry(state, value)
    return said


def _cell(b: GraphBuilder, x: str, h: str, c: str, layer: int) -> tuple[str, str]:
    """The next h and c. nn.LSTM draws weights and biases from 1 / sqrt(hidden)."""
    columns = b.shape(h)[1]
    start = Init(kind="uniform", value=columns**-0.5)
    gates: list[str] = []
    for source, value in (("ih", x), ("hh", h)):
        with b.sharing():
            weight = b.parameter(f"lstm.weight_{source}_l{layer}", (4 * columns, b.shape(value)[1]), start)
            bias = b.parameter(f"lstm.bias_{source}_l{layer}", (4 * columns,), start)
        gates += b.op("linear", [value, weight, bias], name=f"lstm.{source}_l{layer}")
    h, c, _ = b.op("lstm_cell", [*gates, c], name=f"lstm.cell_l{layer}")
    return h, c
