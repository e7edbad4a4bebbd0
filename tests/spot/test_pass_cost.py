"""What a pass costs, and the budget spot-auto makes of it."""

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spot.decoder import Settings
from spot.drafters.spot import Spot
from spot.drafters.spot_auto import SpotAuto, best_budget
from spot.drafters.stale import Stale
from spot.pass_cost import Curve, PassCost, measure_pass_cost
from tests.spot.support import golden_target, random_order_model, situation

ORDER = random_order_model()
ACCEPTED = Curve((0, 1, 6, 20), (0.0, 0.7, 2.0, 4.0))


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.integers(0, 64), st.floats(0.01, 10.0), min_size=1, max_size=8))
def test_the_cost_never_falls_and_is_what_was_measured_where_that_did_not_fall(measured):
    cost = Curve.of(measured)
    costs = [cost(n) for n in range(min(measured), max(measured) + 8)]
    assert all(b >= a - 1e-9 for a, b in pairwise(costs))
    for n in measured:
        assert cost(n) == pytest.approx(min(s for m, s in measured.items() if m >= n))


def test_the_cost_is_linear_between_measurements_and_goes_on_at_the_last_slope():
    cost = Curve.of({4: 1.2, 0: 1.0, 16: 3.0})
    assert [cost(n) for n in (0, 2, 4, 10, 16, 24)] == pytest.approx([1.0, 1.1, 1.2, 2.1, 3.0, 4.2])


def test_one_measurement_is_a_constant():
    assert Curve.of({4: 2.0})(0) == Curve.of({4: 2.0})(40) == 2.0


def test_a_cost_is_measured_without_drafts_and_at_the_budgets_asked_for():
    cost = measure_pass_cost(golden_target(8), list(range(8)), Settings(64), Stale(), [2, 6])
    assert cost.seconds.drafts == cost.accepted.drafts == (0, 2, 6)
    assert 0 < cost.seconds(0) <= cost.seconds(2) <= cost.seconds(6)
    assert 0 == cost.accepted(0) <= cost.accepted(2) <= cost.accepted(6)


@pytest.mark.parametrize("first", [0.1, 0.5, 0.95])
@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.2), (1.0, 1.3, 3.0), (1.0, 3.0, 9.0), (1.0, 6.0, 7.0)])
def test_spot_auto_takes_the_budget_that_brings_the_most_steps_a_second(first, seconds):
    cost = PassCost(Curve((0, 3, 6), seconds), ACCEPTED)
    worth = [(1 + first / ACCEPTED(1) * ACCEPTED(n)) / cost.seconds(n) for n in range(6)]
    assert worth[best_budget(first, cost, 5)] == max(worth)


def test_spot_auto_drafts_more_where_it_is_surer_and_nothing_where_nothing_is_accepted():
    cost = PassCost(Curve((0, 8), (1.0, 3.0)), Curve((0, 1, 8), (0.0, 0.8, 3.0)))
    assert best_budget(0.05, cost, 8) == 0 < best_budget(0.95, cost, 8)
    assert best_budget(0.95, PassCost(cost.seconds, Curve((0, 8), (0.0, 0.0))), 8) == 0


@pytest.mark.parametrize("edge", [False, True])
def test_spot_auto_drafts_the_first_of_what_spot_drafts(edge):
    spot, budgets = Spot(ORDER, edge=edge), set()
    for scale in (3.0, 8.0, 20.0):
        context = situation(done={2: 5}, scale=scale, next_table=True)
        for last in (1.02, 1.5, 9.0):
            drafts = SpotAuto(spot, PassCost(Curve((0, 20), (1.0, last)), ACCEPTED)).draft(context, 20)
            assert drafts == spot.draft(context, 20)[: len(drafts)]
            budgets.add(len(drafts))
    assert len(budgets) > 2


def test_spot_auto_without_a_measured_cost_takes_the_whole_budget():
    context = situation(done={2: 5})
    assert SpotAuto(Spot(ORDER)).draft(context, 9) == Spot(ORDER).draft(context, 9)
