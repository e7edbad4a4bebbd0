"""SPOT-Sets: for the threshold rule, a tree of whole commit sets with their tokens (paper, section 4.2 and news).

Each state's likeliest next sets are enumerated from the positions' probabilities of passing the threshold; the tree
grows best first by the product of set and token probabilities. Inferred: positions pass independently, and where none
does, the set is the one position that the order model names.
"""

from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from spot.commit import surprise
from spot.drafters.growth import Branches, branches
from spot.drafters.protocol import Context
from spot.drafters.tokens import coupled_scores
from spot.order_model import LONGEST_BLOCK
from spot.sets_model import SetsModel, load_sets_model
from spot.tree import State, grow

MADE_BY = "`launch.py calibrate-sets`"
LONGEST = LONGEST_BLOCK
UNSURE = 8  # the positions nearest to even odds are the ones that sets differ in


def load(checkpoint: Path, device: str, edge: bool = False) -> "SpotSets":
    return SpotSets(load_sets_model(checkpoint, device), edge)


@dataclass(frozen=True)
class SpotSets:
    """Under the single rule, the order model's tree with top-1 tokens. `edge` (ours) drafts across the block's edge."""

    model: SetsModel
    edge: bool = False

    @torch.inference_mode()
    def draft(self, context: Context, budget: int) -> list[State]:
        def children(states: list[State]) -> list[list[tuple[float, State]]]:
            if len(states[0]) > context.size and context.next_table is None:
                return [[] for _ in states]
            found = branches(context, states)
            log_mass, sets, token = self.sets(context, found, budget)
            block = torch.tensor([state[-context.size :] for state in states], device=token.device)
            filled = torch.where(sets, token[:, None], block[:, None])
            rows = torch.cat([log_mass[..., None].double(), filled.double()], -1).tolist()  # one synchronisation
            done = [state[: -context.size] for state in states]
            return [
                [(m, (*full, *map(int, opened))) for m, *opened in row if m > -torch.inf]
                for full, row in zip(done, rows, strict=True)
            ]

        settle = context.settle if self.edge else None
        return [draft.state for draft in grow(context.block, context.mask_id, budget, children, settle)]

    def sets(self, context: Context, found: Branches, count: int) -> tuple[Tensor, Tensor, Tensor]:
        """The likeliest next sets of F states: log mass [F, K], sets [F, K, B] bool, and the tokens [F, B]."""
        stale = found.table.log_probs.expand(len(found.masked), -1, -1)
        scores = coupled_scores(context, found.table, found.start, found.steps)
        log_p, rank = scores.max(-1)
        confidence = stale[..., 0]
        if context.temperature > 0:
            confidence = -surprise(stale / context.temperature, rank[..., None])
        masks = (found.table.masked, found.root, found.masked)
        log_q, passing = self.model(stale, confidence, *masks, context.threshold or 0.5)
        if context.threshold is None:  # the single rule: none passes, and one is committed
            passing = torch.full_like(passing, -torch.inf)
        token = found.table.indices.expand_as(scores).gather(-1, rank[..., None]).squeeze(-1)
        log_mass, sets = likeliest_sets(log_q, passing, found.masked)
        log_mass = log_mass + (log_p[:, None] * sets).sum(-1)
        best, index = log_mass.topk(min(count, log_mass.shape[1]))
        return best, sets.gather(1, index[..., None].expand(-1, -1, sets.shape[-1])), token


def likeliest_sets(log_q: Tensor, passing: Tensor, masked: Tensor) -> tuple[Tensor, Tensor]:
    """Log probability [F, K] of sets [F, K, B], from the logit of passing and log q, [F, B]; K = 256 + B.

    The 256 sets agree with the even odds but for the UNSURE positions nearest to them. The empty one stands for the
    single positions, which come after the 256 with its probability shared out by q.
    """
    states, size = masked.shape
    width = min(UNSURE, size)
    odds = passing.masked_fill(~masked, -torch.inf)
    unsure = odds.abs().topk(width, largest=False).indices
    flips = torch.arange(2**width, device=odds.device)[:, None] >> torch.arange(width, device=odds.device) & 1
    flip = torch.zeros(states, len(flips), size, dtype=torch.bool, device=odds.device)
    flip.scatter_(2, unsure[:, None].expand(-1, len(flips), -1), flips.bool().expand(states, -1, -1))
    sets = (odds > 0)[:, None] ^ flip
    log_mass = F.logsigmoid(odds.abs()).sum(-1, keepdim=True)
    log_mass = log_mass - odds.abs()[:, None].masked_fill(~flip, 0.0).sum(-1)
    empty = ~sets.any(-1)
    log_none = log_mass.masked_fill(~empty, -torch.inf).amax(-1, keepdim=True)
    singles = torch.eye(size, dtype=torch.bool, device=odds.device).expand(states, -1, -1)
    return torch.cat([log_mass.masked_fill(empty, -torch.inf), log_none + log_q], 1), torch.cat([sets, singles], 1)
