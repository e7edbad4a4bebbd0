"""Draft trees: block states grown best first by prefix mass (paper, section 4.2; design.md §4)."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

State = tuple[int, ...]
"""A block's token ids, masked positions holding the mask id."""

Children = Callable[[list[State]], "Commits"]
FRONTIER = 3  # states expanded per call: more save calls where a call is dear, and waste work where a state is


@dataclass(frozen=True)
class Commits:
    """The likeliest next commits of F states, best first: log_mass, position and token, each [F, K].

    log_mass is at most 0, and -inf where a state has fewer than K.
    """

    log_mass: Tensor
    position: Tensor
    token: Tensor


def commit(state: State, position: int, token: int) -> State:
    return (*state[:position], token, *state[position + 1 :])


def grow(root: State, mask_id: int, budget: int, children: Children) -> list[State]:
    """The `budget` states of largest prefix mass below `root`, best first; fewer where there are no more.

    A state's mass is that of the likeliest order of commits that leads to it, so it never exceeds its parent's and the
    first time a state is taken is the best. Full states are not drafted. Frontier states are expanded together, ahead
    of their turn; that changes the number of calls, never the tree.
    """
    queue: list[tuple[float, State]] = [(0.0, root)]
    expanded: dict[State, list[tuple[float, State]]] = {}
    drafts: dict[State, None] = {}
    while queue and len(drafts) <= budget:
        cost, state = heapq.heappop(queue)
        if state in drafts:
            continue
        drafts[state] = None
        if len(drafts) > budget or state.count(mask_id) == 1:
            continue
        if state not in expanded:
            expanded |= _expand(_frontier(state, queue, expanded, mask_id), children)
        for log_mass, child in expanded[state]:
            heapq.heappush(queue, (cost - log_mass, child))
    return list(drafts)[1:]


def _frontier(state: State, queue: list[tuple[float, State]], expanded: dict, mask_id: int) -> list[State]:
    """`state` and the next best states that will need expanding if they are taken."""
    ahead = (other for _, other in heapq.nsmallest(FRONTIER, queue))
    return list(dict.fromkeys([state, *(s for s in ahead if s not in expanded and s.count(mask_id) > 1)]))[:FRONTIER]


def _expand(states: list[State], children: Children) -> dict[State, list[tuple[float, State]]]:
    commits = children(states)
    rows = zip(states, commits.log_mass.tolist(), commits.position.tolist(), commits.token.tolist(), strict=True)
    return {
        state: [(m, commit(state, p, t)) for m, p, t in zip(*row, strict=True) if m > -torch.inf]
        for state, *row in rows
    }


def likeliest(log_q: Tensor, log_p: Tensor, token: Tensor, count: int) -> Commits:
    """Commits from log q(position) [F, B] and W token candidates a position, log_p and token [F, B, W]."""
    mass = (log_q[..., None] + log_p).flatten(1)
    best, index = mass.topk(min(count, mass.shape[1]))
    return Commits(best, index // token.shape[-1], token.flatten(1).gather(1, index))
