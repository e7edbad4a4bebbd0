"""Both layouts in every format: what a reader finds in them, and that nothing of it is cut or left unescaped."""

import csv
import io
import json
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from functools import cache
from html.parser import HTMLParser

import pytest
from rich.cells import cell_len
from rich.console import Console

import launch
from orchestrator import results, tables
from tests.fake_sweep import FakeCell, control, decode, on_disk, real_cell, score, sweep

CONTROL, SPOT, SSD = FakeCell("c"), FakeCell("s", "spot", 4), FakeCell("d", "ssd", 4)
DRAFTERS = {"spot": 20, "ssd": 30, "oracle-positions": 12}  # passes


def merged(plan, records, scores=()):
    samples = results.frame(plan, records, scores)
    return results.over_seeds(results.summary(plan, samples), samples)


def two_rows(**changes):
    plan = sweep(CONTROL, SPOT)
    first = decode("s", "r0", 20, 60, drafted=40, drafted_passes=10, accepted=15)
    records = [control("c", "r0", 60), control("c", "r1", 80), first, decode("s", "r1", 20, 80, **changes)]
    return plan, records, [score("r0", True), score("r1", False)]


def paper(tasks=("gsm8k", "mbpp"), budgets=(8, 20), seeds=(0, 1, 2), rows=4):
    """A sweep of the paper's shape, whose numbers are in DRAFTERS: rows differ by one each way, seeds by two."""
    cells, records = [], []
    for task in tasks:
        for seed in seeds:
            made = [FakeCell(f"{task}-{seed}", task=task, seed=seed)]
            records += [control(made[0].key, f"r{i}", 60, text_sha=f"{task}{i}") for i in range(rows)]
            for drafter, passes in DRAFTERS.items():
                for budget in budgets:
                    options = (("knows", "positions"),) if drafter.startswith("oracle") else ()
                    made.append(FakeCell(f"{task}-{seed}-{drafter}-{budget}", drafter, budget, task=task, seed=seed,
                                         drafter_options=options))  # fmt: skip
                    nfe = passes - (budget == 20) * 4 + 2 * (seed - 1)
                    records += [decode(made[-1].key, f"r{i}", nfe + (-1) ** i, 60, text_sha=f"{task}{i}")
                                for i in range(rows)]  # fmt: skip
            cells += made
    return sweep(*cells, rows=rows), records


@cache
def paper_rows():
    """What the tables of `paper()` are made of; no test changes it."""
    return merged(*paper())


def printed(sheet, width):
    console = Console(width=width, file=io.StringIO(), force_terminal=False)
    console.print(tables.terminal(sheet, width))
    return console.file.getvalue()


def notes(sheet):
    return [note.text for note in sheet.notes]


def entry(sheet, method, column, panel=0):
    shown = sheet.panels[panel]
    index = [" ".join((*c.groups, c.heading)) for c in shown.columns].index(column)
    return next(line for line in shown.lines if line.entries[0].text == method).entries[index]


# ---- the main table


def test_the_main_table_has_a_line_a_method_and_for_each_task_and_budget_passes_and_throughput():
    (panel,) = tables.main(paper_rows()).panels
    assert panel.title == "tiny · T = 0 · 64 tokens"
    assert [line.entries[0].text for line in panel.lines] == ["control", "spot", "ssd", "oracle-positions †"]
    assert [c.groups for c in panel.columns[1::2]] == [
        (t, b) for t in ("gsm8k", "mbpp") for b in ("budget 8", "budget 20")
    ]
    assert {c.heading for c in panel.columns[1::2]} == {"NFE"} and {c.heading for c in panel.columns[2::2]} == {
        "thr. ratio"
    }


def test_numbers_are_means_over_seeds_with_their_deviation_and_the_control_is_shown_at_every_budget():
    sheet = tables.main(paper_rows())
    spot = entry(sheet, "spot", "gsm8k budget 8 NFE")
    assert (spot.text, spot.spread) == ("20.0", "2.0")
    assert (
        entry(sheet, "control", "mbpp budget 8 NFE").text
        == entry(sheet, "control", "mbpp budget 20 NFE").text
        == "60.0"
    )
    assert entry(sheet, "control", "mbpp budget 8 thr. ratio").spread == ""  # one, by definition


def test_the_best_is_bold_and_an_oracle_never_is():
    sheet = tables.main(paper_rows())
    best = {(line.entries[0].text, i) for line in sheet.panels[0].lines for i, e in enumerate(line.entries) if e.best}
    assert {name for name, _ in best} == {"spot"} and {i for _, i in best if i % 2} == {1, 3, 5, 7}
    assert entry(sheet, "oracle-positions †", "gsm8k budget 8 thr. ratio").text == "–"
    assert any(note.startswith("† diagnostic") for note in notes(sheet))


def test_times_that_are_the_same_are_tied():
    sheet = tables.main(paper_rows())  # every method takes a second
    assert entry(sheet, "ssd", "gsm8k budget 8 thr. ratio").marks == "≈"
    assert any(note.startswith("≈ tied with the best") for note in notes(sheet))


def test_an_incomplete_cell_shows_its_samples_and_failures_and_is_neither_best_nor_tied():
    plan, records = paper()
    left = [r for r in records if not (r["cell"].startswith("gsm8k-1-spot-8") and r["row"] == "r3")]
    left = [
        r | {"status": "failed", "error": "CUDA"} if r["cell"] == "gsm8k-2-spot-8" and r["row"] == "r0" else r
        for r in left
    ]
    sheet = tables.main(merged(plan, left))
    spot = entry(sheet, "spot", "gsm8k budget 8 NFE")
    assert (spot.note, spot.partial, spot.best, spot.marks) == ("10/12 1✗", True, False, "")
    for text in (printed(sheet, 80), tables.to_markdown(sheet), tables.to_html(sheet)):
        assert "10/12 1✗" in text
    assert "10/12 1 failed" in tables.to_latex(sheet)
    assert "n/N: incomplete, and not ranked; k✗: k samples failed." in notes(sheet)


def test_a_cell_without_a_sample_is_zero_of_n_and_one_that_no_grid_has_is_empty():
    plan = sweep(CONTROL, SPOT, FakeCell("x", "ssd", 8))
    sheet = tables.main(merged(plan, []))
    assert (entry(sheet, "spot", "arith budget 4 NFE").text, entry(sheet, "spot", "arith budget 4 NFE").note) == (
        "–",
        "0/2",
    )
    assert entry(sheet, "spot", "arith budget 8 NFE") == tables.Entry("")


def test_models_and_temperatures_have_tables_of_their_own():
    plan = sweep(CONTROL, SPOT, FakeCell("h", temperature=1.0), FakeCell("hs", "spot", 4, temperature=1.0),
                 FakeCell("o", model="other"))  # fmt: skip
    titles = [panel.title for panel in tables.main(merged(plan, [])).panels]
    assert titles == ["tiny · T = 0 · 64 tokens", "tiny · T = 1 · 64 tokens", "other · T = 0 · 64 tokens"]


def test_a_text_that_differs_for_no_reason_and_a_shared_gpu_are_marked():
    plan, records, scores = two_rows(identical=False, difference="bug", per_gpu=2)
    sheet = tables.main(merged(plan, records, scores))
    assert entry(sheet, "spot", "arith budget 4 NFE").marks == "!"
    assert entry(sheet, "spot", "arith budget 4 thr. ratio").marks == "‡"
    assert [note[:2] for note in sheet.said([])[1:]] == ["!:", "‡ "]


def test_against_another_baseline_the_notes_count_the_cells_won_tied_and_lost():
    plan, records = paper()
    samples = results.frame(plan, records, ())
    samples = results.against(samples, "ssd", samples)
    sheet = tables.main(results.over_seeds(results.summary(plan, samples), samples))
    assert notes(sheet)[0] == "Throughput ratios are against ssd at the same budget, over the samples that both have."
    assert "spot 4–0–0 by NFE, 0–4–0 by throughput; oracle-positions † 4–0–0 by NFE" in notes(sheet)[1]


def test_against_another_sweeps_control_it_is_named_and_the_own_control_has_an_interval_too():
    plan, records = paper(tasks=("gsm8k",))
    samples = results.frame(plan, records, ())
    samples = results.against(samples, "control", samples.assign(nfe=samples["nfe"] + 9), "single:control")
    rows = results.over_seeds(results.summary(plan, samples), samples)
    told = "against single:control, over the samples that both have."
    assert notes(tables.main(rows))[0] == f"Throughput ratios are {told}" and f"Ratios are {told}" in notes(
        tables.long(rows)
    )
    own = entry(tables.long(rows), "control", "NFE ratio vs single:control")
    assert (own.text, own.interval) == ("1.15", "1.15–1.15")


def test_a_baseline_that_no_sample_meets_is_told():
    plan, records = paper(tasks=("gsm8k",), budgets=(8,), seeds=(0,))
    samples = results.frame(plan, records, ())
    samples = results.against(samples, "ssd", samples.assign(gen_length=128), "long:ssd")
    rows = results.over_seeds(results.summary(plan, samples), samples)
    told = "against long:ssd at the same budget, over the samples that both have: none."
    assert notes(tables.main(rows))[0] == f"Throughput ratios are {told}"


def test_a_ratio_over_fewer_samples_than_were_decoded_says_so():
    plan, records = paper(tasks=("gsm8k",), budgets=(8,), seeds=(0,))
    samples = results.frame(plan, records, ())
    samples = results.against(samples, "ssd", samples[samples["row"] != "r0"])
    rows = results.over_seeds(results.summary(plan, samples), samples)
    assert entry(tables.main(rows), "spot", "gsm8k budget 8 thr. ratio").note == "3/4"
    long = tables.long(rows)
    assert entry(long, "spot", "NFE ratio vs ssd") == tables.Entry(
        "1.57", interval=entry(long, "spot", "NFE ratio vs ssd").interval, best=True, note="3/4", partial=True
    )
    assert "k/n by a ratio: over the k of n samples that have a pair." in notes(long)


def test_texts_within_rounding_are_marked_at_the_ratio_that_leaves_them_out():
    plan, records, scores = two_rows(identical=False, difference="numeric")
    sheet = tables.main(merged(plan, records, scores))
    assert entry(sheet, "spot", "arith budget 4 thr. ratio").note == "(1)"
    assert "(k): k texts differ from the control within rounding." in notes(sheet)


@pytest.mark.parametrize("width", [80, 200])
def test_the_main_table_fits_its_terminal_and_every_number_is_whole(width):
    plan, records = paper(tasks=("gsm8k", "mbpp", "humaneval", "math500"))
    text = printed(tables.main(merged(plan, records)), width)
    assert max(map(len, text.splitlines())) <= width and "…" not in text
    assert text.count("20.0±2.0") == 4 and text.count("60.0±0.0") == 8
    assert text.count("oracle-positions †") == (4 if width == 80 else 1)  # the table goes on below where it is cut


def test_headings_stand_over_their_columns_even_where_the_numbers_are_narrow():
    plan = sweep(CONTROL, SPOT, FakeCell("e", "spot", 2000, task="arith"))
    records = [decode("s", "r0", 2, 4), decode("s", "r1", 2, 4), control("c", "r0", 4), control("c", "r1", 4)]
    _, task, budgets, names, first, *_ = printed(tables.main(merged(plan, records)), 80).splitlines()
    ends = [match.end() for match in re.finditer(r"─+ budget \d+ ─+", budgets)]
    assert ends == [match.end() for match in re.finditer("thr. ratio", names)] and len(task.rstrip()) == ends[-1]
    assert first[ends[0] - 4 : ends[0]] == "1.00"


def test_numbers_stay_in_line_beside_a_name_of_wide_letters():
    plan = sweep(CONTROL, SPOT, FakeCell("w", "名前", 4))
    records = [control("c", "r0", 60), decode("s", "r0", 20, 60), decode("w", "r0", 30, 60)]
    lines = [
        line for line in printed(tables.main(merged(plan, records)), 80).splitlines() if re.search(r"\d\.\d\d", line)
    ]
    assert len(lines) == 3 and len({cell_len(line.rstrip()) for line in lines}) == 1


# ---- the long table


@pytest.mark.parametrize("width", [80, 200])
def test_the_long_table_keeps_every_number_at_any_width(width):
    text = printed(tables.long(merged(*two_rows())), width)
    assert all(
        number in text for number in ("control", "spot", "20.0", "3.50", "2.00", "1.50", "50.0%", "100.0%", "2/2")
    )
    assert max(map(len, text.splitlines())) <= width and "…" not in text


def test_where_there_is_little_room_deviations_go_before_a_number_is_broken():
    rows = merged(*paper(tasks=("gsm8k",)))
    narrow, wide = printed(tables.long(rows), 80), printed(tables.long(rows), 200)
    assert "0±" not in narrow and re.search(r"^spot +8 0 +20.0 +3.0", narrow, re.M)
    assert "20.0±2.0" in wide and re.search(r"3.02±0.30 \[[\d.]+–[\d.]+\]", wide)


def test_a_title_is_whole_and_takes_no_room_from_the_numbers():
    model = "a-model-with-quite-a-long-name-of-its-own"
    plan, records = paper(seeds=(0,))
    named = sweep(*(replace(cell, model=model) for cell in plan.cells), rows=4)
    text, short = (printed(tables.long(merged(made, records)), 80) for made in (named, plan))
    assert f"\n{model} · gsm8k\n" in printed(tables.long(merged(sweep(CONTROL, *named.cells, rows=4), records)), 80)
    assert text == short and "\ngsm8k\n" in text and "\nmbpp\n" in text
    assert [line.split()[:2] for line in text.splitlines()[3:5]] == [["control", "0"], ["spot", "8"]]


def test_names_are_folded_where_there_is_no_room_and_numbers_never():
    plan = sweep(CONTROL, FakeCell("l", "a-drafter-" * 8, 4))
    text = printed(tables.long(merged(plan, [control("c", "r0", 60), decode("l", "r0", 20, 60)])), 80)
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(r"4 0 20.0 +3.00 +2.00 .* 1/2", text) and text.replace("\n", "").count("drafter") >= 5


def test_what_is_incomplete_failed_or_within_rounding_is_in_the_long_table():
    plan, records, scores = two_rows(identical=False, difference="numeric")
    assert entry(tables.long(merged(plan, records, scores)), "spot", "identical").note == "(1)"
    failed = [decode("s", "r0", 20, 60), decode("s", "r1", 0, 0, status="failed", error="CUDA")]
    assert entry(tables.long(merged(sweep(SPOT, rows=5), failed)), "spot", "n/N") == tables.Entry(
        "1/5 1✗", partial=True
    )


def test_an_accuracy_of_some_of_the_texts_says_of_how_many():
    plan, records, scores = two_rows()
    sheet = tables.long(merged(plan, records, scores[:1]))
    assert entry(sheet, "spot", "accuracy").note == "1/2" and entry(sheet, "spot", "accuracy").partial
    assert notes(sheet)[-1] == "k/n by an accuracy: of the k of n texts that are scored."
    assert not any("by an accuracy" in note for note in notes(tables.long(merged(plan, records, scores))))


def test_models_and_tasks_and_the_oracle_share_are_columns_only_where_they_tell_something():
    def headings(rows):
        return {column.heading for column in tables.long(rows).panels[0].columns}

    assert not headings(merged(*two_rows())) & {"model", "task", "oracle share", "wins–ties–losses"}
    assert headings(merged(sweep(CONTROL, FakeCell("x", task="gsm8k")), [])) >= {"task"}
    with_oracle = merged(*paper(tasks=("gsm8k",)))
    assert headings(with_oracle) >= {"oracle share"}
    assert entry(tables.long(with_oracle), "oracle-positions †", "oracle share").text == "100%"
    assert "100%" in printed(tables.long(with_oracle), 80)


def test_headings_are_whole_where_they_fit_and_narrow_only_where_they_do_not():
    rows = merged(*two_rows())
    wide, narrow = printed(tables.long(rows), 110), printed(tables.long(rows), 50)
    for word in ("budget", "throughput ratio", "acceptance", "accuracy", "identical"):
        assert word in wide.splitlines()[0]
    assert "accept-" in narrow and max(map(len, narrow.splitlines())) <= 50 + 10  # numbers are never broken
    assert re.search("throughput.*\n.* ratio .*acceptance", printed(tables.long(rows), 80))  # over lines by words


def test_a_papers_headings_are_whole_unless_that_would_cut_the_table():
    sheet = tables.main(merged(*paper(seeds=(0,))))
    lines = {width: printed(sheet, width).splitlines() for width in range(60, 120)}
    cut = {width: sum(line.startswith("control") for line in found) for width, found in lines.items()}
    whole = {width for width, found in lines.items() if "thr. ratio" in "".join(found)}
    assert 119 in whole and all(max(map(len, found)) <= width for width, found in lines.items())
    assert min(width for width in cut if cut[width] == 1) not in whole  # one piece, as its headings are narrow


# ---- what notes explain is there


def coloured(sheet, width):
    console = Console(width=width, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(tables.terminal(sheet, width))
    return " ".join(console.file.getvalue().split())


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("layout", [tables.main, tables.long])
def test_a_note_of_bold_stands_where_something_is_bold(layout, width):
    sheet = layout(paper_rows())
    assert "Bold: the best" in coloured(sheet, width) and "Bold" not in printed(sheet, width)
    alone = layout(merged(*two_rows()))  # with no rival
    assert "Bold" not in coloured(alone, width)
    for form in tables.FORMATS.values():
        assert "Bold: the best" in form(sheet) and "Bold" not in form(alone)


def test_notes_of_deviations_and_ranges_stand_where_these_are_printed():
    rows = merged(*paper(tasks=("gsm8k",)))
    told = {width: " ".join(printed(tables.long(rows), width).split()) for width in (80, 200)}
    for width, there in ((80, False), (200, True)):
        assert ("± is the deviation over seeds." in told[width], "0±" in told[width]) == (there, there)
        assert ("Ranges are 95 % intervals" in told[width], "[" in told[width]) == (there, there)
    main = tables.main(rows)
    assert "± is" in printed(main, 80) and "Ranges" not in printed(main, 80)
    for form in tables.FORMATS.values():
        assert "± is" in form(main) and "Ranges" not in form(main)
        assert "± is" in form(tables.long(rows)) and "Ranges" in form(tables.long(rows))
        assert "± is" not in form(tables.main(merged(*two_rows())))  # one seed


@pytest.mark.parametrize("layout", [tables.main, tables.long])
def test_seeds_with_prompts_of_their_own_are_told_in_every_format(layout):
    plan, records = paper(tasks=("gsm8k",), seeds=(0, 1), rows=3)
    own = sweep(*plan.cells)
    own.rows.update({cell.key: ("r0", "r1") if cell.seed else ("r1", "r2") for cell in plan.cells})
    told = "the deviation over seeds, each with its own prompts."
    sheet, same = layout(merged(own, records)), layout(merged(plan, records))
    for write in (lambda sheet: printed(sheet, 200), *tables.FORMATS.values()):
        assert told in write(sheet) and told not in write(same) and "the deviation over seeds." in write(same)


def test_a_line_of_unfinished_seeds_has_no_deviation_and_failures_are_explained_where_some_are():
    plan, records = paper(tasks=("gsm8k",))
    left = [record for record in records if not (record["cell"] == "gsm8k-1-spot-8" and record["row"] == "r3")]
    sheet = tables.main(merged(plan, left))
    assert entry(sheet, "spot", "gsm8k budget 8 NFE").spread == ""
    assert entry(sheet, "spot", "gsm8k budget 20 NFE").spread == "2.0"
    assert "n/N: incomplete, and not ranked." in notes(sheet)


def test_marks_that_no_number_has_are_not_explained():
    """Another method's ratios: where no sample is met, there is none that could be tied or timed on a shared GPU."""
    plan, records = paper(tasks=("gsm8k",), budgets=(8,), seeds=(0,))
    even = [record | {"per_gpu": 2} | ({"nfe": 20} if record["nfe"] < 50 else {}) for record in records]
    samples = results.frame(plan, even, ())
    samples = results.against(samples, "ssd", samples.assign(gen_length=128), "long:ssd")
    told = " ".join(notes(tables.long(results.over_seeds(results.summary(plan, samples), samples))))
    assert "≈" not in told and "‡" not in told
    told = " ".join(notes(tables.long(merged(plan, even))))
    assert "≈ tied" in told and "‡ timed" in told


def test_a_bug_is_marked_where_there_is_no_colour():
    plan, records, scores = two_rows(identical=False, difference="bug")
    assert re.search("50.0%!.*\n", printed(tables.long(merged(plan, records, scores)), 80))


# ---- formats


def test_csv_keeps_full_precision_and_one_line_a_cell():
    plan, records, scores = two_rows()
    table = results.summary(plan, results.frame(plan, records, scores))
    lines = list(csv.DictReader(io.StringIO(tables.to_csv(table))))
    assert [line["cell"] for line in lines] == ["c", "s"] and lines[1]["accepted_share"] == "0.375"
    (control_line, spot) = csv.DictReader(io.StringIO(tables.main_csv(merged(plan, records, scores))))
    assert (spot["method"], spot["arith/4/nfe"], spot["arith/4/planned"]) == ("spot", "20.0", "2")
    assert (control_line["method"], control_line["arith/4/nfe"]) == ("control", "70.0")


def test_csv_has_the_control_at_every_budget_of_its_task_and_no_column_of_its_own():
    lines = list(csv.DictReader(io.StringIO(tables.main_csv(paper_rows()))))
    assert [lines[0][f"{task}/{budget}/nfe"] for task in ("gsm8k", "mbpp") for budget in (8, 20)] == ["60.0"] * 4
    assert not [name for name in lines[0] if "/0/" in name]
    (alone,) = csv.DictReader(io.StringIO(tables.main_csv(merged(sweep(CONTROL), [control("c", "r0", 60)]))))
    assert alone["arith/0/nfe"] == "60.0"


def test_markdown_is_one_table_with_as_many_cells_in_every_line():
    lines = tables.to_markdown(tables.main(paper_rows())).splitlines()
    rows = [line for line in lines if line.startswith("|")]
    assert len(rows) == 2 + 4 and len({row.count("|") for row in rows}) == 1
    assert rows[0].startswith("| method | gsm8k budget 8 NFE | gsm8k budget 8 thr. ratio |")
    assert "| spot | **20.0 ± 2.0** |" in rows[3] and lines[0] == "**tiny · T = 0 · 64 tokens**"
    assert tables.to_markdown(tables.long(merged(sweep(), []))).count("\n") == 2  # an empty sweep, an empty table


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("a|b", r"a\|b"),
        (r"a\|b", r"a\\\|b"),
        ("<img>", r"\<img>"),
        ("*a*", r"\*a\*"),
        ("_a_", r"\_a\_"),
        ("`a`", r"\`a\`"),
    ],
)
def test_markdown_shows_a_name_as_it_is(name, written):
    plan = sweep(FakeCell("h", name, 4, task=name, model=name))
    main, long = (tables.to_markdown(layout(merged(plan, []))) for layout in (tables.main, tables.long))
    assert f"| {written} | – 0/2 |" in main and f"| {written} budget 4 NFE |" in main and f"**{written} · T" in main
    assert f"| {written} | 4 |" in long


class Tables(HTMLParser):
    """The tables of a page as rows of (text, colspan); fails on an element closed out of turn."""

    def __init__(self):
        super().__init__()
        self.open, self.rows = [], []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th"):
            self.rows[-1].append(["", int(dict(attributes).get("colspan", 1))])

    def handle_data(self, data):
        if {"td", "th"} & set(self.open):
            self.rows[-1][-1][0] += data

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


HOSTILE = r"a_b%&#{x}$^~\<b>"
BEGINNINGS = ("[x]", "*x*")  # what LaTeX takes for an argument of the line's end before it
LETTERS = ("spot-γ", "αΩμ", "naïve", "ł", "名", "🙂")


def test_html_is_a_fragment_of_tables_in_which_every_line_is_as_wide_and_every_name_escaped():
    page = Tables()
    page.feed(text := tables.to_html(tables.main(paper_rows())))
    assert page.open == [] and {sum(span for _, span in row) for row in page.rows} == {9}
    assert (
        page.rows[0] == [["", 1], ["gsm8k", 4], ["mbpp", 4]] and '<b>20.0</b> <small class="below">±2.0</small>' in text
    )
    hostile = tables.to_html(tables.long(merged(sweep(FakeCell("h", HOSTILE, 4)), [])))
    assert "<b>" not in hostile and "&lt;b&gt;" in hostile
    page = tables.html_page(tables.main(merged(*two_rows())), "<x>")
    assert page.startswith("<!doctype html>") and "width=device-width" in page


def unescaped(line):
    """What LaTeX reads as a column's end, a comment, a parameter, or mathematics."""
    return re.findall(r"(?<!\\)[&%#_^~]", re.sub(r"\$\\[a-z]+\$", "", line))


def test_latex_is_booktabs_with_as_many_cells_in_every_line_and_every_name_escaped():
    cells = (CONTROL, FakeCell("h", HOSTILE, 4, task="a_b"), FakeCell("o", "oracle-both", 4, task="a_b"))
    for layout in (tables.main, tables.long):
        text = tables.to_latex(layout(merged(sweep(*cells), [decode("h", "r0", 20, 60)])))
        spec = re.search(r"\\begin\{tabular\}\{([lr]+)\}", text)[1]
        body = [line for line in text.splitlines() if line.endswith(r"\\")]
        spans = [sum(int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line)) for line in body]
        assert {line.count(" & ") + span + 1 for line, span in zip(body, spans, strict=True)} == {len(spec)}
        assert all(set(unescaped(line)) <= {"&"} for line in body)
        assert r"a\_b\%\&\#\{x\}\$\textasciicircum{}\textasciitilde{}\textbackslash{}\textless{}b\textgreater{}" in text
        assert [text.count(rule) for rule in (r"\toprule", r"\bottomrule", r"\end{tabular}")] == [1, 1, 1]
    assert r"\textbf{20.0}{\scriptsize$\pm$2.0}" in tables.to_latex(tables.main(paper_rows()))


@pytest.mark.skipif(not shutil.which("pdflatex"), reason="no pdflatex; Debian's texlive-latex-recommended has it")
def test_latex_compiles(tmp_path):
    plan, records, scores = two_rows(identical=False, difference="bug", per_gpu=2)
    named = [FakeCell(f"h{i}", name, 4) for i, name in enumerate((HOSTILE, *BEGINNINGS, *LETTERS))]
    hostile = merged(sweep(*plan.cells, *named, FakeCell("m", model="[another]"), rows=3), records, scores)
    wide = merged(*paper(tasks=("gsm8k", "mbpp", "humaneval", "math500")))
    sheets = [layout(rows) for rows in (hostile, wide) for layout in (tables.main, tables.long)]
    head = "\\documentclass{article}\\usepackage[T1]{fontenc}\\usepackage{booktabs,graphicx}\\begin{document}\n"
    (tmp_path / "t.tex").write_text(head + "\n\n".join(map(tables.to_latex, sheets)) + "\\end{document}\n")
    ran = subprocess.run(["pdflatex", "-halt-on-error", "t.tex"], cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout[-2000:]
    assert "Overfull" not in ran.stdout  # neither wider than the page nor one beside the other


def test_latex_has_letters_that_pdflatex_knows():
    text = tables.to_latex(tables.long(merged(sweep(*(FakeCell(name, name, 4) for name in LETTERS)), [])))
    assert r"$\alpha$$\Omega$$\mu$" in text and "naïve" in text and "U+540D" in text and "U+1F642" in text


# ---- the command


CELLS = (real_cell(), real_cell("spot", 4), real_cell("ssd", 4))


def half_done(folder):
    made = [control(CELLS[0].key, "r0", 60), decode(CELLS[1].key, "r0", 20, 60), decode(CELLS[2].key, "r0", 30, 60)]
    return str(on_disk(folder, *CELLS, rows=3, records=made).folder)


def test_the_report_of_a_half_done_sweep_needs_no_ray_and_no_torch_and_starts_no_work(tmp_path):
    folder = half_done(tmp_path)
    script = f"""
import sys, launch
codes = [launch.main([*verb, {folder!r}]) for verb in (["report", "--layout", "paper"], ["report", "--format", "csv"],
                                                       ["compare", {folder!r}])]
print(codes, sorted({{"ray", "torch", "mlflow", "transformers"}} & sys.modules.keys()))
"""
    before = {path: path.read_bytes() for path in (tmp_path / "first" / "segments").iterdir()}
    ran = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, cwd=launch.ROOT)
    assert ran.stdout.splitlines()[-1] == "[0, 0, 0] []", ran.stderr
    assert "1/3" in ran.stdout
    assert {path: path.read_bytes() for path in (tmp_path / "first" / "segments").iterdir()} == before


@pytest.mark.parametrize(
    ("form", "first"),
    [("csv", "cell,model,"), ("markdown", "| method |"), ("latex", r"\sbox0{%"), ("html", "<!doctype html>")],
)
def test_a_format_is_all_that_stdout_has(form, first, tmp_path, capsys):
    assert launch.main(["report", half_done(tmp_path), "--format", form]) == 0
    printed = capsys.readouterr().out
    assert printed.startswith(first) and "report:" not in printed


def test_a_baseline_is_a_method_of_the_sweep_or_of_another(tmp_path, capsys):
    folder, other = half_done(tmp_path), half_done(tmp_path / "other")
    for baseline, pair in (("ssd", "ssd"), (f"{other}:ssd", "first:ssd")):
        assert launch.main(["report", folder, f"baseline={baseline}", "--format", "csv", "--json"]) == 0
        found = {row["drafter"]: row for row in json.loads(capsys.readouterr().out)["table"]}
        assert (found["spot"]["nfe_ratio"], found["spot"]["pair"], found["none"]["nfe_ratio"]) == (1.5, pair, None)
    assert launch.main(["report", folder, "baseline=spotty"]) == 2
    assert (
        capsys.readouterr().err
        == "error: command line: baseline: no method 'spotty' in first; it has control, spot, ssd\n"
    )
