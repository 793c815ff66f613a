"""stepplan's planner: decides a training step ahead of time. Pure Python; needs no compiler and no device.

    import planner
    captured = planner.capture(module, inputs, loss="cross_entropy", labels=labels)

The other commands' functions are in planner.api.
"""

from typing import Any

__version__ = "0.1.0"
__all__ = ["Optimizer", "__version__", "capture"]


def __getattr__(name: str) -> Any:
    """Loaded when first used: importing the package stays cheap."""
    if name == "capture":
        from planner.capturing import capture

        return capture
    if name == "Optimizer":
        from planner.graph.optimizer import Optimizer

        return Optimizer
    raise AttributeError(f"module 'planner' has no attribute {name!r}")
