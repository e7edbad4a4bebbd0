"""The command line as a user meets it: what is printed, the exit code, and mistakes as one line each."""

import errno
import json
import re
import shlex
import shutil
import signal
import socket
import sys
from contextlib import suppress
from dataclasses import replace
from functools import partial
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
import typer
from rich.console import Console

import launch
from orchestrator import config as configs
from orchestrator.ledger import Ledger, read_sweep
from orchestrator.plan import make_plan
from orchestrator.standing import write_workers
from tests.orchestrator.fakes import Fakes, FakeTask, resolve_drafter
from workers.store import StoreError
from workers.tasks import Canary, Row

print_results = launch._print_results
INLINE = ("workers.executor=inline", "mlflow=null", "limit=2", "budgets=[0,8]", "temperatures=[0]")


@pytest.fixture(autouse=True)
def standing_elsewhere(tmp_path, monkeypatch):
    """Every test stands in an empty folder, so that `runs/` is its own."""
    monkeypatch.chdir(tmp_path)

    def print_results(console, folder, *how):
        console.print(f"results of {folder}")
        return {"report": f"{folder}/report.html"}

    monkeypatch.setattr(launch, "_print_results", print_results)


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
    said = " ".join(capsys.readouterr().out.split())
    assert "amended: 2 new cells, 4 new samples; 2 cells, 4 samples no longer asked for" in said


def test_run_with_a_smaller_limit_says_what_is_left_out_and_that_it_is_kept(capsys):
    run("run", "quickstart", *INLINE)
    run("run", "quickstart", *INLINE, "limit=1")
    said = " ".join(capsys.readouterr().out.split())
    assert "amended: 0 new cells, 0 new samples; 0 cells, 3 samples no longer asked for" in said
    assert "what they gave stays in the ledger, and is shown again once the grid asks for it" in said


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
    assert "resume runs/quickstart --retry-failed" in capsys.readouterr().out
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
    assert "10 cells (10 new), 20 samples, 20 to run in 4 sample tasks" in out
    assert "new" in out
    assert fakes.loads == []
    assert list(tmp_path.iterdir()) == []


def test_plan_of_a_half_done_sweep_shows_what_is_there(capsys):
    run("run", "quickstart", *INLINE)
    run("plan", "quickstart", *INLINE, "limit=3", "budgets=[0,8,20]")
    out = capsys.readouterr().out
    assert "partial" in out
    assert "2/3" in out
    assert "samples, 9 to run in 3 sample tasks" in out


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


def test_status_counts_the_texts_that_are_scored_in_error_and_open(capsys):
    run("run", "quickstart", *INLINE, fakes=Fakes(task=FakeTask("fake", unscorable=a_row())))
    segment = Path("runs/quickstart/segments/001.jsonl")
    assert launch.main(["status", "quickstart"]) == 0
    assert "6/6 samples, 0 failed, 1 text scored, 1 in error; no driver" in " ".join(capsys.readouterr().out.split())
    lines = [line for line in segment.read_text().splitlines() if '"kind":"decode"' in line]
    segment.write_text("".join(line + "\n" for line in lines))
    assert launch.main(["status", "quickstart"]) == 0
    assert "0 texts scored, 2 to score;" in " ".join(capsys.readouterr().out.split())


def a_row():
    """A row that INLINE decodes."""
    config, source = configs.load("quickstart", INLINE)
    plan = make_plan(config, source, Fakes().backend())
    return plan.grid.rows[plan.grid.cells[0].group][0]


def scores(folder="runs/quickstart"):
    return {key[1]: score["correct"] for key, score in Ledger(Path(folder)).scores().items()}


def test_a_run_says_which_texts_could_not_be_scored_and_how_to_try_again(capsys):
    broken = Fakes(task=FakeTask("fake", unscorable=a_row()))
    assert run("run", "quickstart", *INLINE, fakes=broken) == 0
    said = capsys.readouterr().out
    assert "1 text could not be scored (RuntimeError: this text breaks the scorer); try again with: " in said
    assert re.search(r"launch.py rescore runs/quickstart\n", said)


def test_rescore_scores_what_has_an_error_and_nothing_else(capsys):
    row = a_row()
    run("run", "quickstart", *INLINE, fakes=Fakes(task=FakeTask("fake", unscorable=row)))
    fakes = Fakes()
    assert run("rescore", "quickstart", fakes=fakes) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "scored 1 text: 1 verdict changed, 0 in error" in said
    assert re.search(r"control · T0 · s0: \d+.0% of 1, now \d+.0% of 2", said)
    assert "results of runs/quickstart" in said
    assert fakes.loads == fakes.journal == []
    assert None not in scores().values()
    assert run("rescore", "quickstart", fakes=Fakes(task=FakeTask("fake", inverted=True))) == 0
    assert "scored 0 texts" in capsys.readouterr().out


def test_rescore_all_scores_every_text_and_the_last_verdict_counts(capsys):
    run("run", "quickstart", *INLINE)
    before = scores()
    inverted = Fakes(task=FakeTask("fake", inverted=True))
    assert run("rescore", "quickstart", "--all", fakes=inverted) == 0
    assert "scored 2 texts: 2 verdicts changed, 0 in error" in capsys.readouterr().out
    assert scores() == {row: not correct for row, correct in before.items()}


def test_rescore_by_a_newer_scorer_judges_what_it_has_not_judged(capsys):
    run("run", "quickstart", *INLINE)
    newer = Fakes(task=FakeTask("fake", scorer="fake-2", inverted=True))
    assert run("rescore", "quickstart", fakes=newer) == 0
    assert "scored 2 texts: 2 verdicts changed" in capsys.readouterr().out
    assert run("rescore", "quickstart", fakes=newer) == 0
    assert "scored 0 texts" in capsys.readouterr().out


def test_rescore_tells_by_its_exit_code_that_texts_are_left_without_a_verdict(capsys):
    run("run", "quickstart", *INLINE)
    assert run("rescore", "quickstart", "--all", fakes=Fakes(task=FakeTask("fake", unscorable=a_row()))) == 1
    assert "the first: RuntimeError: this text breaks the scorer" in " ".join(capsys.readouterr().out.split())
    assert run("rescore", "quickstart") == 0


@pytest.mark.parametrize("kind", [StoreError, partial(OSError, errno.ENOSPC)])
def test_rescore_that_cannot_write_gives_up_as_a_run_does_and_keeps_what_it_can(kind, monkeypatch, capsys):
    run("run", "quickstart", *INLINE)
    before = scores()

    def full(*_):
        raise kind("there is no room")

    with monkeypatch.context() as poor:
        poor.setattr(Ledger, "append", full)
        assert run("rescore", "quickstart", "--all", "--json") == 3
    captured = capsys.readouterr()
    said = json.loads(captured.out.splitlines()[-1])
    assert (said["exit_code"], said["folder"]) == (3, "runs/quickstart")
    assert "runs/quickstart: the scoring cannot go on (" in said["error"] and "there is no room" in said["error"]
    assert captured.err.endswith("launch.py rescore runs/quickstart\n")
    assert scores() == before
    assert run("rescore", "quickstart", "--all") == 0


def test_rescore_needs_the_sweeps_own_data_and_its_lock_and_takes_no_other_grid(capsys):
    run("run", "quickstart", *INLINE)
    assert run("rescore", "quickstart", fakes=Fakes(task=FakeTask("fake", revision="data-2"))) == 2
    said = "its data has changed since the sweep (data-1, now data-2); restore it, or run the grid again"
    assert capsys.readouterr().err.endswith(f"task.arith: {said}\n")
    assert run("rescore", "quickstart", "limit=3") == 2
    assert "command line: limit: says nothing about scoring; task.NAME.KEY=" in capsys.readouterr().err
    with Ledger.write(Path("runs/quickstart"), 0.0):
        assert run("rescore", "quickstart") == 2
    assert "another driver is running this sweep" in capsys.readouterr().err
    assert run("rescore", "never") == 2


def test_rescore_brings_mlflow_up_and_outlives_one_that_does_not_answer(monkeypatch, capsys):
    row = a_row()
    run("run", "quickstart", *INLINE, fakes=Fakes(task=FakeTask("fake", unscorable=row)))
    edit(Path("runs/quickstart/sweep.yaml"), "mlflow: null", "mlflow: http://there")
    synced = []

    def rebuild(uri, folder, *_):
        synced.append((uri, scores(folder)[row]))
        raise ConnectionError("no route")

    monkeypatch.setattr("orchestrator.tracking.rebuild", rebuild)
    assert run("rescore", "quickstart") == 0
    assert synced == [("http://there", scores()[row])]
    assert "MLflow lacks the new scores (" in capsys.readouterr().out
    assert run("rescore", "quickstart") == 0  # nothing new
    assert len(synced) == 1


def canary(text, correct):
    return Canary(Row("c0", "prompt", "2"), text, correct)


@pytest.mark.parametrize(
    ("canaries", "task", "said"),
    [
        ((canary("c0", True), canary("none", True)), {}, "a text known to be right is judged wrong (answer 'none')"),
        ((canary("c0", False),), {}, "a text known to be wrong is judged right (answer 'c0')"),
        ((canary("c0", True),), {"unscorable": "c0"}, "it cannot be scored here: RuntimeError: this text breaks"),
    ],
)
def test_a_scorer_that_misjudges_a_canary_stops_a_sweep_before_anything_is_loaded(
    canaries, task, said, tmp_path, capsys
):
    broken = Fakes(task=FakeTask("fake", canaries=canaries, **task))
    assert run("run", "quickstart", *INLINE, fakes=broken) == 2
    assert f"error: configs/task/arith.yaml: task.arith: its canary: {said}" in capsys.readouterr().err
    assert broken.loads == []
    assert list(tmp_path.iterdir()) == []
    assert run("plan", "quickstart", *INLINE, fakes=broken) == 0
    assert run("run", "quickstart", *INLINE) == 0
    assert run("run", "quickstart", *INLINE, fakes=broken) == 0  # nothing to decode or score
    assert run("rescore", "quickstart", fakes=broken) == 2


def test_canaries_that_are_judged_as_they_should_be_are_not_heard_of():
    sound = Fakes(task=FakeTask("fake", canaries=(canary("c0", True), canary("none", False))))
    assert run("run", "quickstart", *INLINE, fakes=sound) == 0
    assert len(scores()) == 2


def test_status_names_the_driver_at_work_and_its_workers(capsys):
    run("run", "quickstart", *INLINE)
    with Ledger.write(read_sweep(launch.Path("runs/quickstart")).folder, 0.0):
        write_workers(launch.Path("runs/quickstart"), {"tiny-sdar": {"busy": 1, "loading": 2}})
        launch.main(["status", "quickstart"])
    assert re.search(r"a driver is at work \(.*\); workers: 1 busy 2 loading\n", capsys.readouterr().out)
    launch.main(["status", "quickstart"])  # what it said of its workers is true no more
    assert "workers" not in capsys.readouterr().out


def test_report_prints_the_results_of_a_sweep_by_name(capsys):
    run("run", "quickstart", *INLINE, "name=mine")
    capsys.readouterr()
    assert launch.main(["report", "mine"]) == 0
    assert capsys.readouterr().out == "results of runs/mine\n"


def test_ui_runs_mlflow_on_the_sweeps_store(tmp_path, monkeypatch, capsys):
    called = []
    monkeypatch.setattr(launch.os, "execv", lambda path, command: called.append(command))
    assert run("ui", "quickstart", f"store={tmp_path}") == 2
    assert f"no MLflow database {tmp_path}/mlflow.db yet; run a sweep" in capsys.readouterr().err
    (tmp_path / "mlflow.db").touch()
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with suppress(OSError):  # whoever has it
            taken.bind(("127.0.0.1", 5000))
            taken.listen()
        assert run("ui", "quickstart", f"store={tmp_path}") == 0
    where = ["--backend-store-uri", f"sqlite:///{tmp_path}/mlflow.db"]
    where += ["--default-artifact-root", f"file://{tmp_path}/mlartifacts"]
    assert called[0][1:8] == ["-m", "mlflow", "ui", *where]
    port = int(called[0][called[0].index("--port") + 1])
    assert port > 5000
    assert f"http://127.0.0.1:{port}/ has MLflow at sqlite:///{tmp_path}/mlflow.db" in capsys.readouterr().out


def test_ui_of_a_server_is_its_address(tmp_path, capsys):
    run("run", "quickstart", *INLINE, "store=mine")
    edit(tmp_path / "mine/quickstart/sweep.yaml", "mlflow: null", "mlflow: http://there")
    capsys.readouterr()
    for words in (["mine/quickstart"], ["quickstart", "store=mine"]):
        assert run("ui", *words) == 0
        assert capsys.readouterr().out == "http://there\n"


def edit(path, old, new):
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))


@pytest.mark.parametrize("message", ["[/INST] what", "no file [bold]/x[/bold].pt"])
def test_brackets_in_an_error_are_printed_and_end_nothing(message, monkeypatch, capsys):
    def broken(fakes, model):
        raise ValueError(message)

    monkeypatch.setattr(Fakes, "make_worker", broken)
    assert run("run", "quickstart", *INLINE) == 3
    shown = capsys.readouterr().out.splitlines()
    assert f"worker 0: ValueError: {message}" in shown
    assert f"failed model tiny-sdar could not be loaded, its samples are left: ValueError: {message}" in shown


def test_a_printed_command_works_where_it_is_pasted(tmp_path, capsys):
    every_row = frozenset(("spot", f"r{i}") for i in range(40))
    run("run", "quickstart", *INLINE, "store=my sweeps", fakes=Fakes(failing=every_row))
    (printed,) = re.findall("retry:  (.*)", capsys.readouterr().out)
    program, script, *arguments = shlex.split(printed)
    assert Path(script).resolve() == Path(launch.__file__).resolve()
    assert program == "python" or Path(program).samefile(sys.executable)
    assert run(*arguments) == 0


@pytest.mark.parametrize(("uri", "lines"), [("null", 0), ("http://there", 1)])
def test_the_way_to_mlflow_is_printed_if_there_is_one(uri, lines, tmp_path):
    run("run", "quickstart", *INLINE)
    edit(tmp_path / "runs/quickstart/sweep.yaml", "mlflow: null", f"mlflow: {uri}")
    console = Console(file=StringIO(), width=40)
    print_results(console, Path("runs/quickstart"))
    assert console.file.getvalue().count("launch.py ui runs/quickstart\n") == lines


def test_a_sweep_goes_on_where_it_was_moved_to_and_its_database_with_it(tmp_path):
    run("run", "quickstart", *INLINE)
    edit(tmp_path / "runs/quickstart/sweep.yaml", "mlflow: null", "mlflow: sqlite:///runs/mlflow.db")
    shutil.move("runs", "moved")
    fakes = Fakes()
    assert run("resume", "moved/quickstart", "mlflow=null", "budgets=[0,4]", "drafter.stale.method=stale",
               fakes=fakes) == 0  # fmt: skip
    assert {method.budget for task in fakes.journal for method in task.methods} == {4}
    assert not Path("runs").exists()
    stored = launch.configs.relocated({"store": "runs", "mlflow": "sqlite:///runs/mlflow.db"}, Path("/new/x"))
    assert stored == {"store": "/new", "name": "x", "mlflow": "sqlite:////new/mlflow.db"}


def test_resume_needs_no_grid_file_and_minds_no_broken_one(tmp_path):
    run("run", "quickstart", *INLINE, "name=mine")
    Path("mine").write_text("a: [broken\n")
    assert run("resume", "mine") == 0


class Behind(launch.NoMirror):
    behind, error = True, "ConnectionError: no [/route]"


def test_an_mlflow_left_behind_is_said_with_the_way_to_bring_it_up(monkeypatch, capsys):
    monkeypatch.setattr(launch, "_mirror", lambda sweep: Behind())
    assert run("run", "quickstart", *INLINE) == 0
    said = capsys.readouterr().out
    assert "MLflow lacks this sweep (ConnectionError: no [/route]); bring it up with: " in said
    assert "launch.py sync runs/quickstart\n" in said


@pytest.mark.parametrize("verb", ["sync", "ui"])
def test_a_password_that_a_sweep_holds_is_not_repeated(verb, tmp_path, capsys):
    run("run", "quickstart", *INLINE)
    edit(tmp_path / "runs/quickstart/sweep.yaml", "mlflow: null", "mlflow: http://me:hunter2@there")
    capsys.readouterr()
    assert run(verb, "quickstart") == 2
    said = capsys.readouterr()
    assert said.err.startswith("error: runs/quickstart/sweep.yaml: mlflow: sweep.yaml would keep the password")
    assert "hunter2" not in said.out + said.err


def test_sync_waits_for_the_driver_and_names_an_address_that_does_not_answer(tmp_path, monkeypatch, capsys):
    run("run", "quickstart", *INLINE)
    edit(tmp_path / "runs/quickstart/sweep.yaml", "mlflow: null", "mlflow: http://there")
    with Ledger.write(Path("runs/quickstart"), 0.0):
        assert run("sync", "quickstart") == 2
    assert "runs/quickstart: a driver is at work" in capsys.readouterr().err

    def failing(*_):
        raise ConnectionError("no\nroute")

    monkeypatch.setattr("orchestrator.tracking.rebuild", failing)
    assert run("sync", "quickstart") == 2
    assert capsys.readouterr().err == "error: runs/quickstart: mlflow: http://there: ConnectionError: no route\n"


@pytest.mark.parametrize("verb", ["status", "report", "sync", "ui"])
def test_a_sweep_that_is_only_looked_at_takes_no_override_but_its_store(verb, capsys):
    run("run", "quickstart", *INLINE)
    assert run(verb, "quickstart", "stroe=x") == 2
    assert "command line: stroe: only store= says anything" in capsys.readouterr().err


MISTAKES = [
    (["run", "quikstart"], "command line: quikstart: no such grid; known: gsm8k-tiny, "),
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
    (["status", "quickstart", "store=???"], "command line: store: ???: a value is missing"),
    (["status", "x" * 300], f"{'x' * 300}/sweep.yaml: File name too long"),
    (["watch", "quickstart"], "runs/quickstart: no sweep here; start one with"),
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
    assert sweep.environment == {"fake": 1}
    assert sweep.cells[0].label == "tiny-sdar · arith · control · T0 · s0"
    assert json.dumps(sweep.config)


def test_a_data_set_without_rows_is_a_mistake_and_not_a_success(capsys):
    assert run("run", "quickstart", *INLINE, fakes=Fakes(task=FakeTask("fake", size=0))) == 2
    assert "configs/task/arith.yaml: task.arith: no rows" in capsys.readouterr().err


def test_a_type_error_of_an_entry_is_about_the_entry(monkeypatch, capsys):
    def load_task(fakes, name, options):
        raise TypeError("'<' not supported")

    monkeypatch.setattr(Fakes, "load_task", load_task)
    assert run("plan", "quickstart") == 2
    assert capsys.readouterr().err == "error: configs/task/arith.yaml: task.arith: '<' not supported\n"


def test_the_environment_is_the_one_that_made_the_results(monkeypatch):
    run("run", "quickstart", *INLINE)
    backend = Fakes.backend
    monkeypatch.setattr(Fakes, "backend", lambda fakes: replace(backend(fakes), environment=lambda model: {"fake": 2}))
    made = []
    for overrides in (INLINE, (*INLINE, "limit=3")):
        run("run", "quickstart", *overrides)
        made.append(read_sweep(Path("runs/quickstart")).environment)
    assert made == [{"fake": 1}, {"fake": 2}]


def test_an_amended_sweep_keeps_its_id_and_another_of_its_name_has_its_own():
    run("run", "quickstart", *INLINE)
    run("run", "quickstart", *INLINE, "limit=3")
    run("run", "quickstart", *INLINE, "store=other")
    mine, other = (read_sweep(Path(store, "quickstart")).id for store in ("runs", "other"))
    assert len(mine) == len(other) == 32
    assert mine != other


def test_train_drafter_gives_keys_with_a_section_to_the_grid_and_the_rest_to_the_training(monkeypatch):
    given = []
    monkeypatch.setattr("launch._make_shards", lambda config, source, workers, shards: given.extend(shards))
    monkeypatch.setattr("launch.load_traces", lambda shards: [])
    monkeypatch.setattr("launch._training_device", lambda config: "cpu")
    monkeypatch.setattr("spot.training.order.make_order_model", lambda *arguments: given.append(arguments[1]) or {})
    monkeypatch.setattr("spot.training.order.accuracy_tables", lambda found: [])
    asked = ("--prompts", "12", "--out", "mine.safetensors")
    assert run("train-drafter", *asked, "steps=7", "decode.gen_length=64", "task.arith.split=test") == 0
    assert [len(shard.rows) for shard in given[:2]] == [10, 2]
    assert given[0].decode.gen_length == 64
    assert given[2].steps == 7
    assert run("train-drafter", "--prompts", "9") == 2


@pytest.mark.parametrize(
    ("overrides", "chosen"),
    [((), ("spot", 8)), (("drafters=[stale,spot]", "budgets=[0,4,20]"), ("stale", 4)), (("budgets=[0]",), (None, 0))],
)
def test_decode_takes_the_first_value_of_every_axis(overrides, chosen, monkeypatch):
    taken = []

    class Decoder:
        def __init__(self, model):
            pass

        def decode(self, task, method, keep):
            taken.append((method.drafter and method.drafter.name, method.budget))
            return SimpleNamespace(tokens=[])

        def text(self, tokens):
            return ""

    monkeypatch.setattr("launch.backend", Fakes().backend)
    monkeypatch.setattr("workers.worker.Worker", Decoder)
    monkeypatch.setattr("workers.single.summary", lambda decoding: "")
    assert run("decode", "--no-passes", "How many?", *overrides) == 0
    assert taken == [chosen]


class Unloadable:
    def __init__(self, model):
        raise OSError("no\ntokenizer")


class Undecoding:
    def __init__(self, model):
        pass

    def decode(self, task, method, keep):
        raise RuntimeError("out of\nmemory")


@pytest.mark.parametrize(
    ("worker", "said"),
    [
        (Unloadable, "model tiny-sdar could not be loaded: OSError: no tokenizer"),
        (Undecoding, "model tiny-sdar could not decode this: RuntimeError: out of memory"),
    ],
)
def test_a_prompt_that_cannot_be_decoded_is_one_line(worker, said, monkeypatch, capsys):
    monkeypatch.setattr("launch.backend", Fakes().backend)
    monkeypatch.setattr("workers.worker.Worker", worker)
    assert run("decode", "How many?") == 2
    assert capsys.readouterr().err == f"error: {said}\n"


def test_a_model_that_cannot_be_loaded_ends_an_analysis_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr("workers.worker.Worker", Unloadable)
    assert run("analyze", "--model", "tiny-sdar", "--task", "arith") == 2
    assert capsys.readouterr().err == "error: model tiny-sdar could not be loaded: OSError: no tokenizer\n"


@pytest.mark.parametrize("drafter", ["spot-edge", "spot-sets-edge"])
def test_drafts_across_the_blocks_edge_are_refused_where_the_cache_is_not_exact(drafter, capsys):
    assert run("plan", "quickstart", "models=[tiny-sdar,llada-8b]", f"drafters=[stale,{drafter}]") == 2
    said = "drafting across the block's edge needs an exact prefix cache, which llada has not"
    assert capsys.readouterr().err == f"error: configs/drafter/{drafter}.yaml: drafter.{drafter}.edge: {said}\n"
    assert run("plan", "quickstart", "models=[llada2-mini]", f"drafters=[stale,{drafter}]") == 0
    assert run("plan", "quickstart", "models=[llada-8b]") == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("family=llama", "model.tiny-sdar.family: no family 'llama'; there are "),
        ("family=dream", "assets/tiny-sdar/config.json: model_type 'sdar'; 'Dream' expected"),
        ("dtype=float8", "model.tiny-sdar.dtype: no dtype 'float8'; there are "),
    ],
)
def test_a_target_that_is_none_of_its_family_is_one_line_and_loads_nothing(change, said, monkeypatch, capsys):
    monkeypatch.setattr("workers.worker.Worker", Unloadable)
    assert launch.main(["plan", "quickstart", f"model.tiny-sdar.{change}"]) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1


def test_models_lists_the_catalogue_and_what_is_here(monkeypatch, capsys):
    held = dict.fromkeys(configs.known("model"), "not cached") | {
        "tiny-sdar": "folder",
        "sdar-8b": "cached (16.4 GB)",
    }
    monkeypatch.setattr("workers.models.held", lambda entries: held)
    assert run("models") == 0
    lines = {line.split()[0]: " ".join(line.split()) for line in capsys.readouterr().out.splitlines()}
    assert lines.keys() == {"model", *configs.known("model")}
    assert lines["tiny-sdar"] == "tiny-sdar sdar 32 its own float32 assets/tiny-sdar weights folder"
    published = "sdar-8b sdar 32 151669 bfloat16 8.2 B, 16.4 GB JetLM/SDAR-8B-Chat-b32 newest cached (16.4 GB)"
    assert lines["sdar-8b"] == published
    assert "05334cb9faaf not cached" in lines["dream-7b"]


def test_models_names_a_broken_entry_in_one_line(tmp_path, monkeypatch, capsys):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "mine.yaml").write_text("family: sdar\npath: x\nblock_length: four\n")
    monkeypatch.setattr("orchestrator.config.CONFIGS", tmp_path)
    assert run("models") == 2
    said = "model.mine.block_length: 'four' is the wrong type; a whole number expected"
    assert capsys.readouterr().err == f"error: model/mine.yaml: {said}\n"


def test_a_block_longer_than_a_drafters_model_is_refused(monkeypatch, capsys):
    backend = Fakes.backend
    limited = {"spot": 64}

    def resolve(name, options):
        return replace(resolve_drafter(name, options), longest_block=limited.get(name))

    monkeypatch.setattr(Fakes, "backend", lambda fakes: replace(backend(fakes), resolve_drafter=resolve))
    long = "model.tiny-sdar.block_length=65"
    assert run("plan", "quickstart", long) == 2
    said = "model.tiny-sdar.block_length: 65: spot drafts for blocks of up to 64 positions"
    assert capsys.readouterr().err == f"error: command line: {said}\n"
    assert run("plan", "quickstart", long, "drafters=[stale]") == 0
    assert run("plan", "quickstart", long.replace("65", "64")) == 0


# ---- JSON, and what the ledger says to others


def answer(capsys, *arguments, code=0, fakes=None):
    """What a verb says with --json: one line on stdout, the rest elsewhere."""
    capsys.readouterr()
    assert run(*arguments, "--json", fakes=fakes) == code
    (line,) = capsys.readouterr().out.splitlines()
    return json.loads(line)


def test_every_verb_that_reports_answers_in_one_line_of_json(capsys):
    planned = answer(capsys, "plan", "quickstart", *INLINE)
    assert (planned["cells"], planned["states"]["new"], planned["samples"]) == (3, 3, 6)
    failing = frozenset(("spot", f"r{i}") for i in range(40))
    ran = answer(capsys, "run", "quickstart", *INLINE, code=1, fakes=Fakes(failing=failing))
    assert (ran["exit_code"], ran["ran"], len(ran["failed"])) == (1, 6, 2)
    assert ran["failed"][0]["error"] == "ValueError: no"
    stood = answer(capsys, "status", "quickstart")
    assert (stood["samples_done"], stood["failed"], stood["finished"]) == (6, 2, True)
    watched = answer(capsys, "watch", "quickstart", code=1)
    assert (watched["samples_done"], watched["driver"], watched["causes"]) == (6, None, {"ValueError: no": 2})
    assert answer(capsys, "resume", "quickstart", "--retry-failed")["status"] == "FINISHED"
    assert answer(capsys, "rescore", "quickstart", "--all")["scored"] == 2
    assert answer(capsys, "report", "quickstart")["report"] == "runs/quickstart/report.html"


@pytest.mark.parametrize(
    "arguments",
    [
        ("plan", "quickstart", "limt=3"),
        ("run", "quickstart", "limt=3"),
        ("resume", "nowhere"),
        ("status", "nowhere"),
        ("watch", "nowhere"),
        ("report", "nowhere"),
        ("compare", "nowhere", "published"),
        ("rescore", "nowhere"),
        ("sync", "nowhere"),
        ("analyze",),
        ("collect-traces", "--to", "s3://"),
    ],
)
def test_a_mistake_is_an_answer_under_json_too(arguments, capsys):
    assert run(*arguments, "--json") == 2
    captured = capsys.readouterr()
    said = json.loads(captured.out)
    assert (said["exit_code"], captured.err) == (2, f"error: {said['error']}\n")


def test_a_run_that_cannot_write_or_is_stopped_says_so_under_json_too(monkeypatch, capsys):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launch, "_drive", full)
    said = answer(capsys, "run", "quickstart", *INLINE, code=3)
    assert (said["exit_code"], said["folder"]) == (3, "runs/quickstart") and "No space left" in said["error"]

    def stopped(*_, **__):
        raise KeyboardInterrupt(signal.SIGTERM)

    monkeypatch.setattr(launch, "_drive", stopped)
    assert answer(capsys, "run", "quickstart", *INLINE, code=143)["exit_code"] == 143


@pytest.mark.parametrize("line", ["3", "null", '{"kind":"decode"}', '{"kind":"score","task":"t"}', '{"kind":"x"}'])
def test_a_line_that_is_json_and_no_record_is_damaged(line, capsys):
    run("run", "quickstart", *INLINE)
    segment = Path("runs/quickstart/segments/001.jsonl")
    segment.write_text(f"{line}\n{segment.read_text()}")
    capsys.readouterr()
    for verb in ("status", "rescore", "resume"):
        assert run(verb, "quickstart") == 2
        assert "damaged record; move this line out of the file" in capsys.readouterr().err


def test_a_disk_that_is_full_when_the_page_is_written_is_one_line(monkeypatch, capsys):
    run("run", "quickstart", *INLINE)

    def full(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(launch, "_print_results", full)
    capsys.readouterr()
    assert run("report", "quickstart") == 3
    assert capsys.readouterr().err == "error: OSError: [Errno 28] No space left on device\n"


@pytest.mark.parametrize("verb", ["run", "resume", "plan", "status", "watch", "report", "compare", "rescore", "sync",
                                  "analyze", "models", "decode", "probe", "collect-traces", "train-drafter",
                                  "calibrate", "calibrate-sets", "import-drafter"])  # fmt: skip
def test_the_keys_of_an_answer_are_in_the_verbs_help(verb, capsys):
    assert launch.main([verb, "--help"]) == 0
    help_text = capsys.readouterr().out
    assert "--json" in help_text and "JSON:" in help_text


@pytest.mark.parametrize("verb", typer.main.get_command(launch.app).commands)
def test_a_verbs_help_is_all_that_is_said_of_it(verb, capsys, monkeypatch):
    """Brackets, as in drafters=[stale], are no markup."""
    monkeypatch.setenv("COLUMNS", "400")
    said = typer.main.get_command(launch.app).commands[verb].help.replace("`", "")
    assert launch.main([verb, "--help"]) == 0
    assert " ".join(said.split()) in " ".join(capsys.readouterr().out.split())


def test_watch_ends_where_no_driver_is_at_work_and_says_how_to_go_on(capsys):
    run("run", "quickstart", *INLINE)
    segment = Path("runs/quickstart/segments/001.jsonl")
    segment.write_text("".join(segment.read_text().splitlines(keepends=True)[:3]))
    capsys.readouterr()
    assert launch.main(["watch", "quickstart"]) == 1
    out = capsys.readouterr().out
    assert "no driver is running; go on with: " in out and "launch.py resume runs/quickstart" in out


def test_watch_follows_the_driver_until_the_sweep_has_ended(monkeypatch, capsys):
    run("run", "quickstart", *INLINE)
    segment = Path("runs/quickstart/segments/001.jsonl")
    lines = segment.read_text().splitlines(keepends=True)
    segment.write_text("".join(lines[:2]))

    def a_second_later(seconds):
        with segment.open("a") as file:
            file.writelines(lines[2:])

    monkeypatch.setattr(launch.time, "sleep", a_second_later)
    monkeypatch.setattr(launch, "holder", lambda folder: "there, process 1")
    capsys.readouterr()
    assert launch.main(["watch", "quickstart", "--json"]) == 0
    first, last = map(json.loads, capsys.readouterr().out.splitlines())
    assert (first["finished"], last["finished"]) == (False, True)


def test_status_failed_groups_failures_by_error(capsys):
    failing = frozenset(("spot", f"r{i}") for i in range(40))
    run("run", "quickstart", *INLINE, fakes=Fakes(failing=failing))
    capsys.readouterr()
    assert launch.main(["status", "quickstart", "--failed"]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "2 ValueError ValueError: no tiny-sdar · arith · spot · b8 · T0 · s0 rows r" in shown
    assert "control" not in shown


def test_a_sweep_keeps_its_name(capsys):
    run("run", "quickstart", *INLINE)
    assert run("resume", "quickstart", "name=other") == 2
    assert "command line: name: a sweep keeps its name" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["decoder", "scorers"])
def test_sources_that_changed_since_the_last_run_are_noted(name, monkeypatch, capsys):
    backend, now = Fakes.backend, {"sha": "before"}
    made = lambda fakes: replace(backend(fakes), environment=lambda model: {name: now["sha"]})  # noqa: E731
    monkeypatch.setattr(Fakes, "backend", made)
    run("run", "quickstart", *INLINE)
    run("run", "quickstart", *INLINE, "limit=3")
    assert "sources have changed" not in capsys.readouterr().out
    now["sha"] = "after"
    run("run", "quickstart", *INLINE, "limit=4")
    assert f"note the {name}'s sources have changed since this sweep was last run" in capsys.readouterr().out


def test_a_folder_of_grids_is_planned_as_one(capsys):
    told = answer(capsys, "plan", "paper", "limit=2", fakes=Fakes(task=FakeTask("fake", size=400)))
    assert len(told["grids"]) == 12
    assert told["total"]["cells"] == sum(grid["cells"] for grid in told["grids"])
    assert told["total"]["samples"] == 2 * told["total"]["cells"]


@pytest.mark.parametrize("verb", ["plan", "run"])
def test_what_is_not_here_is_planned_by_name_and_refused_by_a_run(verb, monkeypatch, capsys):
    monkeypatch.setattr("workers.worker.Worker", Unloadable)
    code = launch.main([verb, "quickstart", "drafters=[spot]", "drafter.spot.checkpoint=mine/{model}.safetensors"])
    captured = capsys.readouterr()
    said = "drafter.spot.checkpoint: no file mine/tiny-sdar.safetensors; made by: `launch.py train-drafter` or "
    if verb == "plan":
        assert code == 0 and f"unresolved: command line: {said}" in captured.out
    else:
        assert code == 2 and f"error: command line: {said}" in captured.err
        assert captured.err.endswith("with --out mine/tiny-sdar.safetensors --model tiny-sdar\n")
        assert not Path("runs").exists()
