"""The main job, whole: real target, real drafters, real Ray. A crash changes nothing but the time it takes."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path

import pytest

import launch
from orchestrator import results
from orchestrator.ledger import read_sweep
from tests.chaos import MARK, left_after

pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("ignore")]

ROOT = Path(__file__).parents[1]
GRID = ["quickstart", "limit=3", "budgets=[0,8]", "temperatures=[0,1]"]
INLINE, NO_MLFLOW = "workers.executor=inline", "mlflow=null"


def command(*arguments: str, store: Path, **options) -> "subprocess.Popen[str]":
    """A process of its own, in a group of its own as in a terminal."""
    environment = os.environ | {"PYTHONPATH": str(ROOT)} | options.pop("env", {})
    line = [sys.executable, *arguments, f"store={store}"]
    out = options.pop("stdout", subprocess.DEVNULL)
    return subprocess.Popen(line, cwd=ROOT, env=environment, stdout=out, text=True, start_new_session=True)


def lines(store: Path) -> list[dict]:
    """Every record on disk, in order."""
    segments = sorted((store / "quickstart" / "segments").glob("*.jsonl"))
    return [json.loads(line) for segment in segments for line in segment.read_text().splitlines()]


def decoded(store: Path) -> dict:
    """What decides a result, of every (cell, row); each is on disk exactly once."""
    records = [record for record in lines(store) if record["kind"] == "decode"]
    assert set(Counter((record["cell"], record["row"]) for record in records).values()) == {1}
    kept = (
        "status",
        "text_sha",
        "length",
        "nfe",
        "cache_passes",
        "drafted",
        "accepted",
        "accepted_by_depth",
        "identical",
    )
    return {(record["cell"], record["row"]): [record[name] for name in kept] for record in records}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    store = tmp_path_factory.mktemp("uninterrupted")
    assert launch.main(["run", *GRID, f"store={store}"]) == 0
    return store


def test_every_sample_of_every_cell_is_decoded_and_is_the_controls_text(uninterrupted):
    sweep = read_sweep(uninterrupted / "quickstart")
    found = decoded(uninterrupted)
    assert found.keys() == {(cell.key, row) for cell in sweep.cells for row in sweep.rows[cell.key]}
    assert len(found) == 2 * 3 * 3
    assert all(status == "ok" and identical for status, *_, identical in found.values())


@pytest.mark.parametrize("what", ["driver", "driver-unsynced"])
def test_a_killed_driver_loses_nothing_that_resume_does_not_bring_back_the_same(what, uninterrupted, tmp_path):
    """Its actors die with it: tests/test_chaos.py."""
    crashed = command("-m", "tests.crash", what, "7", "run", *GRID, INLINE, NO_MLFLOW, store=tmp_path)
    assert crashed.wait(300) == -9
    before = len(decoded(tmp_path)) if what == "driver" else 0
    assert before == (7 if what == "driver" else 0)
    assert launch.main(["resume", "quickstart", INLINE, f"store={tmp_path}"]) == 0
    assert decoded(tmp_path) == decoded(uninterrupted)


def test_a_killed_actor_costs_nothing_and_needs_no_resume(uninterrupted, tmp_path):
    crashed = command(
        "-m", "tests.crash", "actor", "5", "run", *GRID, NO_MLFLOW, store=tmp_path, stdout=subprocess.PIPE
    )
    said, _ = crashed.communicate(timeout=300)
    assert crashed.returncode == 0
    assert "worker died" in said
    assert decoded(tmp_path) == decoded(uninterrupted)


def test_one_ctrl_c_in_a_terminal_lets_what_is_in_flight_end_and_leaves_no_process(uninterrupted, tmp_path):
    mark = tmp_path.name
    running = command("launch.py", "run", *GRID, NO_MLFLOW, "workers.count=1", store=tmp_path, env={MARK: mark})
    while not (tmp_path / "quickstart" / "segments" / "001.jsonl").exists():
        assert running.poll() is None
        time.sleep(0.05)
    os.killpg(running.pid, signal.SIGINT)  # Ray's processes and the scorers get it, too
    assert running.wait(60) == 130
    assert left_after(10.0, mark) == {}
    found = decoded(tmp_path)
    assert 0 < len(found) < 18
    assert found.items() <= decoded(uninterrupted).items()


def test_a_finished_sweep_run_again_does_no_work(uninterrupted, capsys):
    before = lines(uninterrupted)
    assert launch.main(["run", *GRID, f"store={uninterrupted}"]) == 0
    assert "nothing to decode" in capsys.readouterr().out
    assert lines(uninterrupted) == before


def test_one_worker_in_this_process_finds_what_actors_found(uninterrupted, tmp_path):
    assert launch.main(["run", *GRID, INLINE, NO_MLFLOW, f"store={tmp_path}"]) == 0
    assert decoded(tmp_path) == decoded(uninterrupted)


def test_spot_needs_a_third_of_the_passes_and_fewer_than_the_stale_order(uninterrupted):
    sweep, frame = results.load(uninterrupted / "quickstart")
    ratio = {(row.drafter, row.temperature): row.nfe_ratio for row in results.summary(sweep, frame).itertuples()}
    for temperature in (0.0, 1.0):
        assert ratio["spot", temperature] > 3.0
        assert ratio["spot", temperature] > ratio["stale", temperature] > 1.0


def test_mlflow_has_a_parent_run_and_one_finished_run_a_cell(uninterrupted):
    from mlflow import MlflowClient

    client = MlflowClient(f"sqlite:///{uninterrupted}/mlflow.db")
    (experiment,) = [e for e in client.search_experiments() if e.name != "Default"]
    runs = client.search_runs([experiment.experiment_id])
    parents = [run for run in runs if "mlflow.parentRunId" not in run.data.tags]
    children = [run for run in runs if run.data.tags.get("mlflow.parentRunId") == parents[0].info.run_id]
    assert len(parents) == 1 and len(children) == 6 == len(runs) - 1
    assert {run.info.status for run in runs} == {"FINISHED"}
    assert all(len(client.get_metric_history(run.info.run_id, "nfe")) == 3 for run in children)


def test_real_questions_go_through_the_whole_pipeline(tmp_path):
    """The grid gsm8k-tiny on a local file; the bundled rows are our own, the real file is used where there is one."""
    real = Path(os.environ.get("SPOT_DATA", ROOT.parent / "shared" / "data")) / "gsm8k" / "test.jsonl"
    path = real if real.exists() else ROOT / "tests" / "data" / "gsm8k.jsonl"
    few = ["limit=2", "budgets=[0,8]", "drafters=[spot]", "decode.gen_length=32"]
    assert (
        launch.main(["run", "gsm8k-tiny", *few, INLINE, NO_MLFLOW, f"task.gsm8k.path={path}", f"store={tmp_path}"]) == 0
    )
    _, frame = results.load(tmp_path / "gsm8k-tiny")
    assert len(frame) == 4 and frame["identical"].all()
    assert sorted(set(frame["row"])) == ["test-0", "test-1"]


def test_one_prompt_is_decoded_in_sight(capfd):
    prompt = "Mia has 3 pens. Mia buys 4 pens. Mia loses 2 pens. Mia wins 6 pens. How many pens does Mia have now?"
    assert launch.main(["decode", prompt]) == 0
    shown = capfd.readouterr()
    assert "#### 11" in shown.out
    assert "drafted  8  accepted" in shown.out
    assert "commits in" in shown.err
