"""spot-auto (ours): SPOT whose budget is set pass by pass from what passes cost here (design.md §4).

Verifying many states is compute-bound, so the best budget is a property of the device. NFE depends on the measured
costs, and with it on the machine; the text never does.
"""

from dataclasses import dataclass
from pathlib import Path

import torch

from spot.drafters.protocol import Context
from spot.drafters.spot import Spot
from spot.drafters.spot import load as load_spot
from spot.pass_cost import PassCost
from spot.tree import Draft, State

NEEDS_CHECKPOINT = True


def load(checkpoint: Path, device: str, tokgate: float = 0.6, edge: bool = False) -> "SpotAuto":
    return SpotAuto(load_spot(checkpoint, device, tokgate=tokgate, edge=edge))


@dataclass(frozen=True)
class SpotAuto:
    """Grows while one more draft raises (1 + Σ prefix mass) / cost; up to the budget where `cost` is not measured."""

    spot: Spot
    cost: PassCost | None = None

    @torch.inference_mode()
    def draft(self, context: Context, budget: int) -> list[State]:
        return [draft.state for draft in self.spot.grow(context, budget, self._dear if self.cost else None)]

    def _dear(self, drafts: list[Draft], draft: Draft) -> bool:
        """Costs are convex (`PassCost`), masses fall: what is not worth it now is not worth it later."""
        assert self.cost is not None
        steps = 1 + sum(d.mass for d in drafts)
        now, then = self.cost(len(drafts)), self.cost(len(drafts) + 1)
        return (steps + draft.mass) / then < steps / now
