"""Best-first growth, against brute force on small blocks."""

import itertools
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from spot.drafters.growth import likeliest
from spot.tree import commit, grow

MASK, END = 9, 1


def random_children(seed: int, size: int, tokens: int = 2):
    """q(position | state) and p(token | position) of the last `size` positions, drawn from the state itself."""

    def children(states):
        return [children_of(state) for state in states]

    def children_of(state):
        generator = torch.Generator().manual_seed(hash((seed, state)) % 2**31)
        masked = torch.tensor([token == MASK for token in state[-size:]])
        log_q = torch.rand(size, generator=generator).masked_fill(~masked, -torch.inf).log_softmax(-1)
        log_p = torch.rand(size, tokens, generator=generator).log_softmax(-1)
        mass, offset = (log_q[:, None] + log_p).tolist(), len(state) - size
        places = masked.nonzero().flatten().tolist()
        return [(mass[i][t], commit(state, offset + i, t)) for i in places for t in range(tokens)]

    return children


def goes_on(size: int):
    """The next block of `size` opens after a full one, unless that one ends with END."""
    return lambda state: None if len(state) > size or state[-1] == END else state + (MASK,) * size


def brute_force(root, children, settle=None):
    """Every state below `root` that may be drafted, with the mass of its likeliest order."""
    level, mass = {root: 0.0}, {}
    while level:
        below = {}
        for state, m in level.items():
            for log_mass, child in children([state])[0]:
                settled = child if MASK in child else settle and settle(child)
                if settled:
                    below[settled] = max(below.get(settled, -math.inf), m + log_mass)
        mass |= below
        level = below
    return mass


@settings(max_examples=40, deadline=None, derandomize=True)
@given(seed=st.integers(0, 10**6), budget=st.integers(1, 12), free=st.integers(1, 4), edge=st.booleans())
def test_the_drafts_are_the_states_of_largest_prefix_mass(seed, budget, free, edge):
    free = min(free, 2) if edge else free
    root = (7,) + (MASK,) * free
    children, settle = random_children(seed, len(root)), goes_on(len(root)) if edge else None
    drafts, mass = grow(root, MASK, budget, children, settle), brute_force(root, children, settle)
    best = sorted(mass.values(), reverse=True)[:budget]
    assert [mass[draft.state] for draft in drafts] == pytest.approx(best)
    assert [draft.log_mass for draft in drafts] == pytest.approx(best)
    assert len({draft.state for draft in drafts}) == len(drafts)


def test_growth_across_the_edge_may_reach_the_end_of_the_next_block_and_no_further():
    root, children = (MASK, MASK), random_children(3, 2)
    every = {draft.state for draft in grow(root, MASK, 10**4, children, goes_on(2))}
    assert every == set(brute_force(root, children, goes_on(2)))
    assert {(0, 0, MASK, MASK), (1, 0, 1, MASK)} <= every
    assert all(
        (len(state) in (2, 4) and MASK in state and state[1:2] != (END,)) or MASK in state[:2] for state in every
    )


@pytest.mark.parametrize("edge", [False, True])
def test_growth_ends_where_the_next_draft_is_not_worth_it(edge):
    """As SPOT-γ does: what is left are the first of the drafts there would have been."""
    root, children, settle = (MASK,) * 4, random_children(5, 4), goes_on(4) if edge else None
    whole = grow(root, MASK, 40, children, settle)
    for gamma in (0.9, 0.1, 0.02, 1e-9):
        cut = grow(root, MASK, 40, children, settle, lambda draft, gamma=gamma: draft.log_mass < math.log(gamma))
        assert cut == [draft for draft in whole if draft.log_mass >= math.log(gamma)]


def test_enough_is_asked_of_every_draft_once():
    asked = []
    drafts = grow((MASK,) * 3, MASK, 6, random_children(2, 3), enough=asked.append)
    assert asked == drafts


def test_a_budget_may_be_lowered_once_the_first_commits_are_known():
    root, children, told = (MASK,) * 4, random_children(6, 4), []
    whole = grow(root, MASK, 12, children)
    for lower in (0, 1, 7, 40):
        assert grow(root, MASK, 12, children, choose=lambda masses, n=lower: told.append(masses) or n) == whole[:lower]
    assert told == [[mass for mass, _ in children([root])[0]]] * 4


def test_no_budget_is_chosen_where_nothing_can_be_drafted():
    """The last mask of a text: what follows it is full, and nothing goes on beyond."""
    root, children = (1, MASK, 2), random_children(6, 3)
    assert grow(root, MASK, 8, children, settle=lambda full: None, choose=lambda masses: 1 / 0) == []


@pytest.mark.parametrize("edge", [False, True])
@pytest.mark.parametrize("budget", [1, 5, 20])
def test_expanding_ahead_of_turn_changes_the_calls_and_not_the_tree(budget, edge):
    root = (MASK,) * (3 if edge else 6)
    children, settle = random_children(4, len(root)), goes_on(3) if edge else None
    counted, trees = {}, []
    for frontier in (1, 3, 8):
        calls = []

        def counting(states, calls=calls):
            calls.append({len(state) for state in states})
            return children(states)

        trees.append(grow(root, MASK, budget, counting, settle, frontier=frontier))
        counted[frontier] = len(calls)
        assert all(len(lengths) == 1 for lengths in calls)  # states of one block only
    assert trees[0] == trees[1] == trees[2]
    assert counted[8] <= counted[3] <= counted[1]


def test_every_parent_of_a_draft_on_its_likeliest_order_is_drafted_before_it():
    drafts = grow((MASK,) * 5, MASK, 15, random_children(11, 5))
    known = [(MASK,) * 5, *(draft.state for draft in drafts)]
    for place, draft in enumerate(known[1:], start=1):
        filled = [i for i, token in enumerate(draft) if token != MASK]
        assert any(commit(draft, i, MASK) in known[:place] for i in filled)


def test_a_block_with_one_mask_left_has_no_drafts_but_those_across_its_edge():
    root = (1, MASK, 2)
    assert grow(root, MASK, 8, random_children(0, 3)) == []
    drafts = [draft.state for draft in grow(root, MASK, 8, random_children(0, 3), goes_on(3))]
    assert {(1, 0, 2, MASK, MASK, MASK), (1, 1, 2, MASK, MASK, MASK)} & set(drafts)
    assert all(draft[3:].count(MASK) >= 1 for draft in drafts)


def test_likeliest_orders_position_and_token_jointly():
    log_q = torch.tensor([[0.6, 0.4]]).log()
    log_p = torch.tensor([[[0.6, 0.4], [0.95, 0.05]]]).log()
    found = likeliest(log_q, log_p, torch.tensor([[[10, 11], [12, 13]]]), 3)
    assert list(itertools.chain(found.position[0].tolist(), found.token[0].tolist())) == [1, 0, 0, 12, 10, 11]
