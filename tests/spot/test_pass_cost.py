"""What a pass costs, and the budget spot-auto makes of it."""

from itertools import accumulate, pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spot import pass_cost
from spot.decoder import Decoding, Pass, Settings
from spot.drafters.spot import Spot
from spot.drafters.spot_auto import SpotAuto
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
    cost = measure_pass_cost(golden_target(8), list(range(8)), Settings(64), Spot(ORDER), [2, 6])
    assert cost.seconds.drafts == cost.accepted.drafts == (0, 2, 6)
    assert 0 < cost.seconds(0) <= cost.seconds(2) <= cost.seconds(6)
    assert 0 == cost.accepted(0) <= cost.accepted(2) <= cost.accepted(6)
    assert cost.pace >= 1 / cost.seconds(0), "draft-free decoding is one of the budgets"
    bounds = [bound for bound, _ in cost.sureness]
    assert bounds == sorted(bounds) and bounds[0] == 0


def test_a_pass_is_charged_what_it_takes_and_a_blocks_first_pass_is_not_counted(monkeypatch):
    phases = {0: (8, 0), 1: (14, 12), 2: (16, 18)}  # seconds in target and draft

    def found(target, prompt, settings, noise, drafter, budget):
        drafter.first_masses = [0.9] * 4 if budget else []
        passes = [Pass(0, 0)] * 2 + [Pass(budget, budget)] * 4 if budget else [Pass(0, 0)] * 8
        seconds = {"prefill": 1.0, "target": phases[budget][0], "draft": phases[budget][1], "rest": 0.0}
        return Decoding([], 8, [((0, 0),)] * 8, passes, 1, seconds)

    monkeypatch.setattr(pass_cost, "decode", found)
    cost = measure_pass_cost(golden_target(8), [], Settings(64), Spot(ORDER), [1, 2])
    assert [cost.seconds(n) for n in (0, 1, 2)] == [1 + 3, 3 + 3, 3.5 + 4.5]
    assert [cost.accepted(n) for n in (0, 1, 2)] == [0, 1, 2]
    assert cost.pace == 8 / 8


def test_a_target_that_is_never_drafted_for_costs_what_a_plain_pass_does():
    cost = measure_pass_cost(golden_target(8), list(range(8)), Settings(64, threshold=1e-9), Spot(ORDER), [2])
    assert cost.best_budget(0.9, 2) == 0 and cost.sureness == ((0.0, 1.0),)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(
    seconds=st.lists(st.floats(0.0, 5.0), min_size=1, max_size=9),
    accepted=st.lists(st.floats(0.0, 1.0), min_size=9, max_size=9),
    factors=st.lists(st.floats(0.1, 2.0), min_size=1, max_size=4),
    first=st.floats(0.0, 1.0),
)
def test_spot_auto_takes_the_budget_that_gains_most_at_the_measured_pace(seconds, accepted, factors, first):
    numbers = range(len(seconds))
    cost = PassCost(
        Curve.of(dict(zip(numbers, accumulate(seconds), strict=True))),
        Curve.of(dict(zip(range(9), accumulate(accepted), strict=True))),
        pace=0.7,
        sureness=tuple((i / len(factors), factor) for i, factor in enumerate(factors)),
    )
    factor = factors[min(int(first * len(factors) + 1e-9), len(factors) - 1)]
    gain = [factor * cost.accepted(n) - 0.7 * cost.seconds(n) for n in range(9)]
    assert gain[cost.best_budget(first, 8)] == pytest.approx(max(gain))


def test_spot_auto_drafts_all_it_may_where_drafts_are_free_and_nothing_where_nothing_is_accepted():
    free, dear = Curve((0, 8), (1.0, 1.0)), Curve((0, 8), (1.0, 3.0))
    accepted, never = Curve((0, 1, 8), (0.0, 0.8, 3.0)), Curve((0, 8), (0.0, 0.0))
    assert PassCost(free, accepted, 4.0).best_budget(0.5, 8) == 8
    assert PassCost(dear, never, 1.0).best_budget(0.95, 8) == 0


def test_spot_auto_drafts_more_where_it_is_surer():
    cost = PassCost(Curve((0, 8), (1.0, 2.0)), Curve((0, 1, 8), (0.0, 0.8, 3.0)), 2.0, ((0.0, 0.2), (0.5, 1.0)))
    assert cost.best_budget(0.4, 8) == 0 < cost.best_budget(0.6, 8)


@pytest.mark.parametrize("edge", [False, True])
def test_spot_auto_drafts_the_first_of_what_spot_drafts(edge):
    spot, budgets = Spot(ORDER, edge=edge), set()
    for scale in (3.0, 8.0, 20.0):
        context = situation(done={2: 5}, scale=scale, next_table=True)
        for dearer in (0.02, 2.0, 9.0):
            seconds = Curve.of({n: 1 + dearer * (n / 20) ** 2 for n in range(21)})
            drafts = SpotAuto(spot, PassCost(seconds, ACCEPTED, 1.0)).draft(context, 20)
            assert drafts == spot.draft(context, 20)[: len(drafts)]
            budgets.add(len(drafts))
    assert len(budgets) > 2


def test_spot_auto_without_a_measured_cost_takes_the_whole_budget():
    context = situation(done={2: 5})
    assert SpotAuto(Spot(ORDER)).draft(context, 9) == Spot(ORDER).draft(context, 9)
