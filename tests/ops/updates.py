"""Samples of ops that update list what is updated behind the inputs."""

from planner.ops.base import Op, Sample

COUNTS = {"adam_update": 3, "adagrad_update": 2, "embedding_sgd_update": 1, "state_update": 1, "gradient_sum": 1}


def update_count(op: Op, sample: Sample) -> int:
    """How many of a sample's types those are; none of a batch norm's, whose running statistics may be left out."""
    if op.name == "sgd_update":
        return 2 if getattr(sample.attrs, "momentum", 0) else 1
    if op.name == "rmsprop_update":
        return 2 + getattr(sample.attrs, "centered", False) + (getattr(sample.attrs, "momentum", 0) > 0)
    return COUNTS.get(op.name, 0)
