"""From ids of a graph to C++ identifiers.

Ids hold letters, digits, '.' and '_' only (they are validated again here, because everything emitted relies on it).
An identifier must not be a keyword, a macro of a system header, reserved, or a word that the runtime uses: a node
called `split` would otherwise hide the runtime's function of that name.
"""

import re
from collections.abc import Iterable
from functools import cache

from codegen.paths import RUNTIME
from planner.errors import UserError
from planner.graph.model import ID_PATTERN

_KEYWORDS = """
alignas alignof and and_eq asm auto bitand bitor bool break case catch char char8_t char16_t char32_t class compl
concept const consteval constexpr constinit const_cast continue co_await co_return co_yield decltype default delete do
double dynamic_cast else enum explicit export extern false float for friend goto if inline int long mutable namespace
new noexcept not not_eq nullptr operator or or_eq private protected public register reinterpret_cast requires return
short signed sizeof static static_assert static_cast struct switch template this thread_local throw true try typedef
typeid typename union unsigned using virtual void volatile wchar_t while xor xor_eq final override import module
"""
_MACROS = "assert errno linux unix i386 stdin stdout stderr major minor makedev signbit isnan isinf isfinite"
_OURS = "main run stage slice value input scratch parameter nodes shared"


@cache
def _never() -> frozenset[str]:
    """Keywords, and macros of system headers."""
    return frozenset(_KEYWORDS.split()) | frozenset(_MACROS.split())


@cache
def _runtime_words() -> frozenset[str]:
    """Every word of the runtime's sources, and what the templates themselves declare."""
    words = set(_OURS.split())
    for header in sorted(RUNTIME.rglob("*.hpp")):
        words.update(re.findall(r"[A-Za-z_]\w*", header.read_text()))
    return frozenset(words)


def require_valid_id(text: str) -> str:
    """SP1503 unless the id may stand in emitted code."""
    if not ID_PATTERN.fullmatch(text):
        raise UserError(
            "SP1503",
            f"{text[:80]!r} cannot become a name in emitted code",
            "ids start with a letter and hold only letters, digits, '.' and '_'; capture the model again",
        )
    return text


def identifiers(ids: Iterable[str], kind: str, qualified: bool = False) -> dict[str, str]:
    """One C++ identifier per id, all different. `kind` is appended where the plain name is reserved.

    `qualified`: the names are only ever used behind a namespace's name, so they can hide nothing.

    >>> identifiers(["layer1.0.conv1", "relu", "a.b", "a_b"], "node")
    {'layer1.0.conv1': 'layer1_0_conv1', 'relu': 'relu_node', 'a.b': 'a_b', 'a_b': 'a_b_2'}
    """
    reserved = _never() if qualified else _never() | _runtime_words()
    found: dict[str, str] = {}
    taken: set[str] = set()
    for text in ids:
        base = re.sub(r"_+", "_", require_valid_id(text).replace(".", "_")).strip("_")
        # Names without a lower-case letter are left to macros.
        plain = base[:1].isalpha() and base not in reserved and re.search("[a-z]", base)
        base = base if plain else f"{base}_{kind}" if base[:1].isalpha() else f"{kind}_{base}".rstrip("_")
        name, count = base, 1
        while name in taken:
            count += 1
            name = f"{base}_{count}"
        taken.add(name)
        found[text] = name
    return found
