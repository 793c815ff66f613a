"""The template environment, and how one node's text is rendered."""

from functools import cache
from typing import Any

import jinja2

from codegen.cpu.filters import FILTERS
from codegen.cpu.view import NodeView
from codegen.paths import TEMPLATES
from planner.errors import InternalError


@cache
def environment() -> jinja2.Environment:
    """The filters are those that all kinds of executors share."""
    return new_environment()


def new_environment() -> jinja2.Environment:
    """Undefined names are errors; nothing is escaped, because only ids, numbers and comments are printed."""
    env = jinja2.Environment(
        loader=jinja2.FileSystemLoader(TEMPLATES),
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,
    )
    env.filters.update(FILTERS)
    return env


def render_node(env: jinja2.Environment, view: NodeView, what: str = "", kind: str = "cpu") -> str:
    """The text of one node from its family's template: the macro named after the op, or `default`.

    `what`: another macro than the function's body, for instance `kernel`, the library call it needs. `kind`: of the
    executor, whose folder of templates it is.
    """
    template: Any = env.get_template(f"{kind}/ops/{view.family}.cpp.j2").module
    name = what or view.node.op
    macro = getattr(template, name, None) or getattr(template, "default", None)
    if macro is None:
        raise InternalError(f"template {view.family} has no macro {name}")
    text: str = macro(view).strip("\n")
    return text
