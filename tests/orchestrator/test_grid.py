"""What multiplies into which cells, and what a cell's key does and does not depend on."""

import hashlib
import itertools
import json
from dataclasses import asdict, fields, replace

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.config import Config, grids, load
from orchestrator.errors import UserError
from orchestrator.grid import Cell, choose_rows, points
from orchestrator.outlook import outlook
from orchestrator.plan import make_plan
from tests.orchestrator.conftest import plan_of
from tests.orchestrator.fakes import Fakes, FakeTask


def labels(plan):
    return [cell.label for cell in plan.grid.cells]


def test_the_axes_multiply_and_budget_nought_of_any_drafter_is_the_control():
    assert labels(plan_of(Fakes(), "temperatures=[0,1]"))[:6] == [
        "tiny-sdar · arith · control · T0 · s0",
        "tiny-sdar · arith · spot · b4 · T0 · s0",
        "tiny-sdar · arith · spot · b8 · T0 · s0",
        "tiny-sdar · arith · stale · b4 · T0 · s0",
        "tiny-sdar · arith · stale · b8 · T0 · s0",
        "tiny-sdar · arith · control · T1 · s0",
    ]


def test_the_control_is_there_even_if_no_budget_asks_for_it():
    assert labels(plan_of(Fakes(), "budgets=[8]"))[0] == "tiny-sdar · arith · control · T0 · s0"


@pytest.mark.parametrize("override", ["budgets=[0,0.0,8,8]", "temperatures=[0,0.0,-0.0]", "drafters=[spot,spot,stale]"])
def test_a_value_given_twice_counts_once_and_is_noted(override):
    plan = plan_of(Fakes(), "budgets=[8]", override)
    assert labels(plan) == labels(plan_of(Fakes(), "budgets=[8]"))
    assert "names a value twice" in plan.grid.notes[0]


def test_keys_are_unique_and_the_same_in_every_process():
    keys = [cell.key for cell in plan_of(Fakes(), "temperatures=[0,1]", "seeds=[0,1]").grid.cells]
    assert len(set(keys)) == len(keys) == 20
    assert EXAMPLE.key == "v3-297c8385a00997cdbbf3"  # changes only together with KEY_VERSION


EXAMPLE = Cell(
    model="m", family="sdar", model_revision="r", block_length=32, dtype="float32", task="t", data_revision="d",
    drafter="spot", method="spot", drafter_sha="s", drafter_options=(("tokgate", 0.6),), budget=8, temperature=0.0,
    seed=0, gen_length=128, stop="eos", semantics=1,
)  # fmt: skip


VALUES = st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False), st.text(max_size=4))


@given(st.lists(VALUES), VALUES, VALUES)
def test_a_key_is_the_hash_of_the_canonical_json_of_all_fields(options, budget, temperature):
    pairs = tuple(("option", value) for value in options)
    cell = replace(EXAMPLE, drafter_options=pairs, budget=budget, temperature=temperature)
    text = json.dumps(asdict(cell), sort_keys=True, separators=(",", ":"))
    assert cell.key == f"v3-{hashlib.sha256(text.encode()).hexdigest()[:20]}"


@pytest.mark.parametrize("name", [field.name for field in fields(Cell)])
def test_every_field_of_a_cell_decides_its_key(name):
    value = getattr(EXAMPLE, name)
    special = {"drafter_options": (("tokgate", 0.7),), "threshold": 0.9, "stop_ids": (2,), "chat": False, "mask_id": 0}
    other = special.get(name, value + "x" if isinstance(value, str) else not value)
    assert replace(EXAMPLE, **{name: other}).key != EXAMPLE.key


@pytest.mark.parametrize(
    "change",
    [
        "decode.gen_length=64",
        "decode.stop=length",
        "decode.unmasking=threshold",
        "decode.layout=concat",
        "decode.cache=false",
        "drafter.spot.tokgate=0.7",
        "model.tiny-sdar.block_length=16",
    ],
)
def test_a_setting_that_decides_results_makes_other_cells(change):
    before, after = plan_of(Fakes()), plan_of(Fakes(), change)
    assert before.cells.keys() != after.cells.keys()


@pytest.mark.parametrize("change", ["mask_id=7", "stop_ids=[1,2]", "chat=false", "chat={enable_thinking: false}"])
def test_how_a_target_is_read_makes_other_cells(change):
    cells, changed = plan_of(Fakes()).cells, plan_of(Fakes(), f"model.tiny-sdar.{change}").cells
    assert not cells.keys() & changed.keys()


@pytest.mark.parametrize(("model", "seen"), [("tiny-sdar", False), ("llada-8b", True)])
def test_the_suffix_makes_other_cells_only_of_targets_that_see_it(model, seen):
    keep, skip = (plan_of(Fakes(), f"models=[{model}]", f"decode.suffix={suffix}") for suffix in ("keep", "skip"))
    assert (keep.cells.keys() != skip.cells.keys()) == seen
    assert [plan.waves({})[0][0].decode.suffix for plan in (keep, skip)] == ["keep", "skip" if seen else "keep"]


def test_a_models_own_decode_settings_are_in_its_cells_and_its_sample_tasks_alone():
    plan = plan_of(Fakes(), "models=[tiny-sdar,tiny-sdar-96]", "model.tiny-sdar.decode.gen_length=64")
    lengths = {"tiny-sdar": 64, "tiny-sdar-96": 128}
    assert {cell.model: cell.gen_length for cell in plan.grid.cells} == lengths
    assert {task.model.name: task.decode.gen_length for task in plan.waves({})[0]} == lengths


def test_a_cell_reads_back_from_plain_values_and_from_those_of_an_older_version():
    cell = replace(EXAMPLE, drafter_options=(("depths", (1, 2)),), stop_ids=(1, 2), chat=(("enable_thinking", False),))
    plain = yaml.safe_load(yaml.safe_dump(cell.as_dict()))
    assert Cell.from_dict(plain) == cell
    for name in ("mask_id", "stop_ids", "chat", "suffix"):
        del plain[name]
    assert Cell.from_dict(plain) == replace(cell, stop_ids=None, chat=None)


def test_new_weights_or_new_data_make_other_cells():
    keys = plan_of(Fakes()).cells.keys()
    assert not keys & plan_of(Fakes(revision="weights-2")).cells.keys()
    assert not keys & plan_of(Fakes(task=FakeTask("fake", revision="data-2"))).cells.keys()


@pytest.mark.parametrize(
    "same", ["limit=9", "workers.count=7", "workers.threads=2", "store=/x", "name=other", "retries=5"]
)
def test_a_setting_that_decides_no_result_makes_the_same_cells(same):
    assert plan_of(Fakes()).cells.keys() == plan_of(Fakes(), same).cells.keys()


def test_the_seed_orders_the_rows_and_a_larger_limit_only_adds():
    rows = [f"r{i}" for i in range(40)]
    assert choose_rows(rows, 0, 40) != choose_rows(rows, 1, 40)
    assert choose_rows(rows, 0, 20) == choose_rows(rows, 0, 5) + choose_rows(rows, 0, 20)[5:]
    assert sorted(choose_rows(rows, 3, None)) == sorted(rows)


def test_without_shuffling_the_first_rows_are_the_data_sets_first():
    assert plan_of(Fakes(), "shuffle=false").rows.popitem()[1] == ("r0", "r1", "r2")


def test_at_temperature_nought_over_the_same_rows_seeds_collapse_with_a_note():
    whole = plan_of(Fakes(), "seeds=[0,1,2]", "limit=null", "temperatures=[0,1]")
    seeds = [(cell.temperature, cell.seed) for cell in whole.grid.cells if cell.is_control]
    assert seeds == [(0, 0), (1, 0), (1, 1), (1, 2)]
    assert "only 0 is run" in whole.grid.notes[0]
    part = plan_of(Fakes(), "seeds=[0,1,2]")
    assert {cell.seed for cell in part.grid.cells} == {0, 1, 2}  # other rows for each seed


def test_a_sample_task_holds_all_cells_of_a_row_and_the_first_twenty_rows_come_first():
    plan = plan_of(Fakes(), "limit=30", "temperatures=[0,1]")
    first, rest = plan.waves({})
    assert (len(first), len(rest)) == (40, 20)
    assert all(task.control is not None and len(task.methods) == 4 for task in first + rest)
    assert {task.row for task in first if task.decode.temperature == 0} == set(
        plan.grid.rows[plan.grid.cells[0].group][:20]
    )


@pytest.mark.parametrize(("asked", "limit"), [(0, 3), (1, 3), (2, 30), (5, 3)])
def test_the_first_rows_of_every_cell_are_replayed_whatever_is_left_of_them(asked, limit):
    plan = plan_of(Fakes(), f"replays={asked}", f"limit={limit}")
    group = plan.grid.cells[0].group
    tasks = [task for wave in plan.waves({}) for task in wave]
    assert {task.row for task in tasks if task.replay} == set(plan.grid.rows[group][:asked])
    done = {(cell.key, plan.grid.rows[group][0]): {"status": "ok"} for cell in plan.grid.cells}
    left = [task for wave in plan.waves(done) for task in wave]
    assert {task.row for task in left if task.replay} == set(plan.grid.rows[group][1:asked])


def test_how_many_are_replayed_is_no_part_of_a_cell():
    assert plan_of(Fakes(), "replays=0").grid.cells == plan_of(Fakes(), "replays=9").grid.cells


def test_the_order_of_methods_turns_with_the_row():
    assert {task.row: task.turn for task in plan_of(Fakes(), "shuffle=false").waves({})[0]} == {
        "r0": 0,
        "r1": 1,
        "r2": 2,
    }


def test_the_estimate_counts_paired_controls_and_uses_what_was_measured():
    plan = plan_of(Fakes(), "drafters=[spot]", "budgets=[0,8]", "limit=2")
    most = 128 + 32 - 1
    assert outlook(plan, {}).estimate.passes == 2 * 2 * most
    control, method = plan.grid.cells
    row = plan.rows[control.key][0]
    results = {(control.key, row): {"status": "ok", "nfe": 100}, (method.key, row): {"status": "ok", "nfe": 40}}
    assert outlook(plan, results).estimate.passes == 100 + 40
    done = {**results, (control.key, plan.rows[control.key][1]): {"status": "ok", "nfe": 100}}
    assert outlook(plan, done).estimate.passes == 100 + 40  # the control is decoded again, to be paired
    assert outlook(plan, {}).loads == 1


# ---- product, zip, exclude


def combinations(*overrides):
    return points(load("quickstart", ["limit=3", *overrides])[0])[0]


def test_axes_in_step_are_paired_and_the_others_multiply():
    found = combinations("drafters=[spot,stale]", "budgets=[8,20]", "zip=[[budgets,drafters]]", "temperatures=[0,1]")
    assert [(p.temperature, p.drafter, p.budget) for p in found] == [
        (0.0, "spot", 8), (0.0, "stale", 20), (1.0, "spot", 8), (1.0, "stale", 20),
    ]  # fmt: skip


def test_a_pair_that_is_given_twice_counts_once_and_is_noted():
    plan = plan_of(Fakes(), "drafters=[spot,spot,stale]", "budgets=[8,8,8]", "zip=[[drafters,budgets]]")
    assert [(c.drafter, c.budget) for c in plan.grid.cells] == [("none", 0), ("spot", 8), ("stale", 8)]
    assert "names a value twice" in plan.grid.notes[0]


def test_an_entry_of_exclude_describes_cells_by_any_axes_and_leaves_their_control():
    plan = plan_of(Fakes(), "exclude=[{drafters: spot, budgets: [4, 8]}]")
    assert [(c.drafter, c.budget) for c in plan.grid.cells] == [("none", 0), ("stale", 4), ("stale", 8)]


def test_where_nothing_is_left_of_a_group_its_control_is_gone_too():
    models = "models=[tiny-sdar,tiny-sdar-96]"
    plan = plan_of(Fakes(), models, "exclude=[{models: tiny-sdar-96}]")
    assert plan.cells.keys() == plan_of(Fakes()).cells.keys()
    assert list(plan.models) == ["tiny-sdar"]


VALUES = {"models": ["tiny-sdar", "tiny-sdar-96"], "drafters": ["spot", "stale", "ssd"], "budgets": [4, 8, 20]}


@given(st.dictionaries(st.sampled_from(list(VALUES)), st.sets(st.integers(0, 2), min_size=1), min_size=1))
def test_whatever_is_excluded_the_rest_of_the_product_is_there_once(chosen):
    entry = {axis: [VALUES[axis][place % len(VALUES[axis])] for place in places] for axis, places in chosen.items()}
    left = {
        combination
        for combination in itertools.product(*VALUES.values())
        if not all(dict(zip(VALUES, combination, strict=True))[axis] in values for axis, values in entry.items())
    }
    config = Config("mine", tasks=["arith"], exclude=[entry], **VALUES)
    try:
        found = [(p.model, p.drafter, p.budget) for p in points(config)[0]]
    except ValueError:
        assert not left
    else:
        assert len(found) == len(left)
        assert set(found) == left


@pytest.mark.parametrize(
    ("overrides", "said"),
    [
        (["zip=[[drafters,budget]]"], "zip: 'budget' is no axis; did you mean 'budgets'?"),
        (["zip=[[drafters]]"], "zip: [drafters]: two axes or more go in step"),
        (["zip=[[drafters,seeds],[seeds,budgets]]"], "zip: seeds is named twice"),
        (["zip=[[models,drafters]]"], "zip: models has 1, drafters has 2; axes in step have as many values each"),
        (["zip=3"], "zip: the wrong type; a list (a list each) expected"),
        (["exclude=[{drafter: spot}]"], "exclude: 'drafter' is no axis; did you mean 'drafters'?"),
        (["exclude=[{drafters: spiffy}]"], "exclude: drafters has no 'spiffy'; one of spot, stale"),
        (["exclude=[{}]"], "exclude: an empty entry describes every cell"),
        (["exclude=[{budgets: []}]"], "exclude: budgets: an empty list describes nothing"),
        (["exclude=[{budgets: 0}]"], "exclude: budgets: 0 is the control"),
        (["exclude=[{models: tiny-sdar}]"], "exclude: nothing is left of the grid"),
        (["exclude=[{drafters: spot}, {drafters: spot, budgets: 8}]"], "describes no cell that is there"),
        (["exclude=[spot]"], "exclude: the wrong type; a list (key: value lines each) expected"),
        (["cluster=aws"], "cluster: no such cluster: 'aws'; known: aws-p4d, aws-p5, aws-p5e"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_a_grid_cannot_mean_is_one_line_with_its_key(overrides, said):
    with pytest.raises(UserError) as error:
        plan_of(Fakes(), *overrides)
    assert f"command line: {said}" in str(error.value) or said in str(error.value)


def test_each_target_has_its_own_checkpoint():
    checkpoint = "drafter.spot.checkpoint=mine/{model}/spot.safetensors"
    plan = plan_of(Fakes(), "models=[tiny-sdar,tiny-sdar-96]", "drafters=[spot]", checkpoint)
    assert {model: spec.checkpoint for (model, _), spec in plan.drafters.items()} == {
        "tiny-sdar": "mine/tiny-sdar/spot.safetensors",
        "tiny-sdar-96": "mine/tiny-sdar-96/spot.safetensors",
    }


def test_the_papers_grids_have_the_papers_cells():
    """By grid: methods with drafts a (model, task, temperature, seed), and these."""
    sizes = {}
    for name in grids("paper"):
        config, source = load(name)
        plan = make_plan(config, source, Fakes(task=FakeTask("fake", size=400)).backend())
        groups = len(plan.grid.rows)
        sizes[name.removeprefix("paper/")] = (groups, len(plan.cells) - groups)
    assert sizes == {
        "ablations": (6, 6 * 20),
        "block-lengths": (36, 36 * 6),
        "hot": (12, 12 * 10),
        "llada2-mini": (24, 24 * 10),
        "long": (24, 24 * 6),
        "oracles": (4, 4 * 8),
        "sdar-1.7b": (24, 24 * 10),
        "sdar-4b": (24, 24 * 10),
        "sdar-8b-t0": (12, 12 * 10),
        "sdar-8b-t1": (12, 12 * 10),
        "threshold": (12, 12 * 2),
        "transfer": (36, 12 * 4 + 24 * 12),
    }
