"""What a caller may give as the optimizer: ours, a name, or a PyTorch optimizer whose hyper-parameters are taken."""

from typing import Any

from planner.errors import UserError
from planner.graph.optimizer import Optimizer

NAMED = {
    "sgd": Optimizer(kind="sgd", lr=0.01),
    "adam": Optimizer(kind="adam", lr=1e-3),
    "adamw": Optimizer(kind="adamw", lr=1e-3, weight_decay=1e-2),
}
"""For Adam and AdamW with PyTorch's defaults."""


def optimizer_from(given: Any) -> Optimizer | None:
    """An `Optimizer`, one of the names in `NAMED`, or a `torch.optim` SGD, Adam or AdamW; None stays None.

    Of a PyTorch optimizer only its hyper-parameters are read, not its state. SP1023: anything else, more than one set
    of hyper-parameters, or an option that update nodes do not have.
    """
    if given is None or isinstance(given, Optimizer):
        return given
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    groups = getattr(given, "param_groups", None)
    kind = type(given).__name__.lower()
    if groups is None or not type(given).__module__.startswith("torch.optim") or kind not in NAMED:
        what = repr(given) if isinstance(given, str) else type(given).__name__
        raise UserError(
            "SP1023",
            f"{what} is no optimizer that can be planned",
            f"use {', '.join(repr(n) for n in NAMED)}, a planner.Optimizer, or torch.optim's SGD, Adam or AdamW",
        )
    return _from_torch(kind, groups)


def _from_torch(kind: str, groups: list[dict[str, Any]]) -> Optimizer:
    settings = [{k: v for k, v in group.items() if k != "params"} for group in groups]
    if any(other != settings[0] for other in settings):
        raise UserError("SP1023", "the optimizer's parameter groups differ in their settings", "use one group")
    known = settings[0]
    for option in ("maximize", "amsgrad", "dampening"):
        if known.get(option):
            raise UserError("SP1023", f"the optimizer's option {option} is not supported", f"leave {option} out")
    found: dict[str, float] = {k: float(known[k]) for k in ("lr", "momentum", "weight_decay", "eps") if k in known}
    if "betas" in known:
        found["beta1"], found["beta2"] = map(float, known["betas"])
    return Optimizer.model_validate({"kind": kind, "nesterov": bool(known.get("nesterov", False)), **found})
