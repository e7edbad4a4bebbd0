"""The command line as a user meets it: what is printed, the exit code, and mistakes as one line each."""

import json
import sys

import pytest

import launch
from orchestrator.ledger import Ledger, read_sweep
from tests.orchestrator.fakes import Fakes

INLINE = ("workers.executor=inline", "mlflow=null", "limit=2", "budgets=[0,8]", "temperatures=[0]")


@pytest.fixture(autouse=True)
def standing_elsewhere(tmp_path, monkeypatch):
    """Every test stands in an empty folder, so that `runs/` is its own."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(launch, "_print_results", lambda console, folder: console.print(f"results of {folder}"))


def run(*arguments, fakes=None):
    return launch.main(arguments, (fakes or Fakes()).backend())


def test_run_decodes_the_grid_and_says_where_the_results_are(capsys):
    fakes = Fakes()
    assert run("run", "quickstart", *INLINE, fakes=fakes) == 0
    assert "results of runs/quickstart" in capsys.readouterr().out
    assert len(fakes.journal) == 2


def test_run_again_does_nothing_and_says_so(capsys):
    run("run", "quickstart", *INLINE)
    again = Fakes()
    assert run("run", "quickstart", *INLINE, fakes=again) == 0
    assert "nothing to decode" in capsys.readouterr().out
    assert again.loads == []


def test_run_with_a_longer_axis_says_what_is_new(capsys):
    run("run", "quickstart", *INLINE)
    run("run", "quickstart", *INLINE, "budgets=[0,4]")
    assert "amended: 2 new cells; 2 no longer in the grid" in " ".join(capsys.readouterr().out.split())


def test_resume_follows_the_stored_config_and_not_the_grid_file(tmp_path):
    grid = tmp_path / "mine.yaml"
    grid.write_text("models: [tiny-sdar]\ntasks: [arith]\ndrafters: [spot]\nbudgets: [8]\nlimit: 2\nmlflow: null\n"
                    "workers: {executor: inline}\n")  # fmt: skip
    assert run("run", str(grid)) == 0
    grid.unlink()
    fakes = Fakes()
    assert run("resume", "mine", "limit=3", fakes=fakes) == 0
    assert len(fakes.journal) == 1


def test_resume_retries_failed_samples_when_asked_to(capsys):
    every_row = frozenset(("spot", f"r{i}") for i in range(40))
    assert run("run", "quickstart", *INLINE, fakes=Fakes(failing=every_row)) == 1
    assert "resume quickstart --retry-failed" in capsys.readouterr().out
    assert run("resume", "quickstart") == 1
    assert run("resume", "quickstart", "--retry-failed") == 0


def test_a_bug_is_named_on_stderr_and_fails_the_command(capsys):
    every_row = frozenset(("spot", f"r{i}") for i in range(40))
    assert run("run", "quickstart", *INLINE, fakes=Fakes(buggy=every_row)) == 1
    first = capsys.readouterr().err.splitlines()[0]
    assert first.startswith("bug: tiny-sdar · arith · spot · b8 · T0 · s0, row r")


def test_plan_counts_and_touches_nothing(tmp_path, capsys):
    fakes = Fakes()
    assert run("plan", "quickstart", "limit=2", fakes=fakes) == 0
    out = capsys.readouterr().out
    assert "14 cells, 28 samples, 28 to run in 4 sample tasks" in out
    assert "new" in out
    assert fakes.loads == []
    assert list(tmp_path.iterdir()) == []


def test_plan_of_a_half_done_sweep_shows_what_is_there(capsys):
    run("run", "quickstart", *INLINE)
    run("plan", "quickstart", *INLINE, "limit=3", "budgets=[0,8,20]")
    out = capsys.readouterr().out
    assert "partial" in out
    assert "2/3" in out
    assert "5 cells, 15 samples, 9 to run in 3 sample tasks" in out


def test_plan_needs_neither_ray_nor_a_gpu(monkeypatch):
    monkeypatch.setitem(sys.modules, "ray", None)
    assert run("plan", "quickstart", "workers.device=cuda") == 0


def test_status_reads_the_ledger_and_needs_no_workers(monkeypatch, capsys):
    failing = frozenset(("spot", f"r{i}") for i in range(40))
    run("run", "quickstart", *INLINE, fakes=Fakes(failing=failing))
    monkeypatch.setitem(sys.modules, "ray", None)
    assert launch.main(["status", "quickstart"]) == 0
    out = capsys.readouterr().out
    assert "4/6 samples, 2 failed" in out
    assert "no driver is running" in out
    assert "ValueError: no" in out


def test_status_names_the_driver_at_work(capsys):
    run("run", "quickstart", *INLINE)
    with Ledger.write(read_sweep(launch.Path("runs/quickstart")).folder, 0.0):
        launch.main(["status", "quickstart"])
    assert "a driver is at work" in capsys.readouterr().out


def test_report_prints_the_results_of_a_sweep_by_name(capsys):
    run("run", "quickstart", *INLINE, "name=mine")
    capsys.readouterr()
    assert launch.main(["report", "mine"]) == 0
    assert capsys.readouterr().out == "results of runs/mine\n"


def test_ui_runs_mlflow_on_the_sweeps_store(monkeypatch, capsys):
    called = []
    monkeypatch.setattr(launch.os, "execv", lambda path, command: called.append(command))
    launch.main(["ui", "quickstart", "store=/data"])
    assert called[0][1:] == ["-m", "mlflow", "ui", "--backend-store-uri", "sqlite:////data/mlflow.db"]
    assert capsys.readouterr().out == "mlflow ui --backend-store-uri sqlite:////data/mlflow.db\n"


MISTAKES = [
    (["run", "quikstart"], "command line: quikstart: no such grid; known: gsm8k-tiny, quickstart"),
    (["run", "quickstart", "limt=3"], "command line: limt: unknown key; did you mean 'limit'?"),
    (["plan", "quickstart", "models=[nope]"], "command line: models: no such model: 'nope'"),
    (["plan", "quickstart", "seeds=[]"], "command line: seeds: an empty axis"),
    (["run", "quickstart", "limit=x"], "command line: limit: x is the wrong type; a whole number or null expected"),
    (["run", "gsm8k-tiny", "task.gsm8k.path=/no.jsonl"], "command line: task.gsm8k.path: no file /no.jsonl; give a"),
    (["run", "quickstart", "workers.device=cuda"], "command line: workers.device: 1 GPU(s) needed, this machine has 0"),
    (["run", "quickstart", "workers.device=cuda", "workers.count=8"], "workers.count: 8 GPU(s) needed, this machine"),
    (
        ["run", "quickstart", "workers.address=127.0.0.1:1"],
        "command line: workers.address: no Ray cluster at '127.0.0.1:1'",
    ),
    (["resume", "never"], "command line: never: no such sweep in runs and no such grid; sweeps: none"),
    (["status", "quickstart"], "runs/quickstart: no sweep here; start one with"),
    (["report", "quickstart"], "runs/quickstart: no sweep here; start one with"),
]


@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=lambda value: " ".join(value)[:50])
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(arguments, message, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "ray", None)  # starting Ray would raise
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    fakes = Fakes()
    assert run(*arguments, fakes=fakes) == 2
    captured = capsys.readouterr()
    assert captured.err.startswith("error: ")
    assert captured.err.count("\n") == 1
    assert message in captured.err
    assert fakes.loads == []
    assert list(tmp_path.iterdir()) == []


def test_a_second_driver_is_turned_away(capsys):
    run("run", "quickstart", *INLINE)
    with Ledger.write(launch.Path("runs/quickstart"), 0.0):
        assert run("run", "quickstart", *INLINE) == 2
    assert "another driver is running this sweep" in capsys.readouterr().err


def test_sweep_yaml_says_what_was_run():
    run("run", "quickstart", *INLINE)
    sweep = read_sweep(launch.Path("runs/quickstart"))
    assert sweep.config["limit"] == 2
    assert sweep.environment == {"tiny-sdar": {"fake": 1}}
    assert sweep.cells[0].label == "tiny-sdar · arith · control · T0 · s0"
    assert json.dumps(sweep.config)
