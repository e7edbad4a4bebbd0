"""What each method drafts, by hand."""

import json
import math
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from spot import drafters
from spot.drafters.blockspec import BlockSpec
from spot.drafters.spiffy import Formula, Spiffy, prune, save_graph
from spot.drafters.spot import Spot
from spot.drafters.ssd import Ssd
from spot.drafters.stale import Stale
from spot.tree import State
from tests.spot.support import MASK, random_graph, random_order_model, situation

ORDER = random_order_model()
SEEDS = range(4)


def stale_order(context) -> list[int]:
    """The masked places, the most confident first."""
    free = [i for i, token in enumerate(context.block) if token == MASK]
    return sorted(free, key=lambda i: -context.table.log_probs[i, 0].item())


def coupled_token(context, place: int, step: int, rank: int = 0) -> int:
    """The table's `rank`-th token under the noise of `step`."""
    scores, indices = context.table.log_probs[place].double(), context.table.indices[place]
    if context.temperature > 0:
        at = torch.tensor(context.start + place), torch.tensor(step), indices
        scores = scores / context.temperature + context.noise.gumbel(*at)
    return indices[scores.argsort(descending=True)[rank]].item()


def chain(context, places: list[int]) -> list[State]:
    """The states of committing `places` one a step, each with the token its step's noise picks."""
    state, states = list(context.block), []
    for depth, place in enumerate(places):
        state[place] = coupled_token(context, place, context.step + depth)
        states.append(tuple(state))
    return states


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [1, 3, 10])
def test_ssd_drafts_one_chain_in_stale_order(temperature, budget):
    for seed in SEEDS:
        context = situation(seed, done={1: 4}, temperature=temperature, start=12)
        assert Ssd().draft(context, budget) == chain(context, stale_order(context)[:-1])[:budget]


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_blockspec_drafts_the_likeliest_first_commits_each_with_a_shorter_chain(temperature):
    context = situation(1, size=8, temperature=temperature)
    order = stale_order(context)
    branches = [chain(context, [order[first], *order[:first], *order[first + 1 :]][: 3 - first]) for first in range(3)]
    expected = list(dict.fromkeys(state for branch in branches for state in branch))
    assert BlockSpec(fill=False).draft(context, len(expected)) == expected
    assert len(expected) == (5 if temperature == 0 else 6)  # at T = 0 two branches reach the first pair


@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize("budget", [1, 2, 6, 11, 40])
def test_blockspec_trees_fit_the_budget_and_what_is_left_lengthens_the_first_chain(temperature, budget):
    for seed in SEEDS:
        context = situation(seed, size=8, done={2: 4}, temperature=temperature)
        tree, filled = (BlockSpec(fill).draft(context, budget) for fill in (False, True))
        assert len(set(filled)) == len(filled) <= budget
        assert filled[: len(tree)] == tree
        longest = chain(context, stale_order(context)[:-1])
        assert set(filled) - set(tree) <= set(longest)
        assert len(filled) == budget or set(longest) <= set(filled)
        assert all(MASK in state for state in filled)


def formula(*fills: tuple[int, int], count: int = 1) -> Formula:
    return Formula(tuple((i, j, depth) for depth, (i, j) in enumerate(fills)), count)


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_spiffy_fills_its_formulas_by_rank_of_place_and_token(temperature):
    context = situation(2, size=5, done={3: 8}, temperature=temperature)
    order = stale_order(context)
    graph = (formula((0, 0)), formula((1, 2)), formula((2, 1), (0, 0)), formula((0, 0), (1, 0), (3, 1)))
    expected = []
    for each in graph:
        state = list(context.block)
        for i, j, depth in each.fills:
            state[order[i]] = coupled_token(context, order[i], context.step + depth, j)
        expected.append(tuple(state))
    assert Spiffy(graph).draft(context, 4) == expected
    assert Spiffy(graph).draft(context, 2) == expected[:2]


def test_spiffy_leaves_out_formulas_that_the_block_has_too_few_masks_for():
    context = situation(2, size=4, done={0: 8, 1: 8})
    fits, full, far = formula((1, 0)), formula((0, 0), (1, 0)), formula((2, 0))
    assert Spiffy((full, far, fits)).draft(context, 5) == Spiffy((fits,)).draft(context, 5)
    assert Spiffy((full, far)).draft(context, 5) == []


def test_pruning_keeps_the_formulas_of_highest_score_with_a_parent_of_each():
    a, b, ab, bc = formula((0, 0)), formula((1, 0)), formula((0, 0), (1, 0)), formula((1, 0), (2, 0))
    local = {a: -1.0, b: -3.0, ab: -0.5, bc: -0.1}
    # scores: a (-1 - 0.5) / 2 = -0.75, b (-3 - 0.1) / 2 = -1.55; bc is the best and has no parent before b
    assert prune([a, b, ab, bc], local, 2) == [ab, a][::-1]
    assert prune([a, b, ab, bc], local, 3) == [a, ab, b]
    assert prune([a, b, ab, bc], local, 9) == [a, ab, b, bc]
    assert prune([bc], local, 9) == []


def test_a_pruned_draft_is_of_the_budget_and_of_the_formulas_filled():
    context = situation(3, size=8)
    graph = random_graph()
    drafts = Spiffy(graph, prune_from=30).draft(context, 6)
    assert len(drafts) == 6 and set(drafts) <= set(Spiffy(graph).draft(context, 30))
    for draft in drafts:
        filled = sum(token != MASK for token in draft)
        parents = [d for d in drafts if all(x in (MASK, y) for x, y in zip(d, draft, strict=True)) and d != draft]
        assert filled == 1 or parents


def test_a_noise_aware_order_differs_at_a_temperature_alone():
    for seed in SEEDS:
        for block in (None, {1: 4}):
            context = situation(seed, done=block)
            assert Stale(noise_aware=True).draft(context, 9) == Stale().draft(context, 9)
    contexts = [situation(seed, temperature=1.0) for seed in SEEDS]
    assert any(Stale(noise_aware=True).draft(c, 9) != Stale().draft(c, 9) for c in contexts)


def test_a_noise_aware_first_draft_is_the_step_the_table_itself_would_take():
    """Of all positions, the one whose drawn token has the highest stale probability at the decoding's temperature."""
    for seed in SEEDS:
        context = situation(seed, temperature=0.7)
        sure = (context.table.log_probs / 0.7).log_softmax(-1)
        drawn = [coupled_token(context, place, 0) for place in range(6)]
        confidence = [sure[i][context.table.indices[i] == drawn[i]].item() for i in range(6)]
        best = max(range(6), key=confidence.__getitem__)
        first = Stale(noise_aware=True, tokgate=0.0).draft(context, 1)[0]
        assert first == tuple(drawn[i] if i == best else MASK for i in range(6))


def test_a_second_token_is_drafted_where_the_first_is_unsure():
    context = situation(0, scale=0.1)
    assert len(Stale(tokgate=0.6).draft(context, 10**4)) > len(Stale(tokgate=0.0).draft(context, 10**4))
    assert len(Stale(tokgate=0.0).draft(context, 10**4)) == 2**6 - 2


def test_spot_gamma_drafts_the_first_of_what_spot_drafts():
    for seed in SEEDS:
        context = situation(seed, temperature=1.0, next_table=True)
        grown = Spot(ORDER, edge=True).grow(context, 30)
        kept = [draft.state for draft in grown if draft.log_mass >= math.log(0.05)]
        assert Spot(ORDER, gamma=0.05, edge=True).draft(context, 30) == kept
        assert 0 < len(kept) < 30


def test_spot_chain_is_the_greedy_path():
    context = situation(3, temperature=1.0)
    path, tree = Spot(ORDER, chain=True).draft(context, 9), Spot(ORDER).grow(context, 1)
    assert len(path) == 5 and path[0] == tree[0].state
    for before, after in pairwise(path):
        assert sum(a != b for a, b in zip(before, after, strict=True)) == 1
        assert before.count(MASK) == after.count(MASK) + 1


@pytest.mark.parametrize("drafter", [Stale(edge=True), Spot(ORDER, edge=True)], ids=["stale", "spot"])
def test_drafts_cross_the_edge_into_a_block_whose_table_is_known(drafter):
    done = {0: 1, 1: 2, 2: 3, 3: 4}
    inside, across = situation(1, done=done), situation(1, done=done, next_table=True)
    known, unknown = drafter.draft(across, 30), drafter.draft(inside, 30)
    assert {len(state) for state in known} == {6, 12}
    assert all(state[6:] in ((), (MASK,) * 6) for state in unknown)  # without a table, the next block all masked
    assert any(state[6:].count(MASK) < 6 for state in known if len(state) == 12)
    ended = replace(across, ends=lambda block, start: True)
    assert {len(state) for state in drafter.draft(ended, 30)} == {6}


def test_a_graph_is_read_as_it_was_written(tmp_path):
    save_graph(list(random_graph()), tmp_path / "graph.json", {"method": "spiffy"})
    assert drafters.load("spiffy", tmp_path / "graph.json", "cpu") == Spiffy(random_graph())


@pytest.mark.parametrize(
    "fills",
    [[], [[0, 3, 0]], [[-1, 0, 0]], [[0, 0, -1]], [[0, 0]], [[0, 0, 0.5]], [[0, 0, 0], [0, 1, 1]]],
    ids=str,
)
def test_a_formula_that_no_table_fills_is_refused(fills, tmp_path):
    graph = {"formulas": [{"fills": [[0, 0, 0]], "count": 1}, {"fills": fills, "count": 1}]}
    (tmp_path / "graph.json").write_text(json.dumps(graph))
    with pytest.raises(ValueError, match=r"^no formula: \["):
        drafters.load("spiffy", tmp_path / "graph.json", "cpu")


def test_a_graph_without_formulas_is_refused(tmp_path):
    (tmp_path / "graph.json").write_text('{"formulas": []}')
    with pytest.raises(ValueError, match=r"^no formulas in it$"):
        drafters.load("spiffy", tmp_path / "graph.json", "cpu")
