"""`launch.py analyze`: what it takes from a ledger, what it decodes, what it writes, and the mistakes it names."""

import csv

import pandas as pd
import pytest
from rich.console import Console

import launch
from orchestrator import analysis
from orchestrator.config import load
from orchestrator.ledger import Ledger
from orchestrator.plan import make_plan
from tests.fake_sweep import control, decode
from tests.orchestrator.conftest import plan_of
from tests.orchestrator.fakes import Fakes

SMALL = ("mlflow=null", "budgets=[0,4]", "temperatures=[0]", "decode.gen_length=32", "workers.executor=inline")


@pytest.fixture(autouse=True)
def standing_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "80")


def lines(path):
    with path.open() as file:
        return list(csv.DictReader(file))


def test_a_model_and_a_task_become_tables_figures_and_a_page(tmp_path, capsys):
    asked = ["analyze", "--model", "tiny-sdar", "--task", "arith", "--prompts", "2", "--block-lengths", "16", *SMALL]
    assert launch.main(asked) == 0
    printed = capsys.readouterr().out
    assert "page: runs/analysis-tiny-sdar-arith/index.html" in printed
    assert max(map(len, printed.splitlines())) <= 80
    folder = tmp_path / "runs" / "analysis-tiny-sdar-arith"
    first = {
        line["measure"]: line for line in lines(folder / "accuracy.csv") if line["by"] == "depth" and line["at"] == "0"
    }
    assert list(first) == ["stale token", "order model", "stale confidence", "noise-aware"]
    assert first["stale confidence"]["share"] == first["noise-aware"]["share"]  # T = 0
    headroom = {line["name"]: line for line in lines(folder / "headroom.csv")}
    assert headroom["oracle-positions †"]["oracle_share"] == "1.0" and float(headroom["spot"]["oracle_share"]) <= 1
    assert float(headroom["oracle-both †"]["nfe"]) <= float(headroom["oracle-tokens †"]["nfe"])
    lengths = {(line["name"], line["block_length"]) for line in lines(folder / "block-lengths.csv")}
    assert lengths == {(name, length) for name in ("spot", "stale") for length in ("16", "32")}
    assert {"png", "svg"} <= {path.suffix[1:] for path in folder.iterdir()}


def test_a_sweeps_records_are_used_and_only_what_it_lacks_is_decoded(tmp_path, capsys):
    assert launch.main(["run", "quickstart", "limit=1", *SMALL]) == 0
    assert launch.main(["analyze", "quickstart"]) == 0
    own = Ledger(tmp_path / "runs" / "quickstart" / "analysis")
    sweep = Ledger(tmp_path / "runs" / "quickstart")
    assert len(own.results()) == 3 and len(sweep.results()) == 3  # three oracles; control, spot and stale
    first = (tmp_path / "runs" / "quickstart" / "analysis" / "headroom.csv").read_text()
    capsys.readouterr()
    assert launch.main(["analyze", "quickstart"]) == 0
    assert "decoding" not in capsys.readouterr().out
    assert (tmp_path / "runs" / "quickstart" / "analysis" / "headroom.csv").read_text() == first


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "command line: analyze: name a sweep, or give --model and --task"),
        (["--model", "tiny-sdar"], "name a sweep, or give --model and --task"),
        (["quickstart", "--model", "tiny-sdar", "--task", "arith"], "name a sweep, or give --model and --task"),
        (["nowhere"], "nowhere: no such sweep"),
        (["--model", "tiny-sda", "--task", "arith"], "no such model: 'tiny-sda'; did you mean 'tiny-sdar'?"),
        (["--model", "tiny-sdar", "--task", "arith", "--block-lengths", "16,x"], "--block-lengths: '16,x'"),
        (["--model", "tiny-sdar", "--task", "arith", "--block-lengths", "128"], "--block-lengths: 128: from 1 to 64"),
        (["--model", "tiny-sdar", "--task", "arith", "decode.unmasking=threshold"], "decode.unmasking: 'threshold'"),
    ],
)
def test_a_mistake_is_one_line_before_a_model_is_loaded(arguments, said, capsys):
    fakes = Fakes()
    assert launch.main(["analyze", *arguments], fakes.backend()) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1 and fakes.loads == []


GRID = """models: [tiny-sdar, wide]
tasks: [arith]
drafters: [spot, mine]
budgets: [0, 4]
limit: 1
model: {wide: {family: sdar, path: assets/tiny-sdar, block_length: 16}}
drafter: {mine: {method: oracle, knows: tokens, checkpoint: null}}
"""


@pytest.fixture
def grid(tmp_path):
    (tmp_path / "mine.yaml").write_text(GRID)
    return load("mine.yaml")


def test_ctrl_c_keeps_what_is_decoded_and_says_so(capsys, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(analysis, "analyze", stop)
    assert launch.main(["analyze", "--model", "tiny-sdar", "--task", "arith"], Fakes().backend()) == 130
    assert "what is decoded is kept" in capsys.readouterr().err


def test_an_oracle_that_the_sweep_has_is_not_added_again(grid):
    assert analysis._changes(grid[0], 5)[2] == "drafters=[spot,mine,oracle-positions,oracle-both]"


def test_other_block_lengths_are_other_cells_of_the_same_checkpoint_with_spot_and_stale():
    plan = plan_of(Fakes(), "drafters=[spot,stale,oracle-both]")
    others = analysis.at_lengths(plan, [16, 32])
    assert {(cell.model, cell.block_length) for cell in others.grid.cells} == {("tiny-sdar-b16", 16)}
    assert {cell.drafter for cell in others.grid.cells} == {"none", "spot", "stale"}
    assert set(others.rows.values()) == set(plan.rows.values())
    assert not analysis.at_lengths(plan, []).grid.cells


def test_gains_by_block_length_come_from_models_of_one_checkpoint(grid):
    plan = make_plan(*grid, Fakes().backend())
    held = {}
    for cell in plan.grid.cells:
        row, nfe = plan.rows[cell.key][0], {16: 30, 32: 20}[cell.block_length]
        held[cell.key, row] = control(cell.key, row, 60) if cell.is_control else decode(cell.key, row, nfe, 60)
    found = analysis._several_lengths(analysis._cells(plan, held).query("name == 'spot'"))
    assert sorted(zip(found["block_length"], found["nfe_ratio"], strict=True)) == [(16, 2.0), (32, 3.0)]
    one = analysis._cells(plan, held).query("block_length == 32")
    assert analysis._several_lengths(one).empty


def test_what_failed_in_the_sweep_and_not_here_counts():
    good, bad = decode("s", "r0", 1, 2), decode("s", "r0", 0, 0, status="failed")
    assert analysis._best({("s", "r0"): good}, {("s", "r0"): bad})["s", "r0"] is good
    assert analysis._best({("s", "r0"): bad}, {("s", "r0"): good})["s", "r0"] is good


def test_the_tables_of_a_narrow_terminal_keep_every_number():
    line = {"model": "m", "task": "t", "temperature": 0.0, "measure": "stale confidence", "by": "depth", "asked": 9}
    shares = [{**line, "at": at, "share": 0.999 if at else 1.0} for at in range(12)]
    found = analysis.Analysis("m", None, (), pd.DataFrame(shares), pd.DataFrame(), pd.DataFrame())
    console = Console(width=80, file=None, force_terminal=False)
    with console.capture() as captured:
        for part in analysis.printed(found):
            console.print(part)
    assert captured.get().count("99.9") == 11 and "…" not in captured.get()
