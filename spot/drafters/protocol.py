"""What a drafter sees and returns. A drafter is one file; it knows no task, model or cluster (design.md §4)."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from spot.commit import surprise
from spot.noise import Noise
from spot.tree import State

TABLE_WIDTH = 32


@dataclass(frozen=True)
class StaleTable:
    """The target's distributions in the pass before: the top 32 a position, temperature 1, best first.

    log_probs [B, 32] float32, indices [B, 32] int64, both zero where `masked` [B] is False (committed).
    The best entry keeps its digits near probability one; the mask token is left out but counts in the normaliser.
    """

    log_probs: Tensor
    indices: Tensor
    masked: Tensor

    @staticmethod
    def read(logits: Tensor, masked: Tensor, mask_id: int) -> "StaleTable":
        """From one node's logits [B, V] and its masked positions [B]."""
        z = logits[masked].float()
        width = min(TABLE_WIDTH, z.shape[-1] - 1)
        top, index = z.index_fill(-1, torch.tensor(mask_id, device=z.device), -torch.inf).topk(width)
        rows = top - z.logsumexp(-1, keepdim=True)
        rows[:, :1] = -surprise(z, index[:, :1])[:, None]
        log_probs = rows.new_zeros(len(masked), TABLE_WIDTH)
        indices = index.new_zeros(len(masked), TABLE_WIDTH)
        log_probs[masked, :width], indices[masked, :width] = rows, index
        log_probs[masked, width:] = -torch.inf
        return StaleTable(log_probs, indices, masked)


@dataclass(frozen=True)
class Context:
    """What is known when a pass is drafted: the block as it stands, the stale table, and the keyed noise.

    `start` is the block's absolute position; `step` counts the step-rule applications so far in the block.
    """

    table: StaleTable
    block: State
    start: int
    step: int
    mask_id: int
    temperature: float
    noise: Noise


class Drafter(Protocol):
    def draft(self, context: Context, budget: int) -> list[State]:
        """At most `budget` block states the target may pass through next. Wrong ones cost speed alone."""
        ...
