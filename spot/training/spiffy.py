"""Calibrates Spiffy's graph: the formulas that the target passes through, counted on traces (2509.18085, Alg. 2).

    python launch.py calibrate --model tiny-sdar --task arith --prompts 50 --out assets/tiny-spiffy.json

Published: traces of 50 samples are rewound, and the connected graph that maximises Σ [count(q) + Σ_parents count(p)]
is kept. Inferred: the root is no formula and counts as no parent; the maximum is sought greedily.
"""

from collections import Counter, defaultdict
from collections.abc import Iterator

import torch

from spot.drafters.spiffy import TOKEN_RANKS, Fill, Formula
from spot.training.traces import Trace

DEEPEST = 12  # steps ahead of the root
Ranks = frozenset[tuple[int, int]]
ROOT: Ranks = frozenset()


def calibrate(traces: list[Trace], size: int, accumulate: bool = True) -> list[Formula]:
    """`size` formulas, in the order chosen: the first D of them are the graph for budget D.

    Without `accumulate` a formula's own count is its score: the paper's ablation, and the better one at large budgets
    on the tiny target, where a likely parent lends its count to every unlikely child.
    """
    seen: Counter[Ranks] = Counter()
    fills: dict[Ranks, Counter[tuple[Fill, ...]]] = defaultdict(Counter)
    parents: dict[Ranks, set[Ranks]] = defaultdict(set)
    for trace in traces:
        for path in _paths(trace):
            parent = ROOT
            for filled in path:
                ranks = frozenset((i, j) for i, j, _ in filled)
                seen[ranks] += 1
                fills[ranks][filled] += 1
                parents[ranks].add(parent)
                parent = ranks
    for ranks in seen:  # a smaller formula that another order passes through is a parent too
        parents[ranks] |= {smaller for fill in ranks if (smaller := ranks - {fill}) in seen}
    lent = {ranks: sum(seen[parent] for parent in parents[ranks]) if accumulate else 0 for ranks in seen}
    score = {ranks: count + lent[ranks] for ranks, count in seen.items()}
    return [Formula(fills[ranks].most_common(1)[0][0], seen[ranks]) for ranks in _connected(score, parents, size)]


def _connected(score: dict[Ranks, int], parents: dict[Ranks, set[Ranks]], size: int) -> list[Ranks]:
    """The best scores first, each with the root or a chosen formula among its parents."""
    ranked = sorted(score, key=lambda ranks: (-score[ranks], len(ranks), sorted(ranks)))
    chosen: dict[Ranks, None] = {}
    while len(chosen) < size:
        linked = (r for r in ranked if r not in chosen and (ROOT in parents[r] or not parents[r].isdisjoint(chosen)))
        best = next(linked, None)
        if best is None:
            break
        chosen[best] = None
    return list(chosen)


def _paths(trace: Trace) -> Iterator[list[tuple[Fill, ...]]]:
    """For every table of a trace, the fills after 1, 2, ... steps beyond its root, as long as ranks can say them."""
    pairs = zip(trace.masked, trace.masked[1:], strict=False)
    order = [(before & ~after).nonzero().squeeze(-1).tolist() for before, after in pairs]
    token_rank = (trace.indices[..., :TOKEN_RANKS] == trace.tokens[:, None]).int()
    known, rank = token_rank.any(-1), token_rank.argmax(-1)  # [S, B]
    confidence = trace.log_probs[..., 0].masked_fill(~trace.masked[:-1], -torch.inf)
    for step in range(trace.steps - 1):
        masked = trace.masked[step + 1]
        position_rank = (
            confidence[step].masked_fill(~masked, -torch.inf).argsort(descending=True, stable=True).argsort()
        )
        i, j, ok = position_rank.tolist(), rank[step].tolist(), known[step].tolist()
        path: list[tuple[Fill, ...]] = []
        filled: tuple[Fill, ...] = ()
        for depth, positions in enumerate(order[step + 1 : step + 1 + DEEPEST]):
            if not all(ok[p] for p in positions):
                break
            filled += tuple((i[p], j[p], depth) for p in positions)
            path.append(filled)
        yield path
