"""Two sweeps on what both have, and a sweep beside published figures."""

import io
import json
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from rich.console import Console

import launch
from orchestrator import compare, published, results, tables
from orchestrator.errors import UserError
from tests.fake_sweep import control, decode, on_disk, real_cell, score
from tests.orchestrator.fakes import Fakes

pytest_plugins = ["tests.s3"]
CONTROL, SPOT, SSD = real_cell(), real_cell("spot", 8), real_cell("ssd", 8)


def records(cells=(CONTROL, SPOT), rows=4, saved=0, **changes):
    """`saved` passes fewer than 20 for every drafter; `changes` are of row r0."""
    for cell in cells:
        for i in range(rows):
            more = changes if i == 0 and cell.drafter != "none" else {}
            made = (
                control(cell.key, f"r{i}", 60) if cell.drafter == "none" else decode(cell.key, f"r{i}", 20 - saved, 60)
            )
            yield made | more
    yield from (score(f"r{i}", True) for i in range(rows))


def stored(folder, cells=(CONTROL, SPOT), rows=4, made=None, **environment):
    sweep = on_disk(folder, *cells, rows=rows, records=records(cells, rows) if made is None else made)
    return results.load(sweep.folder)


def of(found, method):
    return next(meeting for meeting in found.meetings if meeting.method == method)


# ---- two sweeps


def test_sweeps_of_the_same_records_are_the_same_in_every_cell(tmp_path):
    found = compare.of_sweeps(stored(tmp_path / "a"), stored(tmp_path / "b"))
    assert [(meeting.method, meeting.is_same, meeting.n) for meeting in found.meetings] == [
        ("control", True, 4), ("spot", True, 4)]  # fmt: skip
    assert found.only == ((), ()) and found.settings == () and found.wins_ties_losses == (0, 2, 0)
    assert "2 cells in both, 2 with common samples; in 2, every text and NFE is the same" in compare.lines(found)


def test_fewer_passes_are_won_on_every_prompt_and_in_the_cell(tmp_path):
    found = compare.of_sweeps(stored(tmp_path / "a"), stored(tmp_path / "b", made=records(saved=4)))
    spot = of(found, "spot")
    assert (spot.nfe, spot.passes, spot.prompts, spot.nfe_differs) == ((20.0, 16.0), (1.25, 1.25, 1.25), (4, 0, 0), 4)
    assert found.wins_ties_losses == (1, 1, 0) and not spot.is_same and of(found, "control").is_same


def test_cells_tie_where_the_interval_of_the_passes_holds_one(tmp_path):
    up_and_down = [record | {"nfe": 19 + 2 * (i % 2)} if record.get("cell") == SPOT.key else record
                   for i, record in enumerate(records())]  # fmt: skip
    found = compare.of_sweeps(stored(tmp_path / "a"), stored(tmp_path / "b", made=up_and_down))
    assert of(found, "spot").prompts == (2, 0, 2) and found.wins_ties_losses == (0, 2, 0)


def test_a_text_that_differs_and_its_verdict_are_counted(tmp_path):
    other = [*records(text_sha="sha-x", identical=False), score("r0", False, text_sha="sha-x")]
    spot = of(compare.of_sweeps(stored(tmp_path / "a"), stored(tmp_path / "b", made=other)), "spot")
    assert (spot.texts, spot.verdicts, spot.nfe_differs, spot.is_same) == (1, 1, 0, False)
    assert spot.accuracy.value == -0.25 and spot.accuracy.low < -0.25 < spot.accuracy.high


def test_speed_is_each_sweeps_own_paired_ratio(tmp_path):
    faster = [record | ({"control_seconds": 3.0} if record.get("cell") == SPOT.key else {}) for record in records()]
    spot = of(compare.of_sweeps(stored(tmp_path / "a"), stored(tmp_path / "b", made=faster)), "spot")
    assert (spot.throughput, spot.speed) == ((2.0, 3.0), (1.5, 1.5, 1.5))


def test_only_common_rows_count_and_what_one_has_alone_is_told(tmp_path):
    first = stored(tmp_path / "a", cells=(CONTROL, SPOT, SSD))
    second = stored(tmp_path / "b", made=[r for r in records() if (r.get("cell"), r["row"]) != (SPOT.key, "r3")])
    found = compare.of_sweeps(first, second)
    assert (of(found, "spot").n, of(found, "spot").alone) == (3, (1, 0))
    assert found.only == ((SSD.label,), ())
    told = list(compare.lines(found))
    assert f"only in A: 1 cells: {SSD.label}" in told and "only in A: 1 samples of the cells in both" in told


def test_a_sweep_that_has_decoded_nothing_yet_has_nothing_in_common(tmp_path):
    found = compare.of_sweeps(stored(tmp_path / "a"), stored(tmp_path / "b", made=[]))
    spot = of(found, "spot")
    assert (spot.n, spot.alone, spot.nfe, spot.passes.value, spot.speed.value) == (0, (4, 0), (None, None), None, None)
    assert found.wins_ties_losses == (0, 0, 0) and not spot.is_same
    assert "2 cells in both, 0 with common samples; in 0, every text and NFE is the same" in compare.lines(found)


def test_settings_and_environment_that_differ_are_told(tmp_path):
    newer = replace(SPOT, drafter_sha="cc", semantics=SPOT.semantics + 1)
    first, (sweep, samples) = stored(tmp_path / "a"), stored(tmp_path / "b", cells=(CONTROL, newer))
    found = compare.of_sweeps(first, (replace(sweep, environment={**sweep.environment, "commit": "abc"}), samples))
    assert set(found.settings) == {
        ("drafter_sha", "none", "cc", 1),
        ("semantics", str(SPOT.semantics), str(SPOT.semantics + 1), 1),
        ("commit", "none", "abc", 0),
    }
    assert of(found, "spot").is_same


def test_sweeps_without_a_common_cell_are_a_mistake_that_names_the_axis(tmp_path, capsys):
    first = stored(tmp_path / "a")[0].folder
    second = stored(tmp_path / "b", cells=(real_cell(task="gsm8k"),), made=[])[0].folder
    assert launch.main(["compare", str(first), str(second)]) == 2
    wrong = f"error: command line: {second}: no cell in common with {first}; no task is in both\n"
    assert capsys.readouterr().err == wrong


def test_compare_prints_the_table_or_answers_in_json(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    first, second = (
        str(stored(tmp_path / name, made=records(saved=saved))[0].folder) for name, saved in (("a", 0), ("b", 4))
    )
    assert launch.main(["compare", first, second]) == 0
    printed = capsys.readouterr().out
    assert max(map(len, printed.splitlines()[:8])) <= 80
    assert "20.0 16.0 1.25 4–0–0" in " ".join(printed.split()) and f"A: {first}\nB: {second}\n" in printed
    assert launch.main(["compare", first, second, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["cells"][1]["passes"]["value"] == 1.25 and found["wins_ties_losses"] == [1, 1, 0]


def test_what_a_note_explains_is_printed(tmp_path, capsys, monkeypatch):
    folders = [
        str(stored(tmp_path / name, made=records(saved=saved))[0].folder) for name, saved in (("a", 0), ("b", 4))
    ]
    for width, there in ((80, False), (200, True)):
        monkeypatch.setenv("COLUMNS", str(width))
        assert launch.main(["compare", *folders]) == 0
        printed = capsys.readouterr().out
        assert ("Ranges are 95 % bootstrap intervals" in printed, "[1.25–1.25]" in printed) == (there, there)
        assert "Bold" not in printed  # nothing is, but in a terminal
    first, second = (results.load(Path(folder)) for folder in folders)
    sheet = compare.sheet(compare.of_sweeps(first, second))
    console = Console(width=80, file=io.StringIO(), force_terminal=True, color_system="standard")
    console.print(tables.terminal(sheet, 80))
    assert "Bold: the 95" in console.file.getvalue()


def test_a_sweep_on_s3_meets_one_in_a_folder_by_name(s3, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "_print_results", lambda console, folder: {})  # no report is asked for here
    small = ("workers.executor=inline", "mlflow=null", "limit=2", "budgets=[0,8]", "temperatures=[0]")
    for store in ("runs", "s3://bucket/runs"):
        assert launch.main(["run", "quickstart", *small, f"store={store}"], Fakes().backend()) == 0
    capsys.readouterr()
    assert launch.main(["compare", "quickstart", "s3://bucket/runs/quickstart"]) == 0
    printed = capsys.readouterr().out
    assert "3 cells in both, 3 with common samples; in 3, every text and NFE is the same" in printed
    assert "A: runs/quickstart\nB: s3://bucket/runs/quickstart\n" in printed


# ---- published figures


def sdar(drafter="none", budget=0, **changes):
    fixed = {"model": "sdar-8b", "task": "gsm8k", "gen_length": 256, "stop": "length", **changes}
    return real_cell(drafter, budget, **fixed)


MAIN = (sdar(), sdar("spot", 8))


def beside(folder, ratio, cells=MAIN, rows=4):
    """`ratio` is how many times fewer passes the drafted cells need."""
    made = [control(c.key, f"r{i}", 256) if c.is_control else decode(c.key, f"r{i}", 256 / ratio, 256)
            for c in cells for i in range(rows)]  # fmt: skip
    found, unmet = compare.of_published(stored(folder, cells, rows, made), published.every())
    return {(one.figure.measure, one.figure.kind, one.figure.source.name): one for one in found}, unmet


RATIOS = {4.0: "inside", 2.0: "below", 5.0: "above", 3.16: "inside", 4.74: "inside", 3.14: "below", 4.76: "above"}


@pytest.mark.parametrize(("ratio", "verdict"), RATIOS.items())
def test_a_published_range_tells_whether_ours_is_inside(tmp_path, ratio, verdict):
    found, _ = beside(tmp_path, ratio)
    one = found["nfe_ratio", "range", "SPOT page"]
    assert (one.figure.low, one.figure.high, one.verdicts) == (3.2, 4.7, (verdict,))
    assert one.ours[0].value == pytest.approx(ratio) and one.ours[0].label == "sdar-8b · gsm8k · spot · b8 · T0"


def test_where_sources_disagree_each_is_shown(tmp_path):
    found, _ = beside(tmp_path, 4.0)
    most = {
        name: one.figure.high
        for (measure, kind, name), one in found.items()
        if (measure, kind) == ("throughput_ratio", "at_most")
    }
    assert most == {"SPOT abstract": 3.2, "SPOT card": 3.2, "Glonce": 3.4}
    gamma = (
        sdar(task="mbpp", temperature=1.0, gen_length=512),
        sdar("spot-gamma", 8, task="mbpp", temperature=1.0, gen_length=512),
    )
    found, _ = beside(tmp_path / "long", 4.0, gamma)
    assert found["throughput_ratio", "value", "SPOT page"].figure.low == 3.23


def test_a_figure_speaks_of_the_cells_that_meet_its_conditions_alone(tmp_path):
    found, unmet = beside(tmp_path, 4.0, (sdar(), sdar("spot", 8, gen_length=512, task="mbpp")))
    assert ("nfe_ratio", "range", "SPOT page") not in found and ("nfe_ratio", "at_most", "SPOT abstract") in found
    assert any(figure.measure == "next_commit_accuracy" for figure in unmet)
    assert not any(figure.derived for figure in unmet)


def test_passes_saved_are_against_the_methods_own_baseline(tmp_path):
    cells, nfe = (*MAIN, sdar("spiffy", 8)), {"none": 256, "spot": 60, "spiffy": 80}
    made = [decode(c.key, f"r{i}", nfe[c.drafter], 256) for c in cells for i in range(4)]
    found, _ = compare.of_published(stored(tmp_path, cells, 4, made), published.every())
    (one,) = (one for one in found if one.figure.measure == "passes_saved")
    assert one.ours[0].value == pytest.approx(0.25) and one.verdicts == ("inside",)


def test_more_passes_are_counted_over_the_samples_that_the_baseline_has(tmp_path):
    cells = (sdar(task="mbpp"), sdar("spot", 8, task="mbpp"), sdar("spot-chain", 8, task="mbpp"))
    nfe = {"none": 256, "spot": 60, "spot-chain": 67}
    made = [decode(c.key, f"r{i}", nfe[c.drafter] + 20 * i, 256) for c in cells for i in range(4)]
    made = [
        record for record in made if (record["cell"], record["row"]) not in {(cells[1].key, f"r{i}") for i in (2, 3)}
    ]
    found, _ = compare.of_published(stored(tmp_path, cells, 4, made), published.every())
    (one,) = (one for one in found if one.figure.measure == "more_passes")
    assert (one.ours[0].value, one.ours[0].n, one.ours[0].planned) == (7.0, 2, 4)


def test_a_published_number_has_no_digit_more_than_its_source(tmp_path):
    mine = figure_file(
        tmp_path, FIGURE | {"measure": "nfe", "value": 64}, {"measure": "nfe_ratio", "range": [2.0, 4], "source": "me"}
    )
    made = [decode(c.key, f"r{i}", 64, 256) for c in MAIN for i in range(2)]
    found, _ = compare.of_published(stored(tmp_path, MAIN, 2, made), published.read(mine))
    lines = compare.published_sheet(found).panels[0].lines
    assert [line.entries[2].text for line in lines] == ["64", "2.0–4"]


def figure_file(folder, *figures, **sources):
    sources = sources or {"me": {"title": "t", "where": "w", "date": "2026-11"}}
    (folder / "mine.yaml").write_text(yaml.safe_dump({"sources": sources, "figures": list(figures)}))
    return folder / "mine.yaml"


FIGURE = {"measure": "nfe_ratio", "value": 4.0, "models": ["sdar-8b"], "source": "me"}


def test_a_value_near_ours_is_one_that_our_interval_reaches(tmp_path):
    cells = (sdar(), sdar("spot", 8))
    made = [
        control(c.key, f"r{i}", 256) if c.is_control else decode(c.key, f"r{i}", 60 + i, 256)
        for c in cells
        for i in range(9)
    ]
    near = figure_file(tmp_path, FIGURE | {"value": 4.02}, FIGURE | {"value": 4.5})
    figures = [replace(figure, conditions={"drafters": ("spot",)}) for figure in published.read(near)]
    found, _ = compare.of_published(stored(tmp_path, cells, 9, made), figures)
    assert [one.verdicts for one in found] == [("near",), ("below",)]
    for some, there in ((found, True), (found[1:], False)):
        said = [note.text for note in compare.published_sheet(some).notes]
        assert any(note.startswith("Near: ") for note in said) == there
        assert "In brackets: a cell's 95 % interval over prompts." in said and not any(
            "Ranges" in note for note in said
        )


def test_a_sweep_of_which_nothing_is_published_is_told_so(tmp_path, capsys):
    folder = str(stored(tmp_path)[0].folder)
    assert launch.main(["compare", folder, "published"]) == 2
    assert "no published figure speaks of a cell that it has decoded; they are of" in capsys.readouterr().err


def test_published_figures_are_printed_with_source_and_date_or_answered_in_json(tmp_path, capsys):
    cells = (sdar(), sdar("spot", 8))
    made = [control(c.key, "r0", 256) if c.is_control else decode(c.key, "r0", 64, 256) for c in cells]
    folder = str(stored(tmp_path, cells, 3, made)[0].folder)
    assert launch.main(["compare", folder, "spot.yaml"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert "3.2–4.7 4.00 1 1/3 inside SPOT page" in printed
    assert "SPOT page: SPOT project page, https://eliezer318.github.io/SPOT-dLLM/, read 2026-11." in printed
    assert launch.main(["compare", folder, "published", "--json"]) == 0
    first = json.loads(capsys.readouterr().out)["figures"][0]
    assert (first["low"], first["high"], first["ours"][0]["value"], first["verdicts"]) == (3.2, 4.7, 4.0, ["inside"])
    assert first["source"]["date"] == "read 2026-11"


@pytest.mark.parametrize(
    ("change", "wrong"),
    [
        ({"mesure": "nfe"}, "figures[0].mesure: unknown key; known: "),
        ({"measure": "speed"}, "figures[0].measure: 'speed'; one of nfe, "),
        ({"measure": ["nfe"]}, "figures[0].measure: ['nfe']; one of nfe, "),
        ({"source": {"me": 1}}, "figures[0].source: \"{'me': 1}\"; one of me expected"),
        ({"source": "you"}, "figures[0].source: 'you'; one of me expected"),
        ({"range": [1, 2]}, "figures[0]: value, range: exactly one of "),
        ({"value": "4"}, "figures[0].value: '4': a number expected"),
        ({"budgets": 8}, "figures[0].budgets: 8: a list of numbers expected"),
        ({"models": [8]}, "figures[0].models: [8]: a list of names expected"),
        ({"unmasking": "all"}, "figures[0].unmasking: 'all'; one of single, threshold expected"),
    ],
)
def test_a_malformed_file_is_one_line_with_the_key(tmp_path, capsys, change, wrong):
    folder = str(stored(tmp_path)[0].folder)
    path = figure_file(tmp_path, FIGURE | change)
    assert launch.main(["compare", folder, str(path)]) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith(f"error: {path}: {wrong}") and captured.err.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "wrong"),
    [
        ("sources: {}", "figures: a mapping of sources and a list of figures expected"),
        ("sources: {me: {title: t}}\nfigures: []", "sources.me: title, where and date expected"),
        ("figures: []\nsources: {}\nmore: 1", "more: unknown key; `sources` and `figures` are known"),
        ("sources: {}\nfigures: [4]", "figures[0]: 4: a mapping expected"),
        ("- 1", "not a mapping"),
        ("sources: {}\nfigures: []\nnull: 1", "Incompatible key type 'NoneType'"),
    ],
)
def test_a_file_of_another_form_is_refused(tmp_path, text, wrong):
    (tmp_path / "mine.yaml").write_text(text)
    with pytest.raises(UserError) as error:
        published.read(tmp_path / "mine.yaml")
    assert str(error.value).startswith(f"{tmp_path / 'mine.yaml'}: {wrong}")


def test_a_sweep_may_be_named_by_its_grid_file_and_a_file_that_is_not_there_is_a_mistake(tmp_path):
    (tmp_path / "grid.yaml").write_text("name: first\nmodels: [tiny]\n")
    assert published.named(str(tmp_path / "grid.yaml")) is None and published.named("first") is None
    assert len(published.named("published")) > len(published.named("spot.yaml")) > 0
    with pytest.raises(UserError, match=r"no.yaml: no such file; of published figures there are blockspec.yaml, "):
        published.named("no.yaml")


def test_a_range_that_is_none_is_refused(tmp_path):
    backwards = {"measure": "nfe", "range": [4, 3], "source": "me"}
    with pytest.raises(UserError, match=r"figures\[0\].range: \[4, 3\]: \[least, most\] expected"):
        published.read(figure_file(tmp_path, backwards))


def test_every_figure_of_configs_has_a_source_with_a_date_and_says_what_it_is():
    figures = published.every()
    assert {figure.source.name for figure in figures} >= {"SPOT page", "SPOT abstract", "Glonce", "Spiffy v4", "SSD"}
    assert all(figure.source.date and figure.source.where for figure in figures)
    assert all(figure.derived or figure.says for figure in figures if figure.source.name.startswith(("SPOT", "Glonce")))
    assert {figure.high for figure in figures if figure.measure == "throughput_ratio" and not figure.derived} >= {
        3.2,
        3.23,
        3.4,
    }
