"""What a drafter sees and returns. A drafter is one file; it knows no task, model or cluster (design.md §4)."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from spot.commit import surprise, without
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
    def read(logits: Tensor, block: Sequence[int], mask_id: int) -> "StaleTable":
        """From the tokens of a node's open block and the logits [M, V] of those of its positions that are masked."""
        where = torch.tensor([i for i, token in enumerate(block) if token == mask_id], device=logits.device)
        z = logits.float()
        width = min(TABLE_WIDTH, z.shape[-1] - 1)
        top, index = without(z, mask_id).topk(width)
        rows = top - z.logsumexp(-1, keepdim=True)
        rows[:, :1] = -surprise(z, index[:, :1])[:, None]
        log_probs = rows.new_zeros(len(block), TABLE_WIDTH)
        indices = index.new_zeros(len(block), TABLE_WIDTH)
        log_probs[where, width:] = -torch.inf
        log_probs[where, :width], indices[where, :width] = rows, index
        masked = torch.tensor([token == mask_id for token in block], device=logits.device)
        return StaleTable(log_probs, indices, masked)


@dataclass(frozen=True)
class Context:
    """What is known when a pass is drafted: the block as it stands, the stale table, and the keyed noise.

    `start` is the block's absolute position; `step` counts the step-rule applications so far in the block. A drafter
    that drafts across the block's edge asks `settle` what follows a full block; `next_table` is a stale table of the
    next block, all masked, if a pass of this block has scored one.
    """

    table: StaleTable
    block: State
    start: int
    step: int
    mask_id: int
    temperature: float
    threshold: float | None
    noise: Noise
    ends: "Ends"
    next_table: StaleTable | None = None

    @property
    def size(self) -> int:
        return len(self.block)

    def settle(self, state: State) -> State | None:
        """A full block and the next one, all masked; None where drafts end with the block, or two are full."""
        return None if len(state) > self.size or self.ends(state, self.start) else state + (self.mask_id,) * self.size


class Ends(Protocol):
    def __call__(self, block: State, start: int, /) -> bool:
        """Whether the text, or what may be drafted of it, ends with this full block."""
        ...


class Drafter(Protocol):
    def draft(self, context: Context, budget: int) -> list[State]:
        """At most `budget` states the target may pass through next. Wrong ones cost speed alone.

        A state is the block with more of it filled; or the full block followed by the next block, not yet full.
        """
        ...
