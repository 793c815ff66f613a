"""PQ-trees: all orders of some blocks in which certain groups lie side by side (Booth and Lueker, 1976).

A leaf is a block. The children of an "any" node may come in any order, those of a "row" node in theirs or the reverse.
Trees are never changed: what was made from one before stays as it was, so a search can go back for nothing. Steps pass
over the whole tree, which is good enough for some hundreds of leaves.
"""

from collections.abc import Iterable, Set
from typing import TypeAlias

Tree: TypeAlias = int | tuple[str, tuple["Tree", ...]]
Counts = dict[int, tuple[int, int]]
"""id of a node -> (leaves that belong to the group, leaves)"""

EMPTY, PARTIAL, FULL = 0, 1, 2


class NotSideBySideError(Exception):
    """No order that the tree allows has the group side by side."""


def any_order(children: Iterable[Tree]) -> Tree:
    found = tuple(children)
    return found[0] if len(found) == 1 else ("any", found)


def gathered(tree: Tree, group: Set[int], instead: Tree) -> Tree:
    """The orders in which the group lies side by side, with `instead` in its place. NotSideBySideError: none."""
    counts: Counts = {}
    _count(tree, group, counts)
    return _replaced(tree, group, instead, counts)


def can_gather(tree: Tree, *groups: Set[int]) -> bool:
    """Whether each of the groups, apart from each other, can lie side by side."""
    try:
        for number, group in enumerate(groups, 1):
            tree = gathered(tree, group, -number)
    except NotSideBySideError:
        return False
    return True


def clusters(tree: Tree, group: Set[int]) -> list[list[int]]:
    """The group in parts that lie side by side in every order: the leaves of the largest subtrees that belong to it."""
    counts: Counts = {}
    _count(tree, group, counts)
    found: list[list[int]] = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        state = _state(node, group, counts)
        if state == FULL:
            found.append(leaves(node))
        elif state == PARTIAL and not isinstance(node, int):
            waiting.extend(reversed(node[1]))
    return found


def leaves(tree: Tree) -> list[int]:
    found = []
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if isinstance(node, int):
            found.append(node)
        else:
            waiting.extend(reversed(node[1]))
    return found


def _count(node: Tree, group: Set[int], counts: Counts) -> tuple[int, int]:
    if isinstance(node, int):
        return (1, 1) if node in group else (0, 1)
    inside = total = 0
    for child in node[1]:
        here, all_of_them = _count(child, group, counts)
        inside += here
        total += all_of_them
    counts[id(node)] = (inside, total)
    return inside, total


def _state(node: Tree, group: Set[int], counts: Counts) -> int:
    if isinstance(node, int):
        return FULL if node in group else EMPTY
    inside, total = counts[id(node)]
    return EMPTY if not inside else FULL if inside == total else PARTIAL


def _row(children: Iterable[Tree]) -> Tree:
    found = tuple(children)
    return found[0] if len(found) == 1 else ("any" if len(found) == 2 else "row", found)


def _replaced(node: Tree, group: Set[int], instead: Tree, counts: Counts) -> Tree:
    """The whole group is below `node`."""
    if isinstance(node, int) or _state(node, group, counts) == FULL:
        return instead
    kind, children = node
    states = [_state(child, group, counts) for child in children]
    touched = [i for i, state in enumerate(states) if state != EMPTY]
    first, last = touched[0], touched[-1]
    if first == last:
        inner = _replaced(children[first], group, instead, counts)
        return (kind, (*children[:first], inner, *children[first + 1 :]))
    if kind == "any":
        partial = [child for child, state in zip(children, states, strict=True) if state == PARTIAL]
        if len(partial) > 2:
            raise NotSideBySideError
        row = _at_the_end(partial[0], group, counts) if partial else []
        row.append(instead)
        if len(partial) == 2:
            row += _at_the_end(partial[1], group, counts)[::-1]
        return any_order((*(c for c, state in zip(children, states, strict=True) if state == EMPTY), _row(row)))
    if any(state != FULL for state in states[first + 1 : last]):
        raise NotSideBySideError
    before, behind = (_at_the_end(children[i], group, counts) for i in (first, last))
    return _row((*children[:first], *before, instead, *behind[::-1], *children[last + 1 :]))


def _at_the_end(node: Tree, group: Set[int], counts: Counts) -> list[Tree]:
    """What is left of a node in a row with its part of the group behind it, without that part."""
    state = _state(node, group, counts)
    if isinstance(node, int) or state != PARTIAL:
        return [] if state == FULL else [node]
    kind, children = node
    states = [_state(child, group, counts) for child in children]
    if kind == "any":
        partial = [child for child, at in zip(children, states, strict=True) if at == PARTIAL]
        if len(partial) > 1:
            raise NotSideBySideError
        empty = [child for child, at in zip(children, states, strict=True) if at == EMPTY]
        row = [any_order(empty)] if empty else []
        return row + (_at_the_end(partial[0], group, counts) if partial else [])
    if states[0] == FULL or (states[0] == PARTIAL and states[-1] != FULL):
        children, states = children[::-1], states[::-1]
    row, begun = [], False
    for child, at in zip(children, states, strict=True):
        if at != FULL:
            if begun:
                raise NotSideBySideError
            row += [child] if at == EMPTY else _at_the_end(child, group, counts)
        begun = begun or at != EMPTY
    return row
