"""spot-auto (ours): SPOT whose budget is set pass by pass from what passes cost here (design.md §4).

Verifying many states is compute-bound, so the best budget is a property of the device. NFE depends on the measured
costs, and with it on the machine; the text never does.
"""

import math
from dataclasses import dataclass
from pathlib import Path

from spot.drafters.protocol import Context
from spot.drafters.spot import Spot
from spot.drafters.spot import load as load_spot
from spot.order_model import LONGEST_BLOCK
from spot.pass_cost import PassCost
from spot.tree import State

MADE_BY = "`launch.py train-drafter` or `import-drafter`"
LONGEST = LONGEST_BLOCK


def load(checkpoint: Path, device: str, tokgate: float = 0.6, edge: bool = False) -> "SpotAuto":
    return SpotAuto(load_spot(checkpoint, device, tokgate=tokgate, edge=edge))


@dataclass(frozen=True)
class SpotAuto:
    """Drafts the number of states, up to the budget, that gains most (`PassCost.best_budget`).

    All of the budget without `cost`.

    Growing a tree to learn its mass is most of what a small one costs. So what n drafts bring is the mean acceptance
    that was measured along with the cost, for passes as sure of their first commit as this one.
    """

    spot: Spot
    cost: PassCost | None = None

    def draft(self, context: Context, budget: int) -> list[State]:
        cost = self.cost
        choose = (lambda log_masses: cost.best_budget(math.exp(log_masses[0]), budget)) if cost else None
        return [draft.state for draft in self.spot.grow(context, budget, choose=choose)]
