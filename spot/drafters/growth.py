"""Best-first growth over the blocks a draft may reach: this one, and across its edge the next (design.md §3, §4)."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from spot.drafters.protocol import Context, StaleTable
from spot.tree import Choose, Draft, Enough, State, commit, grow

FRONTIER_ON_CPU = 3  # states a call: one costs as much as a call there; elsewhere the call is dear, its states are not


@dataclass(frozen=True)
class Branches:
    """F drafted states of the block at `start`: its table and root masks [B], their own masks [F, B] and steps [F]."""

    table: StaleTable
    root: Tensor
    masked: Tensor
    start: int
    steps: Tensor


Propose = Callable[[Branches], tuple[Tensor, Tensor, Tensor]]
"""log q(position) [F, B], -inf where not masked; W token candidates a position: log p and token [F, B, W]."""


def branches(context: Context, states: list[State]) -> Branches:
    """`states` all of this block, or all of the next one, which `context.next_table` tells of."""
    table, start, step, block = context.table, context.start, context.step, context.block
    if len(states[0]) > context.size:
        assert context.next_table is not None
        table, start, step, block = context.next_table, start + context.size, 0, (context.mask_id,) * context.size
    device = table.masked.device
    masked = torch.tensor([state[-context.size :] for state in states], device=device) == context.mask_id
    root = torch.tensor(block, device=device) == context.mask_id
    return Branches(table, root, masked, start, step + root.sum() - masked.sum(-1))


def grow_tree(
    context: Context,
    budget: int,
    propose: Propose,
    *,
    width: int | None = None,
    edge: bool = False,
    enough: Enough | None = None,
    choose: Choose | None = None,
) -> list[Draft]:
    """The `budget` states of largest mass Π q(position) p(token), best first.

    `width` keeps that many commits of each state: 1 makes a chain. With `edge` growth goes on across the block's edge.
    """

    def children(states: list[State]) -> list[list[tuple[float, State]]]:
        offset = len(states[0]) - context.size
        if offset and context.next_table is None:
            return [[] for _ in states]
        found = likeliest(*propose(branches(context, states)), width or budget)
        rows = zip(states, *torch.stack([part.double() for part in found]).tolist(), strict=True)  # one synchronisation
        return [
            [(m, commit(state, offset + int(p), int(t))) for m, p, t in zip(*row, strict=True) if m > -math.inf]
            for state, *row in rows
        ]

    settle = context.settle if edge else None
    frontier = FRONTIER_ON_CPU if context.table.masked.device.type == "cpu" else budget
    return grow(context.block, context.mask_id, budget, children, settle, enough, choose, frontier)


class Commits(NamedTuple):
    """The likeliest next commits of F states, best first: log_mass, position and token, each [F, K].

    log_mass is -inf where a state has fewer than K. Positions count from the open block's start.
    """

    log_mass: Tensor
    position: Tensor
    token: Tensor


def likeliest(log_q: Tensor, log_p: Tensor, token: Tensor, count: int) -> Commits:
    """From log q(position) [F, B] and W token candidates a position, log p and token [F, B, W]."""
    mass = (log_q[..., None] + log_p).flatten(1)
    best, index = mass.topk(min(count, mass.shape[1]))
    return Commits(best, index // token.shape[-1], token.flatten(1).gather(1, index))
