"""All ops, one file per family. Importing this package registers every op."""

from planner.ops import (
    activation,
    binary,
    conv,
    copy,
    loss,
    matmul,
    normalization,
    optimizer,
    pool,
    reduce,
    scalar,
    shape,
    softmax,
)
from planner.ops.base import all_ops, find_op, op_named

__all__ = [
    "activation",
    "all_ops",
    "binary",
    "conv",
    "copy",
    "find_op",
    "loss",
    "matmul",
    "normalization",
    "op_named",
    "optimizer",
    "pool",
    "reduce",
    "scalar",
    "shape",
    "softmax",
]
