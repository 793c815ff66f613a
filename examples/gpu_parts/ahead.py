"""PyTorch's compiler ahead of time: its contenders of `speed` are compiled in a process of their own while other parts
are at work that is not timed. What it found stays in its caches, so that `speed` only reads it back.

    python examples/gpu_parts/ahead.py FOLDER DEVICE [null]
"""

import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from codegen.cuda.bench import device_inputs, torch_contenders  # noqa: E402
from codegen.torch_twin import Twin  # noqa: E402
from gpu_parts.speed import ROWS, ahead_file, compiled_ahead, row_name, stop_file  # noqa: E402
from planner import zoo  # noqa: E402
from planner.graph.model import Graph  # noqa: E402
from planner.graph.precision import full_precision, mixed_precision  # noqa: E402

MODES = ("reduce-overhead", "max-autotune")
"""The quicker to compile first."""
ROWS_OF_A_DRY_RUN = 1


def main(folder: Path, device: int, null: bool) -> None:
    """Until all is compiled, or somebody wants no more (`stop_file`), which is asked for between two networks."""
    told = compiled_ahead(folder)
    for batch, precision in ROWS[: ROWS_OF_A_DRY_RUN if null else len(ROWS)]:
        graph = zoo.build("digits_cnn", 4) if null else zoo.build("resnet50", batch)
        for mode in MODES:
            key = row_name(batch, precision, mode)
            if stop_file(folder).exists():
                return
            if isinstance(told.get(key), float):
                continue
            begun = time.monotonic()
            try:
                _compile(graph, precision, mode, device, null)
                told[key] = round(time.monotonic() - begun, 1)
            except Exception as error:  # `speed` meets it again, and tells
                told[key] = f"{type(error).__name__}: {error}"[:500]
            ahead_file(folder).write_text(json.dumps(told, indent=1) + "\n")


def _compile(graph: Graph, precision: str, mode: str, device: int, null: bool) -> None:
    import torch

    graph = full_precision(mixed_precision(graph)) if precision == "bf16" else graph  # as bench has it
    state = {name: torch.rand_like(tensor) for name, tensor in Twin(graph).named_values()}
    inputs = device_inputs(graph, device, null)
    for _ in torch_contenders(graph, inputs, state, precision, device, (mode,), null_device=null):
        pass


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3:] == ["null"])
