"""Training: what is trained is what is decoded, an interrupted run ends as an uninterrupted one, traces are true."""

import math
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from transformers import PreTrainedTokenizerFast

from spot import targets
from spot.decoder import Settings, decode
from spot.noise import Noise
from spot.training import tiny_target
from spot.training.order import OrderSettings, TraceSet, accuracy, calibrate, train_order_model
from spot.training.tiny_target import TrainSettings, block_diffusion_mask, train_target
from spot.training.traces import collect, pack, unpack
from tests.spot.support import golden_target
from workers.tasks.arith import problem

SMALL = TrainSettings(steps=8, batch_size=4, hidden_size=32, intermediate_size=48, layers=2)


def example(index: int) -> tuple[str, str]:
    asked = problem(index, "train")
    return asked.question, asked.answer


def quiet(line: str) -> None: ...


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    folder = tmp_path_factory.mktemp("small")
    train_target(example, folder, SMALL, quiet)
    return folder


def test_a_target_may_have_a_tokenizer_of_words_and_be_kept_in_half_precision(tmp_path):
    words = replace(SMALL, steps=1, tokenizer="words", vocab_size=200, dtype="bfloat16")
    train_target(example, tmp_path, words, quiet)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(tmp_path)
    assert tokenizer.tokenize("Mia has 12 pens.") == ["Mia", "Ġhas", "Ġ12", "Ġpens", "."]
    assert {t.dtype for t in load_file(tmp_path / "model.safetensors").values()} == {torch.bfloat16}
    assert targets.load("sdar", tmp_path, 32, torch.float32, "cpu").config.mask_id == tokenizer.mask_token_id


@pytest.mark.parametrize("wrong", [{"tokenizer": "letters"}, {"dtype": "int8"}])
def test_settings_that_cannot_be_are_refused_by_key(wrong):
    with pytest.raises(ValueError, match=f"^{next(iter(wrong))}: .* expected$"):
        TrainSettings(**wrong)


def test_a_noisy_block_sees_the_clean_blocks_before_it_and_itself():
    """Two blocks of 2 clean, then two noisy copies of the second block."""
    rows = block_diffusion_mask(clean_length=4, first=2, length=4, copies=2, block=2).int().tolist()
    clean = [[1, 1, 0, 0, 0, 0, 0, 0]] * 2 + [[1, 1, 1, 1, 0, 0, 0, 0]] * 2
    assert rows == [*clean, *[[1, 1, 0, 0, 1, 1, 0, 0]] * 2, *[[1, 1, 0, 0, 0, 0, 1, 1]] * 2]


def test_the_packed_training_pass_gives_the_logits_that_decoding_gives(small):
    target = targets.load("sdar", small, 32, torch.float64, "cpu")
    generator = torch.Generator().manual_seed(0)
    clean = torch.randint(4, 300, (96,), generator=generator)
    noisy = torch.where(torch.rand(64, generator=generator) < 0.5, target.config.mask_id, clean[32:])
    visible = block_diffusion_mask(clean_length=64, first=32, length=96, copies=1, block=32)
    bias = torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)[None, None]
    positions = torch.cat([torch.arange(64), torch.arange(32, 96)])[None]
    packed = target.model.model(
        input_ids=torch.cat([clean[:64], noisy])[None], attention_mask=bias, position_ids=positions, use_cache=False
    )
    trained = target.model.lm_head(packed.last_hidden_state[0, 64:])
    target.prefill(clean[:32].tolist())
    first = target(noisy[None, :32])
    target.advance(clean[32:64])
    second = target(noisy[None, 32:])
    assert torch.allclose(trained, torch.cat([first[0], second[0]]), atol=1e-6)  # transformers' norms are in float32


def test_an_interrupted_training_ends_with_the_weights_of_an_uninterrupted_one(small, tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_target, "CHECKPOINT_EVERY", 4)

    def crashing(index: int) -> tuple[str, str]:
        if 4 * SMALL.batch_size <= index < 2000 and (tmp_path / "training").exists():
            raise KeyboardInterrupt
        return example(index)

    with pytest.raises(KeyboardInterrupt):
        train_target(crashing, tmp_path, SMALL, quiet)
    assert not (tmp_path / "model.safetensors").exists()
    train_target(example, tmp_path, SMALL, quiet)
    whole, resumed = (load_file(folder / "model.safetensors") for folder in (small, tmp_path))
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_a_training_state_of_other_settings_is_not_continued(tmp_path, monkeypatch):
    monkeypatch.setattr(tiny_target, "CHECKPOINT_EVERY", 4)
    train_target(example, tmp_path, replace(SMALL, steps=4), quiet)
    with pytest.raises(ValueError, match="made with other settings"):
        train_target(example, tmp_path, SMALL, quiet)


@pytest.mark.service("minutes")
def test_a_minute_of_training_teaches_the_form_of_an_answer(tmp_path):
    """The command's own settings, but for 100 half batches with a short warm-up; the bundled target took 5,000."""
    torch.set_num_threads(2)
    said: list[str] = []
    train_target(example, tmp_path, TrainSettings(steps=100, batch_size=8, warmup=20), said.append)
    torch.set_num_threads(1)
    target = targets.load("sdar", tmp_path, 32, torch.float32, "cpu")
    losses = [float(line.split()[-1]) for line in said]
    assert losses[-1] < 0.8 * losses[0] and losses[-1] < 0.6 * math.log(target.model.config.vocab_size)
    assert sum(file.stat().st_size for file in tmp_path.glob("*")) < 6 * 2**20
    assert decode(target, list(range(4, 44)), Settings(32, stop="length"), Noise(0)).nfe == 56


@pytest.mark.parametrize("threshold", [None, 0.5])
def test_a_trace_is_what_the_target_saw_and_did(threshold):
    target, prompts = golden_target(8), [[1, 2, 3], list(range(20))]
    settings = Settings(24, stop="length", threshold=threshold)
    traces = collect(target, prompts, settings)
    found = [decode(target, prompt, settings, Noise(0)) for prompt in prompts]
    steps = [step for decoding in found for step in decoding.steps]
    assert [trace.block for trace in traces] == [0, 1, 2, 3] * 2
    commits = torch.cat([trace.masked[:-1] & ~trace.masked[1:] for trace in traces])
    assert [row.nonzero().flatten().tolist() for row in commits] == [[p % 8 for p, _ in step] for step in steps]
    texts = [prompt + [token for _, token in sorted(d.commits)] for prompt, d in zip(prompts, found, strict=True)]
    whole = [text[len(prompt) // 8 * 8 :] for text, prompt in zip(texts, prompts, strict=True)]
    assert torch.cat([trace.tokens for trace in traces]).tolist() == whole[0] + whole[1]
    for trace in traces:
        assert trace.masked.shape == (trace.steps + 1, 8) and not trace.masked[-1].any()
        confident = trace.log_probs[..., 0].masked_fill(~trace.masked[:-1], -torch.inf).argmax(-1, keepdim=True)
        assert (trace.masked[:-1] & ~trace.masked[1:]).gather(1, confident).all()  # at T = 0 the surest is committed
        assert torch.equal(trace.indices[-1][trace.masked[-2], 0], trace.tokens[trace.masked[-2]])
    for before, after in zip(traces, unpack(pack(traces)), strict=True):
        assert all(torch.equal(*pair) for pair in zip(tensors(before), tensors(after), strict=True))
        assert before.block == after.block


def tensors(trace) -> list[torch.Tensor]:
    return [trace.log_probs, trace.indices, trace.masked, trace.tokens]


def test_questions_asked_of_traces_hide_what_was_committed_after_the_table():
    traces = collect(golden_target(8), [list(range(8))], Settings(16, stop="length"))
    asked = TraceSet(traces).every(depth=2)
    assert len(asked.label) == 2 * (8 - 3)
    newly = asked.table_masked & ~asked.root_masked
    assert (newly.sum(-1) == 1).all() and ((asked.root_masked & ~asked.masked).sum(-1) == 2).all()
    assert asked.masked.gather(1, asked.label[:, None]).all()


def test_a_trained_order_model_predicts_commits_better_than_the_stale_order():
    """On traces whose order is left to right, which the stale table of a random target does not show."""
    traces = collect(golden_target(8), [[i] * 8 for i in range(24)], Settings(32, stop="length"))
    ordered = [replace(trace, masked=torch.ones(9, 8, dtype=torch.bool).triu()) for trace in traces]
    model = train_order_model(ordered[8:], OrderSettings(steps=70, batch_size=64, warmup=5), quiet)
    calibrate(model, ordered[:8])
    found = accuracy(model, ordered[:8])
    assert found["by_depth"]["order_model"][0] > 0.9 > found["by_depth"]["stale_confidence"][0]
