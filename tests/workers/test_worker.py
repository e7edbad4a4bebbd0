"""A worker on the bundled tiny target: pairs, records, failures."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import save_file

from spot.order_model import OrderModel, save_order_model
from workers.tasks import load_task
from workers.work import DecodeSpec, DrafterSpec, MethodTask, SampleTask
from workers.worker import Worker, environment, load_tokenizer, resolve_drafter, resolve_model

MODEL = resolve_model("tiny-sdar", {"family": "sdar", "path": "assets/tiny-sdar", "block_length": 32})
SPOT = resolve_drafter("spot", {"checkpoint": "assets/tiny-spot.safetensors"})
STALE = resolve_drafter("stale", {})
ROW = load_task("arith", {"size": 1}).rows[0]
TASK = SampleTask(
    sweep="s",
    model=MODEL,
    task="arith",
    row=ROW.id,
    prompt=ROW.prompt,
    decode=DecodeSpec(128, 0.0, 0),
    control=MethodTask("control", None, 0),
    methods=(MethodTask("spot-8", SPOT, 8), MethodTask("stale-8", STALE, 8)),
)


@pytest.fixture(scope="module")
def worker():
    return Worker(MODEL)


@pytest.fixture(scope="module")
def records(worker):
    return {record["cell"]: record for record in worker.run(TASK)}


def test_every_pending_cell_gets_one_record(records):
    assert list(records) == ["control", "spot-8", "stale-8"]
    assert all(record["status"] == "ok" and record["row"] == ROW.id for record in records.values())


def test_a_method_is_paired_with_the_control_of_its_own_run(records):
    control = records["control"]
    for record in records.values():
        assert record["control_nfe"] == control["nfe"]
        assert record["control_seconds"] == pytest.approx(sum(control["seconds"].values()))
        assert record["control_sha"] == control["text_sha"]


def test_a_text_is_written_once(records):
    assert records["control"]["text"].startswith("Step 1: ")
    for cell in ("spot-8", "stale-8"):
        assert records[cell]["identical"] and records[cell]["text"] is None and records[cell]["tokens"] is None
        assert records[cell]["text_sha"] == records["control"]["text_sha"]


def test_passes_and_acceptances_add_up_to_the_commits(records):
    for record in records.values():
        assert record["nfe"] + record["accepted"] == record["steps"]
        assert sum(record["accepted_by_depth"]) == record["accepted"]
        assert record["drafted_passes"] <= record["nfe"]
    assert records["control"]["drafted"] == 0
    assert records["spot-8"]["nfe"] < records["stale-8"]["nfe"] < records["control"]["nfe"]


@pytest.mark.parametrize("cell", ["control", "spot-8"])
def test_recorded_passes_are_all_the_forwards_of_the_target(worker, records, cell):
    method = {"control": MethodTask("control", None, 0), "spot-8": MethodTask("spot-8", SPOT, 8)}[cell]
    forwards = []
    handle = worker.target.register_forward_hook(lambda *_: forwards.append(1))
    worker.decode(TASK, method)
    handle.remove()
    assert records[cell]["nfe"] + records[cell]["cache_passes"] == len(forwards)


@pytest.mark.parametrize("turn", [1, 2, 5])
def test_the_order_of_methods_changes_nothing_but_time_and_memory(worker, records, turn):
    for record in worker.run(replace(TASK, turn=turn)):
        before = records[record["cell"]]
        timed = {"seconds", "control_seconds", "started", "finished", "peak_bytes"}
        assert {k: v for k, v in record.items() if k not in timed} == {
            k: v for k, v in before.items() if k not in timed
        }


def test_a_control_that_is_recorded_already_is_decoded_for_its_pair_and_not_recorded_again(worker, records):
    again = worker.run(replace(TASK, control=None, methods=TASK.methods[:1]))
    assert [record["cell"] for record in again] == ["spot-8"]
    assert again[0]["control_nfe"] == records["control"]["nfe"]
    assert again[0]["text"] == records["control"]["text"]  # the recorded control may have run elsewhere


def test_a_replay_is_asked_for_and_changes_nothing_else(worker, records):
    assert not any("replay" in record for record in records.values())
    for record in worker.run(replace(TASK, replay=True)):
        kept, before = record["replay"], records[record["cell"]]
        assert (len(kept["passes"]), kept["prompt"]) == (before["nfe"], ROW.prompt)
        assert sum(len(accepted) for _, _, accepted in kept["passes"]) == before["accepted"]
        assert (record["text_sha"], record["nfe"]) == (before["text_sha"], before["nfe"])
        placed = {at: piece for steps, *_ in kept["passes"] for step in steps for at, piece in _pairs(step)}
        written = "".join(kept["pieces"][placed[at]] for at in sorted(placed))
        assert written.startswith(records["control"]["text"])


def _pairs(flat):
    return zip(flat[::2], flat[1::2], strict=True)


def test_a_method_that_raises_fails_alone(worker):
    broken = MethodTask("broken", DrafterSpec("broken", "spot", "assets/nowhere.safetensors"), 8, attempt=2)
    control, bad, good = worker.run(replace(TASK, methods=(broken, TASK.methods[1])))
    assert (control["status"], bad["status"], good["status"]) == ("ok", "failed", "ok")
    assert bad["attempt"] == 2 and "nowhere.safetensors" in bad["error"] and "\n" not in bad["error"]


def test_float64_is_identical_without_exception():
    worker = Worker(replace(MODEL, dtype="float64"))
    for temperature in (0.0, 1.0):
        task = replace(TASK, decode=DecodeSpec(64, temperature, 3))
        methods = tuple(MethodTask(f"{d.name}-{b}", d, b) for d in (SPOT, STALE) for b in (8, 20))
        assert all(record["identical"] for record in worker.run(replace(task, methods=methods)))


def test_a_target_is_what_its_entry_says():
    entry = {"family": "sdar", "path": "assets/tiny-sdar", "block_length": 32, "revision": None, "dtype": None}
    assert resolve_model("tiny-sdar", {**entry, "mask_id": None, "stop_ids": None, "chat": {}, "size": None}) == MODEL
    told = resolve_model("m", {**entry, "mask_id": 5, "stop_ids": [7, 8], "chat": {"enable_thinking": False}})
    assert (told.mask_id, told.stop_ids, told.chat) == (5, (7, 8), (("enable_thinking", False),))
    config = Worker(told).target.config
    assert (config.mask_id, config.stop_ids) == (5, {7, 8})


def test_dreams_tokenizer_loads_without_its_code(tmp_path):
    """The files as its authors publish them: no tokenizer.json, and a class that only their code has."""
    mask = {"content": "<|mask|>", "special": True} | dict.fromkeys(["lstrip", "rstrip", "single_word"], False)
    config = {
        "tokenizer_class": "DreamTokenizer",
        "auto_map": {"AutoTokenizer": ["tokenization_dream.DreamTokenizer", None]},
        "added_tokens_decoder": {"5": {**mask, "normalized": False}},
        "chat_template": "{{ messages[0].content }}",
    }
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "config.json").write_text('{"model_type": "Dream"}')
    (tmp_path / "vocab.json").write_text('{"a": 0, "b": 1, "Ġ": 2, "ab": 3, "Ġab": 4}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\na b\nĠ ab\n")
    tokenizer = load_tokenizer(tmp_path)
    assert tokenizer.encode("ab ab<|mask|>a", add_special_tokens=False) == [3, 4, 5, 0]
    assert tokenizer.decode([3, 4, 5], skip_special_tokens=True) == "ab ab"


def test_the_chat_template_gets_its_arguments_and_without_one_a_prompt_goes_in_as_it_is(worker, monkeypatch):
    def read(chat):
        monkeypatch.setattr(worker, "_model", replace(MODEL, chat=chat))
        return worker.text(worker.prompt_ids("Mia has 3 pens."), special=True)

    assert read(None) != read(False) == "Mia has 3 pens."
    template = "{% if not brief %}Please: {% endif %}{{ messages[0].content }}"
    monkeypatch.setattr(worker._tokenizer, "chat_template", template)
    assert read((("brief", True),)) == "Mia has 3 pens."
    assert read(None) == "Please: Mia has 3 pens."


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"path": "assets/nowhere"}, "path: "),
        ({"family": "sdra"}, "family: no family 'sdra'"),
        ({"dtype": "float31"}, "dtype: no dtype 'float31'"),
    ],
)
def test_a_wrong_model_is_one_line_and_loads_nothing(options, message):
    good = {"family": "sdar", "path": "assets/tiny-sdar", "block_length": 32}
    with pytest.raises(ValueError, match=message):
        resolve_model("m", good | options)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "spott"}, "no drafter 'spott'; there are blockspec"),
        ({"checkpoint": None}, "checkpoint: spot needs one"),
        ({"checkpoint": "assets/nowhere"}, "checkpoint: no file assets/nowhere"),
        (
            {"checkpoint": "assets/tiny-spot.safetensors", "tokgat": 1},
            "tokgat: spot has no such option; it has tokgate",
        ),
        ({"method": "spiffy"}, "checkpoint: spiffy needs one, made by `launch.py calibrate`"),
        ({"method": "spot-sets"}, "checkpoint: spot-sets needs one, made by `launch.py calibrate-sets`"),
        ({"checkpoint": "assets/tiny-spot.safetensors", "gamma": 1.5}, "^gamma: 1.5; from 0 to 1 expected"),
        ({"checkpoint": "assets/tiny-spot.safetensors", "tokgate": -1}, "^tokgate: -1; from 0 to 1 expected"),
        ({"method": "stale", "tokgate": 2}, "^tokgate: 2; from 0 to 1 expected"),
        ({"method": "oracle", "tokgate": 2}, "^tokgate: 2; from 0 to 1 expected"),
        ({"method": "oracle", "knows": "all"}, "^knows: 'all'; one of"),
    ],
)
def test_a_wrong_drafter_is_one_line(options, message):
    with pytest.raises(ValueError, match=message):
        resolve_drafter("spot", options)


def test_a_file_that_is_no_checkpoint_is_one_line(tmp_path):
    (tmp_path / "garbage").write_bytes(b"nothing of the kind")
    save_file({"stale": torch.ones(())}, tmp_path / "partial")
    for text in ("[1, 2]", "{}", '{"formulas": [{"fills": [[0, 9, 0]], "count": 1}]}'):
        (tmp_path / f"{len(text)}.json").write_text(text)
    for file in tmp_path.iterdir():
        for method in ("spiffy", "spot", "spot-auto", "spot-sets"):
            with pytest.raises(ValueError, match=r"^checkpoint: .* is no checkpoint for .*\(.*\)$") as raised:
                resolve_drafter(method, {"checkpoint": str(file)})
            assert f"{file} is no checkpoint for {method} (" in str(raised.value)


def test_a_drafter_says_how_long_a_block_it_drafts(tmp_path):
    assert (SPOT.longest_block, STALE.longest_block) == (64, None)
    save_order_model(OrderModel(), tmp_path / "order", {})
    assert resolve_drafter("spot-auto", {"checkpoint": str(tmp_path / "order")}).longest_block == 64


def test_costs_are_those_of_the_decoding_that_is_asked_for(worker):
    auto = resolve_drafter("spot-auto", {"checkpoint": "assets/tiny-spot.safetensors"})
    hot, sets = replace(TASK.decode, temperature=1.0), replace(TASK.decode, threshold=0.9)
    method, found = MethodTask("auto-2", auto, 2), []
    for decode in (TASK.decode, hot, sets, replace(TASK.decode, seed=1)):
        task = replace(TASK, decode=decode)
        worker.drafter(task, method)
        found.append(len(worker._costs))
    assert found == [1, 2, 3, 3]


def test_the_environment_names_the_versions_that_decide_the_numbers():
    found = environment(MODEL)
    assert {"python", "torch", "transformers", "device", "threads"} <= found.keys()
