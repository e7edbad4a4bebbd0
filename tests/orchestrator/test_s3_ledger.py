"""A sweep whose ledger is on a real S3 server: the same records as in a folder, whatever the network does."""

import json
import os
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest

import launch
from orchestrator import lease, ledger, segments
from orchestrator.driver import NoMirror
from orchestrator.executors import InlineExecutor
from orchestrator.lease import LeaseLost
from orchestrator.ledger import Ledger, holder, read_sweep
from tests.orchestrator.conftest import drive
from tests.orchestrator.fakes import Fakes
from tests.orchestrator.test_driver import Recorder
from tests.orchestrator.test_ledger import decode
from workers.store import StoreError, open_store, place

pytest_plugins = ["tests.s3"]
SWEEP = place("s3://bucket/runs/quickstart")
INLINE = (
    "workers.executor=inline",
    "mlflow=null",
    "limit=2",
    "budgets=[0,8]",
    "temperatures=[0]",
    "store=s3://bucket/runs",
)


@pytest.fixture(autouse=True)
def small(s3, tmp_path, monkeypatch):
    """Segments of five records, a lease that is soon taken over, and an empty folder to stand in."""
    monkeypatch.setattr(ledger, "SYNC_RECORDS", 5)
    for name, seconds in (("TTL", 1.0), ("RENEW_SECONDS", 0.1), ("LOOK_SECONDS", 0.2)):
        monkeypatch.setattr(lease, name, seconds)
    monkeypatch.chdir(tmp_path)


def stored(folder):
    return sorted(json.dumps(dict(record), sort_keys=True) for record in Ledger(folder).records())


@pytest.mark.parametrize("seed", range(2))
def test_under_faults_of_every_kind_the_records_are_those_of_an_undisturbed_sweep_each_once(s3, folder, seed):
    drive(Fakes(), folder, "limit=6")
    chance = random.Random(seed)
    kinds = ["500", "503", "torn", "lost", "cut"]
    s3.fault = lambda method, path: chance.choice(kinds) if chance.random() < 0.3 else None
    assert drive(Fakes(), SWEEP, "limit=6").exit_code == 0
    s3.fault = lambda method, path: None
    assert stored(SWEEP) == stored(folder)
    assert len(s3.seen) > 20


def test_a_server_that_falls_silent_is_asked_again(s3):
    silent = ["silence"]
    s3.fault = lambda method, path: silent.pop() if silent and method == "PUT" and "segments" in path else None
    assert drive(Fakes(), SWEEP).exit_code == 0
    assert silent == []


def failing_on_segments(s3, kind):
    s3.fault = lambda method, path: kind if method == "PUT" and "segments" in path else None


def test_a_run_outlives_an_outage_and_says_so_once(s3):
    said, failing_on = [], iter(["expired"] * 2)
    s3.fault = lambda method, path: next(failing_on, None) if method == "PUT" and "segments" in path else None
    clock = iter(range(100, 100_000, 3))
    assert drive(Fakes(), SWEEP, "limit=12", said=said, clock=lambda: next(clock)).exit_code == 0
    assert len(Ledger(SWEEP).results()) == 60
    assert len(said) == 1
    assert re.match(r"s3://bucket/.*ExpiredToken.*; the credentials have expired; renew .*; decoding goes on", said[0])


@pytest.mark.parametrize(("kind", "remedy"), [("expired", "aws sso login"), ("wrong", "AWS_PROFILE"), ("503", "")])
def test_what_could_not_be_sent_is_kept_and_the_next_run_on_this_machine_sends_it(s3, tmp_path, kind, remedy):
    failing_on_segments(s3, kind)
    mirror = Recorder()
    with pytest.raises(StoreError, match=rf"s3://bucket.*{remedy}.*records that are not there yet are kept in .*jsonl"):
        drive(Fakes(), SWEEP, mirror=mirror)
    assert mirror.decodes == []  # nothing was durable
    s3.fault = lambda method, path: None
    assert len(Ledger(SWEEP).results()) == 0
    again = Fakes()
    outcome = drive(again, SWEEP)
    assert (outcome.ran, outcome.exit_code, again.journal) == (0, 0, [])
    assert len(Ledger(SWEEP).results()) == 15
    assert not list((tmp_path / "cache").glob("ledgers/*/journals/*"))


def test_and_the_command_ends_with_3_and_says_so(s3, capsys):
    failing_on_segments(s3, "expired")
    assert launch.main(["run", "quickstart", *INLINE], Fakes().backend()) == 3
    said = capsys.readouterr().err
    assert said.startswith(
        "error: s3://bucket/runs/quickstart: the sweep cannot go on (s3://bucket/runs/quickstart/segm"
    )
    assert re.search(r"renew them .* kept in .*\.jsonl, for the next run .*resume s3://bucket/runs/quickstart\n$", said)


def test_another_machine_decodes_again_what_never_arrived_and_late_records_are_ignored(s3, monkeypatch, tmp_path):
    failing_on_segments(s3, "expired")
    with pytest.raises(StoreError):
        drive(Fakes(), SWEEP)
    s3.fault = lambda method, path: None
    with monkeypatch.context() as elsewhere:
        elsewhere.setenv("SPOT_CACHE", str(tmp_path / "other machine"))
        assert drive(Fakes(), SWEEP).ran == 15
    before = stored(SWEEP)
    assert drive(Fakes(), SWEEP).ran == 0
    assert stored(SWEEP) == before


def test_a_second_driver_is_turned_away_by_name_and_touches_nothing(s3, capsys):
    with Ledger.write(SWEEP, 0.0) as first:
        first.append(decode("r0"))
        s3.seen.clear()
        assert launch.main(["run", "quickstart", *INLINE], Fakes().backend()) == 2
        assert f"process {os.getpid()}); wait for it, or stop it" in capsys.readouterr().err
        assert {path.partition("?")[0] for method, path in s3.seen if method == "PUT"} == {
            "/bucket/runs/quickstart/lease"
        }
        assert str(os.getpid()) in holder(SWEEP)
    assert holder(SWEEP) is None


def test_a_segment_whose_answer_never_came_is_no_sign_that_another_has_the_sweep(s3):
    with Ledger.write(SWEEP, 0.0) as written:
        written.append(decode("r0"))
        failing_on_segments(s3, "lost")
        assert written.sync(20.0) == []
        s3.fault = lambda method, path: None
        written.append(decode("r1"))
        assert [record["row"] for record in written.sync(40.0)] == ["r0", "r1"]
    assert [record["row"] for record in Ledger(SWEEP).records()] == ["r0", "r1"]


def test_a_journal_of_which_all_was_sent_is_gone_with_the_next_run(tmp_path):
    killed = Ledger.write(SWEEP, 0.0)
    killed.append(decode("r0"))
    killed.sync(0.0, force=True)
    killed._log._journal.close()  # which is what the system does
    killed._log._lease.release()
    assert list((tmp_path / "cache").glob("ledgers/*/journals/*"))
    Ledger.write(SWEEP, 0.0).close()
    assert not list((tmp_path / "cache").glob("ledgers/*/journals/*"))


PROGRAM = """
import os, sys
from orchestrator.ledger import Ledger
from workers.store import StoreError, open_store, place
ledger = Ledger.write(place(sys.argv[1]), 0.0)
for row in ("r0", "r1"):
    ledger.append({"kind": "decode", "cell": "c", "row": row, "status": "ok", "attempt": 1})
    ledger.sync(0.0, force=row == "r0")
os.kill(os.getpid(), 9)
"""


def test_after_a_kill_the_same_machine_goes_on_at_once_and_has_what_was_not_sent(monkeypatch):
    killed = subprocess.run([sys.executable, "-c", PROGRAM, str(SWEEP)], cwd=Path(__file__).parents[2], check=False)
    assert killed.returncode == -9
    assert {row for _, row in Ledger(SWEEP).results()} == {"r0"}
    assert holder(SWEEP) is None
    monkeypatch.setattr(lease.time, "sleep", pytest.fail)
    with Ledger.write(SWEEP, 0.0) as again:
        assert {row for _, row in again.results()} == {"r0", "r1"}
    assert {row for _, row in Ledger(SWEEP).results()} == {"r0", "r1"}
    assert len(list(Ledger(SWEEP).records())) == 2


def test_a_driver_that_was_cut_off_writes_nothing_more_and_says_who_took_over(s3, monkeypatch):
    monkeypatch.setattr(lease.Lease, "keep", lambda self: None)  # its renewals do not get through
    fakes, mirror, others = Fakes(), Recorder(), []

    class CutOff(InlineExecutor):
        def wait(self, seconds):
            if len(fakes.journal) == 2 and not others:
                monkeypatch.setattr(segments, "this_process", lambda: lease.Holder("other", 5, "", "", "b"))
                others.append(Ledger.write(SWEEP, 0.0))
            return super().wait(seconds)

    with pytest.raises(
        LeaseLost, match="this driver was cut off and its sweep taken over by other, process 5; it stops"
    ):
        drive(fakes, SWEEP, "limit=6", mirror=mirror, make_executor=lambda: CutOff(fakes.make_worker))
    assert mirror.status is None  # the other's to say
    assert set(Ledger(SWEEP).results()) == set(others[0].results())
    others[0].close()


def test_and_learns_of_it_from_its_last_records_at_the_latest(s3, monkeypatch):
    monkeypatch.setattr(lease.Lease, "keep", lambda self: None)
    monkeypatch.setattr(ledger, "SYNC_RECORDS", 1000)
    fakes, mirror = Fakes(), Recorder()

    class CutOff(InlineExecutor):
        def close(self):
            monkeypatch.setattr(segments, "this_process", lambda: lease.Holder("other", 5, "", "", "b"))
            Ledger.write(SWEEP, 0.0).close()

    with pytest.raises(LeaseLost, match="this driver was cut off"):
        drive(fakes, SWEEP, mirror=mirror, clock=lambda: 0.0, make_executor=lambda: CutOff(fakes.make_worker))
    assert mirror.status is None


def test_a_sweep_is_copied_to_s3_and_back_as_files(s3, folder, tmp_path):
    drive(Fakes(), folder)
    there, back = open_store(SWEEP / "segments"), open_store(tmp_path / "back" / "segments")
    there.put("001.jsonl", (folder / "segments" / "001.jsonl").read_bytes())
    there.put("notes.txt", b"not a segment")
    assert drive(Fakes(), SWEEP, "limit=4").ran == 5
    assert drive(Fakes(), SWEEP, "limit=5").ran == 5
    for name in there.names():
        back.put(name, there.get(name))
    assert drive(Fakes(), tmp_path / "back", "limit=6").ran == 5
    assert len(Ledger(tmp_path / "back").results()) == 30


def test_every_verb_works_on_s3(s3, tmp_path, monkeypatch, capsys):
    print_results = launch._print_results
    monkeypatch.setattr(launch, "_print_results", lambda console, folder: {})

    def run(*arguments, fakes=None):
        status = launch.main(arguments, (fakes or Fakes()).backend())
        return status, " ".join(capsys.readouterr().out.split())

    assert run("run", "quickstart", *INLINE)[0] == 0
    assert read_sweep(SWEEP).config["store"] == "s3://bucket/runs"
    status, said = run("status", "quickstart", "store=s3://bucket/runs")
    assert (status, "6/6 samples, 0 failed, 2 texts scored; no driver is running" in said) == (0, True)
    monkeypatch.setattr(launch, "_print_results", print_results)
    assert "report: s3://bucket/runs/quickstart/report.html" in run("report", "s3://bucket/runs/quickstart")[1]
    monkeypatch.setattr(launch, "_print_results", lambda console, folder: {})
    again = Fakes()
    status, said = run("resume", str(SWEEP), fakes=again)
    assert (status, again.journal, "nothing to decode" in said) == (0, [], True)
    longer = Fakes()
    assert run("resume", str(SWEEP), "limit=3", fakes=longer)[0] == 0
    assert len(longer.journal) == 1
    assert "scored 3 texts" in run("rescore", str(SWEEP), "--all")[1]
    assert "9 samples, 0 to run" in run("plan", "quickstart", *INLINE, "limit=3")[1]
    assert run("watch", str(SWEEP)) == (0, "9/9 samples, 3/3 cells, done")
    assert not (tmp_path / "runs").exists()


def test_a_sweep_on_s3_is_brought_into_an_mlflow_afterwards(s3, tmp_path, monkeypatch, capsys):
    from mlflow import MlflowClient

    uri = f"sqlite:///{tmp_path}/mlflow.db"
    with monkeypatch.context() as away:
        away.setattr(launch, "_mirror", lambda sweep: NoMirror())
        assert launch.main(["run", "quickstart", *INLINE, f"mlflow={uri}"], Fakes().backend()) == 0
    assert launch.main(["sync", "quickstart", "store=s3://bucket/runs"]) == 0
    assert f"MLflow at {uri} has all of s3://bucket/runs/quickstart" in capsys.readouterr().out
    client = MlflowClient(uri)
    (experiment,) = [found.experiment_id for found in client.search_experiments() if found.name != "Default"]
    runs = client.search_runs([experiment])
    assert [run.info.status for run in runs] == ["FINISHED"] * 4  # the sweep and its cells


def test_a_sweep_on_s3_is_analysed_here(s3, tmp_path, capsys):
    small = ["limit=1", "budgets=[0,4]", "drafters=[spot]", "decode.gen_length=32", "temperatures=[0]"]
    assert launch.main(["run", "quickstart", *small, *INLINE[:2], INLINE[-1]]) == 0
    s3.seen.clear()
    assert launch.main(["analyze", str(SWEEP)]) == 0
    assert "page: runs/quickstart/analysis/index.html" in capsys.readouterr().out
    assert (tmp_path / "runs/quickstart/analysis/index.html").is_file()
    assert len(Ledger(tmp_path / "runs/quickstart/analysis").results()) == 3  # the oracles
    assert not [path for method, path in s3.seen if method not in ("GET", "HEAD")]


VERBS = ["run", "plan", "resume", "status", "watch", "report", "rescore", "sync", "analyze", "ui"]


@pytest.mark.parametrize("verb", VERBS)
def test_credentials_that_have_expired_are_one_line(verb, s3, capsys):
    s3.fault = lambda method, path: "expired"
    wanted = INLINE if verb in ("run", "plan") else ["store=s3://bucket/runs"]
    assert launch.main([verb, "quickstart", *wanted], Fakes().backend()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "error: s3://bucket/runs/quickstart" in error
    assert "the credentials have expired; renew them (aws sso login, ~/.aws/credentials), then go on" in error


@pytest.mark.parametrize("verb", VERBS)
def test_what_s3_refuses_is_one_line_that_names_the_remedy(verb, s3, capsys):
    wrong = (
        [text.replace("bucket", "nowhere") for text in INLINE] if verb in ("run", "plan") else ["store=s3://nowhere/x"]
    )
    assert launch.main([verb, "quickstart", *wrong], Fakes().backend()) == 2
    error = capsys.readouterr().err
    assert error.count("\n") == 1
    assert "s3://nowhere/" in error
    assert "create the bucket, or name another one" in error


def test_a_sweep_that_is_not_there_is_named_beside_those_that_are(capsys):
    launch.main(["run", "quickstart", *INLINE], Fakes().backend())
    capsys.readouterr()
    assert launch.main(["resume", "never", "store=s3://bucket/runs"]) == 2
    assert "no such sweep in s3://bucket/runs and no such grid; sweeps: quickstart" in capsys.readouterr().err
