"""A tiny random SDAR (the golden checkpoint) and drafters of every sort."""

import random
from pathlib import Path

import torch

from spot.drafters.protocol import Context
from spot.order_model import OrderModel
from spot.targets.protocol import TargetConfig
from spot.targets.sdar import Sdar, load
from spot.tree import State

GOLDEN = Path(__file__).parents[1] / "golden" / "sdar"
MASK, STOP = 157, 150


def golden_target(block_length: int = 8, dtype: torch.dtype = torch.float64, stop_ids=frozenset({STOP})) -> Sdar:
    target = load(GOLDEN, block_length, dtype, "cpu")
    target.config = TargetConfig(block_length, MASK, stop_ids)
    return target


class Absurd:
    """Proposes what no drafter should: the root, full blocks, duplicates, prompt tokens changed, nonsense."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def draft(self, context: Context, budget: int) -> list[State]:
        root = context.block
        noise = [tuple(self.random.choice([t, MASK, self.random.randrange(157)]) for t in root) for _ in range(budget)]
        return [root, tuple(5 for _ in root), *noise, *noise]


def random_order_model() -> OrderModel:
    torch.manual_seed(0)
    return OrderModel().eval()
