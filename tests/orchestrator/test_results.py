"""Every number of a table, worked out by hand."""

import csv
import io

import numpy as np
import pytest
from rich.console import Console

from orchestrator import results
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


def test_the_oracle_share_is_a_column_only_where_there_is_one_and_fits_a_terminal():
    plan = sweep(CONTROL, SPOT, position_oracle("o", 4))
    records = [decode("s", "r0", 30, 60), decode("o", "r0", 20, 60)]
    with_oracle, without = summarised(plan, records), summarised(*two_rows())
    shown = rendered(with_oracle, 80)
    assert "75%" in shown and "100%" in shown and "oracle-positions †" in shown
    assert "oracle share" in results.to_markdown(with_oracle)
    assert "share" not in rendered(without, 80) and "share" not in results.to_markdown(without)


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


def test_an_interval_holds_the_ratio_and_is_the_same_every_time():
    control_nfe = np.arange(50.0, 90.0)
    nfe = np.full(40, 20.0)
    low, high = results.ratio_interval(control_nfe, nfe)
    assert low < 3.475 < high and (low, high) == results.ratio_interval(control_nfe, nfe)
    assert high - low == pytest.approx(2 * 1.96 * control_nfe.std() / 40**0.5 / 20, rel=0.1)


def test_one_row_has_no_interval():
    assert results.ratio_interval(np.array([60.0]), np.array([20.0])) == (None, None)


def seeds(*nfes):
    cells = [FakeCell(f"s{seed}", "spot", 4, temperature=1.0, seed=seed) for seed in range(len(nfes))]
    return summarised(sweep(*cells), [decode(f"s{seed}", "r0", nfe, 60) for seed, nfe in enumerate(nfes)])


def test_seeds_merge_to_mean_and_sample_deviation():
    merged = results.over_seeds(seeds(10, 20, 30))
    assert len(merged) == 1
    row = merged.iloc[0]
    assert (row["seeds"], row["nfe"], row["nfe_sd"], row["n"], row["planned"]) == (3, 20.0, 10.0, 3, 6)
    assert row["nfe_ratio"] == pytest.approx((6 + 3 + 2) / 3)


def test_one_seed_has_no_deviation():
    assert results.over_seeds(seeds(10)).iloc[0]["nfe_sd"] is None


def test_the_best_of_rivals_at_one_budget_is_marked_and_a_lone_method_is_not():
    plan = sweep(CONTROL, SPOT, SSD, FakeCell("e", "ssd", 8))
    records = [control("c", "r0", 60), decode("s", "r0", 20, 60), decode("d", "r0", 30, 60), decode("e", "r0", 25, 60)]
    rows = results.display_rows(summarised(plan, records))
    assert [(row["method"], row["budget"]) for row in rows if row["best"]] == [("spot", "4")]
    assert "**3.00**" in results.to_markdown(summarised(plan, records))


def rendered(table, width):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(results.table(table))
    return console.file.getvalue()


@pytest.mark.parametrize("width", [80, 200])
def test_the_terminal_table_keeps_every_number_at_any_width(width):
    shown = rendered(summarised(*two_rows()), width)
    assert all(text in shown for text in ("control", "spot", "20.0", "3.50", "2.00", "1.50", "50.0%", "100.0%", "2/2"))
    assert max(map(len, shown.splitlines())) <= width and "…" not in shown


def test_an_unfinished_cell_shows_n_of_planned_and_its_failures():
    records = [decode("s", "r0", 20, 60), decode("s", "r1", 0, 0, status="failed", error="CUDA")]
    assert results.display_rows(summarised(sweep(SPOT, rows=5), records))[0]["done"] == "1/5 1✗"


def test_numeric_exceptions_are_counted_beside_identical():
    plan, records, _ = two_rows()
    records[3] |= {"identical": False, "difference": "numeric"}
    assert results.display_rows(summarised(plan, records))[1]["identical"] == "50.0% (1)"


def test_models_and_tasks_become_columns_only_where_there_are_several():
    one, two = summarised(sweep(CONTROL), []), summarised(sweep(CONTROL, FakeCell("x", task="gsm8k")), [])
    assert "task" not in results.to_markdown(one) and "| task |" in results.to_markdown(two)


def test_csv_keeps_full_precision_and_one_line_a_cell():
    lines = list(csv.DictReader(io.StringIO(results.to_csv(summarised(*two_rows())))))
    assert [entry["cell"] for entry in lines] == ["c", "s"] and lines[1]["accepted_share"] == "0.375"


def test_latex_is_booktabs_with_escaped_percent_signs():
    text = results.to_latex(summarised(*two_rows()))
    assert text.startswith("\\begin{tabular}{lrrrrrrrrr}\n\\toprule") and "50.0\\%" in text
    assert "spot & 4 & 0 & 20.0 & 3.50 & 2.00 & 1.50" in text


def test_an_empty_sweep_prints_an_empty_table():
    assert results.to_markdown(summarised(sweep(), [])).count("\n") == 2


def test_throughput_on_a_gpu_that_others_used_is_marked_wherever_it_is_shown():
    plan, records, _ = two_rows()
    table = summarised(plan, [*records[:3], records[3] | {"per_gpu": 2}])
    assert [line(table, cell)["shared"] for cell in "cs"] == [0, 1]
    assert [row["throughput_ratio"] for row in results.display_rows(table)] == ["1.00", "2.00 ‡"]
    shown = Console(width=80, record=True, file=io.StringIO())
    shown.print(results.table(table))
    assert "‡ timed on a GPU that other workers used, too." in shown.export_text()
    assert r"$\ddagger$" in results.to_latex(table)
