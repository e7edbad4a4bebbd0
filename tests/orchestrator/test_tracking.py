"""MLflow says what the ledger says, whatever happened to either of them."""

import shutil
import socket
from dataclasses import replace
from threading import Event

import pytest

from orchestrator import tracking
from tests.fake_sweep import START, append, control, decode, on_disk, real_cell, score

CONTROL, SPOT = real_cell(), real_cell("spot", 4)
RECORDS = [
    control(CONTROL.key, "r0", 60),
    decode(SPOT.key, "r0", 20, 60, drafted=40, drafted_passes=10, accepted=15, accepted_by_depth=[9, 6]),
    control(CONTROL.key, "r1", 80),
    decode(SPOT.key, "r1", 20, 80),
]
SCORES = [score("r0", True), score("r1", False)]


@pytest.fixture(scope="session")
def empty_database(tmp_path_factory):
    """A migrated database to copy: making one takes seconds."""
    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    tracking._client(f"sqlite:///{path}").search_experiments()
    return path


@pytest.fixture
def uri(tmp_path, empty_database):
    shutil.copy(empty_database, tmp_path / "mlflow.db")
    return f"sqlite:///{tmp_path / 'mlflow.db'}"


def runs(uri):
    """The runs of the sweep by cell key, the parent under None."""
    client = tracking._client(uri)
    found = tracking._search(client, client.get_experiment_by_name("spot-sweeps").experiment_id, "first")
    by_cell = {run.data.tags.get("cell"): run for run in found}
    assert len(by_cell) == len(found), "two runs for one cell"
    return by_cell


def history(uri, cell, metric):
    points = tracking._client(uri).get_metric_history(runs(uri)[cell.key].info.run_id, metric)
    return sorted((point.step, point.value, point.timestamp) for point in points)


def a_page(folder):
    (folder / "report.html").write_text("<html>")
    return folder / "report.html"


def mirrored(uri, sweep, decodes=(), scores=(), status="FINISHED", report=None):
    mirror = tracking.Mirror(uri, sweep, report)
    mirror.push(decodes, scores)
    mirror.finish(status)
    assert not mirror.behind, mirror.error


def test_a_finished_sweep_is_a_parent_with_a_nested_run_a_cell(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)
    mirrored(uri, sweep, RECORDS, SCORES, report=a_page)
    found = runs(uri)
    assert {key: run.info.status for key, run in found.items()} == dict.fromkeys(found, "FINISHED")
    assert {None, CONTROL.key, SPOT.key} == set(found)
    child = found[SPOT.key].data
    assert child.tags["mlflow.parentRunId"] == found[None].info.run_id and child.tags["sweep"] == "first"
    assert child.params["drafter"] == "spot" and child.params["budget"] == "4" and child.params["temperature"] == "0.0"
    assert child.metrics["summary/nfe_ratio"] == 3.5 and child.metrics["summary/accuracy"] == 0.5
    artifacts = tracking._client(uri).list_artifacts(found[None].info.run_id)
    assert {artifact.path for artifact in artifacts} == {"table.csv", "table.md", "report.html", "sweep.yaml"}


def test_a_sample_is_a_step_with_the_time_of_its_record(uri, tmp_path):
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES))
    assert history(uri, SPOT, "nfe") == [(0, 20.0, int(1000 * START) + 1000), (1, 20.0, int(1000 * START) + 2000)]
    assert [point[:2] for point in history(uri, SPOT, "correct")] == [(0, 1.0), (1, 0.0)]
    assert [point[:2] for point in history(uri, SPOT, "seconds_draft")] == [(0, 0.25), (1, 0.25)]


def test_acceptance_without_a_drafted_pass_is_absent(uri, tmp_path):
    mirrored(uri, on_disk(tmp_path, CONTROL, SPOT, records=RECORDS))
    assert [point[:2] for point in history(uri, SPOT, "acceptance")] == [(0, 1.5)]
    assert history(uri, CONTROL, "acceptance") == []
    assert "summary/acceptance" not in runs(uri)[CONTROL.key].data.metrics


def test_mirroring_again_leaves_every_history_as_long_as_it_was(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)
    mirrored(uri, sweep, RECORDS, SCORES)
    before = runs(uri)
    mirrored(uri, sweep, RECORDS, SCORES)
    tracking.rebuild(uri, sweep.folder)
    after = runs(uri)
    names = {name for run in before.values() for name in run.data.metrics}
    assert all(len(history(uri, cell, name)) <= 2 for cell in (CONTROL, SPOT) for name in names)
    assert {key: run.info.run_id for key, run in after.items()} == {key: run.info.run_id for key, run in before.items()}
    assert after[SPOT.key].info.end_time == before[SPOT.key].info.end_time == int(1000 * START) + 2000


def test_the_same_batch_twice_in_one_driver_is_logged_once(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS)
    mirror = tracking.Mirror(uri, sweep)
    mirror.push(RECORDS, [])
    mirror.push(RECORDS, [])
    mirror.finish("FINISHED")
    assert len(history(uri, SPOT, "nfe")) == 2


def test_a_resumed_sweep_reuses_its_runs_and_sends_only_what_is_missing(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS[:2])
    mirrored(uri, sweep, RECORDS[:2], status="KILLED")
    first = runs(uri)
    assert {run.info.status for run in first.values()} == {"KILLED"}
    append(sweep, RECORDS[2:] + SCORES)
    mirrored(uri, sweep, RECORDS[2:], SCORES)
    assert {key: run.info.run_id for key, run in runs(uri).items()} == {k: r.info.run_id for k, r in first.items()}
    assert {run.info.status for run in runs(uri).values()} == {"FINISHED"} and len(history(uri, SPOT, "nfe")) == 2


def test_two_sweeps_of_one_name_on_one_server_have_runs_of_their_own(uri, tmp_path):
    mine, other = (on_disk(tmp_path / where, CONTROL, SPOT, records=RECORDS) for where in ("mine", "other"))
    mirrored(uri, replace(mine, id="a"), RECORDS)
    mirrored(uri, replace(other, id="b"), RECORDS)
    client = tracking._client(uri)
    experiment = client.get_experiment_by_name("spot-sweeps").experiment_id
    found = [{run.info.run_id for run in tracking._search(client, experiment, "first", which)} for which in "ab"]
    assert [len(runs) for runs in found] == [3, 3]
    assert not found[0] & found[1]


def test_orphans_of_a_killed_driver_become_killed_and_no_param_conflicts(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS[:2])
    dead = tracking._Runs(uri, sweep)
    dead.log(RECORDS[:2], [])
    dead._client.log_param(runs(uri)[SPOT.key].info.run_id, "later_axis", "1")
    assert {run.info.status for run in runs(uri).values()} == {"RUNNING"}
    del dead  # as SIGKILL leaves it
    tracking._Runs(uri, sweep)
    status = {key: run.info.status for key, run in runs(uri).items()}
    assert status == {None: "RUNNING", CONTROL.key: "KILLED", SPOT.key: "KILLED"}
    tracking.rebuild(uri, sweep.folder)
    assert {run.info.status for run in runs(uri).values()} == {"KILLED"}


def test_params_a_killed_driver_left_out_are_added(uri, tmp_path):
    sweep = on_disk(tmp_path, SPOT, records=[RECORDS[1]])
    dead = tracking._Runs(uri, sweep)
    tags = {"sweep": "first", "cell": SPOT.key, "mlflow.parentRunId": dead._parent}
    dead._client.create_run(dead._experiment, tags=tags)
    mirrored(uri, sweep, status="KILLED")
    assert runs(uri)[SPOT.key].data.params["drafter"] == "spot"


def test_a_failed_sample_fails_its_cell_alone(uri, tmp_path):
    broken = decode(SPOT.key, "r1", 0, 0, status="failed", error="CUDA", text_sha=None)
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=[*RECORDS[:3], broken])
    tracking.rebuild(uri, sweep.folder)
    status = {key: run.info.status for key, run in runs(uri).items()}
    assert status == {None: "FINISHED", CONTROL.key: "FINISHED", SPOT.key: "FAILED"}
    assert [point[:2] for point in history(uri, SPOT, "failed")] == [(0, 0.0), (1, 1.0)]


def test_a_losslessness_bug_fails_the_sweep(uri, tmp_path):
    wrong = decode(SPOT.key, "r0", 20, 60, identical=False, difference="bug", text="?", text_sha="x")
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=[*RECORDS[2:], RECORDS[0], wrong])
    tracking.rebuild(uri, sweep.folder)
    assert runs(uri)[None].info.status == "FAILED"


def test_cells_are_settled_while_the_sweep_runs(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=[*RECORDS[:3]])
    mirror = tracking.Mirror(uri, sweep, clock=lambda: 0.0)
    mirror.push([], [])
    mirror.finish("KILLED")
    status = {key: run.info.status for key, run in runs(uri).items()}
    assert status == {None: "KILLED", CONTROL.key: "FINISHED", SPOT.key: "KILLED"}


def test_a_score_that_comes_after_its_cell_was_settled_still_counts(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS)
    mirrored(uri, sweep, RECORDS)
    assert "summary/accuracy" not in runs(uri)[SPOT.key].data.metrics
    append(sweep, SCORES)
    mirrored(uri, sweep, (), SCORES)
    assert runs(uri)[SPOT.key].data.metrics["summary/accuracy"] == 0.5
    assert runs(uri)[SPOT.key].info.status == "FINISHED"


def test_a_text_that_is_scored_again_changes_the_accuracy_once(uri, tmp_path):
    failed = score("r1", None, error="no sandbox")
    sweep = on_disk(tmp_path, CONTROL, records=[*RECORDS[::2], SCORES[0], failed])
    tracking.rebuild(uri, sweep.folder)
    append(sweep, [score("r1", False, started=failed["started"] + 5)])
    for _ in range(2):
        tracking.rebuild(uri, sweep.folder)
        assert runs(uri)[CONTROL.key].data.metrics["summary/accuracy"] == 0.5
        assert [point[:2] for point in history(uri, CONTROL, "correct")] == [(0, 1.0), (1, 0.0)]
    append(sweep, [score("r1", True, started=failed["started"] + 9)])
    tracking.rebuild(uri, sweep.folder)
    assert runs(uri)[CONTROL.key].data.metrics["correct"] == 1.0  # the last of the sample's step
    assert runs(uri)[CONTROL.key].data.metrics["summary/accuracy"] == 1.0


def test_a_text_that_its_scorer_could_not_judge_is_left_out_of_the_accuracy(uri, tmp_path):
    sweep = on_disk(tmp_path, CONTROL, records=[*RECORDS[::2], SCORES[0], score("r1", None, error="bad row")])
    tracking.rebuild(uri, sweep.folder)
    assert runs(uri)[CONTROL.key].data.metrics["summary/accuracy"] == 1.0
    assert [point[:2] for point in history(uri, CONTROL, "correct")] == [(0, 1.0)]


def test_more_than_a_thousand_metrics_go_in_batches_and_all_arrive(uri, tmp_path):
    records = [control(CONTROL.key, f"r{i}", 60 + i) for i in range(150)]
    sweep = on_disk(tmp_path, CONTROL, rows=150, records=records)
    mirrored(uri, sweep, records)
    assert [point[1] for point in history(uri, CONTROL, "nfe")] == [60.0 + i for i in range(150)]


def test_artifacts_lie_beside_the_database(uri, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    mirrored(uri, on_disk(tmp_path, CONTROL, records=RECORDS[::2]))
    assert list((tmp_path / "mlartifacts").rglob("table.csv")) and not (tmp_path / "mlruns").exists()


def test_an_unreachable_server_never_raises_and_what_it_missed_is_sent_later(uri, tmp_path):
    with socket.socket() as taken:  # bound but not listening: connections are refused at once
        taken.bind(("127.0.0.1", 0))
        sweep = on_disk(tmp_path, CONTROL, SPOT, records=RECORDS + SCORES)
        mirror = tracking.Mirror(f"http://127.0.0.1:{taken.getsockname()[1]}", sweep)
        for _ in range(2 * tracking._QUEUE):  # more than the queue holds
            mirror.push(RECORDS, SCORES)
        mirror.finish("FINISHED")
        assert mirror.behind and "Connection" in (mirror.error or "")
    mirrored(uri, sweep)
    assert len(history(uri, SPOT, "nfe")) == 2


class Flaky:
    """A stand-in for `_Runs` that fails as often as it is told to."""

    def __init__(self, failures):
        self.failures, self.replays, self.logged = failures, 0, []

    def replay(self):
        self.replays += 1
        if self.failures:
            self.failures -= 1
            raise ConnectionError("server away")

    def log(self, decodes, scores):
        self.logged += decodes

    def complete(self):
        return set()

    def finish(self, status, report):
        self.status = status


def test_after_a_failure_pushes_are_dropped_for_a_while_then_the_ledger_is_replayed(tmp_path, monkeypatch):
    server, now = Flaky(failures=1), [0.0]
    monkeypatch.setattr(tracking, "_Runs", lambda uri, sweep: server)
    mirror = tracking.Mirror("http://nowhere", on_disk(tmp_path, CONTROL), clock=lambda: now[0])
    outcomes = []
    for now[0] in (0.0, 10.0, 31.0, 32.0):
        mirror._guard(mirror._mirror, [now[0]], [])  # what the thread does, in this thread
        outcomes.append((server.replays, list(server.logged), mirror.behind))
    assert outcomes == [(1, [], True), (1, [], True), (2, [], False), (2, [32.0], False)]
    mirror.finish("FINISHED")
    assert not mirror.behind and server.status == "FINISHED"


def test_a_server_that_hangs_blocks_neither_push_nor_finish(tmp_path, monkeypatch):
    class Hanging(Flaky):
        def replay(self):
            released.wait(30)

    released = Event()
    monkeypatch.setattr(tracking, "_Runs", lambda uri, sweep: Hanging(0))
    mirror = tracking.Mirror("http://nowhere", on_disk(tmp_path, CONTROL))
    for _ in range(2 * tracking._QUEUE):
        mirror.push([], [])
    mirror.finish("FINISHED", timeout=0.05)
    assert mirror.behind
    released.set()


def test_a_server_that_stays_away_is_complained_about_once(tmp_path, monkeypatch, caplog):
    now = [0.0]
    monkeypatch.setattr(tracking, "_Runs", lambda uri, sweep: Flaky(failures=1))
    mirror = tracking.Mirror("http://nowhere", on_disk(tmp_path, CONTROL), clock=lambda: now[0])
    for now[0] in (0.0, 31.0, 62.0):
        mirror._guard(mirror._mirror, [], [])
    assert mirror.behind
    assert [record.getMessage() for record in caplog.records] == [
        "MLflow at http://nowhere is behind, the ledger has everything: ConnectionError: server away"
    ]
