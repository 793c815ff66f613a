"""stepplan's planner: decides a training step ahead of time. Pure Python; needs no compiler and no device."""

__version__ = "0.1.0"
