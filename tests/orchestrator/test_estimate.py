"""`launch.py probe` and what `plan` makes of its file: times, the probes it uses and refuses, one-line mistakes."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

import launch
from orchestrator import cluster as clusters
from orchestrator import config as configs
from orchestrator import estimate
from orchestrator.outlook import as_dict, outlook, printed, total
from orchestrator.plan import make_plan
from orchestrator.workload import count
from tests.orchestrator.conftest import plan_of
from tests.orchestrator.fakes import Fakes, FakeTask
from workers import probe as workers_probe
from workers.worker import resolve_drafter

FOUND = {
    "format": 1,
    "model": "tiny-sdar",
    "revision": "weights-1",
    "block_length": 32,
    "dtype": "float32",
    "device": "cpu",
    "threads": 1,
    "machine": {"name": "An Abacus"},
    "task": "arith",
    "decode": {
        "gen_length": 128,
        "stop": "eos",
        "threshold": None,
        "layout": "batch",
        "cache": True,
        "suffix": "keep",
    },
    "decoded": [
        {"budget": 0, "pass_seconds": 1.0, "nfe": 100.0},
        {"budget": 8, "pass_seconds": 2.0, "nfe": 25.0},
        {"budget": 20, "pass_seconds": 3.0, "nfe": 20.0},
    ],
    "passes": [
        {"nodes": 1, "seconds": 0.5, "ratio": 1.0},
        {"nodes": 9, "seconds": 1.0, "ratio": 2.0},
        {"nodes": 21, "seconds": 2.0, "ratio": 4.0},
        {"nodes": 65, "seconds": None, "ratio": None},
    ],
}
FILE = Path("runs/probe/tiny-sdar-cpu.json")
PLAN = ("plan", "quickstart", "limit=2", "budgets=[0,8]", "temperatures=[0]", "drafters=[spot]", "workers.count=2")


@pytest.fixture(autouse=True)
def standing_elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def write(file=FILE, **changes):
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(FOUND | changes))
    return file


def told(plan, results, workers, probes):
    """The lines of time."""
    workload = count(plan.grid.cells, plan.rows, results)
    return list(estimate.lines(estimate.estimate(plan, workload, results, probes), workers, None))[1:]


def run(*arguments):
    return launch.main(arguments, Fakes().backend())


# ---- the numbers


def test_a_pass_takes_what_it_took_and_elsewhere_scales_as_passes_do():
    probe = estimate.read(write())
    assert [probe.pass_seconds(budget) for budget in (0, 8, 20)] == [1.0, 2.0, 3.0]
    assert probe.pass_seconds(4) == pytest.approx(2.0 * 0.75)  # half of 8's drafts: between 0.5 and 1.0 of a second
    assert probe.pass_seconds(32) == pytest.approx(3.0 * 3.0 / 2.0)  # as much again as from 8 to 20


def test_the_worst_case_is_a_pass_a_position_at_each_cells_cost():
    plan, probe = plan_of(Fakes(), "budgets=[0,8]", "drafters=[spot]", "limit=2"), estimate.read(write())
    (line,) = told(plan, {}, 2, {"tiny-sdar": probe})
    most = 128 + 32 - 1
    assert 2 * most * (1.0 + 2.0) / 2 == 477  # seconds
    assert 2 * (100 * 1.0 + 25 * 2.0) / 2 == 150
    assert line == "about 2 min 30 s, at most 7 min 57 s, on 2 workers, by the probe of tiny-sdar on An Abacus"


def test_draft_free_texts_of_a_set_length_have_a_pass_a_token_and_a_prompts_rest_at_most():
    plan = plan_of(Fakes(), "limit=1", "budgets=[0]", "decode.stop=length", "decode.gen_length=64")
    (line,) = told(plan, {}, 1, {"tiny-sdar": estimate.read(write())})
    assert line.startswith("about 1 min 04 s, at most 1 min 35 s, on 1 worker")


def test_texts_of_another_kind_have_the_worst_case_alone():
    plan, probe = plan_of(Fakes(), "limit=1", "decode.gen_length=64"), estimate.read(write())
    (line,) = told(plan, {}, 1, {"tiny-sdar": probe})
    assert line.startswith("at most about ") and "on 1 worker, by" in line


def test_a_cell_with_results_is_taken_at_its_passes():
    plan, probe = plan_of(Fakes(), "budgets=[0]", "limit=3"), estimate.read(write())
    (cell,) = plan.grid.cells
    held = {(cell.key, plan.rows[cell.key][0]): {"status": "ok", "nfe": 10}}
    (line,) = told(plan, held, 1, {"tiny-sdar": probe})
    assert line.startswith("at most about 20 s on 1 worker")


def test_models_without_a_probe_are_named():
    plan, probe = plan_of(Fakes(), "models=[tiny-sdar,tiny-sdar-96]"), estimate.read(write())
    (line,) = told(plan, {}, 1, {"tiny-sdar": probe})
    assert "by the probe of tiny-sdar on An Abacus; without tiny-sdar-96, whose passes nobody timed" in line
    unknown = "time unknown: nobody timed the passes of tiny-sdar, tiny-sdar-96 (launch.py probe)"
    assert told(plan, {}, 1, {}) == [unknown]


def test_the_sweeps_own_passes_go_before_a_probes():
    plan, probe = plan_of(Fakes(), "budgets=[0]", "limit=3"), estimate.read(write())
    (cell,) = plan.grid.cells
    record = {"status": "ok", "nfe": 10, "device": "cpu", "seconds": {"target": 4.0, "rest": 1.0}}
    (line,) = told(plan, {(cell.key, plan.rows[cell.key][0]): record}, 1, {"tiny-sdar": probe})
    assert line == "at most about 10 s on 1 worker, by the sweep's own records"
    elsewhere = {(cell.key, plan.rows[cell.key][0]): record | {"device": "cuda"}}
    assert "by the probe" in told(plan, elsewhere, 1, {"tiny-sdar": probe})[0]


def test_a_model_that_is_timed_in_part_is_said_to_be_without_the_other_part_alone():
    """As where a drafter's checkpoint is another one: its cells are new, the draft-free one is half done."""
    plan = plan_of(Fakes(), "drafters=[spot,stale]", "budgets=[0,8,20]", "limit=3")
    record = {"status": "ok", "nfe": 10, "device": "cpu", "seconds": {"target": 5.0}}

    def said(*timed):
        held = {
            (cell.key, plan.rows[cell.key][0]): record
            for cell in plan.grid.cells
            if (cell.drafter, cell.budget) in timed
        }
        (line,) = told(plan, held, 1, {})
        return line.partition("; without ")[2]

    control = ("none", 0)
    assert said(control, ("stale", 8), ("stale", 20), ("spot", 8), ("spot", 20)) == ""
    whose = "whose passes nobody timed (launch.py probe)"
    assert said(control, ("stale", 8), ("stale", 20)) == f"tiny-sdar with spot at budget 8 and 20, {whose}"
    assert said(("stale", 8), ("stale", 20), ("spot", 8)) == (
        f"tiny-sdar draft-free, tiny-sdar with spot at budget 20, {whose}"
    )


def test_the_schedule_is_told_seconds_where_everything_is_timed_and_passes_elsewhere():
    plan = plan_of(Fakes(), "budgets=[0,8]", "drafters=[spot]", "limit=1")
    (task,) = plan.waves({})[0]
    passes = estimate.task_cost(plan, {})(task)
    assert passes == 2 * (128 + 32 - 1)
    records = {
        (cell.key, plan.rows[cell.key][0]): {"status": "ok", "nfe": 10, "device": "cpu", "seconds": {"target": seconds}}
        for cell, seconds in zip(plan.grid.cells, (10.0, 30.0), strict=True)
    }
    assert estimate.task_cost(plan, records)(task) == passes / 2 * (1.0 + 3.0)


# ---- a checkpoint that is not made yet


@pytest.mark.parametrize(
    ("asked", "options"),
    [
        (["paper/sdar-8b-t0"], {"sdar-8b/spot.safetensors --model sdar-8b --task gsm8k"}),
        (["paper/sdar-4b", "tasks=[humaneval,mbpp]"], {"sdar-4b/spot.safetensors --model sdar-4b --task mbpp"}),
        (["paper/sdar-4b", "tasks=[humaneval]"], {"sdar-4b/spot.safetensors --model sdar-4b --task gsm8k"}),
        (["paper/ablations", "drafters=[spot]"], {"sdar-8b/spot.safetensors --model sdar-8b --task gsm8k"}),
        (
            ["paper/transfer"],
            {
                f"{model}/spot.safetensors --model {model} --task gsm8k"
                for model in ("sdar-8b", "llada2-mini", "sdar-4b", "sdar-1.7b")
            },
        ),
        (["quickstart", "drafter.spot.checkpoint=checkpoints/a"], {"a --model tiny-sdar"}),
        (["quickstart", "models=[tiny-sdar,sdar-8b]", "drafter.spot.checkpoint=checkpoints/a"], {"a"}),
    ],
)
def test_how_a_checkpoint_is_made_is_said_with_its_target_and_a_task_that_has_rows_to_train_on(asked, options):
    """The commands' own defaults are the bundled target and its toy task."""
    config, source = configs.load(asked[0], asked[1:])
    fakes = Fakes(task=FakeTask("fake", size=400)).backend()
    plan = make_plan(config, source, replace(fakes, resolve_drafter=resolve_drafter), by_name=True)
    said = [line for line in plan.unresolved if "`launch.py train-drafter`" in line]
    assert {line.partition("with --out checkpoints/")[2] for line in said} == options


# ---- what is published, and what it costs


def paper(*overrides):
    """SDAR-8B's main grid, of which nothing is here but its numbers."""
    config, source = configs.load("paper/sdar-8b-t0", overrides)
    return make_plan(config, source, Fakes(task=FakeTask("fake", size=400)).backend())


def test_published_ratios_tell_the_passes_where_nothing_is_measured():
    plan = paper("drafters=[spot,ssd]", "budgets=[8]", "tasks=[gsm8k]", "seeds=[0]", "limit=10")
    found = outlook(plan, {}).estimate
    assert found.passes == pytest.approx(10 * (256 + 256 / 3.2 + 287))  # of ssd nothing is published
    assert found.most_passes == 10 * 3 * 287
    assert "the published ratios" in found.of_passes
    assert found.seconds is None and found.untimed == ("sdar-8b",)
    single = paper("decode.unmasking=threshold", "drafters=[spot]", "budgets=[8]")
    assert "the published ratios" not in outlook(single, {}).estimate.of_passes


def test_hours_times_the_price_of_the_cluster_file_is_the_cost():
    plan, cluster = plan_of(Fakes(), "budgets=[0]", "limit=36", "temperatures=[0]"), clusters.load("aws-p4d")
    found = outlook(plan, {}, cluster, tuple(clusters.of_file(cluster)), {"tiny-sdar": estimate.read(write())})
    assert found.estimate.seconds == 36 * 100.0
    told = as_dict(found)
    assert (told["worker_hours"], told["usd"]) == (1.0, 1.844)
    *_, cost, cluster_line = printed(found)
    assert cost.startswith("1.0 GPU-hours, at most 1.6: 1.84 USD, at most ")
    assert cluster_line == "cluster: 8 × A100-40G (40 GB)"


def test_several_grids_are_summed():
    told = [as_dict(outlook(plan_of(Fakes(), f"limit={limit}"), {})) for limit in (2, 3)]
    summed = total(told)
    assert (summed["cells"], summed["samples"], summed["worker_hours"]) == (10, 25, None)
    assert summed["states"]["new"] == 10


def nodes(*resources):
    return clusters.of_ray([{"Alive": alive, "Resources": there} for alive, there in resources])


def test_a_model_has_a_place_where_its_weights_are_smaller_than_a_gpu():
    a100 = {"GPU": 2.0, "CPU": 8.0, "accelerator_type:A100-40G": 1.0}
    config = configs.load("paper/transfer", ["models=[sdar-8b,llada2-mini]", "exclude=[]"])[0]
    there = nodes((True, a100), (False, a100), (True, {"CPU": 64.0}))
    assert [(p.model, p.workers, p.why) for p in clusters.places(config, config.models, there)] == [
        ("sdar-8b", 2, None),
        ("llada2-mini", 2, None),
    ]
    small = [replace(node, gigabytes=24.0) for node in there]
    (line,) = clusters.lines(config, clusters.places(config, config.models, small))
    assert line == "llada2-mini can never be placed: 32.5 GB of weights, GPUs of 24 GB"
    no_gpu = clusters.places(config, config.models, nodes((True, {"CPU": 64.0})))
    assert [place.why for place in no_gpu] == ["a GPU is needed, there is none"] * 2
    four = replace(config, workers=replace(config.workers, count=4))
    assert "sdar-8b: 4 workers asked for, 2 have room" in clusters.lines(
        four, clusters.places(four, ["sdar-8b"], there)
    )


def test_a_gpu_of_a_kind_that_no_file_knows_takes_any_model():
    config = configs.load("paper/sdar-8b-t0")[0]
    unknown = nodes((True, {"GPU": 1.0}))
    assert clusters.described(unknown) == "1 × a GPU of unknown kind"
    assert clusters.places(config, config.models, unknown)[0].workers == 1


def test_both_sides_agree_on_the_format():
    assert estimate.FORMAT == workers_probe.FORMAT


# ---- which probe


def test_plan_uses_the_stores_probe_if_it_is_of_the_same(capsys):
    write()
    assert run(*PLAN) == 0
    assert "about 2 min 30 s, at most 7 min 57 s, on 2 workers, by the probe of tiny-sdar" in capsys.readouterr().out


def test_plan_says_nothing_of_time_without_a_probe(capsys):
    assert run(*PLAN) == 0
    assert "time unknown: nobody timed the passes of tiny-sdar" in capsys.readouterr().out


MISFITS = [
    ({"revision": "weights-0"}, "revision: weights-0; this grid's tiny-sdar has weights-1"),
    ({"dtype": "bfloat16"}, "dtype: bfloat16; this grid's tiny-sdar has float32"),
    ({"device": "cuda"}, "device: cuda; this grid's tiny-sdar has cpu"),
    ({"threads": 4}, "threads: 4; this grid's tiny-sdar has 1"),
    ({"format": 0}, "format: 0; 1 is known here"),
    ({"passes": []}, "no file of `launch.py probe`"),
]


@pytest.mark.parametrize(("change", "said"), MISFITS, ids=lambda value: str(value)[:30])
def test_another_probe_is_named_and_not_used_or_refused_where_it_was_asked_for(change, said, capsys):
    write(**change)
    assert run(*PLAN) == 0
    out = capsys.readouterr().out
    assert f"not used: {FILE}: {said}" in out and "by the probe" not in out
    assert run(*PLAN, "--probe", str(FILE)) == 2
    assert capsys.readouterr().err.startswith(f"error: {FILE}: {said}")


def test_a_named_probe_goes_before_the_stores(capsys):
    write(revision="weights-0")
    assert run(*PLAN, "--probe", str(write(Path("mine.json"), machine={"name": "A Loom"}))) == 0
    out = capsys.readouterr().out
    assert "by the probe of tiny-sdar on A Loom" in out and "not used" not in out


@pytest.mark.parametrize(
    ("text", "said"),
    [(None, "cannot be read: No such file or directory"), ("[1]", "no file of `launch"), ("{", "no file of `launch")],
)
def test_a_named_file_that_is_no_probe_is_one_line(text, said, capsys):
    if text is not None:
        Path("mine.json").write_text(text)
    assert run(*PLAN, "--probe", "mine.json") == 2
    assert capsys.readouterr().err.startswith(f"error: mine.json: {said}")


def test_a_named_probe_of_a_model_that_is_not_in_the_grid_is_one_line(capsys):
    assert run(*PLAN, "--probe", str(write(model="other"))) == 2
    assert capsys.readouterr().err == f"error: {FILE}: model: other; this grid has tiny-sdar\n"


# ---- the verb

SMALL = ("model.tiny-sdar.block_length=8", "decode.gen_length=16", "store=here")
SHORT = ("probe", "tiny-sdar", "limit=1", *SMALL)


def test_a_probe_is_written_shown_and_used(monkeypatch, capsys):
    monkeypatch.setattr("workers.probe.NODES", (1, 2, 9))
    assert launch.main([*SHORT]) == 0
    out = capsys.readouterr().out
    assert "loading tiny-sdar on cpu …" in out and "findings: here/probe/tiny-sdar-cpu.json" in out
    assert max(map(len, out.splitlines())) <= 80
    found = json.loads(Path("here/probe/tiny-sdar-cpu.json").read_text())
    assert (found["rows"], found["drafter"]) == (["test-0"], "spot")
    assert [line["budget"] for line in found["decoded"]] == [0, 8, 20]
    assert launch.main(["plan", "quickstart", *SMALL]) == 0
    assert "by the probe of tiny-sdar on" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["probe", "nope"], "command line: models: no such model: 'nope'; known: "),
        (["probe", "tiny-sdar", "model.tiny-sdar.path=gone"], "command line: model.tiny-sdar.path: no folder "),
        (["probe", "tiny-sdar", "--task", "nope"], "command line: tasks: no such task: 'nope'"),
        (["probe", "tiny-sdar", "--drafter", "nope"], "command line: drafters: no such drafter: 'nope'"),
        (["probe", "tiny-sdar", "budgets=[4]"], "command line: budgets: no axis here; a probe is of one MODEL"),
        (["probe", "tiny-sdar", "workers.device=cuda"], "workers.device: 1 GPU(s) needed, this machine has 0"),
        (["probe", "tiny-sdar", "--out", "."], "command line: out: .: a folder; the name of a file expected"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_a_mistake_is_one_line_and_loads_nothing(arguments, said, monkeypatch, capsys):
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("workers.probe.Worker", None)
    assert launch.main(arguments) == 2
    error = capsys.readouterr().err
    assert said in error and error.count("\n") == 1
    assert not Path("runs").exists()


def test_a_model_that_cannot_be_loaded_is_one_line(monkeypatch, capsys):
    def fails(model):
        raise MemoryError("no room\nat all")

    monkeypatch.setattr("workers.probe.Worker", fails)
    assert launch.main([*SHORT]) == 2
    assert capsys.readouterr().err == "error: model tiny-sdar could not be loaded: MemoryError: no room at all\n"


def test_a_text_that_cannot_be_decoded_is_one_line(monkeypatch, capsys):
    def fails(*arguments, **options):
        raise RuntimeError("out of order")

    monkeypatch.setattr("workers.probe.Worker.decode", fails)
    assert launch.main([*SHORT]) == 2
    error = capsys.readouterr().err
    assert (
        "model tiny-sdar could not be probed: ValueError: row test-0 at budget 0: RuntimeError: out of order" in error
    )
    assert list(Path("here/probe").iterdir()) == []


def test_a_probe_that_is_stopped_writes_nothing(monkeypatch, capsys):
    def stops(*arguments, **options):
        raise KeyboardInterrupt

    monkeypatch.setattr("workers.probe.Worker.decode", stops)
    assert launch.main([*SHORT]) == 130
    assert capsys.readouterr().err == "stopped; nothing is written\n"
    assert list(Path("here/probe").iterdir()) == []
