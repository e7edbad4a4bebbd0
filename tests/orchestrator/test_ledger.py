"""The log: what survives a crash at any byte, who may write, and which record counts."""

import json
import os
import re
import resource
import subprocess
import sys
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator import ledger as ledger_module
from orchestrator import segments as module
from orchestrator.errors import UserError
from orchestrator.ledger import Ledger, holder, read_sweep, write_sweep
from orchestrator.plan import make_sweep
from tests.orchestrator.conftest import plan_of
from tests.orchestrator.fakes import Fakes
from workers.store import StoreError


def decode(row, cell="c", status="ok", attempt=1, **more):
    return {"kind": "decode", "cell": cell, "row": row, "status": status, "attempt": attempt, **more}


def written(folder, *records):
    with Ledger.write(folder, 0.0) as ledger:
        return [ledger.append(record) for record in records]


@settings(max_examples=60, deadline=None)
@given(data=st.data(), texts=st.lists(st.text(), min_size=1, max_size=4))
def test_cut_at_any_byte_only_the_torn_record_is_lost(tmp_path_factory, data, texts):
    folder = tmp_path_factory.mktemp("sweep")
    records = [decode(f"r{i}", text=text) for i, text in enumerate(texts)]
    written(folder, *records)
    segment = folder / "segments" / "001.jsonl"
    whole = segment.read_bytes()
    cut = data.draw(st.integers(0, len(whole)))
    segment.write_bytes(whole[:cut])
    kept = whole[:cut].count(b"\n")
    assert list(Ledger(folder).records()) == records[:kept]  # a reader passes over the torn tail
    written(folder, *records)  # a writer cuts it, and what was lost is appended again
    assert list(Ledger(folder).records()) == records
    assert all(json.loads(line) for line in segment.read_bytes().splitlines())


def test_a_last_line_of_zeros_from_a_power_cut_is_cut_too(tmp_path):
    written(tmp_path, decode("r0"))
    segment = tmp_path / "segments" / "001.jsonl"
    segment.write_bytes(segment.read_bytes() + b"\0" * 40 + b"\n")
    written(tmp_path, decode("r1"))
    assert [record["row"] for record in Ledger(tmp_path).records()] == ["r0", "r1"]


def test_damage_before_the_last_line_is_reported_with_its_place(tmp_path):
    written(tmp_path, decode("r0"), decode("r1"))
    segment = tmp_path / "segments" / "001.jsonl"
    segment.write_text("{broken\n" + segment.read_text())
    with pytest.raises(UserError, match=r"001.jsonl:1: damaged record"):
        Ledger(tmp_path)


def test_a_record_is_on_file_as_soon_as_it_is_appended(tmp_path):
    with Ledger.write(tmp_path, 0.0) as ledger:
        ledger.append(decode("r0"))
        assert len(Ledger(tmp_path).results()) == 1


def test_records_are_durable_after_ten_seconds_or_two_hundred_records(tmp_path):
    with Ledger.write(tmp_path, now=0.0) as ledger:
        ledger.append(decode("r0"))
        assert ledger.sync(9.9) == []
        assert [record["row"] for record in ledger.sync(10.0)] == ["r0"]
        for i in range(1, 201):
            assert ledger.sync(10.0) == []
            ledger.append(decode(f"r{i}"))
        assert len(ledger.sync(10.0)) == 200
        ledger.append(decode("last"))
        assert len(ledger.sync(10.0, force=True)) == 1


def test_the_first_decode_of_a_sample_counts_and_later_ones_are_counted_as_ignored(tmp_path):
    with Ledger.write(tmp_path, 0.0) as ledger:
        assert ledger.append(decode("r0", text="first"))
        assert not ledger.append(decode("r0", text="second"))
        assert ledger.ignored == 1
        assert ledger.results()["c", "r0"]["text"] == "first"
    assert len(list(Ledger(tmp_path).records())) == 1


def test_a_later_attempt_replaces_a_failure_and_never_a_result(tmp_path):
    failed, good, late = decode("r0", status="failed"), decode("r0", attempt=2), decode("r0", attempt=3)
    assert written(tmp_path, failed, failed, good, late) == [True, False, True, False]
    assert Ledger(tmp_path).results()["c", "r0"]["attempt"] == 2


def score(scorer="1", **more):
    return {"kind": "score", "task": "t", "row": "r0", "text_sha": "sha", "scorer": scorer, **more}


def test_the_last_score_of_a_text_counts_and_other_scorers_have_their_own(tmp_path):
    failed, right = score(correct=None, error="no sandbox"), score(correct=True, error=None)
    assert written(tmp_path, failed, score("2", correct=False), right) == [True] * 3
    ledger = Ledger(tmp_path)
    assert list(ledger.scores().values()) == [score("2", correct=False), right]  # the oldest first
    assert len(list(ledger.records())) == 3


def test_segments_are_begun_anew_when_they_have_grown(tmp_path, monkeypatch):
    monkeypatch.setattr(module, "SEGMENT_BYTES", 100)
    written(tmp_path, *[decode(f"r{i}") for i in range(6)])
    names = [path.name for path in sorted((tmp_path / "segments").iterdir())]
    assert names[:2] == ["001.jsonl", "002.jsonl"]
    assert [record["row"] for record in Ledger(tmp_path).records()] == [f"r{i}" for i in range(6)]


def test_a_process_with_the_number_of_a_killed_driver_is_no_driver(tmp_path):
    with Ledger.write(tmp_path, 0.0):
        host, pid, began = (tmp_path / "lock").read_text().split()
        assert holder(tmp_path) == f"{host}, process {pid}"
    (tmp_path / "lock").write_text(f"{host} {pid} {int(began) - 1}")  # as `kill -9` leaves it
    assert holder(tmp_path) is None


def test_a_lock_that_a_full_disk_does_not_take_is_let_go(tmp_path, disk_that_takes):
    with disk_that_takes(0), pytest.raises(UserError, match="store: cannot be written"):
        Ledger.write(tmp_path, 0.0)
    Ledger.write(tmp_path, 0.0).close()


def test_a_second_driver_is_turned_away_by_name(tmp_path):
    with Ledger.write(tmp_path, 0.0):
        with pytest.raises(UserError, match=f"another driver is running this sweep .*process {os.getpid()}"):
            Ledger.write(tmp_path, 0.0)
        assert holder(tmp_path) is not None
    assert holder(tmp_path) is None
    Ledger.write(tmp_path, 0.0).close()


def test_a_full_disk_is_one_line_and_costs_the_record_that_did_not_fit(tmp_path, disk_that_takes):
    with Ledger.write(tmp_path, 0.0) as ledger:
        ledger.append(decode("r0"))
        segment = tmp_path / "segments" / "001.jsonl"
        before = segment.read_bytes()
        with (
            disk_that_takes(len(before) + 20),
            pytest.raises(StoreError, match=r"store: cannot be written .*; make room"),
        ):
            ledger.append(decode("r1"))
        assert segment.read_bytes() == before  # no torn line either
        assert [record["row"] for record in ledger.sync(0.0, force=True)] == ["r0"]
    assert written(tmp_path, decode("r0"), decode("r1")) == [False, True]


@pytest.fixture
def disk_that_takes():
    """A disk on which a file has room for so many bytes."""

    @contextmanager
    def limited(size):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    return limited


def test_what_a_record_measured_is_read_from_the_disk_when_it_is_asked_for(tmp_path):
    record = decode("r0", text="long", text_sha="sha", nfe=12, difference=None, seconds={"draft": 1.0})
    with Ledger.write(tmp_path, 0.0) as ledger:
        ledger.append(record)
        assert ledger.results()["c", "r0"] == record
    held = Ledger(tmp_path).results()["c", "r0"]
    (tmp_path / "segments" / "001.jsonl").rename(tmp_path / "away")
    light = {
        name: record[name] for name in ("kind", "cell", "row", "status", "attempt", "nfe", "text_sha", "difference")
    }
    assert {name: held[name] for name in light} == light
    with pytest.raises(FileNotFoundError):
        held["text"]
    (tmp_path / "away").rename(tmp_path / "segments" / "001.jsonl")
    assert (held["text"], held.get("seconds"), held.get("nothing"), dict(held)) == (
        "long",
        {"draft": 1.0},
        None,
        record,
    )
    assert [*Ledger(tmp_path).decodes()] == [record]


ROWS = st.text(min_size=1).filter(lambda text: text.isprintable() or '"' in text)


@settings(max_examples=60, deadline=None)
@given(row=ROWS, text=st.text(), nfe=st.integers(0, 999), difference=st.sampled_from([None, "numeric", "bug"]))
def test_a_scan_finds_of_a_line_what_parsing_all_of_it_would(row, text, nfe, difference):
    record = decode(row, text=text, text_sha=text[:4] or "sha", nfe=nfe, difference=difference)
    line = ledger_module._line(record)
    assert json.loads(line) == record
    head = ledger_module._head(line)
    assert head == {name: record[name] for name in head}
    assert head.keys() >= {"kind", "cell", "row", "status", "attempt", "nfe", "text_sha", "difference"}


def test_a_dead_drivers_sweep_is_taken_over_at_once(tmp_path):
    program = (
        "import os, sys; from pathlib import Path; from orchestrator.ledger import Ledger\n"
        "ledger = Ledger.write(Path(sys.argv[1]), 0.0)\n"
        "ledger.append({'kind': 'decode', 'cell': 'c', 'row': 'r0', 'status': 'ok', 'attempt': 1})\n"
        "os.kill(os.getpid(), 9)\n"
    )
    root = Path(__file__).parents[2]
    assert subprocess.run([sys.executable, "-c", program, str(tmp_path)], cwd=root, check=False).returncode == -9
    assert holder(tmp_path) is None
    with Ledger.write(tmp_path, 0.0) as ledger:
        assert set(ledger.results()) == {("c", "r0")}


def test_a_reader_changes_nothing_and_needs_no_lock(tmp_path):
    with Ledger.write(tmp_path, 0.0) as ledger:
        ledger.append(decode("r0"))
        segment = tmp_path / "segments" / "001.jsonl"
        with segment.open("ab") as file:
            file.write(b'{"kind": "dec')
        before = segment.read_bytes()
        assert len(Ledger(tmp_path).results()) == 1
        assert segment.read_bytes() == before


def test_sweep_yaml_reads_back_as_it_was_written(tmp_path):
    plan = plan_of(Fakes(), "temperatures=[0,1]", "seeds=[0,1]")
    sweep = make_sweep(plan, tmp_path, {"tiny-sdar": {"torch": "2"}})
    write_sweep(sweep)
    assert read_sweep(tmp_path) == sweep


def test_cells_that_left_the_grid_are_kept_as_retired(tmp_path):
    wide, narrow = plan_of(Fakes(), "budgets=[0,4,8]"), plan_of(Fakes(), "budgets=[0,8]")
    write_sweep(make_sweep(narrow, tmp_path, {}, make_sweep(wide, tmp_path, {})))
    sweep = read_sweep(tmp_path)
    assert {cell.budget for cell in sweep.cells} == {0, 8}
    assert {cell.budget for cell in sweep.retired} == {4}
    write_sweep(make_sweep(wide, tmp_path, {}, sweep))
    assert read_sweep(tmp_path).retired == ()


def test_no_sweep_is_an_error_that_says_how_to_start_one(tmp_path):
    with pytest.raises(UserError, match="no sweep here; start one with"):
        read_sweep(tmp_path)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r".*", ""),
        (r".*", "cells: [broken\n"),
        (r"name: quickstart", "nom: quickstart"),
        (r"mlflow:", "flow:"),
        (r"dtype:", "datatype:"),
        (r"gen_length: 128", "gen_length: 64"),
    ],
)
def test_a_sweep_yaml_that_cannot_be_read_is_one_line(tmp_path, old, new):
    write_sweep(make_sweep(plan_of(Fakes()), tmp_path, {}))
    path = tmp_path / "sweep.yaml"
    text = path.read_text()
    path.write_text(re.sub(old, new, text, flags=re.DOTALL))
    with pytest.raises(UserError, match=r"sweep.yaml: not a sweep.yaml this version can read; restore it"):
        read_sweep(tmp_path)


@pytest.mark.parametrize("blocker", ["", "sub"])
def test_a_store_that_cannot_be_written_is_one_line(tmp_path, blocker):
    (tmp_path / "file").write_text("")
    with pytest.raises(
        UserError, match=r"store: cannot be written \(Not a directory\); choose another with store=FOLDER"
    ):
        Ledger.write(tmp_path / "file" / blocker, 0.0)
