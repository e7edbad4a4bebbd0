"""BlockSpec (Pan et al., 2608.27514): the likeliest first commits, each followed by a greedy chain.

The published tree has W first commits and top-1 expansion below them, W (W + 1) / 2 states. Inferred, since no code is
public: branch depths W, W - 1, ..., 1; and here, unlike there, acceptance by exact match (design.md §4).
"""

from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

import torch

from spot.drafters.growth import branches
from spot.drafters.protocol import Context
from spot.drafters.stale import Stale
from spot.tree import State, commit

MADE_BY = None


def load(checkpoint: Path | None, device: str, fill: bool = True) -> "BlockSpec":
    return BlockSpec(fill)


@dataclass(frozen=True)
class BlockSpec:
    """W is the widest whose distinct states fit the budget; with `fill`, what is left lengthens the first chain.

    A chain commits the most confident of what its branch has left, so that two branches may reach one state: it is
    drafted once.
    """

    fill: bool = True

    @torch.inference_mode()
    def draft(self, context: Context, budget: int) -> list[State]:
        ranked, tokens = _ranked(context)
        widest = range(1, min(budget, len(ranked) - 1) + 1)
        states: dict[State, None] = {}
        for width in widest:
            wider = dict.fromkeys(s for first in range(width) for s in _chain(context, ranked, tokens, first, width))
            if len(wider) > budget:
                break
            states = wider
        if self.fill:
            states |= dict.fromkeys(_chain(context, ranked, tokens, 0, len(ranked) - 1))
        return list(states)[:budget]


def _chain(context: Context, ranked: list[int], tokens: list[list[int]], first: int, width: int) -> list[State]:
    """The states of the branch that commits `ranked[first]` first: `width - first` of them, none full."""
    order = [ranked[first], *ranked[:first], *ranked[first + 1 :]][: min(width - first, len(ranked) - 1)]
    commits = ((position, tokens[depth][position]) for depth, position in enumerate(order))
    return list(accumulate(commits, lambda state, c: commit(state, *c), initial=context.block))[1:]


def _ranked(context: Context) -> tuple[list[int], list[list[int]]]:
    """Masked positions, the most confident first; and the best token at every depth and position."""
    found = branches(context, [context.block])
    masks = context.block.count(context.mask_id)
    ahead = replace(found, steps=found.steps + torch.arange(masks, device=found.steps.device))
    log_p, token = Stale().candidates(context, ahead)
    confidence = log_p[0, :, 0].masked_fill(~found.masked[0], -torch.inf)
    return confidence.argsort(descending=True, stable=True)[:masks].tolist(), token[..., 0].tolist()
