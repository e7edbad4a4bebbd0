"""Where a sweep stands, read from its segments as they grow; tables of many cells; failures by error."""

import json
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from orchestrator.errors import UserError
from orchestrator.ledger import Ledger, Sweep
from orchestrator.standing import (
    Standing,
    Tail,
    failures_table,
    read_workers,
    state_counts,
    states_table,
    write_workers,
)
from orchestrator.workload import CellState, count
from tests.orchestrator.conftest import drive, plan_of
from tests.orchestrator.fakes import Fakes, FakeTask


@pytest.fixture
def segment(tmp_path):
    return tmp_path / "001.jsonl"


def tail_of(*paths):
    return Tail(lambda: [path for path in paths if path.exists()])


def standing_of(folder, fakes=None, *overrides, **options):
    """Of the small sweep, run over `fakes`."""
    fakes = fakes or Fakes()
    drive(fakes, folder, *overrides, **options)
    plan = plan_of(fakes, *overrides)
    standing = Standing(Sweep(folder, "mine", {}, plan.grid.cells, plan.rows))
    standing.add(Ledger(folder).records())
    return standing


def width_80(renderable):
    console = Console(width=80, record=True, file=StringIO())
    console.print(renderable)
    return console.export_text()


# ---- following


def line(row):
    return f'{{"kind":"score","task":"t","row":"{row}","text_sha":"","scorer":"1"}}\n'


def rows(tail):
    return [record["row"] for record in tail.read()]


def test_a_line_is_read_once_and_not_before_it_is_whole(segment):
    tail = tail_of(segment)
    assert rows(tail) == []
    segment.write_text(line("r1") + line("r2")[:20])
    assert rows(tail) == ["r1"]
    with segment.open("a") as file:
        file.write(line("r2")[20:] + line("r3"))
    assert rows(tail) == ["r2", "r3"]
    assert rows(tail) == []


def test_a_new_segment_is_read_after_the_old_ones_end(segment, tmp_path):
    second = tmp_path / "002.jsonl"
    tail = tail_of(segment, second)
    segment.write_text(line("r1"))
    assert rows(tail) == ["r1"]
    with segment.open("a") as file:
        file.write(line("r2"))
    second.write_text(line("r3"))
    assert rows(tail) == ["r2", "r3"]


def test_a_torn_last_line_waits_to_be_cut_and_a_damaged_one_before_others_is_named(segment):
    tail, whole = tail_of(segment), line("r1") + line("r2")
    segment.write_text(line("r1") + '{"n"\n')
    assert rows(tail) == ["r1"]
    segment.write_text(whole)  # the next driver cut it, and went on
    assert rows(tail) == ["r2"]
    segment.write_text(whole + '{"n"\n' + line("r4"))
    with pytest.raises(UserError, match=f"byte {len(whole)}: damaged record"):
        rows(tail)


# ---- standing


def test_the_standing_is_what_the_ledger_says_record_by_record(folder):
    failing = frozenset([("spot", f"r{i}") for i in range(40)])
    standing = standing_of(folder, Fakes(failing=failing))
    ledger = Ledger(folder)
    expected = count(standing.sweep.cells, standing.sweep.rows, ledger.results())
    assert standing.states == expected.states
    assert standing.results.keys() == ledger.results().keys()
    assert state_counts(standing.states) == {"done": 3, "partial": 0, "failed": 2, "new": 0}
    assert standing.ended


def test_progress_has_the_rate_of_the_records_own_times(folder):
    standing = Standing(standing_of(folder).sweep)
    for number, record in enumerate(record for record in Ledger(folder).records() if record["kind"] == "decode"):
        standing.add([record | {"started": 98.0 + number, "finished": 100.0 + number}])
    shown = standing.progress(now=130.0)
    assert shown.rate == pytest.approx(15 / 32)
    assert shown.nfe == {"control": 100, "spot b4": 96, "spot b8": 92, "stale b4": 96, "stale b8": 92}
    assert shown.nfe_ratio["spot b8"] == pytest.approx(100 / 92)
    assert standing.progress(now=900.0).rate == 0.0


def test_a_retried_failure_is_one_no_more(folder):
    failing = frozenset([("spot", f"r{i}") for i in range(40)])
    assert len(standing_of(folder, Fakes(failing=failing)).failures()) == 1
    assert standing_of(folder, Fakes(), retry_failed=True).failures() == []


def test_a_text_that_is_not_scored_is_to_score(folder):
    standing = standing_of(folder, Fakes(task=FakeTask("fake", unscorable="r8")))
    lacking = Standing(standing.sweep)
    lacking.add(record for record in Ledger(folder).records() if record["kind"] == "decode")
    assert (lacking.texts.missing, lacking.ended) == (3, False)
    assert standing.texts.missing == 0


def test_failures_are_grouped_by_error_whatever_its_numbers(folder):
    standing = Standing(standing_of(folder).sweep)
    cell, other = standing.sweep.cells[:2]
    failed = {"kind": "decode", "status": "failed", "attempt": 1, "started": 1.0, "finished": 1.0}
    for cell_key, row, error, cause in (
        (cell.key, standing.sweep.rows[cell.key][0], "RuntimeError: 3 of 8 at 0x7f", None),
        (cell.key, standing.sweep.rows[cell.key][1], "RuntimeError: 5 of 8 at 0x9c", None),
        (other.key, standing.sweep.rows[other.key][0], "OutOfMemoryError: no room", "oom-cuda"),
    ):
        standing.add([failed | {"cell": cell_key, "row": row, "error": error, "cause": cause}])
    groups = standing.failures()
    assert [(group.cause, group.count) for group in groups] == [("RuntimeError", 2), ("oom-cuda", 1)]
    assert groups[0].error == "RuntimeError: 3 of 8 at 0x7f"
    assert groups[0].cells == (cell.label,)
    shown = standing.progress(now=2.0)
    assert shown.causes == {"RuntimeError: 3 of 8 at 0x7f": 2, "OutOfMemoryError: no room": 1}
    assert [failed.cell for failed in shown.recent] == [other.label, cell.label, cell.label]
    table = width_80(failures_table(groups))
    assert max(map(len, table.splitlines())) <= 80
    assert "RuntimeError: 3 of 8" in table


def test_what_the_driver_says_of_its_workers_is_there_for_whoever_sees_the_store(tmp_path):
    assert read_workers(tmp_path) == {}
    write_workers(tmp_path, {"m": {"busy": 2}, "": {"waiting": 1}})
    assert read_workers(tmp_path) == {"m": {"busy": 2}, "": {"waiting": 1}}


def test_what_json_says_has_plain_values_alone(folder):
    standing = standing_of(folder, Fakes(failing=frozenset([("spot", f"r{i}") for i in range(40)])))
    told = json.loads(json.dumps(standing.as_dict(None, standing.progress(3.0, {"m": {"busy": 1}}))))
    assert (told["samples"], told["samples_done"], told["failed"]) == (15, 15, 6)
    assert (told["workers"], told["causes"]) == ({"m": {"busy": 1}}, {"ValueError: no": 6})
    assert told["failures"][0]["error"] == "ValueError: no"
    assert told["table"][0]["state"] == "done"


# ---- tables


def states(models, tasks, methods):
    cell = plan_of(Fakes()).grid.cells[1]
    return [
        CellState(replace(cell, model=f"m{m}", task=f"t{t}", seed=s), 10, 0, 0, None)
        for m in range(models)
        for t in range(tasks)
        for s in range(methods)
    ]


@pytest.mark.parametrize(("asked", "lines"), [((1, 2, 20), 40), ((2, 3, 20), 6), ((3, 20, 2), 3)])
def test_a_table_of_many_cells_counts_places_instead(asked, lines):
    assert states_table(states(*asked)).row_count == lines
