"""Which samples the page's browser is given, and that however wide the grid is they fit on a page."""

from collections import Counter

import pandas as pd
import pytest

from dashboards import browser
from orchestrator import results
from tests.fake_sweep import FakeCell, FakeSweep, control, decode, score, sweep

CELLS = (FakeCell("c"), FakeCell("s4", "spot", 4), FakeCell("s8", "spot", 8))


def replays_of(records):
    kept = {(record["cell"], record["row"]): record.get("replay") for record in records}
    return lambda cell, row: kept.get((cell, row))


def shown(made, records, scores=()):
    records = list(records)
    return browser.shown(made, results.frame(made, records, scores), replays_of(records))


def samples(found):
    """(method budget, row, state) in the order of the page."""
    cells = found.data["cells"]
    return [(f"{cells[line[0]][4]} {cells[line[0]][5]}", line[1], line[2]) for line in found.data["samples"]]


def whole(rows):
    for i in range(rows):
        yield control("c", f"r{i}", 60)
        yield from (decode(key, f"r{i}", 20, 60) for key in ("s4", "s8"))


def test_a_row_is_shown_as_every_method_decoded_it_before_the_next_is():
    found = shown(sweep(*CELLS), whole(2))
    assert samples(found) == [
        (method, row, "identical") for row in ("r0", "r1") for method in ("control 0", "spot 4", "spot 8")
    ]
    assert (found.samples, found.of_samples, found.replays) == (6, 6, 0)
    assert found.data["texts"] == ["text of r0", "text of r1"]  # once, however many methods wrote it


def test_a_sample_says_what_was_measured_and_scored():
    records = [control("c", "r0", 60), decode("s4", "r0", 20, 60, accepted=40, drafted_passes=18)]
    found = shown(sweep(*CELLS), records, [score("r0", False)])
    assert found.data["samples"][1] == [1, "r0", "identical", 20, 60, 40, 18, 1.0, False, "42", 0, None, None, None]
    assert found.data["cells"][1] == ["tiny", "arith", 0.0, 0, "spot", 4]


def test_bugs_differences_and_failures_come_first_and_then_the_first_rows():
    other = {"identical": False, "text": "other", "text_sha": "x"}
    late = [decode("s8", "r31", 20, 60, difference="numeric", **other), decode("s4", "r32", 20, 60, status="failed"),
            decode("s4", "r33", 20, 60, difference="bug", **other), control("c", "r33", 60)]  # fmt: skip
    found = shown(sweep(*CELLS, rows=40), [*whole(25), *late])
    assert samples(found)[:4] == [("spot 4", "r33", "bug"), ("spot 8", "r31", "numeric"), ("spot 4", "r32", "failed"),
                                  ("control 0", "r0", "identical")]  # fmt: skip
    assert (found.samples, found.of_samples) == (3 + 3 * browser.ROWS, 79)
    bug = found.data["samples"][found.places["s4", "r33"]]
    assert [found.data["texts"][number] for number in bug[10:12]] == ["other", "text of r33"]


def test_a_cell_that_fails_everywhere_leaves_room_for_others():
    records = [decode("s4", f"r{i}", 20, 60, status="failed", text_sha=None) for i in range(100)]
    found = shown(sweep(*CELLS, rows=100), [*records, control("c", "r0", 60)])
    assert [state for _, _, state in samples(found)].count("failed") == browser.ROWS
    assert samples(found)[browser.MOST_ODD] == ("control 0", "r0", "identical")


def test_a_text_of_other_tokens_is_shown_against_its_control_though_it_reads_alike():
    records = [control("c", "r0", 60), decode("s4", "r0", 20, 60, identical=False, difference="numeric")]
    found = shown(sweep(*CELLS), records)
    assert found.data["samples"][0][2] == "numeric" and found.data["samples"][0][10:12] == [0, 0]


def test_odd_samples_leave_half_of_the_room_to_the_others(monkeypatch):
    monkeypatch.setattr(browser, "SAMPLE_BYTES", 6000)
    other = {"identical": False, "difference": "numeric"}
    cells = tuple(FakeCell(f"s{n}", "spot", n) for n in range(4, 40))
    records = [control("c", "r0", 60)]
    records += [decode(cell.key, "r0", 20, 60, text=cell.key * 200, text_sha=cell.key, **other) for cell in cells]
    records += [decode(cell.key, "r1", 20, 60) for cell in cells]
    states = [state for _, _, state in samples(shown(sweep(FakeCell("c"), *cells), records))]
    assert 1 < states.count("numeric") < 10 < states.count("identical") <= 37


def replay(row):
    return {"prompt": f"prompt of {row}", "block": 4, "start": 0, "pieces": ["a"], "passes": [[[[0, 0]], [], []]]}


def test_replays_are_shown_with_their_prompt_once():
    records = [record | {"replay": replay(record["row"])} for record in whole(2)]
    found = shown(sweep(*CELLS), [*records, *list(whole(3))[6:]])
    assert found.replays == 6 and [line[-1] for line in found.data["samples"]] == list(range(6))
    texts = [found.data["texts"][kept["prompt"]] for kept in found.data["replays"]]
    assert texts == ["prompt of r0"] * 3 + ["prompt of r1"] * 3
    assert len(found.data["texts"]) == 4


@pytest.mark.parametrize("evil", ["</script>", "<!--", "<script", "]]>", "\u2028"])
def test_no_text_can_end_the_script_that_it_stands_in(evil):
    assert "<" not in browser.embedded({evil: [evil]})


def wide(models, rows):
    """2,000 cells of it, every text long and of its own, every first row with a long replay."""
    cells = tuple(
        FakeCell(f"{model}-{drafter}-{budget}", drafter, budget, model=f"m{model}")
        for model in range(models)
        for drafter, budget in [("none", 0), *((name, n) for name in ("a", "b", "c") for n in (4, 8, 20))]
    )
    made = FakeSweep(cells, dict.fromkeys((cell.key for cell in cells), tuple(f"r{i}" for i in range(rows))))
    lines = [
        {"cell": cell.key, "row": f"r{i}", "text": f"{cell.key} {i} " + "word < " * 300, "text_sha": f"{cell.key}-{i}"}
        for cell in cells
        for i in range(rows)
    ]
    frame = pd.DataFrame(lines, dtype=object)
    axes = {cell.key: results.axes(cell) for cell in cells}
    for name in results.AXES:
        frame[name] = pd.Series([axes[key][name] for key in frame["cell"]], dtype=object)
    constant = {
        "status": "ok", "identical": True, "difference": None, "control_sha": "x", "nfe": 20, "control_nfe": 60,
        "accepted": 9, "drafted_passes": 9, "seconds": 1.25, "correct": True, "answer": "4", "error": None,
    }  # fmt: skip
    return made, frame.assign(
        **{name: pd.Series([value] * len(frame), dtype=object) for name, value in constant.items()}
    )


def test_two_thousand_cells_fit_on_a_page():
    made, frame = wide(200, 5)
    long = {**replay("r0"), "passes": [[[[0, 0]], [[0, 1, 0]] * 20, []]] * 60}
    found = browser.shown(made, frame, lambda cell, row: long if row == "r0" else None)
    assert len(browser.embedded(found.data).encode()) < browser.SAMPLE_BYTES + browser.REPLAY_BYTES + 200_000
    assert 500 < found.samples < found.of_samples == 10_000
    groups = Counter(found.data["cells"][line[0]][0] for line in found.data["samples"] if line[-1] is not None)
    assert found.replays > 100 and max(groups.values()) - min(groups.values()) <= 1  # every group has its share
