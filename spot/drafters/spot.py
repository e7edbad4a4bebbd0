"""SPOT: a tree grown best first from the order model's q(position | branch) (paper, section 4)."""

import math
from dataclasses import dataclass
from pathlib import Path

import torch

from spot.drafters.growth import Branches, grow_tree
from spot.drafters.protocol import Context
from spot.drafters.tokens import token_candidates
from spot.options import check_share
from spot.order_model import LONGEST_BLOCK, OrderModel, load_order_model
from spot.tree import Choose, Draft, Enough, State

MADE_BY = "`launch.py train-drafter` or `import-drafter`"
LONGEST = LONGEST_BLOCK


def load(
    checkpoint: Path, device: str, tokgate: float = 0.6, gamma: float = 0.0, chain: bool = False, edge: bool = False
) -> "Spot":
    """Raises ValueError for a share that is none."""
    check_share("tokgate", tokgate)
    check_share("gamma", gamma)
    return Spot(load_order_model(checkpoint, device), tokgate, gamma, chain, edge)


@dataclass(frozen=True)
class Spot:
    """Prefix mass is the product of q(position) p(token); `tokgate` as published, 0.6.

    SPOT-γ stops growing where the best prefix mass falls under `gamma` (published: 0.1 on SDAR-8B). `chain` is the
    ablation: the greedy path alone. `edge` (ours) drafts across the block's edge.
    """

    order: OrderModel
    tokgate: float = 0.6
    gamma: float = 0.0
    chain: bool = False
    edge: bool = False

    def draft(self, context: Context, budget: int) -> list[State]:
        return [draft.state for draft in self.grow(context, budget, self._under_gamma if self.gamma else None)]

    @torch.inference_mode()
    def grow(
        self, context: Context, budget: int, enough: Enough | None = None, choose: Choose | None = None
    ) -> list[Draft]:
        """The drafts with their masses."""

        def propose(found: Branches):
            log_probs = found.table.log_probs.expand(len(found.masked), -1, -1)
            log_q = self.order(log_probs, found.table.masked, found.root, found.masked)
            return log_q, *token_candidates(context, found, self.tokgate)

        width = 1 if self.chain else None
        return grow_tree(context, budget, propose, width=width, edge=self.edge, enough=enough, choose=choose)

    def _under_gamma(self, draft: Draft) -> bool:
        return draft.log_mass < math.log(self.gamma)
