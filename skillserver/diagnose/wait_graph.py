"""Who waits for whom: ranks and the places where they wait, and who stands at the end of every arrow.

A wait is a place (a collective of a group, or one end of a send) with the ranks that stand in it and the ranks that it
still lacks. Followed from any waiter, the arrows end at a rank that waits for nobody (a root: look there) or run in a
circle (a deadlock). Places are nodes of their own, so that 4,096 ranks in one collective are 4,096 arrows and not 16
million. Knows no collectives and no stacks.

>>> solve([Wait("a", {0, 2}, {1, 3}), Wait("b", {1}, {3})])
Solution(roots=[3], cycles=[])
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Wait:
    """One place: who stands in it, who has not come. `unseen` = it also lacks a member that nobody knows."""

    place: str
    waiting: set[int]
    lacking: set[int] = field(default_factory=set)
    unseen: bool = False


@dataclass
class Solution:
    """Ranks that others wait for and that wait nowhere; circles of ranks, each sorted."""

    roots: list[int]
    cycles: list[list[int]]


def solve(waits: Sequence[Wait]) -> Solution:
    """Roots and circles of the graph. A rank that stands in several places waits for all of them."""
    standing = {rank for wait in waits for rank in wait.waiting}
    awaited = {rank for wait in waits for rank in wait.lacking}
    arrows: dict[object, list[object]] = {}
    for wait in waits:
        arrows[wait.place] = list(wait.lacking)
        for rank in wait.waiting:
            arrows.setdefault(rank, []).append(wait.place)
    circles = [sorted(node for node in part if isinstance(node, int)) for part in _strong(arrows)]
    return Solution(sorted(awaited - standing), sorted(circle for circle in circles if len(circle) > 1))


def behind(waits: Iterable[Wait], rank: int) -> set[int]:
    """Every rank that waits for `rank`, straight or through others."""
    waits = list(waits)
    found: set[int] = set()
    edge = {rank}
    while edge:
        edge = {waiter for wait in waits if wait.lacking & edge for waiter in wait.waiting} - found - {rank}
        found |= edge
    return found


def _strong(arrows: dict[object, list[object]]) -> list[list[object]]:
    """Strongly connected parts with more than one node (Tarjan 1972), without recursion."""
    order: dict[object, int] = {}
    low: dict[object, int] = {}
    stack: list[object] = []
    on_stack: set[object] = set()
    parts: list[list[object]] = []
    for start in arrows:
        if start in order:
            continue
        work = [(start, iter(arrows.get(start, ())))]
        order[start] = low[start] = len(order)
        stack.append(start)
        on_stack.add(start)
        while work:
            node, rest = work[-1]
            follower = next(rest, None)
            if follower is None:
                work.pop()
                if work:
                    low[work[-1][0]] = min(low[work[-1][0]], low[node])
                if low[node] == order[node]:
                    parts.append(_popped(stack, on_stack, node))
            elif follower not in order:
                order[follower] = low[follower] = len(order)
                stack.append(follower)
                on_stack.add(follower)
                work.append((follower, iter(arrows.get(follower, ()))))
            elif follower in on_stack:
                low[node] = min(low[node], order[follower])
    return [part for part in parts if len(part) > 1]


def _popped(stack: list[object], on_stack: set[object], last: object) -> list[object]:
    part = []
    while True:
        node = stack.pop()
        on_stack.discard(node)
        part.append(node)
        if node == last:
            return part
