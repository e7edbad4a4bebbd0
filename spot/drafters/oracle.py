"""Oracles: what drafting would save if part of the answer were known (paper, section 3.1). A diagnostic, untimed.

They read the control's own trajectory, so no method may be compared with them, only measured against them.
"""

from dataclasses import dataclass, replace
from itertools import accumulate, chain, islice
from pathlib import Path

import torch
from torch import Tensor

from spot.decoder import Commit, Decoding
from spot.drafters.growth import Branches, branches, grow_tree
from spot.drafters.protocol import Context
from spot.drafters.tokens import token_candidates
from spot.options import check_share
from spot.tree import State, commit

MADE_BY = None
KNOWS = ("positions", "tokens", "both")


def load(checkpoint: Path | None, device: str, knows: str = "both", tokgate: float = 0.6) -> "Oracle":
    """Raises ValueError where `knows` is none of KNOWS, or `tokgate` no share."""
    if knows not in KNOWS:
        raise ValueError(f"knows: {knows!r}; one of {', '.join(KNOWS)} expected")
    check_share("tokgate", tokgate)
    return Oracle(knows, tokgate)


@dataclass(frozen=True)
class Oracle:
    """Knows the true positions (tokens are stale ones), the true tokens (the order is stale confidence's), or both."""

    knows: str = "both"
    tokgate: float = 0.6
    steps: tuple[tuple[Commit, ...], ...] = ()

    def of(self, control: Decoding) -> "Oracle":
        """The oracle of one text."""
        return replace(self, steps=tuple(control.steps))

    @torch.inference_mode()
    def draft(self, context: Context, budget: int) -> list[State]:
        last = context.start + context.size
        block = [step for step in self.steps if context.start <= step[0][0] < last]
        if self.knows == "tokens":
            return self._true_tokens(context, block, budget)
        if self.knows == "positions" and context.threshold is None:
            return self._true_positions(context, block, budget)
        coming = block[context.step :]
        if self.knows == "positions":
            coming = _stale_tokens(context, coming)
        moves = accumulate(coming, lambda state, step: _apply(state, step, context.start), initial=context.block)
        return list(islice(moves, 1, budget + 1))

    def _true_tokens(self, context: Context, block: list[tuple[Commit, ...]], budget: int) -> list[State]:
        token = torch.zeros(context.size, dtype=torch.long, device=context.table.masked.device)
        for position, value in chain.from_iterable(block):
            token[position - context.start] = value

        def propose(found: Branches) -> tuple[Tensor, Tensor, Tensor]:
            log_q = torch.zeros(found.masked.shape, device=token.device).masked_fill(~found.masked, -torch.inf)
            confidence = found.table.log_probs[:, :1].expand(len(found.masked), -1, -1)
            return log_q, confidence, token[:, None].expand_as(confidence)

        return [draft.state for draft in grow_tree(context, budget, propose)]

    def _true_positions(self, context: Context, block: list[tuple[Commit, ...]], budget: int) -> list[State]:
        position = torch.tensor([step[0][0] - context.start for step in block], device=context.table.masked.device)

        def propose(found: Branches) -> tuple[Tensor, Tensor, Tensor]:
            log_q = torch.full(found.masked.shape, -torch.inf, device=position.device)
            log_q.scatter_(1, position[found.steps][:, None], 0.0)
            return log_q, *token_candidates(context, found, self.tokgate)

        return [draft.state for draft in grow_tree(context, budget, propose)]


def _stale_tokens(context: Context, steps: list[tuple[Commit, ...]]) -> list[tuple[Commit, ...]]:
    """The steps' positions with the tokens that the stale table and the noise of each step give them."""
    found = branches(context, [context.block])
    ahead = replace(found, steps=found.steps + torch.arange(len(steps), device=found.steps.device))
    _, token = token_candidates(context, ahead, 0.0)
    best = token[..., 0].tolist()
    return [tuple((p, best[k][p - context.start]) for p, _ in step) for k, step in enumerate(steps)]


def _apply(state: State, step: tuple[Commit, ...], start: int) -> State:
    for position, token in step:
        state = commit(state, position - start, token)
    return state
