"""The step rule, by hand."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from spot.commit import choose, committed, surprise

MASK = 3


def test_token_is_the_argmax_without_the_mask_and_its_odds_count_the_mask_in():
    logits = torch.tensor([[1.0, 2.0, 0.0, 9.0]])
    token, doubt = choose(logits, MASK, 0.0, None)
    assert token.tolist() == [1]
    assert doubt.item() == pytest.approx(math.log(sum(math.exp(x) for x in (1, 0, 9))) - 2)


def test_ties_go_to_the_lowest_token_and_then_the_lowest_position():
    token, r = choose(torch.tensor([[5.0, 5.0, 0.0, 0.0], [0.0, 5.0, 5.0, 0.0]]), MASK, 0.0, None)
    assert token.tolist() == [0, 1]
    assert committed(torch.tensor([[True, True]]), r[None]).tolist() == [[True, False]]
    assert committed(torch.tensor([[False, True]]), r[None]).tolist() == [[False, True]]


def test_a_threshold_commits_every_masked_position_likelier_than_it_and_at_least_the_best_one():
    likely = torch.tensor([[0.95, 0.91, 0.9, 0.99], [0.5, 0.8, 0.3, 0.99]])
    masked = torch.tensor([[True, True, True, False]] * 2)
    against = ((1 - likely) / likely).log()
    commits = committed(masked, against, threshold=0.9)
    assert commits.tolist() == [[True, True, False, False], [False, True, False, False]]
    assert committed(masked, against).tolist() == [[True, False, False, False], [False, True, False, False]]


def test_noise_moves_the_token_and_the_confidence_is_the_tempered_softmax():
    logits, gumbel = torch.tensor([[2.0, 0.0, 0.0, 0.0]]), torch.tensor([[0.0, 8.0, 0.0, 99.0]])
    token, doubt = choose(logits, MASK, 0.5, gumbel)
    assert token.item() == 1
    assert doubt.item() == pytest.approx(math.log(math.exp(4) + 2))


@given(st.floats(17.0, 60.0))
def test_surprise_keeps_its_order_where_float32_probabilities_are_all_one(gap):
    near, nearer = (torch.tensor([g, 0.0], dtype=torch.float32) for g in (gap, gap + 1.0))
    index = torch.tensor([0])
    assert torch.softmax(near, -1)[0] == torch.softmax(nearer, -1)[0] == 1.0
    assert surprise(nearer, index) < surprise(near, index)
    assert surprise(near, index).item() == pytest.approx(math.log1p(math.exp(-gap)), rel=1e-3)


def test_half_precision_logits_are_decided_in_float32():
    _, doubt = choose(torch.tensor([[20.0, 0.0, 0.0, 0.0]], dtype=torch.bfloat16), MASK, 0.0, None)
    assert doubt.dtype == torch.float32 and doubt.item() == pytest.approx(math.log(3) - 20)


def test_the_surest_position_goes_first_at_temperatures_that_leave_no_probability_but_one():
    logits = torch.tensor([[[3.0, 0.0, 0.0, 0.0], [5.0, 0.0, 0.0, 0.0], [4.0, 0.0, 0.0, 0.0]]])
    _, doubt = choose(logits, MASK, 0.01, torch.zeros(1, 3, 4))
    assert (surprise(logits / 0.01, torch.zeros(1, 3, 1, dtype=torch.long)) == 0).all()
    assert committed(torch.ones(1, 3, dtype=torch.bool), doubt).tolist() == [[False, True, False]]
