"""SSD (Gao et al., 2510.04147): one chain in stale-confidence order, top-1 tokens, up to the budget.

Each state holds one more of the block's most confident positions than the one before it. Published at T = 0; at T > 0
(inferred) a position's token is the one that the shared noise picks.
"""

from dataclasses import dataclass
from pathlib import Path

from spot.drafters.protocol import Context
from spot.drafters.stale import Stale
from spot.tree import State

MADE_BY = None


def load(checkpoint: Path | None, device: str) -> "Ssd":
    return Ssd()


@dataclass(frozen=True)
class Ssd:
    def draft(self, context: Context, budget: int) -> list[State]:
        return Stale().draft(context, budget, width=1)
