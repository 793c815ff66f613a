"""Wide and deep (Cheng et al.) on click data as Criteo publishes it: what MXNet's parallel operators were made for.

26 categorical features go to 26 embeddings of 32 columns; together with 13 dense features they feed 1024-512-256
relu units (deep). Beside that, a linear model reads sparse features (wide): indices into one vocabulary of its own, for
instance hashed feature crosses, 26 per example. The loss is binary cross entropy of the sum of both.

Vocabularies are those of the Criteo Kaggle data set, none larger than 100,000 (rarer values share rows by hashing).
With plain SGD every table is updated only in the rows that a batch picked.
"""

from collections.abc import Sequence

from planner.graph import layers
from planner.graph.builder import GraphBuilder
from planner.graph.model import DType, Init, TensorType
from planner.ops.split import SplitAttrs
from planner.zoo.network import Ends, Model, Sizes

MOST_ROWS = 100_000
COUNTS = (
    *(1460, 583, 10_131_227, 2_202_608, 305, 24, 12_517, 633, 3, 93_145, 5683, 8_351_593, 3194),
    *(27, 14_992, 5_461_306, 10, 5652, 2173, 4, 7_046_547, 18, 15, 286_181, 105, 142_572),
)
"""Distinct values of the 26 categorical features of the Criteo Kaggle data set."""
VOCABULARIES = tuple(min(count, MOST_ROWS) for count in COUNTS)
COLUMNS, DENSE, WIDE_ROWS = 32, 13, 100_000


def wide_deep(vocabularies: Sequence[int] = VOCABULARIES, wide_rows: int = WIDE_ROWS) -> Model:
    """A model with these rows in its tables."""

    def model(b: GraphBuilder, sizes: Sizes) -> Ends:
        """Inputs: wide, categories int64 (N, 26), dense (N, 13), labels (N, 1): 1 for a click. The prediction is the
        logit of a click."""
        features = TensorType(shape=(sizes.batch, len(vocabularies)), dtype=DType.INT64)
        wide, categories = b.input("wide", features), b.input("categories", features)
        dense = b.input("dense", TensorType(shape=(sizes.batch, DENSE)))
        labels = b.input("labels", TensorType(shape=(sizes.batch, 1)))
        deep = _deep(b, categories, dense, vocabularies)
        logits = layers.add(b, deep, _wide(b, wide, wide_rows), name="logits")
        return Ends(layers.bce_with_logits(b, logits, labels), logits)

    return model


def _wide(b: GraphBuilder, wide: str, rows: int) -> str:
    """The sum of one weight per feature: (N, 26) -> (N, 1)."""
    return layers.sum_over(b, _table(b, wide, rows, 1, "wide.weights"), (1,), name="wide.sum")


def _deep(b: GraphBuilder, categories: str, dense: str, vocabularies: Sequence[int]) -> str:
    columns = b.op("split", [categories], SplitAttrs(axis=1, sizes=(1,) * len(vocabularies)), name="columns")
    found = []
    for index, (ids, rows) in enumerate(zip(columns, vocabularies, strict=True)):
        ids = layers.reshape(b, ids, (-1,), name=f"ids.{index}")
        found.append(_table(b, ids, rows, COLUMNS, f"embeddings.{index}"))
    x = layers.concat(b, [*found, dense], name="features")
    for index, features in enumerate((1024, 512, 256)):
        x = layers.relu(b, layers.linear(b, x, features, name=f"deep.{2 * index}"), name=f"deep.{2 * index + 1}")
    return layers.linear(b, x, 1, name="deep.6")


def _table(b: GraphBuilder, ids: str, rows: int, columns: int, name: str) -> str:
    """An embedding whose weights start from normal(0, 0.01)."""
    found = layers.embedding(b, ids, rows, columns, name=name)
    weight = b.values[f"{name}.weight"]
    b.values[weight.id] = weight.model_copy(update={"init": Init(kind="normal", value=0.01)})
    return found
