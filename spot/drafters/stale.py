"""Best-first by stale confidence: SPOT's tree without its order model, the order-free ablation."""

from dataclasses import dataclass
from pathlib import Path

import torch

from spot.drafters.protocol import Context
from spot.drafters.tokens import token_candidates
from spot.tree import Commits, State, grow, likeliest

NEEDS_CHECKPOINT = False


def load(checkpoint: Path | None, device: str, tokgate: float = 0.6) -> "Stale":
    return Stale(tokgate)


@dataclass(frozen=True)
class Stale:
    """A draft's mass is the product of its tokens' stale probabilities."""

    tokgate: float = 0.6

    @torch.inference_mode()
    def draft(self, context: Context, budget: int) -> list[State]:
        def children(states: list[State]) -> Commits:
            masked = torch.tensor(states, device=context.table.masked.device) == context.mask_id
            depths = context.block.count(context.mask_id) - masked.sum(-1)
            log_p, token = token_candidates(context, depths, self.tokgate)
            return likeliest(
                torch.zeros(masked.shape, device=masked.device).masked_fill(~masked, -torch.inf), log_p, token, budget
            )

        return grow(context.block, context.mask_id, budget, children)
