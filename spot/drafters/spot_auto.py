"""spot-auto (ours): SPOT whose budget is set pass by pass from what passes cost here (design.md §4).

Verifying many states is compute-bound, so the best budget is a property of the device. NFE depends on the measured
costs, and with it on the machine; the text never does.
"""

import heapq
import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from spot.drafters.protocol import Context
from spot.drafters.spot import Spot
from spot.drafters.spot import load as load_spot
from spot.order_model import LONGEST_BLOCK
from spot.pass_cost import PassCost
from spot.tree import State

MADE_BY = "`launch.py train-drafter` or `import-drafter`"
LONGEST = LONGEST_BLOCK
WIDEST = 8  # children of a state that its prefix mass is forecast from


def load(checkpoint: Path, device: str, tokgate: float = 0.6, edge: bool = False) -> "SpotAuto":
    return SpotAuto(load_spot(checkpoint, device, tokgate=tokgate, edge=edge))


@dataclass(frozen=True)
class SpotAuto:
    """Drafts while one more state raises (1 + Σ prefix mass) / cost; up to the budget where `cost` is not known.

    Growing a tree to learn its mass is most of what a small one costs, so the mass is forecast from the root's children
    alone, as if every later commit were as predictable as the next.
    """

    spot: Spot
    cost: PassCost | None = None

    def draft(self, context: Context, budget: int) -> list[State]:
        cost = self.cost
        choose = (lambda log_masses: best_budget(log_masses, cost, budget)) if cost else None
        return [draft.state for draft in self.spot.grow(context, budget, choose=choose)]


def best_budget(log_masses: list[float], cost: PassCost, most: int) -> int:
    """How many drafts raise the expected steps a second, (1 + Σ prefix mass) / cost, one after the other; up to `most`.

    The first that does not ends it, though many more might: forecasts flatter large trees.
    """
    steps, now = 1.0, 1.0 / cost(0)
    for n, mass in enumerate(islice(_forecast(log_masses[:WIDEST]), most), start=1):
        steps += mass
        if steps / cost(n) <= now:
            return n - 1
        now = steps / cost(n)
    return most


def _forecast(log_masses: list[float]) -> Iterator[float]:
    """Prefix masses, the largest first, of a tree in which every state has children like the root's."""
    queue = [-log_mass for log_mass in log_masses]
    heapq.heapify(queue)
    while queue:
        cost = heapq.heappop(queue)
        yield math.exp(-cost)
        for log_mass in log_masses:
            heapq.heappush(queue, cost - log_mass)
