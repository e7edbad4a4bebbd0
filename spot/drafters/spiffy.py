"""Spiffy (2509.18085): a calibrated graph of formulas, filled from the stale table.

A formula names fills by rank: the i-th most confident masked position takes its j-th likeliest token. Which formulas
are drafted was fixed by calibration (`spot/training/spiffy.py`); at run time they are filled and nothing is searched.
No code of the authors is public; what is inferred: positions are ranked by stale confidence among those still masked
after the last commit, and at T > 0 tokens by stale / T plus the shared noise of the step that calibration saw.
"""

import json
from dataclasses import dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path

import torch

from spot.drafters.growth import branches
from spot.drafters.protocol import Context
from spot.drafters.tokens import coupled_scores
from spot.tree import State

MADE_BY = "`launch.py calibrate`"
TOKEN_RANKS = 3  # a formula's j is under this

Fill = tuple[int, int, int]
"""Position rank, token rank, and how many steps ahead it is committed, all from 0."""


@dataclass(frozen=True)
class Formula:
    """A set of fills, and how often calibration saw the target pass through it."""

    fills: tuple[Fill, ...]
    count: int

    @cached_property
    def ranks(self) -> frozenset[tuple[int, int]]:
        return frozenset((i, j) for i, j, _ in self.fills)

    @property
    def steps(self) -> int:
        """How many steps lead to it; fills are in the order of steps."""
        return 1 + self.fills[-1][2]

    def is_parent_of(self, other: "Formula") -> bool:
        """Whether one step more may lead to `other`."""
        return self.steps + 1 == other.steps and self.ranks < other.ranks


def load(checkpoint: Path, device: str, prune_from: int = 0) -> "Spiffy":
    """Raises ValueError for a file that is no graph, or has a formula that no table can fill."""
    graph = json.loads(checkpoint.read_text())
    formulas = tuple(Formula(tuple(map(tuple, f["fills"])), f["count"]) for f in graph["formulas"])
    if not formulas:
        raise ValueError("no formulas in it")
    for formula in formulas:
        if not _is_sound(formula.fills):
            raise ValueError(f"no formula: {list(map(list, formula.fills))}")
    return Spiffy(formulas, prune_from)


def _is_sound(fills: tuple[Fill, ...]) -> bool:
    """Whether there are fills, of three ranks each from 0, each of a position of its own."""
    ranks = all(len(fill) == 3 and all(type(n) is int and n >= 0 for n in fill) for fill in fills)
    return ranks and all(j < TOKEN_RANKS for _, j, _ in fills) and len({i for i, _, _ in fills}) == len(fills) > 0


def save_graph(formulas: list[Formula], path: Path, provenance: dict) -> None:
    """Write what `load` reads: JSON for people, a formula a line, after what it was made of."""
    made_of = [f"  {json.dumps(key)}: {json.dumps(value)}," for key, value in provenance.items()]
    lines = [f"    {json.dumps({'fills': formula.fills, 'count': formula.count})}" for formula in formulas]
    path.write_text("\n".join(["{", *made_of, '  "formulas": [', ",\n".join(lines), "  ]", "}"]) + "\n")


@dataclass(frozen=True)
class Spiffy:
    """Formulas in the order calibration chose them, so that the first D are the graph for budget D.

    With `prune_from` D, that many are filled and those of the highest score kept: the geometric mean of a formula's
    own probability a fill and its best child's score (v4; the best of several children is inferred).
    """

    formulas: tuple[Formula, ...]
    prune_from: int = 0

    @torch.inference_mode()
    def draft(self, context: Context, budget: int) -> list[State]:
        masks = context.block.count(context.mask_id)
        fitting = (f for f in self.formulas if len(f.fills) < masks and max(i for i, _, _ in f.fills) < masks)
        chosen = list(islice(fitting, max(budget, self.prune_from)))
        filled = _Filler(context, max((depth for f in chosen for *_, depth in f.fills), default=0))
        if self.prune_from:
            chosen = prune(chosen, {f: filled.log_probability(f) for f in chosen}, budget)
        return [filled.state(formula) for formula in chosen]


class _Filler:
    """Turns formulas into states: the block's masked positions by confidence, and their tokens at every depth."""

    def __init__(self, context: Context, deepest: int) -> None:
        found = branches(context, [context.block])
        confidence = found.table.log_probs[:, 0].masked_fill(~found.masked[0], -torch.inf)
        positions = confidence.argsort(descending=True, stable=True)[: context.block.count(context.mask_id)]
        steps = found.steps + torch.arange(deepest + 1, device=positions.device)
        scores = coupled_scores(context, found.table, found.start, steps)[:, positions]
        log_p, rank = scores.topk(TOKEN_RANKS)
        tokens = found.table.indices[positions].expand_as(scores).gather(-1, rank)
        where = positions[:, None].expand_as(tokens)
        # one synchronisation; all [depth][i][j]
        self.positions, self.tokens, self.log_p = torch.stack([where, tokens, log_p.double()]).tolist()
        self.block = context.block

    def state(self, formula: Formula) -> State:
        state = list(self.block)
        for i, j, depth in formula.fills:
            state[int(self.positions[depth][i][j])] = int(self.tokens[depth][i][j])
        return tuple(state)

    def log_probability(self, formula: Formula) -> float:
        """Of its fills, the geometric mean."""
        return sum(self.log_p[depth][i][j] for i, j, depth in formula.fills) / len(formula.fills)


def prune(formulas: list[Formula], local: dict[Formula, float], keep: int) -> list[Formula]:
    """The `keep` formulas of highest score that hang together: each takes one step, or a parent of it is kept."""
    score: dict[Formula, float] = {}
    for formula in sorted(formulas, key=lambda f: -f.steps):
        children = [score[child] for child in score if formula.is_parent_of(child)]
        score[formula] = (local[formula] + max(children)) / 2 if children else local[formula]
    kept: list[Formula] = []
    waiting = sorted(formulas, key=lambda f: -score[f])
    while len(kept) < keep:
        linked = (f for f in waiting if f.steps == 1 or any(parent.is_parent_of(f) for parent in kept))
        best = next(linked, None)
        if best is None:
            break
        kept.append(best)
        waiting.remove(best)
    return kept
