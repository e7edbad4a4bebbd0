"""Throughput at every budget, against decodings whose costs and acceptances follow a law."""

import math

import pytest

from dashboards.predict import predictions
from orchestrator import results
from tests.fake_sweep import FakeCell, control, decode, sweep

STEPS, BLOCKS, PLAIN = 60, 4, 0.01


def cost(n):
    """Seconds of a pass over n drafts, drafting included."""
    return PLAIN * (1 + 0.05 * n)


def accepted(n):
    return 2 * math.log1p(n)


def ratio(n):
    passes = (STEPS - BLOCKS) / (1 + accepted(n))
    return STEPS * PLAIN / (BLOCKS * PLAIN + passes * cost(n))


def predicted(budgets, drafter="spot", **changes):
    cells = [FakeCell("c"), *(FakeCell(f"{drafter}{n}", drafter, n) for n in budgets)]
    plain = {"prefill": 0.0, "target": STEPS * PLAIN, "draft": 0.0, "rest": 0.0}
    records = [control("c", "r0", STEPS, control_seconds=STEPS * PLAIN) | {"seconds": plain}]
    for n in budgets:
        passes = (STEPS - BLOCKS) / (1 + accepted(n))
        spent = {"prefill": 0.0, "target": BLOCKS * PLAIN + passes * cost(n), "draft": 0.0, "rest": 0.0}
        records.append(
            decode(f"{drafter}{n}", "r0", BLOCKS + passes, STEPS, drafted=passes * n, drafted_passes=passes,
                   accepted=passes * accepted(n), seconds=spent, control_seconds=STEPS * PLAIN) | changes
        )  # fmt: skip
    made = sweep(*cells, rows=1)
    return predictions(results.frame(made, records, ()))


def test_a_law_is_found_again_at_every_budget_between_the_smallest_and_the_largest():
    found = predicted([1, 4, 20])["spot"]
    assert found.budgets == tuple(range(1, 21))
    assert found.ratios == pytest.approx([ratio(n) for n in found.budgets])
    assert found.miss == pytest.approx(0, abs=1e-9)


def test_nothing_is_predicted_below_the_smallest_decoded_budget_whose_costs_are_not_those_of_fewer_drafts():
    drafting = {n: {"prefill": 0.0, "target": 1.0, "draft": n * 1.0, "rest": 0.0} for n in (8, 20)}
    made = sweep(FakeCell("c"), FakeCell("s8", "spot", 8), FakeCell("s20", "spot", 20), rows=1)
    records = [control("c", "r0", STEPS)]
    records += [decode(f"s{n}", "r0", 20, STEPS, drafted=16 * n, drafted_passes=16, accepted=40, seconds=spent)
                for n, spent in drafting.items()]  # fmt: skip
    found = predictions(results.frame(made, records, ()))["spot"]
    assert found.budgets == tuple(range(8, 21))
    assert (found.ratios[0], found.ratios[-1]) == pytest.approx((2 / 9, 2 / 21))  # as measured


def test_the_best_budget_may_be_one_that_was_not_decoded():
    found = predicted([1, 20])["spot"]
    best = max(range(1, 21), key=ratio)
    assert found.best == (best, pytest.approx(ratio(best))) and best not in (1, 20)
    assert found.miss is None  # nothing lies between


def test_drafting_is_paid_for_at_every_budget():
    spent = {"prefill": 0.0, "target": 0.0, "draft": 100 * STEPS * PLAIN, "rest": 0.0}
    assert max(predicted([4], seconds=spent)["spot"].ratios) < 0.05


def test_what_was_not_timed_against_the_same_text_is_not_counted():
    assert predicted([4], identical=False) == {}
    assert predicted([4], drafter="oracle") == {}


def test_a_method_without_its_control_is_not_predicted():
    made = sweep(FakeCell("c"), FakeCell("s", "spot", 4), rows=1)
    records = [decode("s", "r0", 20, STEPS, drafted=40, drafted_passes=10, accepted=40)]
    assert predictions(results.frame(made, records, ())) == {}


def test_methods_are_in_the_order_of_the_sweep():
    cells = [FakeCell(f"{name}{n}", f"m{name}", n) for name in range(20) for n in (4, 8)]
    drafted = {"drafted": 40, "drafted_passes": 10, "accepted": 40}
    records = [control("c", "r0", STEPS), *(decode(cell.key, "r0", 20, STEPS, **drafted) for cell in cells)]
    found = predictions(results.frame(sweep(FakeCell("c"), *cells, rows=1), records, ()))
    assert list(found) == [f"m{name}" for name in range(20)]


def test_the_miss_is_how_far_a_budget_left_out_is_from_what_was_measured():
    made = sweep(FakeCell("c"), *(FakeCell(f"s{n}", "spot", n) for n in (2, 4, 8)), rows=1)
    plain = {"prefill": 0.0, "target": 60.0, "draft": 0.0, "rest": 0.0}
    records = [control("c", "r0", 60, control_seconds=60.0) | {"seconds": plain}]
    for n, seconds in ((2, 30.0), (4, 60.0), (8, 30.0)):
        spent = {"prefill": 0.0, "target": seconds, "draft": 0.0, "rest": 0.0}
        records.append(decode(f"s{n}", "r0", 30, 60, drafted=30 * n, drafted_passes=30, accepted=30, seconds=spent,
                              control_seconds=60.0))  # fmt: skip
    assert predictions(results.frame(made, records, ()))["spot"].miss == pytest.approx(1.0)
