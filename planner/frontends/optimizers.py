"""What a caller may give as the optimizer: ours, a name, or a PyTorch optimizer whose hyper-parameters are taken."""

import warnings
from typing import Any

from planner.errors import UserError
from planner.frontends.naming import loss_prefix, safe_name
from planner.graph.optimizer import Optimizer, ParameterGroup

NAMED = {
    "sgd": Optimizer(kind="sgd", lr=0.01),
    "adam": Optimizer(kind="adam", lr=1e-3),
    "adamw": Optimizer(kind="adamw", lr=1e-3, weight_decay=1e-2),
    "rmsprop": Optimizer(kind="rmsprop", lr=1e-2),
    "adagrad": Optimizer(kind="adagrad", lr=1e-2, eps=1e-10),
}
"""All but SGD with PyTorch's defaults."""
OUTSIDE = "or keep any optimizer outside of the plan: capture with loss='caller'"


def optimizer_from(given: Any, module: Any = None, loss: Any = None) -> Optimizer | None:
    """An `Optimizer`, one of the names in `NAMED`, or a `torch.optim` object of one of them; None stays None.

    Of a PyTorch optimizer its hyper-parameters are read, not its state, of which a warning tells; with the module, also
    which parameters it trains, group by group: the module's and the loss's, if that is a module, too. SP1023: anything
    else, groups of other parameters, or an option that update nodes do not have.
    """
    if given is None or isinstance(given, Optimizer):
        return given
    if isinstance(given, str) and given in NAMED:
        return NAMED[given]
    groups = getattr(given, "param_groups", None)
    kind = type(given).__name__.lower()
    if groups is None or not type(given).__module__.startswith("torch.optim") or kind not in NAMED:
        what = repr(given) if isinstance(given, str) else type(given).__name__
        known = f"use {', '.join(repr(n) for n in NAMED)}, a planner.Optimizer, or one of these of torch.optim"
        fix = known if groups is None else f"{known}; {OUTSIDE}"
        raise UserError("SP1023", f"{what} is no optimizer that can be planned", fix)
    if kind == "adagrad":  # PyTorch's starts all parameters alike, whatever their groups say
        alike = {"initial_accumulator_value": given.defaults["initial_accumulator_value"]}
        groups = [{**group, **alike} for group in groups]
    if any(_has_moments(own) for own in given.state.values()):
        problem = "the optimizer has made steps; its state is not captured, and the plan's starts anew"
        fix = "to go on, pass it to executor.load_state_dict, by names like 'fc.weight.exp_avg' and 'stepplan.step'"
        warnings.warn(str(UserError("SP1023", problem, fix)), RuntimeWarning, stacklevel=3)
    return _from_torch(kind, groups, module, loss)


def _has_moments(state: dict[str, Any]) -> bool:
    """Of a parameter: what steps have left. Adagrad's state is there before the first one, plain SGD's is empty."""
    return float(state.get("step", 1)) > 0 and any(v is not None for k, v in state.items() if k != "step")


def _from_torch(kind: str, groups: list[dict[str, Any]], module: Any, loss: Any) -> Optimizer:
    settings = [_settings(group) for group in groups]
    kind = _adam(kind, groups) if kind in ("adam", "adamw") else kind
    first: dict[str, Any] = {"kind": kind, **settings[0]}
    if len({group.get("initial_lr") for group in groups}) > 1 and not any(own["lr"] for own in settings):
        fix = "capture with the optimizer before a scheduler holds it"
        raise UserError("SP1023", "the learning rates of all groups are 0 now, and their proportions unknown", fix)
    if module is None:
        if any(other != settings[0] for other in settings):
            fix = "pass the module itself, or an optimizer with one group"
            raise UserError("SP1023", "the optimizer's parameter groups differ, and whose they are is not known", fix)
        return Optimizer.model_validate(first)
    parts = {"": module, loss_prefix(module): loss} if hasattr(loss, "named_parameters") else {"": module}
    trained = {id(p) for part in parts.values() for p in part.parameters() if p.requires_grad}
    names: dict[int, str] = {}
    for prefix, part in parts.items():
        for name, parameter in part.named_parameters(remove_duplicate=False):
            names.setdefault(id(parameter), prefix + name)
    held = {id(p) for group in groups for p in group["params"]}
    if not held <= names.keys():
        raise UserError(
            "SP1023",
            "the optimizer holds parameters that are not the module's, nor a loss's that is a module",
            "make the optimizer from their parameters(), after everything that replaces parameters",
        )
    if len(groups) == 1 and trained <= held:
        return Optimizer.model_validate(first)
    made = [
        ParameterGroup(parameters=tuple(safe_name(names[id(p)]) for p in group["params"]), **own)
        for group, own in zip(groups, settings, strict=True)
    ]
    return Optimizer.model_validate({**first, "groups": tuple(made)})


def _adam(kind: str, groups: list[dict[str, Any]]) -> str:
    """`adamw` is what decouples the weight decay, of which there are two spellings."""
    decoupled = {bool(g.get("decoupled_weight_decay", kind == "adamw")) for g in groups if g["weight_decay"]}
    if len(decoupled) > 1:
        fix = f"let decoupled_weight_decay be the same in all groups, {OUTSIDE}"
        raise UserError("SP1023", "the optimizer decouples the weight decay of some of its groups only", fix)
    return {True: "adamw", False: "adam"}[decoupled.pop()] if decoupled else kind


def _settings(known: dict[str, Any]) -> dict[str, Any]:
    for option in ("maximize", "amsgrad", "dampening"):
        if known.get(option) and (option != "dampening" or known["momentum"]):
            instead = " and negate the loss" if option == "maximize" else ""
            fix = f"leave {option} out{instead}, {OUTSIDE}"
            raise UserError("SP1023", f"the optimizer's option {option} is not supported", fix)
    if "base_momentum" in known:  # as OneCycleLR and CyclicLR leave it
        fix = f"make the scheduler with cycle_momentum=False, {OUTSIDE}"
        raise UserError("SP1023", "a scheduler changes the optimizer's momentum, which is part of the plan", fix)
    numbers = ("lr", "momentum", "weight_decay", "eps", "alpha", "lr_decay", "initial_accumulator_value")
    found: dict[str, Any] = {k: float(known[k]) for k in numbers if k in known}
    if "betas" in known:
        found["beta1"], found["beta2"] = map(float, known["betas"])
    return {**found, **{k: bool(known.get(k, False)) for k in ("nesterov", "centered")}}
