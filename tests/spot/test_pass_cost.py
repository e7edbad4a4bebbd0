"""What a pass costs, and the budget spot-auto makes of it."""

import math
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spot.decoder import Settings
from spot.drafters.spot import Spot
from spot.drafters.spot_auto import SpotAuto, best_budget
from spot.drafters.stale import Stale
from spot.pass_cost import PassCost, measure_pass_cost
from tests.spot.support import golden_target, random_order_model, situation

ORDER = random_order_model()


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.dictionaries(st.integers(0, 64), st.floats(0.01, 10.0), min_size=1, max_size=8))
def test_the_cost_never_falls_and_is_what_was_measured_where_that_did_not_fall(measured):
    cost = PassCost.of(measured)
    costs = [cost(n) for n in range(min(measured), max(measured) + 8)]
    assert all(b >= a - 1e-9 for a, b in pairwise(costs))
    for n in measured:
        assert cost(n) == pytest.approx(min(s for m, s in measured.items() if m >= n))


def test_the_cost_is_linear_between_measurements_and_goes_on_at_the_last_slope():
    cost = PassCost.of({4: 1.2, 0: 1.0, 16: 3.0})
    assert [cost(n) for n in (0, 2, 4, 10, 16, 24)] == pytest.approx([1.0, 1.1, 1.2, 2.1, 3.0, 4.2])


def test_one_measurement_is_a_constant():
    assert PassCost.of({4: 2.0})(0) == PassCost.of({4: 2.0})(40) == 2.0


def test_a_cost_is_measured_without_drafts_and_at_the_budgets_asked_for():
    cost = measure_pass_cost(golden_target(8), list(range(8)), Settings(64), Stale(), [2, 6])
    assert cost.drafts == (0, 2, 6) and 0 < cost(0) <= cost(2) <= cost(6)


def forecast(children: list[float], count: int) -> list[float]:
    """The `count` largest masses of a tree in which every state has these children: products of all sequences."""
    sequences = (path for depth in range(1, 6) for path in product(children, repeat=depth))
    return sorted((math.prod(path) for path in sequences), reverse=True)[:count]


@pytest.mark.parametrize("children", [[0.9, 0.05], [0.5, 0.3, 0.1], [0.2, 0.2, 0.1], [0.05]])
@pytest.mark.parametrize("seconds", [(1.0, 1.0, 1.2), (1.0, 1.3, 3.0), (1.0, 3.0, 9.0), (1.0, 6.0, 7.0)])
def test_spot_auto_drafts_as_long_as_one_more_draft_raises_the_forecast_steps_a_second(children, seconds):
    cost, masses = PassCost((0, 3, 6), seconds), forecast(children, 5)
    worth = [(1 + sum(masses[:n])) / cost(n) for n in range(len(masses) + 1)]
    rising = [b > a for a, b in pairwise(worth)]
    expected = rising.index(False) if False in rising else len(masses)
    assert best_budget([math.log(mass) for mass in children], cost, len(masses)) == expected


@pytest.mark.parametrize("edge", [False, True])
def test_spot_auto_drafts_the_first_of_what_spot_drafts(edge):
    spot, budgets = Spot(ORDER, edge=edge), set()
    for scale in (3.0, 8.0, 20.0):
        context = situation(done={2: 5}, scale=scale, next_table=True)
        for last in (1.02, 1.5, 9.0):
            drafts = SpotAuto(spot, PassCost((0, 20), (1.0, last))).draft(context, 20)
            assert drafts == spot.draft(context, 20)[: len(drafts)]
            budgets.add(len(drafts))
    assert len(budgets) > 2


def test_spot_auto_without_a_measured_cost_takes_the_whole_budget():
    context = situation(done={2: 5})
    assert SpotAuto(Spot(ORDER)).draft(context, 9) == Spot(ORDER).draft(context, 9)
