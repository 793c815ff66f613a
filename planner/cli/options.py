"""Arguments and options that several commands share."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

Verbose = Annotated[bool, typer.Option("-v", "--verbose", help="Print what every pass decided.")]
PlanArgument = Annotated[Path, typer.Argument(metavar="PLAN", help="A plan's folder, or its plan.json.")]
ModelArgument = Annotated[
    str, typer.Argument(metavar="MODEL", help="A zoo name, package.module:factory, or an .onnx file.")
]
Batch = Annotated[int | None, typer.Option(min=1, help="Samples per step; the model's own by default.")]
ImageSize = Annotated[int | None, typer.Option(min=1, help="Height and width of a zoo network's images.")]
ClipNorm = Annotated[
    float | None, typer.Option(help="Scale gradients down where the norm of all of them is larger than this.")
]
Accumulate = Annotated[
    bool, typer.Option("--accumulate", help="Let a step take the mean of several batches' gradients.")
]
MemoryBudget = Annotated[str | None, typer.Option(help="Such as 2GiB; everything counted.")]
SameBits = Annotated[
    bool | None,
    typer.Option(
        "--same-bits/--other-bits",
        help="Whether a budget must leave every node its mode, so that the results are those without a budget. "
        "Default: yes on processors; on GPUs every node runs in the fastest mode whose scratch fits.",
    ),
]
Keep = Annotated[
    list[str] | None,
    typer.Option(metavar="VALUE", help="Leave this value intact for Executor.value; repeatable, or 'layer1.*'."),
]


ParallelFlag = Annotated[
    bool, typer.Option("--parallel-ops", help="Run siblings side by side, one lane each; auto tries it anyway.")
]
ParallelThreshold = Annotated[int | None, typer.Option(min=2, help="The fewest siblings of a parallel operator.")]
ParallelAlso = Annotated[
    list[str] | None,
    typer.Option("--parallel-op", metavar="OP", help="An op whose nodes may run side by side, too; repeatable."),
]


class Precision(StrEnum):
    FLOAT32 = "float32"
    BF16 = "bf16"


PrecisionOption = Annotated[
    Precision,
    typer.Option(help="bf16: activations in bfloat16 with float32 master weights."),
]


class Policy(StrEnum):
    SEQUENTIAL = "sequential"
    LIU = "liu"
    AUTO = "auto"


class Format(StrEnum):
    TEXT = "text"
    MARKDOWN = "markdown"
    JSON = "json"


PolicyOption = Annotated[Policy, typer.Option(help="Who chooses threads; auto takes the best by simulation.")]
