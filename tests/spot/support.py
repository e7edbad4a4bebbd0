"""Tiny random targets of every family (the golden checkpoints), targets that are tables, and drafters of every sort."""

import random
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from spot import targets
from spot.decoder import Commit, Decoding
from spot.drafters.blockspec import BlockSpec
from spot.drafters.oracle import KNOWS, Oracle
from spot.drafters.protocol import Context, Drafter, StaleTable
from spot.drafters.spiffy import Formula, Spiffy
from spot.drafters.spot import Spot
from spot.drafters.spot_auto import SpotAuto
from spot.drafters.spot_sets import SpotSets
from spot.drafters.ssd import Ssd
from spot.drafters.stale import Stale
from spot.noise import Noise
from spot.order_model import OrderModel
from spot.pass_cost import Curve, PassCost
from spot.sets_model import SetsModel
from spot.targets.protocol import Target, TargetConfig
from spot.tree import State, commit

GOLDENS = Path(__file__).parents[1] / "golden"
GOLDEN = GOLDENS / "sdar"
FOLDERS = {family: GOLDENS / family for family in targets.FAMILIES} | {"llada2": GOLDENS / "llada2_moe"}
MASK, STOP = 157, 150


def golden_target(
    block_length: int = 8, dtype: torch.dtype = torch.float64, stop_ids=frozenset({STOP}), family: str = "sdar"
) -> Target:
    return targets.load(family, FOLDERS[family], block_length, dtype, "cpu", MASK, tuple(stop_ids))


class TableTarget:
    """A target that is a table: logits [B, V] of every (finished block before, block); `MASK` is its last token.

    Small enough to know all about it: `tokens` tokens beside the mask, blocks of `size`.
    """

    device = torch.device("cpu")

    def __init__(self, tokens: int, size: int, seed: int = 0) -> None:
        self.config = TargetConfig(size, tokens, frozenset())
        generator = torch.Generator().manual_seed(seed)
        states = (tokens + 1) ** size
        usual = torch.randn(1, 1, size, tokens + 1, generator=generator)
        self.table = usual + 0.7 * torch.randn(states, states, size, tokens + 1, generator=generator)
        self._digits = (tokens + 1) ** torch.arange(size - 1, -1, -1)
        self.forget = torch.full((size,), tokens)

    def number(self, blocks: Tensor) -> Tensor:
        return (blocks * self._digits).sum(-1)

    def prefill(self, prompt: list[int], layout: str = "batch", cache: bool = True, end: int | None = None) -> int:
        self.before = self.forget
        return 0

    def __call__(self, nodes: Tensor, edges: Tensor | None = None, places: Tensor | None = None) -> Tensor:
        logits = self.table[self.number(self.before), self.number(nodes)]
        if edges is not None:
            full, opened = edges.split(self.config.block_length, 1)
            logits = torch.cat([logits, self.table[self.number(full), self.number(opened)]])
        return logits if places is None else logits[:, places]

    def advance(self, block: Tensor) -> None:
        self.before = block


class Absurd:
    """Proposes what no drafter should: the root, full blocks, duplicates, prompt tokens changed, nonsense.

    And the same across the edge: blocks that are not full, a next block that is, states of no length a block has.
    """

    def draft(self, context: Context, budget: int) -> list[State]:
        chance = random.Random(hash((context.block, context.start, context.step)))
        root, masks = context.block, (MASK,) * context.size
        full = tuple(5 if token == MASK else token for token in root)

        def nonsense() -> State:
            return tuple(chance.choice([token, MASK, chance.randrange(157)]) for token in root)

        blocks = [nonsense() for _ in range(budget)]
        edges = [full + nonsense() for _ in range(budget // 2)] + [full + masks, root + masks, full + full]
        odd = [(), (MASK,), root[:-1], root + root + root, (STOP,) * context.size + masks]
        return [root, full, *odd, *edges, *blocks, *blocks, *edges]


@dataclass(frozen=True)
class Foresight:
    """Drafts what the target will do, read from its own trajectory, on across the block's edge.

    With `doubt` every true state comes after a wrong one, so that budgets end anywhere.
    """

    steps: tuple[tuple[Commit, ...], ...]
    edge: bool = True
    doubt: bool = False

    def draft(self, context: Context, budget: int) -> list[State]:
        done = sum(step[0][0] < context.start for step in self.steps) + context.step
        state, states = context.block, []
        for step in self.steps[done:]:
            if self.doubt:
                place = step[0][0] - context.start
                states.append(commit(state, place, (step[0][1] + 1) % 150))
            for position, token in step:
                state = commit(state, position - context.start, token)
            if MASK not in state:
                settled = context.settle(state) if self.edge else None
                if settled is None:
                    break
                state = settled
            states.append(state)
        return states[:budget]


def random_order_model() -> OrderModel:
    torch.manual_seed(0)
    return OrderModel().eval()


def random_sets_model(order: OrderModel) -> SetsModel:
    torch.manual_seed(0)
    return SetsModel(order).eval()


def random_graph(seed: int = 0, count: int = 40) -> tuple[Formula, ...]:
    """Formulas of one to five fills, each of another position, committed one a step."""
    chance = random.Random(seed)

    def formula() -> Formula:
        ranks = chance.sample(range(6), chance.randint(1, 5))
        fills = tuple((i, chance.choice([0, 0, 0, 1, 2]), depth) for depth, i in enumerate(ranks))
        return Formula(fills, chance.randint(1, 50))

    return tuple(formula() for _ in range(count))


COST = PassCost(Curve((0, 4, 16), (1.0, 1.02, 1.5)), Curve((0, 4, 16), (0.0, 2.0, 4.0)), 2.0)


def every_drafter(order: OrderModel) -> dict[str, Drafter]:
    """One of each method and option; those that must see the control first are in `told`."""
    return {
        "stale": Stale(),
        "stale noise-aware": Stale(noise_aware=True),
        "stale edge": Stale(edge=True),
        "spot": Spot(order),
        "spot gamma": Spot(order, gamma=1e-3),
        "spot chain": Spot(order, chain=True),
        "spot edge": Spot(order, edge=True),
        "spot-auto": SpotAuto(Spot(order, edge=True), COST),
        "spot-sets": SpotSets(random_sets_model(order)),
        "ssd": Ssd(),
        "blockspec": BlockSpec(),
        "blockspec unfilled": BlockSpec(fill=False),
        "spiffy": Spiffy(random_graph()),
        "spiffy pruned": Spiffy(random_graph(), prune_from=30),
        "absurd": Absurd(),
    }


TOLD = [f"oracle {knows}" for knows in KNOWS] + ["foresight", "foresight in doubt"]


def told(name: str, control: Decoding) -> Drafter:
    """A drafter that knows the control's trajectory, or part of it."""
    if name.startswith("oracle"):
        return Oracle(name.removeprefix("oracle ")).of(control)
    return Foresight(tuple(control.steps), doubt=name.endswith("doubt"))


def situation(
    seed: int = 0,
    size: int = 6,
    done: dict[int, int] | None = None,
    temperature: float = 0.0,
    threshold: float | None = None,
    start: int = 0,
    next_table: bool = False,
    scale: float = 3.0,
    ends=lambda block, start: False,
) -> Context:
    """What a drafter sees after the commits `done` (place: token) since a random table was read, all masked then."""
    generator = torch.Generator().manual_seed(seed)
    logits = scale * torch.randn(2, size, MASK + 3, generator=generator)
    masks, done = (MASK,) * size, done or {}
    return Context(
        table=StaleTable.read(logits[0], masks, MASK),
        block=tuple(done.get(i, MASK) for i in range(size)),
        start=start,
        step=len(done),
        mask_id=MASK,
        temperature=temperature,
        threshold=threshold,
        noise=Noise(seed),
        ends=ends,
        next_table=StaleTable.read(logits[1], masks, MASK) if next_table else None,
    )
