"""Best-first by stale confidence: SPOT's tree without its order model, the order-free ablation."""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spot.commit import surprise
from spot.drafters.growth import Branches, grow_tree
from spot.drafters.protocol import Context
from spot.drafters.tokens import coupled_scores, gated
from spot.options import check_share
from spot.tree import State

MADE_BY = None


def load(
    checkpoint: Path | None, device: str, tokgate: float = 0.6, noise_aware: bool = False, edge: bool = False
) -> "Stale":
    """Raises ValueError for a `tokgate` that is no share."""
    check_share("tokgate", tokgate)
    return Stale(tokgate, noise_aware, edge)


@dataclass(frozen=True)
class Stale:
    """A draft's mass is the product of its commits' stale confidences.

    Plain confidence is the stale probability of the position's best token at temperature 1. `noise_aware` takes that
    of the token that the shared noise picks, at the decoding's temperature, which is what the step rule will look at.
    At T = 0 they are one.
    """

    tokgate: float = 0.6
    noise_aware: bool = False
    edge: bool = False

    @torch.inference_mode()
    def draft(self, context: Context, budget: int, width: int | None = None) -> list[State]:
        def propose(found: Branches) -> tuple[Tensor, Tensor, Tensor]:
            log_q = torch.zeros(found.masked.shape, device=found.masked.device)
            return log_q.masked_fill(~found.masked, -torch.inf), *self.candidates(context, found)

        return [draft.state for draft in grow_tree(context, budget, propose, width=width, edge=self.edge)]

    def candidates(self, context: Context, found: Branches) -> tuple[Tensor, Tensor]:
        """The two best tokens a position with their log confidence, [F, B, 2]; the second where the first is unsure."""
        scores = coupled_scores(context, found.table, found.start, found.steps)
        likely, rank = scores.topk(2)
        token = found.table.indices.expand_as(scores).gather(-1, rank)
        stale = found.table.log_probs.expand_as(scores)
        if context.temperature > 0 and self.noise_aware:
            tempered = stale / context.temperature
            confidence = torch.stack([-surprise(tempered, rank[..., k : k + 1]) for k in (0, 1)], -1)
        else:
            confidence = stale[..., :2]
        return gated(confidence, likely[..., 0].exp() >= self.tokgate), token
