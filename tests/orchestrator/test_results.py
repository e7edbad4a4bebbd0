"""Every number of a table, worked out by hand."""

import numpy as np
import pytest

from orchestrator import results
from orchestrator.errors import UserError
from tests.fake_sweep import FakeCell, control, decode, score, sweep

CONTROL, SPOT, SSD = FakeCell("c"), FakeCell("s", "spot", 4), FakeCell("d", "ssd", 4)


def drafts(passes, drafted, by_depth):
    return {"drafted_passes": passes, "drafted": drafted, "accepted": sum(by_depth), "accepted_by_depth": by_depth}


def two_rows():
    """control_nfe 60 and 80, nfe 20 and 20; 10 + 10 drafted passes accept 20 + 10 of 80 drafts."""
    plan = sweep(CONTROL, SPOT)
    records = [
        control("c", "r0", 60), control("c", "r1", 80),
        decode("s", "r0", 20, 60, **drafts(10, 40, [10, 6, 4])), decode("s", "r1", 20, 80, **drafts(10, 40, [8, 2])),
    ]  # fmt: skip
    return plan, records, [score("r0", True), score("r1", False)]


def summarised(plan, records, scores=()):
    return results.summary(plan, results.frame(plan, records, scores))


def line(table, cell):
    return table[table["cell"] == cell].iloc[0]


def test_nfe_ratio_is_a_ratio_of_sums_over_common_rows():
    spot = line(summarised(*two_rows()), "s")
    assert (spot["nfe"], spot["nfe_ratio"]) == (20.0, 3.5)


def test_acceptance_is_accepted_per_drafted_pass_with_share_and_survival_beside_it():
    spot = line(summarised(*two_rows()), "s")
    assert spot["acceptance"] == 1.5
    assert spot["accepted_share"] == 30 / 80
    assert spot["survival"] == [0.9, 0.4, 0.2]


def test_the_control_has_ratio_one_and_no_acceptance_at_all():
    own = line(summarised(*two_rows()), "c")
    assert (own["nfe"], own["nfe_ratio"], own["throughput_ratio"]) == (70.0, 1.0, 1.0)
    assert own["acceptance"] is None and own["accepted_share"] is None and own["survival"] is None


def test_times_are_shares_of_decoding_and_tokens_per_second_includes_prefill_and_drafting():
    spot = line(summarised(*two_rows()), "s")
    assert [spot[f"time_{phase}"] for phase in ("prefill", "target", "draft", "rest")] == [0.125, 0.5, 0.25, 0.125]
    assert spot["tokens_per_second"] == 8.0


def test_throughput_ratio_sums_only_rows_with_identical_texts():
    plan, records, _ = two_rows()
    records[3] |= {"identical": False, "difference": "numeric", "text": "other", "control_seconds": 100.0}
    spot = line(summarised(plan, records), "s")
    assert spot["throughput_ratio"] == 2.0
    assert (spot["identical"], spot["numeric"], spot["bug"]) == (0.5, 1, 0)


def position_oracle(key, budget, **changes):
    return FakeCell(key, "oracle-positions", budget, drafter_options=(("knows", "positions"),), **changes)


def test_the_oracle_share_is_what_a_method_recovers_of_the_position_oracles_reduction_over_common_rows():
    plan = sweep(CONTROL, SPOT, position_oracle("o", 4), rows=3)
    records = [
        control("c", "r0", 60), decode("s", "r0", 30, 60), decode("o", "r0", 20, 60),
        control("c", "r1", 80), decode("s", "r1", 50, 80), decode("o", "r1", 40, 80),
        decode("s", "r2", 1, 80), decode("o", "r2", 0, 0, status="failed", error="x"),
    ]  # fmt: skip
    table = summarised(plan, records)
    assert line(table, "s")["oracle_share"] == (30 + 30) / (40 + 40)
    assert line(table, "o")["oracle_share"] == 1.0
    assert line(table, "c")["oracle_share"] is None


@pytest.mark.parametrize(
    "other", [position_oracle("o", 8), position_oracle("o", 4, seed=1), FakeCell("o", "oracle-both", 4)]
)
def test_without_a_position_oracle_at_its_budget_and_seed_a_method_has_no_oracle_share(other):
    table = summarised(sweep(CONTROL, SPOT, other), [decode("s", "r0", 30, 60), decode("o", "r0", 20, 60)])
    assert line(table, "s")["oracle_share"] is None


def test_an_oracle_is_untimed():
    oracle = FakeCell("o", "oracle-both", 4)
    assert line(summarised(sweep(oracle), [decode("o", "r0", 10, 60)]), "o")["throughput_ratio"] is None


def test_accuracy_joins_scores_by_text_so_a_method_with_the_same_text_needs_no_score_of_its_own():
    table = summarised(*two_rows())
    assert list(table["accuracy"]) == [0.5, 0.5] and list(table["scored"]) == [2, 2]


def test_a_different_text_is_not_given_the_score_of_the_control():
    plan, records, scores = two_rows()
    records[3] |= {"text_sha": "sha-other", "identical": False}
    spot = line(summarised(plan, records, scores), "s")
    assert (spot["accuracy"], spot["scored"]) == (1.0, 1)


def test_the_latest_score_of_a_text_wins():
    plan, records, scores = two_rows()
    again = score("r1", True, scorer="v2", started=scores[1]["started"] + 1)
    assert line(summarised(plan, records, [again, *scores]), "s")["accuracy"] == 1.0


def test_rows_outside_the_plan_are_left_out():
    plan, records, _ = two_rows()
    assert line(summarised(plan, [*records, decode("s", "r7", 1, 60)]), "s")["n"] == 2


def test_failed_samples_count_as_failed_not_as_wrong_and_not_as_fast():
    plan, records, scores = two_rows()
    records[3] = {"kind": "decode", "cell": "s", "row": "r1", "status": "failed", "error": "CUDA"}
    spot = line(summarised(plan, records, scores), "s")
    assert (spot["n"], spot["failed"], spot["planned"], spot["nfe_ratio"], spot["accuracy"]) == (1, 1, 2, 3.0, 1.0)


def test_a_text_equal_to_the_control_is_put_back():
    plan, records, scores = two_rows()
    samples = results.frame(plan, records, scores)
    assert list(samples["text"]) == ["text of r0", "text of r1"] * 2


def test_a_cell_without_any_record_is_a_row_of_nones_and_zero_of_n():
    spot = line(summarised(sweep(CONTROL, SPOT), []), "s")
    assert (spot["n"], spot["planned"]) == (0, 2)
    assert all(spot[name] is None for name in results.MEASURES)


def test_no_number_of_a_summary_is_nan():
    table = summarised(sweep(CONTROL, SPOT), [control("c", "r0", 60)])
    assert not any(isinstance(value, float) and np.isnan(value) for value in table.to_numpy().ravel())


def terms(above, below):
    return results.Terms(np.arange(len(above)), np.asarray(above, float), np.asarray(below, float))


def test_an_interval_holds_the_ratio_and_is_the_same_every_time():
    control_nfe = np.arange(50.0, 90.0)
    found = results.ratio([terms(control_nfe, [20] * 40)])
    assert found.low < 3.475 < found.high and found.value == pytest.approx(3.475)
    assert found == results.ratio([terms(control_nfe, [20] * 40)])
    assert found.high - found.low == pytest.approx(2 * 1.96 * control_nfe.std() / 40**0.5 / 20, rel=0.1)


def test_one_row_has_no_interval():
    assert results.ratio([terms([60], [20])]) == (3.0, None, None)
    assert results.ratio_interval(np.array([60.0]), np.array([20.0])) == (None, None)


def test_seeds_of_one_prompt_do_not_count_as_prompts():
    """Three seeds that tell the same leave the interval as wide as one does."""
    one = terms(np.arange(50.0, 90.0), [20] * 40)
    assert results.ratio([one, one, one]) == pytest.approx(results.ratio([one]))


def test_a_ratio_of_ratios_draws_the_same_rows_on_both_sides():
    slow, fast = terms(np.arange(50.0, 90.0), [20] * 40), terms(np.arange(50.0, 90.0), [10] * 40)
    assert results.ratio([fast], [slow]) == pytest.approx((2.0, 2.0, 2.0))


def scored(count, right, seeds=1):
    """So many prompts, each decoded with every seed, of which the first are right."""
    cells = [FakeCell(f"s{seed}", "spot", 4, seed=seed) for seed in range(seeds)]
    records = [decode(cell.key, f"r{i}", 20, 60) for cell in cells for i in range(count)]
    row = both(sweep(*cells, rows=count), records, [score(f"r{i}", i < right) for i in range(count)]).iloc[0]
    return row["accuracy"], row["accuracy_low"], row["accuracy_high"]


def test_an_accuracy_has_wilsons_interval_which_is_never_empty():
    assert scored(16, 16) == pytest.approx((1.0, 0.8064, 1.0), abs=1e-4)
    assert scored(16, 0) == pytest.approx((0.0, 0.0, 0.1936), abs=1e-4)
    assert scored(10, 8) == pytest.approx((0.8, 0.4902, 0.9433), abs=1e-4)
    assert max(scored(16, 16)) <= 1 and min(scored(16, 0)) >= 0


def test_of_an_accuracy_too_seeds_of_one_prompt_do_not_count_as_prompts():
    assert scored(10, 8, seeds=3) == pytest.approx(scored(10, 8))


def seeds(*nfes):
    cells = [FakeCell(f"s{seed}", "spot", 4, temperature=1.0, seed=seed) for seed in range(len(nfes))]
    records = [decode(f"s{seed}", "r0", nfe, 60) for seed, nfe in enumerate(nfes)]
    return summarised(sweep(*cells, rows=1), records)


def test_seeds_merge_to_mean_and_sample_deviation():
    merged = results.over_seeds(seeds(10, 20, 30))
    assert len(merged) == 1
    row = merged.iloc[0]
    assert (row["seeds"], row["nfe"], row["nfe_sd"], row["n"], row["planned"]) == (3, 20.0, 10.0, 3, 3)
    assert row["nfe_ratio"] == pytest.approx((6 + 3 + 2) / 3)


def test_one_seed_has_no_deviation():
    assert results.over_seeds(seeds(10)).iloc[0]["nfe_sd"] is None


def test_an_unfinished_seed_weighs_by_its_samples():
    cells = [FakeCell(f"s{seed}", "spot", 4, seed=seed) for seed in (0, 1)]
    records = [decode("s0", f"r{i}", 20, 60) for i in range(3)] + [decode("s1", "r0", 60, 60)]
    merged = results.over_seeds(summarised(sweep(*cells, rows=3), records)).iloc[0]
    assert (merged["nfe"], merged["n"], merged["planned"]) == (30.0, 4, 6)
    assert merged["nfe_sd"] is None  # of three samples and of one, it would be mostly one over prompts


def test_an_accuracy_has_a_deviation_once_every_text_is_scored():
    cells = [FakeCell(f"s{seed}", "spot", 4, seed=seed) for seed in (0, 1)]
    records = [decode(f"s{seed}", row, 20, 60, text_sha=f"{seed}{row}") for seed in (0, 1) for row in ("r0", "r1")]
    scores = [score(row, not seed, text_sha=f"{seed}{row}") for seed in (0, 1) for row in ("r0", "r1")]
    assert both(sweep(*cells), records, scores).iloc[0]["accuracy_sd"] == pytest.approx(0.5**0.5)
    assert both(sweep(*cells), records, scores[:3]).iloc[0]["accuracy_sd"] is None


def test_seeds_that_plan_other_rows_are_told_from_seeds_of_the_same():
    cells = [FakeCell(f"s{seed}", "spot", 4, seed=seed) for seed in (0, 1)]
    same, other = sweep(*cells), sweep(*cells)
    other.rows["s1"] = ("r0", "r2")
    records = [decode("s0", "r0", 20, 60), decode("s1", "r0", 20, 60)]  # what is decoded does not tell
    assert [both(plan, records).iloc[0]["own_prompts"] for plan in (same, other)] == [False, True]
    assert not both(sweep(cells[0]), records[:1]).iloc[0]["own_prompts"]


def test_depths_weigh_by_samples_too_so_that_they_add_up_to_the_acceptance():
    cells = [FakeCell(f"s{seed}", "spot", 4, seed=seed) for seed in (0, 1)]
    records = [decode("s0", f"r{i}", 20, 60, **drafts(10, 40, [10, 5])) for i in range(3)]
    row = both(sweep(*cells, rows=3), [*records, decode("s1", "r0", 60, 60, **drafts(10, 40, [2]))]).iloc[0]
    assert row["survival"] == pytest.approx([0.8, 0.375]) and row["acceptance"] == pytest.approx(1.175)


def both(plan, records, scores=()):
    samples = results.frame(plan, records, scores)
    return results.over_seeds(results.summary(plan, samples), samples)


def test_seeds_have_an_interval_over_prompts_where_samples_are_given():
    cells = [FakeCell(f"s{seed}", "spot", 4, seed=seed) for seed in (0, 1)]
    records = [decode(cell.key, f"r{i}", 20, 50 + i) for cell in cells for i in range(40)]
    row = both(sweep(*cells, rows=40), records).iloc[0]
    assert row["nfe_ratio_low"] < row["nfe_ratio"] < row["nfe_ratio_high"]
    assert row["cells"] == {0: "s0", 1: "s1"}


def ranks(rows, name):
    return dict(zip(rows["drafter"], rows[f"{name}_rank"], strict=True))


def race(spot, ssd, rows=20):
    """Two methods and an oracle at budget 4; `spot(i)` and `ssd(i)` are passes on row i, and tenths of a second."""
    plan = sweep(CONTROL, SPOT, SSD, FakeCell("o", "oracle-both", 4), rows=rows)
    records = [control("c", f"r{i}", 60) for i in range(rows)]
    for key, passes in (("s", spot), ("d", ssd), ("o", lambda i: 5)):
        for i in range(rows):
            seconds = {"prefill": 0.0, "target": passes(i) / 10, "draft": 0.0, "rest": 0.0}
            records.append(decode(key, f"r{i}", passes(i), 60, seconds=seconds))
    return plan, records


def test_the_best_complete_method_is_best_and_neither_control_nor_oracle_competes():
    rows = both(*race(lambda i: 20, lambda i: 30))
    assert ranks(rows, "nfe") == {"none": None, "spot": "best", "ssd": None, "oracle-both": None}
    assert ranks(rows, "throughput_ratio") == ranks(rows, "nfe")


def test_methods_tie_where_the_interval_of_their_paired_ratio_holds_one():
    rows = both(*race(lambda i: 20 + 5 * (i % 2), lambda i: 23))  # 22.5 and 23, each ahead on half of the rows
    assert ranks(rows, "nfe")["ssd"] == "tied"
    rows = both(*race(lambda i: 20 + 5 * (i % 2), lambda i: 20.5 + 5 * (i % 2)))  # a half behind on every row
    assert ranks(rows, "nfe")["ssd"] is None


def test_an_incomplete_method_does_not_compete():
    plan, records = race(lambda i: 20, lambda i: 30)
    rows = both(plan, [record for record in records if (record["cell"], record["row"]) != ("s", "r3")])
    assert ranks(rows, "nfe") == {"none": None, "spot": None, "ssd": None, "oracle-both": None}


def line_of(rows, drafter):
    return rows[rows["drafter"] == drafter].iloc[0]


def test_any_method_is_the_baseline_over_the_rows_that_both_have():
    plan, records = race(lambda i: 10 + i, lambda i: 30, rows=3)
    records = [record for record in records if (record["cell"], record["row"]) != ("d", "r2")]
    samples = results.frame(plan, records, ())
    samples = results.against(samples, "ssd", samples)
    rows = results.over_seeds(results.summary(plan, samples), samples)
    spot = line_of(rows, "spot")
    assert spot["nfe_ratio"] == spot["throughput_ratio"] == pytest.approx(60 / 21)
    assert (spot["wins"], spot["ties"], spot["losses"], spot["nfe"], spot["pair"]) == (2, 0, 0, 11.0, "ssd")
    assert line_of(rows, "ssd")["nfe_ratio"] == 1.0 and line_of(rows, "none")["nfe_ratio"] is None
    assert line_of(rows, "oracle-both")["throughput_ratio"] is None


def test_a_control_of_another_sweep_is_a_baseline_and_times_count_where_texts_are_the_same():
    """A threshold cell beside the single-position control: its passes on every row, its time where the text agrees."""
    plan, records, _ = two_rows()
    slow = [control("c", "r0", 120), control("c", "r1", 160, text_sha="sha-other")]
    other = results.frame(sweep(CONTROL), slow, ())
    samples = results.against(results.frame(plan, records, ()), "control", other)
    table = results.summary(plan, samples)
    assert line(table, "c")["nfe_ratio"] == 280 / 140 and line(table, "s")["nfe_ratio"] == 280 / 40
    assert line(table, "s")["throughput_ratio"] == 2.0  # r0 alone: 2 s over 1 s
    assert line(table, "s")["identical"] == 1.0  # still to its own control's


def test_cells_are_won_tied_and_lost_by_the_interval_of_the_ratio():
    cells = [FakeCell(f"s{budget}", "spot", budget) for budget in (4, 8, 16)]
    nfes = {"s4": lambda i: 30, "s8": lambda i: 59 + 2 * (i % 2), "s16": lambda i: 90}
    records = [decode(key, f"r{i}", nfe(i), 60) for key, nfe in nfes.items() for i in range(20)]
    assert results.tally(both(sweep(*cells, rows=20), records))["spot"]["nfe_ratio"] == (1, 1, 1)


def test_a_cell_whose_pair_is_unfinished_is_not_counted_as_won():
    plan, records = race(lambda i: 20, lambda i: 30)
    for made, cells in (
        (records, (1, 0, 0)),
        ([r for r in records if (r["cell"], r["row"]) != ("d", "r3")], (0, 0, 0)),
    ):
        samples = results.frame(plan, made, ())
        samples = results.against(samples, "ssd", samples)
        rows = results.over_seeds(results.summary(plan, samples), samples)
        assert results.tally(rows).get("spot", {}).get("nfe_ratio", (0, 0, 0)) == cells


def test_what_decoded_another_length_is_no_pair():
    plan, records, _ = two_rows()
    longer = results.frame(sweep(FakeCell("c", gen_length=128)), [control("c", "r0", 120)], ())
    samples = results.against(results.frame(plan, records, ()), "control", longer, "longer:control")
    assert line(results.summary(plan, samples), "s")["nfe_ratio"] is None


def test_a_method_that_is_not_there_is_no_baseline():
    with pytest.raises(UserError, match=r"baseline: no method 'spotty' in first; it has control, spot, ssd"):
        results.check_method(sweep(CONTROL, SPOT, SSD), "spotty")
