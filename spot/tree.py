"""Draft trees: block states grown best first by prefix mass (paper, section 4.2; design.md §4)."""

import heapq
from collections.abc import Callable
from dataclasses import dataclass

State = tuple[int, ...]
"""A block's token ids, masked positions holding the mask id; or a full block's, followed by those of the next block."""

Children = Callable[[list[State]], list[list[tuple[float, State]]]]
"""For each of several states of one length: the log mass that a next commit adds, at most 0, and where it leads."""
Settle = Callable[[State], State | None]


@dataclass(frozen=True)
class Draft:
    """A block state the target may pass through, and the log of its prefix mass."""

    state: State
    log_mass: float


Enough = Callable[[Draft], bool]
Choose = Callable[[list[float]], int]


def commit(state: State, position: int, token: int) -> State:
    return (*state[:position], token, *state[position + 1 :])


def grow(
    root: State,
    mask_id: int,
    budget: int,
    children: Children,
    settle: Settle | None = None,
    enough: Enough | None = None,
    choose: Choose | None = None,
    frontier: int = 3,
) -> list[Draft]:
    """The `budget` states of largest prefix mass below `root`, best first; fewer where there are no more.

    A state's mass is that of the likeliest order of commits that leads to it, so it never exceeds its parent's and the
    first time a state is taken is the best. Growth ends early where `enough` says that the next draft is not worth
    it; `choose` may lower the budget once the root's children are known, if it has any. Full states are not drafted,
    unless `settle` gives the state that follows one (the full block and the next, masked; None for none). Up to
    `frontier` states of one block are expanded together, ahead of their turn; that changes the calls, never the tree.
    """
    queue: list[tuple[float, State]] = [(0.0, root)]
    expanded: dict[State, list[tuple[float, State]]] = {}
    drafts: dict[State, Draft] = {}
    least = 1 if settle else 2  # masks that a state with children has

    def expand(states: list[State]) -> None:
        for state, found in zip(states, children(states), strict=True):
            settled = ((m, child if mask_id in child else settle and settle(child)) for m, child in found)
            expanded[state] = [(m, child) for m, child in settled if child]

    while queue and len(drafts) <= budget:
        cost, state = heapq.heappop(queue)
        if state in drafts:
            continue
        draft = Draft(state, -cost)
        if drafts and enough and enough(draft):
            break
        drafts[state] = draft
        if len(drafts) > budget or state.count(mask_id) < least:
            continue
        if state not in expanded:
            ahead = (other for _, other in heapq.nsmallest(frontier, queue))
            waiting = (s for s in ahead if s not in expanded and s.count(mask_id) >= least and len(s) == len(state))
            expand(list(dict.fromkeys([state, *waiting]))[:frontier])
            if choose and state is root and expanded[root]:
                budget = min(budget, choose([log_mass for log_mass, _ in expanded[root]]))
        for log_mass, child in expanded[state]:
            heapq.heappush(queue, (cost - log_mass, child))
    return list(drafts.values())[1:]
