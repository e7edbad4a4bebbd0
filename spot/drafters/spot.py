"""SPOT: a tree grown best first from the order model's q(position | branch) (paper, section 4)."""

from dataclasses import dataclass
from pathlib import Path

import torch

from spot.drafters.protocol import Context
from spot.drafters.tokens import token_candidates
from spot.order_model import OrderModel, load_order_model
from spot.tree import Commits, State, grow, likeliest

NEEDS_CHECKPOINT = True


def load(checkpoint: Path, device: str, tokgate: float = 0.6) -> "Spot":
    return Spot(load_order_model(checkpoint, device), tokgate)


@dataclass(frozen=True)
class Spot:
    """Prefix mass is the product of q(position) p(token); `tokgate` as published, 0.6."""

    order: OrderModel
    tokgate: float = 0.6

    @torch.inference_mode()
    def draft(self, context: Context, budget: int) -> list[State]:
        table = context.table
        root = torch.tensor(context.block, device=table.masked.device) == context.mask_id

        def children(states: list[State]) -> Commits:
            masked = torch.tensor(states, device=table.masked.device) == context.mask_id
            log_q = self.order(table.log_probs.expand(len(states), -1, -1), table.masked, root, masked)
            log_p, token = token_candidates(context, root.sum() - masked.sum(-1), self.tokgate)
            return likeliest(log_q, log_p, token, budget)

        return grow(context.block, context.mask_id, budget, children)
