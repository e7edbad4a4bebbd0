"""The report page: complete, self-contained, and the same for the same records."""

import base64
import hashlib
import html.parser
import json
import re
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from xml.etree import ElementTree

import pytest

from dashboards import plots, report
from dashboards.predict import Prediction
from orchestrator import results
from orchestrator.ledger import write_sweep
from tests.fake_sweep import append, control, decode, on_disk, real_cell, score

REPLAY = {"prompt": "how many?", "block": 4, "start": -1, "pieces": ["a", "b", "c"],
          "passes": [[[[0, 0]], [], []], [[[1, 1], [2, 2]], [[0, 1, 1], [0, 2, 2]], [1]]]}  # fmt: skip
ROOT = Path(__file__).parents[2]
CONTROL, SPOT, LARGE, SSD = real_cell(), real_cell("spot", 4), real_cell("spot", 8), real_cell("ssd", 4)
CELLS = (CONTROL, SPOT, LARGE, SSD)


def drafts(by_depth):
    return {"drafted": 40, "drafted_passes": 10, "accepted": sum(by_depth), "accepted_by_depth": by_depth}


def records(rows=2):
    for i in range(rows):
        row = f"r{i}"
        yield control(CONTROL.key, row, 60)
        yield decode(SPOT.key, row, 20, 60, **drafts([9, 6]))
        yield decode(LARGE.key, row, 15, 60, **drafts([9, 8, 7]))
        yield decode(SSD.key, row, 30, 60, **drafts([5]))
        yield score(row, i == 0)


def page(tmp_path, cells=CELLS, made=None, rows=2):
    sweep = on_disk(tmp_path, *cells, rows=rows, records=records() if made is None else made)
    return report.write_report(sweep.folder).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def usual(tmp_path_factory):
    """The page of a whole small sweep."""
    return page(tmp_path_factory.mktemp("sweep"))


@pytest.fixture
def no_figures(monkeypatch):
    """Pages take a moment less."""
    monkeypatch.setattr(report, "MOST_GROUPS", 0)


def data(text):
    """What the page's script is given."""
    return json.loads(re.search(r'id="data">(.*?)</script>', text, re.DOTALL)[1])


class Balance(html.parser.HTMLParser):
    """Fails on an element closed out of turn."""

    def __init__(self):
        super().__init__()
        self.open = []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "br"):
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        pass

    def handle_endtag(self, tag):
        assert self.open.pop() == tag


def test_the_page_has_tables_figures_verdict_and_samples(usual):
    assert "<b>20.0</b>" in usual and "4.00" in usual and "2.00" in usual
    assert usual.count("<svg") == 6
    assert "6 of 6 texts are identical to the control&#39;s." in usual
    assert "8 of 8 samples;" in usual and data(usual)["texts"] == ["text of r0", "text of r1"]


def test_the_share_of_the_position_oracle_is_shown_where_there_is_one(tmp_path, usual, no_figures):
    oracle = real_cell("oracle-positions", 4, method="oracle", drafter_options=(("knows", "positions"),))
    made = [control(CONTROL.key, "r0", 60), decode(SPOT.key, "r0", 30, 60), decode(oracle.key, "r0", 20, 60)]
    text = page(tmp_path, cells=(CONTROL, SPOT, oracle), made=made)
    assert ">oracle share</th>" in text and "<td>75%</td>" in text and "Oracle share:" in text
    assert "oracle share" not in usual and "Oracle share:" not in usual


def test_the_environment_is_shown(usual):
    assert "<div>torch: 2.9</div>" in usual and "<div>threads: 1</div>" in usual


def test_every_element_is_closed_in_turn(usual):
    parser = Balance()
    parser.feed(usual)
    assert parser.open == []


def test_the_page_loads_nothing(usual):
    assert not re.search(
        r"<(link|img|iframe|script src)|@import|url\((?!#)|(?:src|href)=\"(?!#)|https?://(?!www.w3.org)", usual
    )


def test_no_script_runs_but_the_pages_own(usual):
    policy = re.search(r'http-equiv="Content-Security-Policy" content="(.*?)"', usual)[1]
    own = re.search(r"<script>(.*?)</script>", usual, re.DOTALL)[1]
    known = base64.b64encode(hashlib.sha256(own.encode()).digest()).decode()
    assert policy == f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{known}'"
    assert usual.count("<script") == 2  # the other one is data


def test_the_same_records_give_the_same_page(tmp_path, usual):
    assert page(tmp_path) == usual


EVIL = "</script><img src=x onerror=alert(1)><!--<script>"


def test_whatever_a_model_a_row_or_an_error_says_is_text(tmp_path, no_figures):
    row = f"r0{EVIL}"
    made = [
        control(CONTROL.key, "r0", 60) | {"text": EVIL},
        decode(SPOT.key, "r1", 20, 60, identical=False, difference="bug", text=EVIL, text_sha="x"),
        decode(LARGE.key, "r1", 0, 0, status="failed", error=EVIL, text_sha=None),
        control(CONTROL.key, row, 60)
        | {"text": f"b{EVIL}", "replay": {**REPLAY, "prompt": EVIL, "pieces": [EVIL] * 3}},
        decode(SSD.key, row, 20, 60, identical=False, difference="numeric", text="c", text_sha="y"),
        score("r0", True, answer=EVIL),
    ]
    sweep = on_disk(tmp_path, *CELLS, rows=2)
    planned = {key: (*ids, row) for key, ids in sweep.rows.items()}
    write_sweep(replace(sweep, rows=planned, environment={"python": EVIL}))
    append(sweep, made)
    text = report.write_report(sweep.folder).read_text(encoding="utf-8")
    assert "<img" not in text and text.count("</script>") == text.count("<script") == 2 and "<!--" not in text
    shown = data(text)
    assert EVIL in shown["texts"] and shown["replays"][0]["pieces"] == [EVIL] * 3
    assert {sample[1] for sample in shown["samples"]} == {"r0", "r1", row}
    assert EVIL in {sample[12] for sample in shown["samples"]}


@pytest.mark.parametrize("cells", [(), (CONTROL,), CELLS])
def test_a_sweep_without_records_has_a_page_too(tmp_path, cells):
    text = page(tmp_path, cells=cells, made=[])
    assert "No sample yet." in text and "<svg" not in text


DIFFERENT = {"identical": False, "text": "other", "text_sha": "x"}


def test_losslessness_is_counted_by_method_and_differing_samples_are_listed(tmp_path, no_figures):
    made = [
        control(CONTROL.key, "r0", 60),
        decode(SSD.key, "r0", 20, 60, difference="numeric", **DIFFERENT),
        decode(SPOT.key, "r0", 20, 60, difference="bug", **DIFFERENT),
        decode(LARGE.key, "r0", 20, 60),
        decode(LARGE.key, "r1", 0, 0, status="failed", error="CUDA error", text_sha=None),
    ]
    text = page(tmp_path, made=made)
    assert 'class="verdict bad"' in text and "1 of 3 texts are identical" in text and "1 differ within rounding" in text
    assert "and 1 for no numeric reason: a bug." in text
    counts = re.findall(
        r'<td class="w">(spot|ssd)</td><td>(\d)</td><td>(\d)</td><td>(\d)</td>\s*<td.*?>(\d)</td>', text
    )
    assert counts == [("spot", "2", "1", "0", "1"), ("ssd", "1", "0", "1", "0")]
    listed = re.findall(r'<td class="w">([^<]*)</td><td class="w">[^<]*</td>\s*<td class="w(?: bad)?">(\w+)</td>', text)
    assert listed == [("spot 4", "bug"), ("ssd 4", "numeric")]
    samples = data(text)["samples"]
    assert [samples[int(number)][2] for number in re.findall(r'data-sample="(\d+)"', text)] == ["bug", "numeric"]
    bug = next(sample for sample in samples if sample[2] == "bug")
    assert [data(text)["texts"][number] for number in bug[10:12]] == ["other", "text of r0"]  # to be compared
    assert next(sample[12] for sample in samples if sample[2] == "failed") == "CUDA error"


def test_half_a_sweep_has_a_page_without_ray_or_torch(tmp_path):
    sweep = on_disk(tmp_path, *CELLS, records=list(records())[:3])
    program = (
        "import sys; sys.modules['ray'] = sys.modules['torch'] = None; from pathlib import Path;"
        "from dashboards.report import write_report; print(write_report(Path(sys.argv[1])))"
    )
    before = {file: file.stat().st_mtime_ns for file in sweep.folder.rglob("*") if file.is_file()}
    done = subprocess.run([sys.executable, "-c", program, str(sweep.folder)], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr
    written = (sweep.folder / "report.html").read_text()
    assert "1/2" in written and "0/2" in written and "3 of 3 samples" in written
    assert before == {file: file.stat().st_mtime_ns for file in before}


def test_an_analysis_is_shown_where_there_is_one_and_else_how_to_make_one(tmp_path, usual):
    assert "launch.py analyze first" in usual
    sweep = on_disk(tmp_path, *CELLS, records=records())
    measures = {"stale token": 1.0, "order model": 0.7}
    lines = [
        f"tiny,arith,0.0,{name},{by},{at},8,{share}"
        for name, share in measures.items()
        for by in ("block", "depth")
        for at in range(3)
    ]
    (sweep.folder / "analysis").mkdir()
    table = "\n".join(["model,task,temperature,measure,by,at,asked,share", *lines])
    (sweep.folder / "analysis" / "accuracy.csv").write_text(table)
    text = report.write_report(sweep.folder).read_text()
    assert text.count("<svg") == 8 and "What and where, by block" in text and "launch.py analyze" not in text


def test_figures_are_of_the_first_groups_and_lines_of_the_first_cells_where_there_are_too_many(tmp_path, monkeypatch):
    cells = [replace(cell, task=task) for task in ("arith", "gsm8k", "mbpp") for cell in (CONTROL, SPOT)]
    made = [line for task in range(3) for line in (control(cells[2 * task].key, "r0", 60),
                                                   decode(cells[2 * task + 1].key, "r0", 20, 60))]  # fmt: skip
    monkeypatch.setattr(report, "MOST_GROUPS", 1)
    monkeypatch.setattr(report, "MOST_LINES", 4)
    monkeypatch.setattr(report, "MOST_DIFFERENT", 0)
    text = page(tmp_path, cells=cells, made=made)
    assert text.count("<svg") == 5 and "first 1 of 3 models, tasks and temperatures" in text
    assert "The first 4 of 6 lines" in text and text.count('<td class="words">mbpp</td>') == 0


def test_a_group_of_figures_needs_no_part_of_another_which_may_be_folded_up(tmp_path):
    cells = [replace(cell, task=task) for task in ("arith", "gsm8k") for cell in (CONTROL, SPOT)]
    made = [line for task in range(2) for line in (control(cells[2 * task].key, "r0", 60),
                                                   decode(cells[2 * task + 1].key, "r0", 20, 60))]  # fmt: skip
    groups = page(tmp_path, cells=cells, made=made).split('<div class="figures">')[1:]
    ids = [set(re.findall(r' id="([\w-]+)"', group.partition("</details>")[0])) for group in groups]
    asked = [set(re.findall(r'(?:url\(#|href="#)([\w-]+)', group.partition("</details>")[0])) for group in groups]
    assert ids[0] and not ids[0] & ids[1] and asked == ids


def rows_of(tmp_path):
    sweep, samples = results.load(on_disk(tmp_path, *CELLS, records=records()).folder)
    return results.over_seeds(results.summary(sweep, samples), samples).to_dict("records")


def test_a_method_has_one_colour_and_the_control_is_grey(tmp_path):
    palette = plots.colours(rows_of(tmp_path))
    assert list(palette) == ["spot", "ssd", "none"] and len(set(palette.values())) == 3


FIGURES = [
    plots.nfe_by_budget,
    partial(plots.throughput_by_budget, predicted={}),
    plots.throughput_by_nfe,
    plots.survival,
    plots.time_split,
    plots.accuracy,
]


@pytest.mark.parametrize("draw", FIGURES)
def test_a_figure_is_one_svg_with_its_text_as_text(tmp_path, draw):
    rows = rows_of(tmp_path)
    root = ElementTree.fromstring(draw(rows, plots.colours(rows)))
    texts = ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any("spot" in text for text in texts)


def texts_of(svg):
    root = ElementTree.fromstring(svg)
    return ["".join(element.itertext()).strip() for element in root.iter("{http://www.w3.org/2000/svg}text")]


@pytest.mark.parametrize("draw", FIGURES)
def test_a_name_in_a_figure_is_itself_whatever_it_is(tmp_path, draw):
    names = ["sp$x$ot$\\frac{1$", "_x_", "<b>&", "名前", "a\\"]
    row = next(row for row in rows_of(tmp_path) if row["drafter"] == "spot")
    rows = [row | {"drafter": name} for name in names]
    told = [text.strip("\u200b") for text in texts_of(draw(rows, plots.colours(rows)))]
    assert all(any(text.startswith(name) for text in told) for name in names)


def test_an_oracle_is_marked_in_every_figure_and_is_in_none_of_times(tmp_path):
    oracle = real_cell("oracle-both", 4, method="oracle")
    made = [*records(), *(decode(oracle.key, f"r{i}", 12, 60, **drafts([9])) for i in range(2))]
    sweep, samples = results.load(on_disk(tmp_path, *CELLS, oracle, records=made).folder)
    rows = results.over_seeds(results.summary(sweep, samples), samples).to_dict("records")
    for draw in FIGURES:
        told = [text for text in texts_of(draw(rows, plots.colours(rows))) if "oracle" in text]
        timed = draw in (plots.time_split, plots.throughput_by_nfe, FIGURES[1])
        assert told == [] if timed else all("oracle-both †" in text for text in told) and told


def test_a_star_has_its_budget_beside_it_and_the_words_say_what_is_predicted(tmp_path):
    rows = rows_of(tmp_path)
    predicted = {"spot": Prediction(tuple(range(4, 9)), (1.0, 1.2, 1.5, 1.2, 1.0), None)}
    told = [texts_of(plots.throughput_by_budget(rows, plots.colours(rows), some)) for some in (predicted, {})]
    assert [texts.count("6") for texts in told] == [1, 0] and "1" not in told[0]  # the axis begins where lines do
    said = report._said(predicted)
    assert "between the smallest and the largest decoded budget" in said and "spot 6 (1.50×)" in said
    assert "may lie beyond" not in said
    assert "may lie beyond" in report._said({"spot": Prediction((4, 5, 6), (1.5, 1.2, 1.1), None)})
    assert "may lie beyond" not in report._said({"spot": Prediction((1, 2, 3), (1.5, 1.2, 1.1), None)})


@pytest.mark.parametrize("draw", FIGURES)
def test_points_of_incomplete_cells_are_hollow_or_say_how_many(tmp_path, draw):
    sweep, samples = results.load(on_disk(tmp_path, *CELLS, records=records(), rows=2).folder)
    half = samples[(samples["row"] == "r0") | (samples["drafter"] != "spot")]
    whole, part = (
        results.over_seeds(results.summary(sweep, some), some).to_dict("records") for some in (samples, half)
    )
    palette = plots.colours(whole)
    for rows, there in ((whole, False), (part, True)):
        svg = draw(rows, palette)
        assert ("(1/2)" in svg or "fill: #ffffff; stroke: #0072b2" in svg) == there


def test_what_hollow_points_are_is_said_where_there_are_some(tmp_path, usual):
    text = page(tmp_path, made=list(records())[:8])
    assert "Hollow points" in text and "Hollow points" not in usual


@pytest.mark.parametrize("draw", [plots.nfe_by_budget, plots.survival])
def test_many_methods_have_colours_of_their_own_and_a_legend_below(tmp_path, draw):
    row = next(row for row in rows_of(tmp_path) if row["drafter"] == "spot")
    rows = [row | {"drafter": f"method-{i}"} for i in range(14)]
    palette = plots.colours(rows)
    assert len(set(palette.values())) == 15
    few, many = (re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', draw(some, palette)) for some in (rows[:2], rows))
    assert float(few[2]) + 70 < float(many[2]) and few[1] == many[1]
    lowest = max(float(y) for y in re.findall(r'<text [^>]*y="([\d.]+)"', draw(rows, palette)))
    assert lowest < float(many[2])


def test_shares_are_drawn_on_an_axis_from_0_to_100_per_cent_at_most(tmp_path):
    row = next(row for row in rows_of(tmp_path) if row["drafter"] == "spot")
    for shares in ([1.0, 0.8, 1.0], [0.0, 0.0, 0.2]):
        assert 0 <= plots._around(shares)[0] < plots._around(shares)[1] <= 1
        ends = dict(zip(("accuracy", "accuracy_low", "accuracy_high"), shares, strict=True))
        told = [float(text[:-1]) for text in texts_of(plots.accuracy([row | ends], {"spot": "#000000"})) if "%" in text]
        assert told and min(told) >= 0 and max(told) <= 100


def test_bars_over_seeds_are_explained_and_so_are_seeds_with_prompts_of_their_own(tmp_path):
    cells = [replace(cell, seed=seed) for seed in (0, 1) for cell in (CONTROL, SPOT)]
    made = [control(cell.key, "r0", 60) if cell.is_control else decode(cell.key, "r0", 20 + cell.seed, 60)
            for cell in cells]  # fmt: skip
    assert "bars are the deviation over seeds." in page(tmp_path / "same", cells=cells, made=made, rows=1)
    own = on_disk(tmp_path, *cells, rows=1)
    write_sweep(replace(own, rows={cell.key: (f"r{cell.seed}",) for cell in cells}))
    append(own, [record | {"row": f"r{cell.seed}"} for cell, record in zip(cells, made, strict=True)])
    text = report.write_report(own.folder).read_text(encoding="utf-8")
    assert "bars are the deviation over seeds, each with its own prompts." in text
    assert text.count("± is the deviation over seeds, each with its own prompts.") == 2  # under both tables


def test_budgets_on_the_axis_do_not_run_into_each_other(tmp_path):
    row = next(row for row in rows_of(tmp_path) if row["drafter"] == "spot")
    budgets = [*range(1, 65)]
    told = texts_of(plots.nfe_by_budget([row | {"budget": budget} for budget in budgets], {"spot": "#000000"}))
    shown = [int(text) for text in told if text.isdigit() and int(text) in budgets]
    assert 8 < len(shown) < 25 and max(shown) == 64


@pytest.mark.parametrize("draw", FIGURES)
def test_a_figure_without_points_still_draws(draw):
    assert draw([], plots.colours([])).startswith("<svg")
