"""PyTorch's compiler ahead of time: its contenders of `speed` are compiled in a process of their own while other parts
are at work that is not timed. What it found stays in its caches, so that `speed` only reads it back.

    python examples/gpu_parts/ahead.py FOLDER DEVICE
"""

import json
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "examples")]

from codegen.cuda.bench import device_inputs, torch_contenders  # noqa: E402
from codegen.torch_twin import Twin  # noqa: E402
from gpu_parts.speed import ROWS  # noqa: E402
from planner import zoo  # noqa: E402
from planner.graph.precision import full_precision, mixed_precision  # noqa: E402


def main() -> None:
    import torch

    # A text: no part of the state that is carried to other machines, which lack the caches.
    file, device = Path(sys.argv[1]) / "ahead.txt", int(sys.argv[2])
    seconds: dict[str, float | str] = json.loads(file.read_text()) if file.exists() else {}
    for batch, precision in ROWS:
        key, begun = f"batch {batch} {precision}", time.monotonic()
        if isinstance(seconds.get(key), float):
            continue
        try:
            graph = zoo.build("resnet50", batch)
            graph = full_precision(mixed_precision(graph)) if precision == "bf16" else graph  # as bench has it
            state = {name: torch.rand_like(tensor) for name, tensor in Twin(graph).named_values()}
            inputs = device_inputs(graph, device)
            for _ in torch_contenders(graph, inputs, state, precision, device, ("max-autotune",)):
                pass
            seconds[key] = round(time.monotonic() - begun, 1)
        except Exception as error:  # `speed` meets it again, and tells
            seconds[key] = f"{type(error).__name__}: {error}"[:500]
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        file.write_text(json.dumps(seconds, indent=1) + "\n")


if __name__ == "__main__":
    main()
