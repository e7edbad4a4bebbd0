"""MLflow says what the ledger says, whatever happened to either of them."""

import json
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from threading import Event

import pytest

from orchestrator import mlflow_runs, mlflow_store, results, tables, tracking
from orchestrator.config import mlflow_beside
from orchestrator.errors import UserError
from orchestrator.ledger import read_sweep, write_sweep
from orchestrator.mlflow_runs import Drawings, Runs
from orchestrator.projection import Projection
from tests import fake_sweep
from tests.fake_sweep import START, append, control, decode, on_disk, real_cell, score

pytest_plugins = ["tests.servers"]

ROOT = Path(__file__).resolve().parents[2]
CONTROL, SPOT = real_cell(), real_cell("spot", 4, drafter_options=(("tokgate", 0.6),))
RECORDS = [
    control(CONTROL.key, "r0", 60),
    decode(SPOT.key, "r0", 20, 60, drafted=40, drafted_passes=10, accepted=15, accepted_by_depth=[9, 6]),
    control(CONTROL.key, "r1", 80),
    decode(SPOT.key, "r1", 20, 80),
]
SCORES = [score("r0", True), score("r1", False)]
FAILED = decode(SPOT.key, "r1", 0, 0, status="failed", error="CUDA", text_sha=None)
PAGE = "<html>"
SECOND = 1000  # milliseconds
BEGAN = int(START * SECOND)


def runs(uri):
    """The runs of the sweep by cell key, the parent under None."""
    client = mlflow_store.connect(uri)
    experiment = client.get_experiment_by_name("spot-sweeps").experiment_id
    found = client.search_runs([experiment], "tags.sweep = 'first'")
    by_cell = {run.data.tags.get("cell"): run for run in found}
    assert len(by_cell) == len(found), "two runs for one cell"
    return by_cell


def statuses(uri):
    return {key: run.info.status for key, run in runs(uri).items()}


def history(uri, cell, metric):
    points = mlflow_store.connect(uri).get_metric_history(runs(uri)[cell.key].info.run_id, metric)
    return sorted((point.step, point.value, point.timestamp) for point in points)


def values(uri, cell, metric):
    return [point[:2] for point in history(uri, cell, metric)]


def artifacts(client, run_id, path=None):
    """The paths of all files among a run's artifacts."""
    found = client.list_artifacts(run_id, path)
    below = [name for entry in found if entry.is_dir for name in artifacts(client, run_id, entry.path)]
    return sorted([entry.path for entry in found if not entry.is_dir] + below)


def contents(uri):
    """All that people see of a sweep, by cell: no run id, and of times those that records have."""
    client, found = mlflow_store.connect(uri), runs(uri)
    parent = found[None].info.run_id
    seen = {}
    for key, run in found.items():
        tags = {name: value for name, value in run.data.tags.items() if name not in ("mirrored", "settled")}
        assert tags.pop("mlflow.parentRunId", parent) == parent
        seen[key] = {
            "name": run.info.run_name,
            "status": run.info.status,
            "time": (run.info.start_time, run.info.end_time) if key else run.info.end_time,
            "tags": tags,
            "params": run.data.params,
            "data": [(i.dataset.name, i.dataset.digest, i.dataset.source) for i in run.inputs.dataset_inputs],
            "metrics": histories(uri, run),
            "artifacts": artifacts(client, run.info.run_id),
        }
    return seen


def histories(uri, run):
    """(metric, step, time, value) of all that a run has; from the file, where that saves a request a metric."""
    if uri.startswith("sqlite:///"):
        with closing(sqlite3.connect(uri.removeprefix("sqlite:///"))) as database:
            query = "select key, step, timestamp, value from metrics where run_uuid = ?"
            return sorted(database.execute(query, [run.info.run_id]))
    client = mlflow_store.connect(uri)
    points = [point for name in run.data.metrics for point in client.get_metric_history(run.info.run_id, name)]
    return sorted((point.key, point.step, point.timestamp, point.value) for point in points)


def of_samples(points):
    """Those that are no cell's summary."""
    return [point for point in points if "/" not in point[0]]


def drawn(*_):
    return {"plots/nfe.svg": b"<svg>"}


def write_page(folder):
    (folder / "report.html").write_text(PAGE)


DRAWINGS = Drawings(write_page, drawn, drawn)


def mirrored(uri, sweep, status="FINISHED", drawings=None):
    mirror = tracking.Mirror(uri, sweep, drawings)
    mirror.finish(status)
    assert not mirror.behind, mirror.error
    assert mirror.lag == 0


# ---- what is there


def test_a_finished_sweep_is_a_parent_with_a_nested_run_a_cell(uri, tmp_path):
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES))
    found = runs(uri)
    assert statuses(uri) == dict.fromkeys([None, CONTROL.key, SPOT.key], "FINISHED")
    assert found[SPOT.key].data.tags["mlflow.parentRunId"] == found[None].info.run_id
    names = {run.info.run_name for run in found.values()}
    assert names == {"first", "tiny · arith · control · T0 · s0", "tiny · arith · spot · b4 · T0 · s0"}


def test_every_axis_is_a_param_and_so_is_whatever_else_decides_a_result(uri, tmp_path):
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS))
    assert runs(uri)[SPOT.key].data.params == {
        "model": "tiny", "family": "sdar", "model_revision": "aa", "block_length": "8", "dtype": "float32",
        "task": "arith", "data_revision": "bb", "drafter": "spot", "method": "spot", "budget": "4",
        "temperature": "0.0", "seed": "0", "gen_length": "64", "stop": "eos", "layout": "batch", "cache": "True",
        "pad_pieces": "0", "suffix": "keep", "semantics": str(SPOT.semantics), "option.tokgate": "0.6",
    }  # fmt: skip


def test_a_flat_filter_finds_sweeps_cells_code_and_environment(uri, tmp_path):
    made = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS)
    mirrored(uri, replace(made, environment={**made.environment, "commit": "abc1234+"}))
    client = mlflow_store.connect(uri)
    experiment = client.get_experiment_by_name("spot-sweeps").experiment_id
    found = {
        query: len(client.search_runs([experiment], query))
        for query in (
            "tags.sweep = 'first' and tags.kind = 'cell' and params.drafter = 'spot'",
            "tags.kind = 'sweep' and tags.drafters LIKE '%spot%' and tags.models = 'tiny' and tags.samples = '4'",
            f"tags.cell = '{SPOT.key}' and tags.`env.torch` = '2.9' and tags.`mlflow.source.git.commit` = 'abc1234'",
            "tags.kind = 'cell' and tags.`mlflow.source.git.dirty` = 'true' and metrics.`summary/nfe_ratio` > 3",
            "datasets.name = 'arith' and datasets.digest = 'bb'",
        )
    }
    assert list(found.values()) == [1, 1, 1, 1, 3], found


@pytest.mark.parametrize(
    ("entry", "kind", "source"),
    [
        ({"task": "arith", "split": "test", "size": 500}, "generated", {"task": "arith", "split": "test", "size": 500}),
        ({"hub": "openai/gsm8k", "path": "x.jsonl"}, "local", {"uri": "x.jsonl"}),
        (
            {"hub": "openai/gsm8k", "path": None, "config": "main", "split": "test", "revision": "740"},
            "hugging_face",
            {"path": "openai/gsm8k", "config_name": "main", "split": "test", "revision": "740"},
        ),
    ],
)
def test_data_sets_are_inputs_that_say_where_they_are_from(uri, tmp_path, entry, kind, source):
    made = on_disk(tmp_path, SPOT, records=RECORDS[1:2])
    Runs(uri, replace(made, config={**made.config, "task": {"arith": entry}}))
    (found,) = runs(uri)[None].inputs.dataset_inputs
    assert (found.dataset.name, found.dataset.digest, found.dataset.source_type) == ("arith", "bb", kind)
    assert json.loads(found.dataset.source) == source


def test_a_sample_is_a_step_with_the_time_of_its_record(uri, tmp_path):
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES))
    assert history(uri, SPOT, "nfe") == [(0, 20.0, BEGAN + 1 * SECOND), (1, 20.0, BEGAN + 2 * SECOND)]
    assert values(uri, SPOT, "correct") == [(0, 1.0), (1, 0.0)]
    assert values(uri, SPOT, "seconds_draft") == [(0, 0.25), (1, 0.25)]
    assert values(uri, SPOT, "tokens_per_pass") == [(0, 0.4), (1, 0.4)]
    assert values(uri, SPOT, "tokens_per_second") == [(0, 8.0), (1, 8.0)]
    assert values(uri, SPOT, "identical") == [(0, 1.0), (1, 1.0)]


def test_acceptance_without_a_drafted_pass_is_absent(uri, tmp_path):
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS))
    assert values(uri, SPOT, "acceptance") == [(0, 1.5)]
    assert history(uri, CONTROL, "acceptance") == []
    assert "summary/acceptance" not in runs(uri)[CONTROL.key].data.metrics


def test_a_finished_cell_has_its_ratios_with_intervals(uri, tmp_path):
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES))
    found = runs(uri)[SPOT.key].data.metrics
    assert found["summary/nfe_ratio"] == 3.5 and found["summary/throughput_ratio"] == 2.0
    assert found["summary/accuracy"] == 0.5 and found["summary/acceptance"] == 1.5
    for name in ("nfe_ratio", "throughput_ratio", "accuracy"):
        assert found[f"summary/{name}_low"] <= found[f"summary/{name}"] <= found[f"summary/{name}_high"]


def test_generations_plots_tables_and_the_page_are_artifacts(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)
    mirrored(uri, sweep, drawings=DRAWINGS)
    client, found = mlflow_store.connect(uri), runs(uri)
    assert artifacts(client, found[SPOT.key].info.run_id) == ["generations.json", "plots/nfe.svg"]
    pages = ["plots/nfe.svg", "report.html", "sweep.yaml", "table.csv", "table.md", "table.tex"]
    assert artifacts(client, found[None].info.run_id) == pages
    where = client.download_artifacts(found[SPOT.key].info.run_id, "generations.json", str(tmp_path))
    table = json.loads(Path(where).read_text())
    assert [line[table["columns"].index("text")] for line in table["data"]] == ["text of r0", "text of r1"]
    assert "| spot | 20.0 | 2.00 |" in found[None].data.tags["mlflow.note.content"]


def test_what_launch_hands_in_draws_figures(tmp_path):
    from dashboards import mlflow_plots

    made, samples = results.load(on_disk(tmp_path, CONTROL, SPOT, records=RECORDS).folder)
    table = results.summary(made, samples)
    spot = mlflow_plots.of_cell(samples[samples["cell"] == SPOT.key], table.to_dict("records")[1])
    assert list(spot) == ["plots/passes.svg"]
    assert list(mlflow_plots.of_cell(samples[:0], table.to_dict("records")[0] | {"n": 0})) == []
    sweep = mlflow_plots.of_sweep(results.over_seeds(table, samples))
    assert list(sweep) == [f"plots/tiny-arith-T0-{name}.svg" for name in ("nfe", "throughput", "acceptance", "time")]
    assert all(b"<svg" in picture[:400] for picture in (spot | sweep).values())
    assert b"accepted in a row" in spot["plots/passes.svg"]


def test_more_than_a_thousand_metrics_go_in_batches_and_all_arrive(uri, tmp_path):
    records = [control(CONTROL.key, f"r{i}", 60 + i) for i in range(250)]
    mirrored(uri, on_disk(tmp_path, CONTROL, rows=250, records=records))
    assert [point[1] for point in history(uri, CONTROL, "nfe")] == [60.0 + i for i in range(250)]


def test_artifacts_lie_beside_the_database(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mirrored(uri, on_disk(tmp_path, CONTROL, records=RECORDS[::2]))
    assert list((tmp_path / "mlartifacts").rglob("table.csv"))
    assert not (tmp_path / "mlruns").exists()


# ---- again, and further


def test_mirroring_again_changes_nothing(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)
    mirrored(uri, sweep)
    before, ids = contents(uri), {key: run.info.run_id for key, run in runs(uri).items()}
    mirrored(uri, sweep)
    tracking.rebuild(uri, sweep.folder)
    assert contents(uri) == before
    assert {key: run.info.run_id for key, run in runs(uri).items()} == ids


def test_rebuilding_makes_the_same_runs_from_nothing(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)
    mirrored(uri, sweep)
    before, ids = contents(uri), {run.info.run_id for run in runs(uri).values()}
    mlflow_store.connect(uri).log_metric(runs(uri)[SPOT.key].info.run_id, "nfe", 1e9, step=7)
    tracking.rebuild(uri, sweep.folder, anew=True)
    assert contents(uri) == before
    assert not ids & {run.info.run_id for run in runs(uri).values()}


def test_a_run_of_more_rows_adds_them_to_its_runs(uri, tmp_path):
    """Records of rows that were not in the plan, and are older than its cursor, are sent once they are."""
    records = [*RECORDS, control(CONTROL.key, "r2", 50)]
    small = on_disk(tmp_path, CONTROL, SPOT, rows=1, records=[*records, control(CONTROL.key, "r0", 1, attempt=2)])
    mirrored(uri, small)
    first = runs(uri)[CONTROL.key].info.run_id
    assert values(uri, CONTROL, "nfe") == [(0, 60.0)]
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, rows=3), "KILLED")
    assert values(uri, CONTROL, "nfe") == [(0, 60.0), (1, 80.0), (2, 50.0)]
    assert runs(uri)[CONTROL.key].info.run_id == first
    assert statuses(uri) == {None: "KILLED", CONTROL.key: "FINISHED", SPOT.key: "KILLED"}


@pytest.mark.parametrize("rows", [("r0",), ("r1", "r0")])
def test_a_run_whose_steps_are_no_longer_those_rows_is_made_anew(uri, tmp_path, rows):
    sweep = on_disk(tmp_path, CONTROL, records=RECORDS[::2])
    mirrored(uri, sweep)
    changed = replace(sweep, rows={CONTROL.key: rows})
    write_sweep(changed)
    mirrored(uri, changed)
    nfe = {"r0": 60.0, "r1": 80.0}
    assert values(uri, CONTROL, "nfe") == [(step, nfe[row]) for step, row in enumerate(rows)]


def test_two_sweeps_of_one_name_on_one_server_have_runs_of_their_own(uri, tmp_path):
    mine, other = (on_disk(tmp_path / where, CONTROL, SPOT, records=RECORDS) for where in ("mine", "other"))
    mirrored(uri, replace(mine, id="a"))
    mirrored(uri, replace(other, id="b"))
    client = mlflow_store.connect(uri)
    experiment = client.get_experiment_by_name("spot-sweeps").experiment_id
    found = [
        {run.info.run_id for run in mlflow_store.search(client, experiment, replace(mine, id=which))} for which in "ab"
    ]
    assert [len(runs) for runs in found] == [3, 3]
    assert not found[0] & found[1]
    Runs(uri, replace(mine, id="a")).delete()
    assert {run.info.run_id for run in mlflow_store.search(client, experiment, replace(other, id="b"))} == found[1]


# ---- statuses


def test_orphans_of_a_killed_driver_become_killed_and_no_param_conflicts(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS[:2])
    tracking.catch_up(dead := Runs(uri, sweep), Projection(sweep))
    dead._client.log_param(runs(uri)[SPOT.key].info.run_id, "later_axis", "1")
    assert set(statuses(uri).values()) == {"RUNNING"}
    del dead  # as SIGKILL leaves it
    Runs(uri, sweep)
    assert statuses(uri) == {None: "RUNNING", CONTROL.key: "KILLED", SPOT.key: "KILLED"}
    tracking.rebuild(uri, sweep.folder)
    assert set(statuses(uri).values()) == {"KILLED"}


@pytest.mark.parametrize("failure", [KeyboardInterrupt, ConnectionError])
def test_a_sync_that_is_broken_off_leaves_no_run_running(uri, tmp_path, monkeypatch, failure):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)

    def breaking(self, projection, full_only=False):
        send(self, projection, full_only)
        if not full_only:
            raise failure

    send = Runs.send
    monkeypatch.setattr(Runs, "send", breaking)
    with pytest.raises(failure):
        tracking.rebuild(uri, sweep.folder)
    assert statuses(uri) == {None: "KILLED", CONTROL.key: "FINISHED", SPOT.key: "FINISHED"}


@pytest.mark.parametrize("status", ["FAILED", "KILLED"])
def test_the_cells_that_were_at_work_end_as_the_sweep_does(uri, tmp_path, status):
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS[:3] + SCORES), status)
    assert statuses(uri) == {None: status, CONTROL.key: "FINISHED", SPOT.key: status}


def test_a_failed_sample_fails_its_cell_alone(uri, tmp_path):
    tracking.rebuild(uri, on_disk(tmp_path, CONTROL, SPOT, records=[*RECORDS[:3], FAILED]).folder)
    assert statuses(uri) == {None: "FINISHED", CONTROL.key: "FINISHED", SPOT.key: "FAILED"}
    assert values(uri, SPOT, "failed") == [(1, 1.0)]
    assert values(uri, SPOT, "nfe") == [(0, 20.0)]


def test_a_failed_sample_that_is_tried_again_looks_alike_live_and_rebuilt(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=[*RECORDS[:3], FAILED])
    mirrored(uri, sweep)
    append(sweep, [RECORDS[3] | {"attempt": 2, "finished": START + 9}, *SCORES])
    mirrored(uri, sweep)
    assert statuses(uri)[SPOT.key] == "FINISHED"
    assert values(uri, SPOT, "failed") == [(1, 0.0), (1, 1.0)]
    assert runs(uri)[SPOT.key].data.metrics["failed"] == 0.0
    live = of_samples(contents(uri)[SPOT.key]["metrics"])
    tracking.rebuild(uri, sweep.folder, anew=True)
    assert of_samples(contents(uri)[SPOT.key]["metrics"]) == live


def test_a_losslessness_bug_fails_the_sweep(uri, tmp_path):
    wrong = decode(SPOT.key, "r0", 20, 60, identical=False, difference="bug", text="?", text_sha="x")
    tracking.rebuild(uri, on_disk(tmp_path, CONTROL, SPOT, records=[*RECORDS[2:], RECORDS[0], wrong]).folder)
    assert statuses(uri)[None] == "FAILED"


def test_cells_are_settled_while_the_sweep_runs(uri, tmp_path):
    other = real_cell(seed=1)
    sweep = on_disk(tmp_path, CONTROL, SPOT, other, records=[*RECORDS, *SCORES, control(other.key, "r0", 60)])
    tracking.catch_up(live := Runs(uri, sweep), projection := Projection(sweep))
    live.settle(projection)
    running = {None: "RUNNING", other.key: "RUNNING"}
    assert statuses(uri) == {CONTROL.key: "FINISHED", SPOT.key: "FINISHED"} | running


def test_a_score_that_comes_after_its_cell_was_settled_still_counts(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS)
    mirrored(uri, sweep)
    assert "summary/accuracy" not in runs(uri)[SPOT.key].data.metrics
    append(sweep, SCORES)
    mirrored(uri, sweep)
    assert runs(uri)[SPOT.key].data.metrics["summary/accuracy"] == 0.5
    assert statuses(uri)[SPOT.key] == "FINISHED"


def test_a_text_that_is_scored_again_changes_the_accuracy_once(uri, tmp_path):
    unable = score("r1", None, error="no sandbox")
    sweep = on_disk(tmp_path, CONTROL, records=[*RECORDS[::2], SCORES[0], unable])
    tracking.rebuild(uri, sweep.folder)
    append(sweep, [score("r1", False, started=unable["started"] + 5)])
    for _ in range(2):
        tracking.rebuild(uri, sweep.folder)
        assert runs(uri)[CONTROL.key].data.metrics["summary/accuracy"] == 0.5
        assert values(uri, CONTROL, "correct") == [(0, 1.0), (1, 0.0)]
    append(sweep, [score("r1", True, started=unable["started"] + 9)])
    tracking.rebuild(uri, sweep.folder)
    assert runs(uri)[CONTROL.key].data.metrics["correct"] == 1.0  # the last of the sample's step
    assert runs(uri)[CONTROL.key].data.metrics["summary/accuracy"] == 1.0


def test_a_text_that_its_scorer_could_not_judge_is_left_out_of_the_accuracy(uri, tmp_path):
    unable = score("r1", None, error="bad row")
    tracking.rebuild(uri, on_disk(tmp_path, CONTROL, records=[*RECORDS[::2], SCORES[0], unable]).folder)
    assert runs(uri)[CONTROL.key].data.metrics["summary/accuracy"] == 1.0
    assert values(uri, CONTROL, "correct") == [(0, 1.0)]


def test_a_cell_of_more_rows_is_no_longer_finished_before_their_first_record(uri, tmp_path):
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES))
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, rows=3), "KILLED")
    assert set(statuses(uri).values()) == {"KILLED"}


def test_every_status_is_right_before_anything_is_drawn(uri, tmp_path):
    """Figures of hundreds of cells take longer than the driver waits."""
    seen = []
    late = Drawings(write_page, lambda *_: seen.append(statuses(uri)) or {}, drawn)
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS[:3] + SCORES), "FAILED", late)
    assert seen == [{None: "FAILED", CONTROL.key: "FINISHED", SPOT.key: "FAILED"}]


def test_what_an_oracle_finds_after_a_cell_was_settled_still_counts(uri, tmp_path):
    oracle = real_cell("oracle-positions", 4, method="oracle", drafter_options=(("knows", "positions"),))
    seen = [decode(oracle.key, "r0", 10, 60), decode(oracle.key, "r1", 40, 80, finished=START + 50)]
    sweep = on_disk(tmp_path, CONTROL, SPOT, oracle, records=[*RECORDS, *SCORES, seen[0]])
    mirrored(uri, sweep, "KILLED")
    assert runs(uri)[SPOT.key].data.metrics["summary/oracle_share"] == 40 / 50
    append(sweep, seen[1:])
    mirrored(uri, sweep)
    assert runs(uri)[SPOT.key].data.metrics["summary/oracle_share"] == 100 / 90


def test_the_tables_are_those_of_the_report(uri, tmp_path):
    """Ties are found, and intervals drawn, over the samples of all seeds."""
    rivals = [real_cell(name, 4, seed=seed) for name in ("spot", "stale") for seed in (0, 1)]
    cells = [*(real_cell(seed=seed) for seed in (0, 1)), *rivals]
    nfe = {"none": (60, 60), "spot": (20, 30), "stale": (31, 20)}
    records = [decode(cell.key, f"r{row}", nfe[cell.drafter][row], 60) for cell in cells for row in range(2)]
    sweep = on_disk(tmp_path, *cells, records=records)
    tracking.rebuild(uri, sweep.folder)
    made, samples = results.load(sweep.folder)
    rows = results.over_seeds(results.summary(made, samples), samples)
    assert list(rows["nfe_rank"]) == [None, "best", "tied"]
    where = mlflow_store.connect(uri).download_artifacts(runs(uri)[None].info.run_id, "table.md", str(tmp_path))
    assert Path(where).read_text() == tables.to_markdown(tables.long(rows))
    assert runs(uri)[None].data.tags["mlflow.note.content"] == tables.to_markdown(tables.main(rows))


# ---- what goes wrong


class Stopped(BaseException):
    """The mirror's process ends."""


class Interrupted:
    """A client that ends the mirror at the request `number`: before it is made, or once it is done."""

    def __init__(self, client, number, done):
        self._client, self._left, self._done = client, number, done

    def __getattr__(self, name):
        method = getattr(self._client, name)

        def request(*arguments, **options):
            self._left -= 1
            if self._left < 0 and not self._done:
                raise Stopped
            answer = method(*arguments, **options)
            if self._left < 0:
                raise Stopped
            return answer

        return request


@pytest.fixture
def interrupting(monkeypatch):
    """Lets one mirror make so many requests; tells whether it was done before."""
    connect = mlflow_store.connect

    def run(uri, sweep, number, done):
        monkeypatch.setattr(mlflow_runs, "connect", lambda uri: Interrupted(connect(uri), number, done))
        try:
            tracking.rebuild(uri, sweep.folder, DRAWINGS)
        except Stopped:
            return False
        finally:
            monkeypatch.setattr(mlflow_runs, "connect", connect)
        return True

    return run


def test_a_mirror_that_is_ended_at_any_request_and_begun_again_ends_as_one_that_was_not(
    uri, tmp_path, empty_database, interrupting
):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)
    tracking.rebuild(uri, sweep.folder, DRAWINGS)
    whole, number = contents(uri), 0
    assert Counter(point[0] for point in whole[SPOT.key]["metrics"])["nfe"] == 2
    while True:
        shutil.rmtree(tmp_path / "mlartifacts")
        shutil.copy(empty_database, tmp_path / "mlflow.db")
        if interrupting(uri, sweep, number, done=bool(number % 2)):
            break
        tracking.rebuild(uri, sweep.folder, DRAWINGS)
        assert contents(uri) == whole, f"ended at request {number}"
        number += 1
    assert number > 15


KILLED = """
import os, signal, sys
from pathlib import Path
from orchestrator import mlflow_runs, mlflow_store, tracking
from tests.orchestrator.test_tracking import Interrupted, Stopped, DRAWINGS

connect = mlflow_store.connect
mlflow_runs.connect = lambda uri: Interrupted(connect(uri), int(sys.argv[3]), done=True)
try:
    tracking.rebuild(sys.argv[1], Path(sys.argv[2]), DRAWINGS)
except Stopped:
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_mirror_that_is_killed_in_the_middle_of_its_samples_is_made_whole(uri, tmp_path):
    records = [control(CONTROL.key, f"r{i}", 60 + i) for i in range(300)]
    sweep = on_disk(tmp_path, CONTROL, rows=300, records=records)
    command = [sys.executable, "-c", KILLED, uri, str(sweep.folder), "7"]
    assert subprocess.run(command, cwd=ROOT, capture_output=True).returncode == -signal.SIGKILL
    assert 0 < len(history(uri, CONTROL, "nfe")) < 300
    assert set(statuses(uri).values()) == {"RUNNING"}
    tracking.rebuild(uri, sweep.folder)
    assert [point[1] for point in history(uri, CONTROL, "nfe")] == [60.0 + i for i in range(300)]
    assert set(statuses(uri).values()) == {"FINISHED"}


def test_a_request_that_was_made_twice_leaves_one_run(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, records=RECORDS[::2])
    tracking.catch_up(first := Runs(uri, sweep), Projection(sweep))
    for run in runs(uri).values():  # its answer was lost
        first._client.create_run(first._experiment, tags=run.data.tags)
    tracking.rebuild(uri, sweep.folder)
    assert statuses(uri) == {None: "FINISHED", CONTROL.key: "FINISHED"}
    assert len(history(uri, CONTROL, "nfe")) == 2


def test_an_experiment_that_was_deleted_is_one_line(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, records=RECORDS[::2])
    tracking.rebuild(uri, sweep.folder)
    client = mlflow_store.connect(uri)
    client.delete_experiment(client.get_experiment_by_name("spot-sweeps").experiment_id)
    with pytest.raises(
        UserError,
        match=r"was deleted; this brings it back: MLFLOW_TRACKING_URI=sqlite:////\S* mlflow experiments restore -x 1$",
    ):
        tracking.rebuild(uri, sweep.folder)


@pytest.fixture
def away():
    """The address of a server that is not there: connections are refused at once."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"http://127.0.0.1:{taken.getsockname()[1]}"


def test_an_unreachable_server_never_raises(away, tmp_path):
    mirror = tracking.Mirror(away, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES))
    mirror.push(RECORDS, SCORES)
    mirror.finish("FINISHED")
    assert mirror.behind and mirror.error == "it does not answer"
    assert mirror.lag > 0


def test_a_sweep_without_its_server_and_a_sync_look_like_one_that_had_it(
    uri, away, tmp_path, empty_database, monkeypatch
):
    monkeypatch.setattr(tracking.Mirror, "_work", lambda self: None)  # its turns are taken in this thread
    sweep = on_disk(tmp_path, CONTROL, SPOT)
    mirrors = [tracking.Mirror(where, sweep, DRAWINGS, clock=lambda: 0.0) for where in (uri, away)]
    for some in (RECORDS[:1], RECORDS[1:3], [RECORDS[3], FAILED | {"attempt": 2}], SCORES[:1], SCORES[1:]):
        append(sweep, some)
        for mirror in mirrors:
            mirror.push([record for record in some if record["kind"] == "decode"], SCORES[:1])
            mirror._step()
    for mirror in mirrors:
        mirror._status = "FINISHED"
        mirror._guard(mirror._finish)
    assert [mirror.behind for mirror in mirrors] == [False, True]
    undisturbed = contents(uri)
    later = f"{uri.removesuffix('mlflow.db')}later/mlflow.db"
    (tmp_path / "later").mkdir()
    shutil.copy(empty_database, tmp_path / "later/mlflow.db")
    tracking.rebuild(later, sweep.folder, DRAWINGS)
    assert contents(later) == undisturbed
    assert len([point for point in undisturbed[SPOT.key]["metrics"] if point[0] == "nfe"]) == 2


class Shown:
    """In the place of `Runs`: notes the lines that it is shown, and fails as often as it is told to."""

    def __init__(self, failures=0):
        self.failures, self.lines, self.status, self.settled = failures, 0, None, 0

    def send(self, projection, full_only=False):
        if self.failures:
            self.failures -= 1
            raise ConnectionError("server away")
        self.lines = projection.read

    def settle(self, projection):
        self.settled += 1

    def finish(self, projection, status):
        self.status = status


@pytest.fixture
def turns(monkeypatch, tmp_path):
    """A mirror of a ledger with one record, whose turns are taken in this thread, and what it shows."""
    monkeypatch.setattr(tracking.Mirror, "_work", lambda self: None)
    sweep, shown, now = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS[:1]), Shown(), [0.0]
    monkeypatch.setattr(tracking, "Runs", lambda *_: shown)
    mirror = tracking.Mirror("http://nowhere", sweep, clock=lambda: now[0])
    return mirror, shown, sweep, now


def test_only_what_is_durable_is_shown(turns):
    mirror, shown, sweep, _ = turns
    mirror._step()
    append(sweep, RECORDS[1:])
    mirror._step()
    assert (shown.lines, mirror.lag) == (1, 0)
    mirror.push(RECORDS[1:3], [])
    assert mirror.lag == 2
    mirror._step()
    assert (shown.lines, mirror.lag) == (3, 0)


def test_after_a_failure_the_server_is_left_alone_for_a_while_then_shown_all(turns):
    mirror, shown, _, now = turns
    shown.failures = 1
    found = []
    for now[0] in (0.0, 10.0, 31.0):
        mirror._step()
        found.append((shown.lines, mirror.lag, mirror.error))
    away = "ConnectionError: server away"
    assert found == [(0, 1, away), (0, 1, away), (1, 0, away)]


def test_the_lag_during_an_outage_is_what_mlflow_lacks(turns):
    mirror, shown, sweep, now = turns
    mirror._step()
    append(sweep, RECORDS[1:3])
    mirror.push(RECORDS[1:3], [])
    shown.failures, found = 1, []
    for now[0] in (1.0, 40.0):
        mirror._step()
        found.append(mirror.lag)
    assert found == [2, 0]


def test_figures_take_a_small_share_of_a_core_from_a_sweep_that_runs(turns, monkeypatch):
    mirror, shown, _, now = turns
    busy = iter([0.0, 0.6, 10.0, 10.0, 20.0, 20.0])  # the first figures take 0.6 s of the thread's time
    monkeypatch.setattr(tracking.time, "thread_time", lambda: next(busy))
    found = []
    for now[0] in (0.0, 10.0, 21.0, 26.0):
        mirror._step()
        found.append(shown.settled)
    assert found == [1, 1, 2, 3]


def test_a_server_that_stays_away_is_complained_about_once(turns, caplog):
    mirror, shown, _, now = turns
    shown.failures = 3
    for now[0] in (0.0, 31.0, 62.0):
        mirror._step()
    assert mirror.behind
    assert [record.getMessage() for record in caplog.records] == [
        "MLflow at http://nowhere is behind, the ledger has everything: ConnectionError: server away"
    ]


def test_a_server_that_hangs_blocks_neither_push_nor_finish(tmp_path, monkeypatch):
    released = Event()
    monkeypatch.setattr(tracking, "Runs", lambda *_: released.wait(30))
    mirror = tracking.Mirror("http://nowhere", on_disk(tmp_path, CONTROL))
    mirror.push(RECORDS, SCORES)
    mirror.finish("FINISHED", timeout=0.05)
    assert mirror.behind
    released.set()


def test_no_password_reaches_mlflow(uri, tmp_path, monkeypatch):
    for name in ("MLFLOW_TRACKING_PASSWORD", "MLFLOW_TRACKING_TOKEN", "PGPASSWORD", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "hunter2")
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES), drawings=DRAWINGS)
    kept = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert kept
    assert [path for path in kept if b"hunter2" in path.read_bytes()] == []
    assert os.environ["PGPASSWORD"] == "hunter2"


# ---- what people do to MLflow


def test_a_parent_that_was_deleted_is_made_anew_and_has_its_cells_again(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)
    tracking.rebuild(uri, sweep.folder)
    whole, found = contents(uri), runs(uri)
    mlflow_store.connect(uri).delete_run(found[None].info.run_id)
    tracking.rebuild(uri, sweep.folder)
    assert contents(uri) == whole
    assert runs(uri)[SPOT.key].info.run_id == found[SPOT.key].info.run_id


@pytest.mark.parametrize("name", ["mirrored", "rows", "settled"])
def test_a_mark_that_was_deleted_or_changed_is_made_again(uri, tmp_path, name):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)
    tracking.rebuild(uri, sweep.folder)
    whole, client = contents(uri), mlflow_store.connect(uri)
    client.delete_tag(runs(uri)[SPOT.key].info.run_id, name)
    client.set_tag(runs(uri)[CONTROL.key].info.run_id, name, "x")
    tracking.rebuild(uri, sweep.folder)
    assert contents(uri) == whole


def test_a_store_that_was_moved_or_copied_has_its_artifacts_with_it(tmp_path):
    from mlflow.tracking._tracking_service import utils

    old, new = tmp_path / "old", tmp_path / "new #1"
    old.mkdir()
    tracking.rebuild(f"sqlite:///{old}/mlflow.db", on_disk(old, CONTROL, SPOT, records=RECORDS + SCORES).folder)
    shutil.copytree(old, new)
    utils._artifact_repos_cache.clear()  # as in another process
    before = sorted(path for path in old.rglob("*") if path.is_file())
    uri = f"sqlite:///{new}/mlflow.db"
    append(replace(read_sweep(new / "first"), folder=new / "first"), [score("r1", True, started=START + 200)])
    tracking.rebuild(uri, new / "first", DRAWINGS)
    client, found = mlflow_store.connect(uri), runs(uri)
    assert artifacts(client, found[SPOT.key].info.run_id) == ["generations.json", "plots/nfe.svg"]
    for run in found.values():
        assert run.info.artifact_uri.startswith((new / "mlartifacts").as_uri())
    assert sorted(path for path in old.rglob("*") if path.is_file()) == before


def test_a_database_that_is_deleted_while_a_sweep_runs_is_missed(uri, tmp_path, monkeypatch):
    monkeypatch.setattr(tracking.Mirror, "_work", lambda self: None)  # its turns are taken in this thread
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS)
    mirror = tracking.Mirror(uri, sweep)
    mirror._step()
    (tmp_path / "mlflow.db").unlink()
    mirror._status = "FINISHED"
    mirror._guard(mirror._finish)
    assert mirror.behind
    assert mirror.error == f"FileNotFoundError: {tmp_path}/mlflow.db was deleted"


# ---- whatever the sweep is called, and MLflow told to do


def test_long_values_and_any_letter_are_taken_without_a_word(uri, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("MLFLOW_TRUNCATE_LONG_VALUES", "false")  # MLflow then refuses what it would have cut
    models = [f"组织/模型-{'x' * 100}-{number}" for number in range(100)]
    odd = real_cell("spot", 4, model=models[0], drafter_options=(("words", "y" * 9000),))
    sweep = on_disk(
        tmp_path, odd, *(real_cell(model=model) for model in models), records=[decode(odd.key, "r0", 20, 60)]
    )
    for _ in range(2):
        tracking.rebuild(uri, sweep.folder)
    found = runs(uri)
    assert found[odd.key].data.params["option.words"] == "y" * 6000
    assert found[odd.key].data.params["model"] == models[0]
    assert found[None].data.tags["models"] == ", ".join(models)[:8000]
    assert not caplog.messages


def test_each_model_has_figures_of_its_own_whatever_its_letters():
    from dashboards import mlflow_plots

    made = fake_sweep.sweep(*(real_cell(model=model) for model in ("模型", "组织", "a/b $c$")))
    samples = results.frame(made, [control(cell.key, row, 60) for cell in made.cells for row in ("r0", "r1")], ())
    table = results.summary(made, samples)
    names = {name.partition("-")[0] for name in mlflow_plots.of_sweep(results.over_seeds(table, samples))}
    assert names == {"plots/模型", "plots/组织", "plots/a_b _c_".replace(" ", "_")}
    assert mlflow_plots.of_cell(samples[samples["cell"] == made.cells[2].key], table.to_dict("records")[2])


def test_samples_are_there_on_return_where_mlflow_is_told_to_log_later(uri, tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_ENABLE_ASYNC_LOGGING", "true")
    later = []
    monkeypatch.setattr(
        "mlflow.tracking._tracking_service.client.TrackingServiceClient.log_batch",
        lambda self, *arguments, synchronous=True, **options: later.append(synchronous),
    )
    tracking.catch_up(Runs(uri, sweep := on_disk(tmp_path, CONTROL, SPOT, records=RECORDS)), Projection(sweep))
    assert later and all(later)


@pytest.mark.parametrize("name", ["a b%20c", "why?", "模型 #1"])
def test_a_store_may_have_any_name(name, tmp_path):
    store = tmp_path / name
    uri = mlflow_beside(str(store))
    tracking.rebuild(uri, on_disk(store, CONTROL, records=RECORDS[::2]).folder)
    assert mlflow_store.database(uri) == store / "mlflow.db"
    assert (store / "mlflow.db").is_file() and (store / "mlartifacts").is_dir()


@pytest.mark.parametrize(
    ("uri", "said"),
    [
        ("sqlite:///{}/folder", "its database says OperationalError: unable to open database file"),
        ("sqlite:///{}/page", "its database says DatabaseError: file is not a database"),
        ("sqlite:///file:{}/mlflow.db?mode=ro&uri=true",
         "its database says OperationalError: attempt to write a readonly database"),
    ],
)  # fmt: skip
def test_a_database_that_cannot_be_used_is_one_line_soon(uri, said, tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    (tmp_path / "folder").mkdir()
    (tmp_path / "page").write_text(PAGE * 1000)
    began = time.monotonic()
    with pytest.raises(Exception) as raised:
        tracking.rebuild(uri.format(tmp_path), on_disk(tmp_path, CONTROL, records=RECORDS[::2]).folder)
    assert mlflow_store.why(raised.value) == said
    assert time.monotonic() - began < 60  # MLflow's own patience is 100 s


def test_an_address_that_is_not_secure_is_told_from_a_server_that_is_away():
    failure = (
        "API request to https://h failed with exception HTTPSConnectionPool(host='h', port=443): Max retries exceeded"
    )
    assert mlflow_store.why(Exception(failure)) == "it does not answer"
    secure = f"{failure} (Caused by SSLError(SSLError(1, '[SSL: WRONG_VERSION_NUMBER] wrong version number')))"
    assert "it is at http://" in mlflow_store.why(Exception(secure))


def test_letters_that_no_font_here_has_are_drawn_without_a_word():
    drawing = "from dashboards import plots\nwith plots.figure() as (axes, found): axes.set_title('方法')\n"
    drawing += "print(found['svg'].decode())"
    done = subprocess.run([sys.executable, "-c", drawing], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "方法" in done.stdout and not done.stderr
