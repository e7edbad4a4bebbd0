"""Best-first growth, against brute force on small blocks."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spot import tree
from spot.tree import commit, grow, likeliest

MASK = 9


def random_children(seed: int, tokens: int = 2):
    """q(position | state) and p(token | position) drawn from the state itself."""

    def children(states):
        log_q, log_p = [], []
        for state in states:
            generator = torch.Generator().manual_seed(hash((seed, state)) % 2**31)
            masked = torch.tensor([token == MASK for token in state])
            log_q.append(torch.rand(len(state), generator=generator).masked_fill(~masked, -torch.inf).log_softmax(-1))
            log_p.append(torch.rand(len(state), tokens, generator=generator).log_softmax(-1).sort(-1, True).values)
        token = torch.arange(tokens).expand(len(states), len(states[0]), -1)
        return likeliest(torch.stack(log_q), torch.stack(log_p), token, len(states[0]) * tokens)

    return children


def brute_force(root, children):
    """Every state below `root` that is not full, with the mass of its likeliest order."""
    mass = {root: 0.0}
    for _ in range(root.count(MASK)):
        for state in [s for s in mass if s.count(MASK) > 1]:
            found = children([state])
            for m, p, t in zip(found.log_mass[0].tolist(), found.position[0], found.token[0], strict=True):
                if m > -math.inf:
                    child = commit(state, int(p), int(t))
                    mass[child] = max(mass.get(child, -math.inf), mass[state] + m)
    return {state: m for state, m in mass.items() if state != root and MASK in state}


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 12), free=st.integers(1, 4))
def test_the_drafts_are_the_states_of_largest_prefix_mass(seed, budget, free):
    root, children = (7,) + (MASK,) * free, random_children(seed)
    drafts, mass = grow(root, MASK, budget, children), brute_force(root, children)
    best = sorted(mass.values(), reverse=True)[:budget]
    assert [mass[draft] for draft in drafts] == pytest.approx(best)
    assert len(set(drafts)) == len(drafts)


@pytest.mark.parametrize("budget", [1, 5, 20])
def test_expanding_ahead_of_turn_changes_the_calls_and_not_the_tree(monkeypatch, budget):
    root = (MASK,) * 6
    counted = {}
    trees = []
    for frontier in (1, 3, 8):
        monkeypatch.setattr(tree, "FRONTIER", frontier)
        calls = []
        inner = random_children(4)
        trees.append(
            grow(root, MASK, budget, lambda states, calls=calls, inner=inner: (calls.append(1), inner(states))[1])
        )
        counted[frontier] = len(calls)
    assert trees[0] == trees[1] == trees[2]
    assert counted[8] <= counted[3] <= counted[1]


def test_every_parent_of_a_draft_on_its_likeliest_order_is_drafted_before_it():
    drafts = grow((MASK,) * 5, MASK, 15, random_children(11))
    known = [(MASK,) * 5, *drafts]
    for place, draft in enumerate(known[1:], start=1):
        filled = [i for i, token in enumerate(draft) if token != MASK]
        assert any(commit(draft, i, MASK) in known[:place] for i in filled)


def test_a_block_with_one_mask_left_has_no_drafts():
    assert grow((1, MASK, 2), MASK, 8, random_children(0)) == []


def test_likeliest_orders_position_and_token_jointly():
    log_q = torch.tensor([[0.6, 0.4]]).log()
    log_p = torch.tensor([[[0.6, 0.4], [0.95, 0.05]]]).log()
    found = likeliest(log_q, log_p, torch.tensor([[[10, 11], [12, 13]]]), 3)
    assert list(itertools.chain(found.position[0].tolist(), found.token[0].tolist())) == [1, 0, 0, 12, 10, 11]
