"""Custom autograd functions, as torch_functions.py has traced them."""

from typing import Any

from planner.frontends.aten import Context, lowers
from planner.frontends.naming import identifier
from planner.graph.own_gradients import own_gradient


@lowers("stepplan.arriving")
def _arriving(c: Context, result: Any) -> str:
    return c.op("detach", c.val(result))


@lowers("stepplan.own_gradient")
def _own_gradient(c: Context, results: Any, arriving: Any, inputs: Any, gradients: Any) -> list[str]:
    values = [c.val(r) for r in results]
    if c.evaluating:
        return values
    pairs = [(x, c.val(g)) for x, g in zip(inputs, gradients, strict=True) if not c.is_constant(x)]
    sources, given = [x for x, _ in pairs], [g for _, g in pairs]
    stand_ins = [c.val(a) for a in arriving]
    return list(own_gradient(c.b, values, stand_ins, sources, given, identifier(c.name)))
