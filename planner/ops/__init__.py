"""All ops, one file per family. Importing this package registers every op."""

from planner.ops import (
    activation,
    conv,
    normalization,
    optimizer,
    shape,
)
from planner.ops.base import all_ops, find_op, op_named

__all__ = ["activation", "all_ops", "conv", "find_op", "normalization", "op_named", "optimizer", "shape"]
