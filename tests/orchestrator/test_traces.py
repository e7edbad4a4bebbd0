"""Collecting traces: shards are made once, wherever they lie and whoever dies; rows that trained are not evaluated."""

import json
import re
from dataclasses import dataclass, replace
from functools import partial

import boto3
import pytest
from moto import mock_aws
from safetensors.torch import save_file

import launch
from orchestrator.config import Workers
from orchestrator.errors import UserError
from orchestrator.executors import InlineExecutor, RayExecutor
from orchestrator.traces import SHARD, load_traces, made_of, make_shards, trace_tasks
from spot.order_model import OrderModel, provenance
from tests.orchestrator.conftest import plan_of
from tests.orchestrator.fakes import Fakes, FakeTask
from workers.store import open_store
from workers.work import DecodeSpec, ModelSpec, TraceTask
from workers.worker import Worker, resolve_drafter, resolve_model, trained_rows

MODEL = ModelSpec("m", "fake", "there", "weights-1", 32)
DECODE = DecodeSpec(32, 0.0, 0)
ROWS = FakeTask("fake", 4 * SHARD).rows


@dataclass(frozen=True)
class Tracer:
    """Writes each shard's prompts as its content; dies of the shards that begin with a row of `deadly`, once each.

    `lives` counts what is left of every deadly row; `journal` sees the first row of every shard.
    """

    journal: list[str]
    deadly: dict[str, int]

    def __call__(self, model):
        return self

    def run(self, task: TraceTask):
        first = task.rows[0]
        self.journal.append(first)
        if self.deadly.get(first, 0) > 0:
            self.deadly[first] -= 1
            raise MemoryError("out of memory")
        open_store(task.store).put(task.shard, " ".join(task.prompts).encode())
        return [{"kind": "trace", "shard": task.shard, "rows": len(task.rows), "blocks": 1}]


def tasks(store, size=4 * SHARD, model=MODEL, decode=DECODE):
    return trace_tasks(model, "fake", ROWS[:size], decode, str(store))


def make(asked, deadly=None, said=None, workers=2, retries=2):
    tracer = Tracer([], deadly or {})
    say = ([] if said is None else said).append
    failed = make_shards(asked, partial(InlineExecutor, tracer, workers), retries, 60.0, say, clock=lambda: 100.0)
    return failed, tracer.journal


def test_a_second_collection_makes_nothing(tmp_path):
    assert make(tasks(tmp_path)) == ([], ["r0", "r10", "r20", "r30"])
    assert make(tasks(tmp_path)) == ([], [])


def test_a_larger_collection_takes_up_the_shards_of_a_smaller_one(tmp_path):
    make(tasks(tmp_path, 2 * SHARD))
    assert make(tasks(tmp_path, 3 * SHARD + 5)) == ([], ["r20", "r30"])


@pytest.mark.parametrize(
    ("model", "decode"),
    [
        (replace(MODEL, revision="weights-2"), DECODE),
        (replace(MODEL, dtype="bfloat16"), DECODE),
        (MODEL, replace(DECODE, threshold=0.9)),
        (MODEL, replace(DECODE, gen_length=64)),
    ],
)
def test_another_model_or_decode_setting_has_shards_of_its_own(model, decode, tmp_path):
    make(tasks(tmp_path))
    assert len(make(tasks(tmp_path, model=model, decode=decode))[1]) == 4


def test_where_a_model_lies_and_who_decodes_makes_no_other_shards(tmp_path):
    moved = replace(MODEL, name="n", path="elsewhere", device="cuda", threads=8)
    assert [t.shard for t in tasks(tmp_path)] == [t.shard for t in tasks(tmp_path, model=moved)]


def test_the_shard_of_a_worker_that_died_is_made_by_the_next(tmp_path):
    said = []
    failed, journal = make(tasks(tmp_path), {"r10": 1}, said, workers=1)
    assert failed == []
    assert journal.count("r10") == 2 and len(open_store(str(tmp_path)).names()) == 4
    assert said == ["worker 0: MemoryError: out of memory", "traces: 40/40 prompts, done"]


def test_a_shard_that_kills_every_worker_ends_the_collection_and_keeps_what_was_made(tmp_path):
    failed, journal = make(tasks(tmp_path), {"r0": 9}, workers=1)
    assert failed == ["traces of fake, rows r0 to r9: MemoryError: out of memory"]
    assert journal.count("r0") == 2
    rest, again = make(tasks(tmp_path))
    assert rest == [] and "r0" in again and len(again) + len(set(journal) - {"r0"}) == 4


def test_a_collection_that_no_worker_comes_to_is_ended(tmp_path):
    clock, said = iter(range(0, 1000, 20)), []
    nobody = partial(Nobody, Tracer([], {}), 0)
    failed = make_shards(tasks(tmp_path), nobody, 2, 60.0, said.append, clock=lambda: float(next(clock)))
    assert failed == ["traces: no worker came within 60 s (workers.scale_timeout)"]
    assert said == ["no worker is there; waiting up to 60 s for the cluster to start one"]


class Nobody(InlineExecutor):
    """Every machine is gone."""

    def wait(self, seconds):
        return []


def test_a_model_that_cannot_be_loaded_is_said_once(tmp_path):
    def broken(model):
        raise OSError("weights cannot be read")

    failed = make_shards(tasks(tmp_path), partial(InlineExecutor, broken), 2, 60.0, [].append)
    assert failed == ["model m could not be loaded: OSError: weights cannot be read"]


def test_workers_that_write_elsewhere_are_noticed(tmp_path):
    class Elsewhere(Tracer):
        def run(self, task):
            return super().run(replace(task, store=str(tmp_path / "elsewhere")))

    with pytest.raises(UserError, match="a folder that all machines share, or s3://bucket/prefix"):
        make_shards(tasks(tmp_path / "here"), partial(InlineExecutor, Elsewhere([], {})), 2, 60.0, [].append)


# ---- rows that a drafter was made of


def test_a_grid_with_a_row_that_trained_its_drafter_is_refused(capsys):
    fakes = Fakes(trained={"spot": {"arith": frozenset({"r3", "r5", "elsewhere"})}})
    assert launch.main(["plan", "quickstart", "limit=null"], fakes.backend()) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: configs/drafter/spot.yaml: drafter.spot.checkpoint: assets/tiny-spot.safetensors ")
    assert re.search(r"was trained on row r[35] of task arith and 1 more, which this grid evaluates; evaluate", said)
    assert said.count("\n") == 1 and fakes.loads == []


def test_other_rows_other_tasks_and_drafters_that_are_not_used_are_no_matter():
    trained = {"arith": frozenset({"r3"})}
    plan = plan_of(Fakes())
    (rows,) = set(plan.rows.values())
    assert "r3" not in rows
    plan_of(Fakes(trained={"spot": trained}))
    every_row = frozenset(f"r{i}" for i in range(40))
    plan_of(Fakes(trained={"spot": {"gsm8k": every_row}}))
    plan_of(Fakes(trained={"spot": {"arith": every_row}}), "budgets=[0]")
    with pytest.raises(UserError, match="trained on row"):
        plan_of(Fakes(trained={"stale": {"arith": every_row}}))


def test_a_checkpoint_of_another_making_is_one_line(tmp_path):
    save_file(OrderModel().state_dict(), tmp_path / "a.safetensors")
    (tmp_path / "b.json").write_text('{"formulas": [{"fills": [[0, 0, 0]], "count": 1}], "trained_on": [1, 2]}')
    for method, name, verb in (("spot", "a.safetensors", "train-drafter"), ("spiffy", "b.json", "calibrate")):
        with pytest.raises(ValueError, match=f"^checkpoint: .*{name} was not made by `launch.py {verb}`"):
            trained_rows(resolve_drafter(method, {"checkpoint": str(tmp_path / name)}))
    assert trained_rows(resolve_drafter("stale", {})) == {}


# ---- the commands, on the bundled target

SHORT = ("workers.executor=inline", "decode.gen_length=16")


def command(*arguments):
    return launch.main(arguments)


@pytest.fixture
def standing_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("torch.set_num_threads", lambda count: None)


@pytest.mark.usefixtures("standing_elsewhere")
def test_a_drafter_is_trained_from_collected_traces_and_refused_its_rows(tmp_path, capsys):
    assert command("collect-traces", "--to", "traces", "--prompts", "10", *SHORT) == 0
    assert "10 prompts traced, 1 shard in traces" in capsys.readouterr().out
    asked = ("--prompts", "12", "--traces", "traces", "--out", "mine.safetensors", "steps=2", "batch_size=8")
    assert command("train-drafter", *asked, *SHORT) == 0
    said = capsys.readouterr().out
    assert "held-out next-commit accuracy, %" in said and "the block's index" in said
    made = provenance(tmp_path / "mine.safetensors")
    assert made["trained_on"] == {"arith": [f"train-{i}" for i in range(12)]}
    assert made["step_rule"] == "single" and made["settings"]["steps"] == 2
    assert made["held_out_accuracy"].keys() == {"by_depth", "by_block"}
    mine = ("drafters=[spot]", "drafter.spot.checkpoint=mine.safetensors", "limit=12")
    assert command("plan", "quickstart", *mine) == 0
    assert command("plan", "quickstart", *mine, "task.arith.split=train", "shuffle=false") == 2
    assert "mine.safetensors was trained on row train-0 of task arith and 11 more" in capsys.readouterr().err


@pytest.mark.usefixtures("standing_elsewhere")
def test_a_graph_is_calibrated_over_s3_and_refused_its_rows(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "testing")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "testing")
    with mock_aws():
        boto3.client("s3", region_name="us-east-1").create_bucket(Bucket="bucket")
        asked = ("calibrate", "--prompts", "2", "--traces", "s3://bucket/traces", "--size", "4", *SHORT)
        assert command(*asked, "--out", "graph.json") == 0
        assert len(open_store("s3://bucket/traces").names()) == 1
    graph = json.loads((tmp_path / "graph.json").read_text())
    assert len(graph["formulas"]) == 4 and (tmp_path / "graph.json").read_text().count('"count"') == 4
    assert graph["trained_on"] == {"arith": ["train-0", "train-1"]} and graph["prompts"] == 2
    mine = ("drafters=[spiffy]", "drafter.spiffy.checkpoint=graph.json", "task.arith.split=train", "limit=null")
    assert command("plan", "quickstart", *mine) == 2
    assert "graph.json was trained on row train-" in capsys.readouterr().err


@pytest.mark.usefixtures("standing_elsewhere")
def test_ctrl_c_is_one_line_and_keeps_what_was_made(tmp_path, monkeypatch, capsys):
    trace = Worker.trace

    def interrupted(worker, task):
        if task.rows[0] != "train-0":
            raise KeyboardInterrupt
        return trace(worker, task)

    monkeypatch.setattr(Worker, "trace", interrupted)
    asked = ("train-drafter", "--prompts", "12", "--out", "mine.safetensors", *SHORT)
    assert command(*asked) == 130
    assert capsys.readouterr().err == "stopped; finished shards are kept in mine.traces, and the same command goes on\n"
    assert len(open_store("mine.traces").names()) == 1
    monkeypatch.setattr(Worker, "trace", lambda worker, task: trace(worker, task))
    assert command(*asked, "steps=1") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["mine.safetensors"]


TINY = ("--model", "tiny-sdar")
ORDER = ("--order", str(launch.ROOT / "assets/tiny-spot.safetensors"))
MISTAKES = [
    (["train-drafter", "--out", "no/mine.safetensors"], "command line: out: no/mine.safetensors: no folder no"),
    (["train-drafter", "--prompts", "12", "decode.unmasking=threshold"], "command line: decode.unmasking: 'threshold'"),
    (["train-drafter", "stepz=3"], "command line: stepz: unknown key; did you mean 'steps'?"),
    (["collect-traces", "--to", "gs://bucket"], "command line: gs://bucket: no such kind of store"),
    (["collect-traces", "--to", "file", "--prompts", "2"], "file: Not a directory"),
    (["calibrate", "--model", "nope"], "command line: models: no such model: 'nope'"),
    (["calibrate", "--model", "a,b"], "command line: models: no such model: 'a,b'"),
    (["calibrate", "--task", "a,b"], "command line: tasks: no such task: 'a,b'"),
    (["probe", "tiny-sdar,tiny-sdar-96"], "command line: models: no such model: 'tiny-sdar,tiny-sdar-96'"),
    (["probe", "tiny-sdar", "--drafter", "spot,stale"], "command line: drafters: no such drafter: 'spot,stale'"),
    (["import-drafter", "nowhere.pt", "--out", "x"], "no file nowhere.pt"),
    (["train-drafter", "--out", "."], "command line: out: .: a folder; the name of a file expected"),
    (["train-drafter", "--out", "x", "steps=0"], "command line: steps: 0; 1 or more expected"),
    (["train-drafter", "--out", "x", "batch_size=0"], "command line: batch_size: 0; 1 or more expected"),
    (["train-drafter", "--out", "x", "warmup=0"], "command line: warmup: 0; 1 or more expected"),
    (["train-drafter", "--out", "x", "rate=nan"], "command line: rate: nan; more than 0 expected"),
    (["train-drafter", "--out", "x", "seed=-1"], "command line: seed: -1; from 0 to 2**63 - 1 expected"),
    (["train-drafter", "--out", "x", "models=[tiny-sdar]"], "command line: models: no axis here; traces are of one"),
    (["collect-traces", "--to", "x", "tasks=[gsm8k]"], "command line: tasks: no axis here"),
    (["calibrate", "--out", "x", "temperatures=[1]"], "command line: temperatures: no axis here"),
    (
        ["train-drafter", "--out", "x", "model.tiny-sdar.block_length=65"],
        "command line: model.tiny-sdar.block_length: 65: an order model is for blocks of up to 64 positions",
    ),
    (["calibrate-sets", *TINY, "--out", "x", "rate=0"], "command line: rate: 0.0; more than 0 expected"),
    (["calibrate-sets", *TINY, "--out", "x", "--order", "file"], "command line: order: file is no checkpoint for spot"),
    (["calibrate-sets", *TINY, "--out", "x", "seeds=[1]", *ORDER], "command line: seeds: no axis here"),
    (
        ["calibrate-sets", *TINY, "--out", "x", "model.tiny-sdar.block_length=65", *ORDER],
        "command line: model.tiny-sdar.block_length: 65: an order model is for",
    ),
]


@pytest.mark.usefixtures("standing_elsewhere")
@pytest.mark.parametrize(("arguments", "message"), MISTAKES, ids=lambda value: " ".join(value)[:50])
def test_a_mistake_is_one_line_on_stderr_and_exit_code_2(arguments, message, tmp_path, capsys):
    (tmp_path / "file").write_text("")
    assert command(*arguments) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: ") and said.count("\n") == 1 and message in said
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


@pytest.mark.usefixtures("standing_elsewhere")
def test_a_damaged_shard_and_blocks_of_one_position_are_one_line(tmp_path, capsys):
    one = ("--prompts", "10", "--out", "x", "--traces", "traces", *SHORT, "model.tiny-sdar.block_length=1")
    assert command("train-drafter", *one) == 2
    said = capsys.readouterr().err
    assert said.startswith("error: command line: prompts: all ") and said.endswith("are filled in one step\n")
    (shard,) = (tmp_path / "traces").iterdir()
    shard.write_bytes(shard.read_bytes()[:-9])
    assert command("train-drafter", *one) == 2
    assert capsys.readouterr().err == f"error: {tmp_path}/traces: shard {shard.name} is damaged; delete it\n"


@pytest.mark.usefixtures("standing_elsewhere")
def test_sets_are_calibrated_on_an_order_model_and_refused_the_rows_of_both(tmp_path):
    asked = ("--model", "tiny-sdar", "--prompts", "10", "--out", "sets", "--threshold", "0.99999", *ORDER)
    assert command("calibrate-sets", *asked, "steps=1", *SHORT, "decode.gen_length=64") == 0
    assert [path.name for path in tmp_path.iterdir()] == ["sets"]
    rows = provenance(tmp_path / "sets")["trained_on"]["arith"]
    assert {f"train-{i}" for i in range(10)} <= set(rows)
    assert resolve_drafter("spot-sets", {"checkpoint": "sets"}).longest_block == 64


@pytest.mark.filterwarnings("ignore")
@pytest.mark.ray
def test_actors_make_the_shards_that_this_process_makes(tmp_path):
    model = resolve_model("tiny-sdar", {"family": "sdar", "path": "assets/tiny-sdar", "block_length": 32})
    rows, decode = list(FakeTask("fake", 2).rows), DecodeSpec(8, 0.0, 0)
    found = {}
    for name, executor in (
        ("ray", lambda: RayExecutor(Worker, Workers(), 1)),
        ("here", partial(InlineExecutor, Worker)),
    ):
        asked = trace_tasks(model, "fake", rows, decode, str(tmp_path / name))
        assert make_shards(asked, executor, 2, 60.0, [].append) == []
        found[name] = open_store(asked[0].store).get(asked[0].shard)
        assert [trace.block for trace in load_traces(asked)].count(0) == len(rows)
    assert found["ray"] == found["here"]
    assert made_of(asked)["trained_on"] == {"fake": ["r0", "r1"]}
