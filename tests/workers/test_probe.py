"""What a probe finds of a target of each family, and that it writes and shows all of it."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from tokenizers import Regex, Tokenizer, models, pre_tokenizers

from orchestrator import estimate, probe
from spot import targets
from spot.decoder import Settings
from tests.spot.support import FOLDERS, golden_target
from workers.probe import COMPARED, NODES, compare_logits, load, time_passes
from workers.probe import probe as measure
from workers.tasks import load_task
from workers.work import DecodeSpec, MethodTask, SampleTask
from workers.worker import resolve_drafter, resolve_model

ROWS = load_task("arith", {"size": 2}).rows
SPOT = resolve_drafter("spot", {"checkpoint": "assets/tiny-spot.safetensors"})
TINY = resolve_model("tiny-sdar", {"family": "sdar", "path": "assets/tiny-sdar", "block_length": 32})


def tasks_of(model, decode, drafter=SPOT, rows=ROWS, budgets=(4, 8)):
    methods = tuple(MethodTask(f"b{budget}", drafter, budget) for budget in budgets)
    control = MethodTask("control", None, 0)
    return [
        SampleTask("", model, "arith", row.id, row.prompt, decode, control, methods, turn)
        for turn, row in enumerate(rows)
    ]


def golden_checkpoint(family, folder):
    """The golden weights with a tokenizer of characters, of which they have 150."""
    shutil.copytree(FOLDERS[family], folder)
    letters = {chr(code): code - 32 for code in range(32, 127)}
    tokenizer = Tokenizer(models.WordLevel(letters, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex("."), "isolated")
    tokenizer.save(str(folder / "tokenizer.json"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')
    options = {"family": family, "path": str(folder), "block_length": 8, "mask_id": 157, "stop_ids": [150]}
    return resolve_model(f"golden-{family}", {**options, "chat": False})


def shown(found):
    console = Console(width=80)
    with console.capture() as capture:
        for part in probe.printed(found):
            console.print(part)
    text = capture.get()
    assert "…" not in text and max(map(len, text.splitlines())) <= 80  # nothing is cut short
    return text


@pytest.fixture(scope="module")
def tiny():
    said = []
    found = measure(load(TINY, said.append), tasks_of(TINY, DecodeSpec(32, 0.0, 0)), said.append)
    return found, said


@pytest.fixture
def few_nodes(monkeypatch):
    """For a test that is not about passes."""
    monkeypatch.setattr("workers.probe.NODES", (1, 2))
    monkeypatch.setattr("workers.probe.COMPARED", (1, 2))


def test_it_says_what_it_is_at(tiny):
    assert tiny[1] == [
        "loading tiny-sdar on cpu …",
        "decoding 1/2 …",
        "decoding 2/2 …",
        "watching 1/2 …",
        "watching 2/2 …",
        "comparing logits …",
        "timing passes of 1 to 65 nodes …",
    ]


def test_texts_are_paired_with_the_control(tiny):
    control, *drafted = tiny[0].decoded
    assert (control.budget, control.nfe_ratio, control.throughput_ratio, control.accepted) == (0, 1, 1, None)
    for line in drafted:
        assert line.identical == 2 and line.different == {}
        assert line.nfe_ratio == pytest.approx(control.nfe / line.nfe) and line.nfe_ratio > 2
        assert line.throughput_ratio == pytest.approx(
            control.pass_seconds * control.nfe / (line.pass_seconds * line.nfe)
        )


def test_the_learned_order_is_told_beside_the_stale_one(tiny):
    shares = {share.measure: share.by_depth for share in tiny[0].accuracy}
    assert list(shares) == ["stale token", "order model", "stale confidence"]
    assert shares["order model"][0] > shares["stale confidence"][0] > 0.5


def test_every_number_of_nodes_is_timed_and_every_layout_compared(tiny):
    found = tiny[0]
    assert [line.nodes for line in found.passes] == list(NODES)
    assert all(line.seconds > 0 and line.ratio > 0 for line in found.passes) and found.passes[0].ratio == 1
    compared = [(d.layout, d.nodes) for d in found.rounding.differences]
    assert compared == [(layout, count) for layout in ("batch", "concat") for count in COMPARED]
    assert all(d.largest <= found.rounding.tolerance for d in found.rounding.differences)
    assert found.rounding.differences[0].largest == 0  # the same pass twice


def test_memory_and_parameters_are_the_weights(tiny):
    found = tiny[0]
    assert 0 <= found.memory.weights - 4 * found.parameters < 1000  # the rotary embedding's buffers
    assert found.memory.peak > found.memory.weights and found.memory.free > found.memory.weights
    assert found.load_seconds > 0


def test_the_file_has_all_of_it_and_is_read_by_the_estimate(tiny, tmp_path):
    found = tiny[0]
    probe.write(found, tmp_path / "found.json")
    written = json.loads((tmp_path / "found.json").read_text())
    assert written == json.loads(json.dumps(found.as_dict()))
    assert (written["format"], written["revision"], written["device"]) == (1, TINY.revision, "cpu")
    read = estimate.read(tmp_path / "found.json")
    assert [read.identity[key] for key in estimate.SAME] == [TINY.revision, "cpu", "float32", 32, 1]
    assert read.pass_seconds(8) == pytest.approx(found.decoded[2].pass_seconds)


def test_the_tables_fit_a_terminal(tiny):
    decoded = replace(tiny[0].decoded[1], identical=0, different={"numeric": 2}, tokens_per_second=1234.5)
    text = shown(replace(tiny[0], decoded=(*tiny[0].decoded, decoded)))
    assert "0/2, 2 numeric" in text
    assert all(word in text for word in ("control", "tiny-sdar, sdar, 0.85 M", "order model", "batch", "NFE ratio"))


@pytest.mark.parametrize("family", targets.FAMILIES)
def test_every_family_can_be_probed(family, tmp_path):
    model = golden_checkpoint(family, tmp_path / family)
    tasks = tasks_of(model, DecodeSpec(16, 0.0, 0, stop="length"), rows=ROWS[:1])
    found = measure(load(model, str), tasks, str)
    assert found.parameters > 50_000 and found.passes[-1].seconds > 0
    assert [line.identical + sum(line.different.values()) for line in found.decoded] == [1, 1, 1]
    assert "bug" not in {verdict for line in found.decoded for verdict in line.different}
    assert max(d.largest for d in found.rounding.differences) <= found.rounding.tolerance
    assert f"golden-{family}, {family}, 0." in shown(found)


@pytest.mark.parametrize("family", targets.FAMILIES)
@pytest.mark.parametrize("cache", [True, False], ids=["cached", "uncached"])
def test_in_float64_a_states_logits_are_the_same_among_others(family, cache):
    target = golden_target(family=family)
    found = compare_logits(target, list(range(1, 20)), Settings(24, cache=cache))
    assert max(d.largest for d in found.differences) < 1e-10 < found.largest_logit


def test_a_drafter_without_an_order_model_has_the_stale_order_alone(few_nodes):
    tasks = tasks_of(TINY, DecodeSpec(32, 0.0, 0), resolve_drafter("stale", {}), ROWS[:1], budgets=(4,))
    found = measure(load(TINY, str), tasks, str)
    assert [share.measure for share in found.accuracy] == ["stale token", "stale confidence"]


def test_the_threshold_rule_has_no_order(few_nodes):
    tasks = tasks_of(TINY, DecodeSpec(32, 0.0, 0, threshold=0.9), resolve_drafter("stale", {}), ROWS[:1], budgets=(4,))
    found = measure(load(TINY, str), tasks, str)
    assert found.accuracy == () and "commits ahead" not in shown(found)


def test_a_text_that_cannot_be_decoded_is_named(few_nodes):
    tasks = tasks_of(TINY, DecodeSpec(32, 0.0, 0), rows=ROWS[:1], budgets=(4,))
    missing = replace(SPOT, checkpoint="assets/gone.safetensors")
    broken = [replace(task, methods=(replace(task.methods[0], drafter=missing),)) for task in tasks]
    with pytest.raises(ValueError, match=f"row {ROWS[0].id} at budget 4: FileNotFoundError"):
        measure(load(TINY, str), broken, str)


def test_passes_that_do_not_fit_in_memory_have_no_seconds(monkeypatch):
    target = golden_target(dtype=torch.float32)
    forward = target.forward

    def small(nodes, edges=None):
        if len(nodes) > 5:
            raise torch.OutOfMemoryError("no")
        return forward(nodes, edges)

    monkeypatch.setattr(target, "forward", small)
    found = time_passes(target, list(range(1, 20)), Settings(16))
    assert [line.nodes for line in found if line.seconds is not None] == [1, 2, 3, 5]
    assert found[-1].ratio is None


def test_states_are_distinct_as_long_as_a_block_has_so_many():
    from workers.probe import _states

    assert len(set(_states(list(range(32)), 99, 65))) == 65
    few = _states([7, 8, 9], 99, 21)
    assert len(few) == 21 and set(few) == set(few[:7]) and (7, 8, 9) not in few
    assert few[0] == (99, 99, 99) and few[5] == (7, 99, 9)
