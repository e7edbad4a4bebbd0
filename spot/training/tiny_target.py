"""Trains a tiny SDAR from scratch: the target that the tests, the tutorial and `make sweep` decode with.

Block-diffusion training (BD3-LM, SDAR): a clean copy of the text and noisy copies of its answer blocks stand in one
sequence under one mask; a noisy block sees the clean blocks before it and itself. `NOISY_COPIES` noisy copies share one
clean copy, since the clean half costs as much as a noisy one and teaches nothing by itself. Batch `n` is a function of
(seed, n), so a resumed run sees what an uninterrupted one would have seen.

    python launch.py train-target --out assets/tiny-sdar
"""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import PreTrainedTokenizerFast, Qwen3Config, Qwen3ForCausalLM

PAD, START, END, MASK = "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|MASK|>"
CHAT_TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message.role }}\n{{ message.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NOISY_COPIES = 2
PAD_WEIGHT = 0.1  # the end-of-text tail is easy and long: at full weight it drowns the answer
POOL = 4  # batches whose examples are sorted by length together, so that little of a batch is padding
CHECKPOINT_EVERY = 250

TOKENIZERS = ("bytes", "words")
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}

Example = Callable[[int], tuple[str, str]]


@dataclass(frozen=True)
class TrainSettings:
    """What decides the trained weights. `steps` batches of `batch_size` examples, one pass over fresh data.

    The rate falls by a cosine; at step `restart`, if that is not 0, it warms up once more. `tokenizer` is "bytes", a
    byte-level BPE of `vocab_size` entries, or "words", a table of at most so many. The weights are kept as `dtype`.
    ValueError, `key: what is wrong`, for what cannot be.
    """

    steps: int = 5000
    batch_size: int = 16
    seed: int = 0
    rate: float = 3e-3
    warmup: int = 300
    restart: int = 0
    block_length: int = 32
    tokenizer: str = "bytes"
    vocab_size: int = 480
    hidden_size: int = 128
    intermediate_size: int = 384
    layers: int = 4
    heads: int = 4
    kv_heads: int = 2
    dtype: str = "float32"

    def __post_init__(self) -> None:
        for key, allowed in (("tokenizer", TOKENIZERS), ("dtype", DTYPES)):
            if (value := getattr(self, key)) not in allowed:
                raise ValueError(f"{key}: {value!r}; {' or '.join(allowed)} expected")


def train_target(example: Example, out: Path, settings: TrainSettings, report: Callable[[str], None] = print) -> None:
    """Train on `example(0), example(1), ...` and write a Hugging Face checkpoint folder to `out`.

    Continues from `out/training/` where an earlier call was interrupted; raises ValueError if that call had other
    settings.
    """
    tokenizer = build_tokenizer(example, settings)
    config = target_config(tokenizer, settings)
    torch.manual_seed(settings.seed)
    model = Qwen3ForCausalLM(config)
    optimizer = torch.optim.AdamW(model.parameters(), lr=settings.rate, betas=(0.9, 0.98), weight_decay=0.0)
    state = out / "training"
    first = _restore(state, model, optimizer, settings)
    running = None
    for step in range(first, settings.steps):
        batch = _batch(example, tokenizer, settings, step)
        optimizer.param_groups[0]["lr"] = settings.rate * _schedule(step, settings)
        loss = _loss(model, batch, config)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        running = loss.item() if running is None else 0.98 * running + 0.02 * loss.item()
        if (step + 1) % 50 == 0:
            report(f"step {step + 1}/{settings.steps}  loss {running:.4f}")
        if (step + 1) % CHECKPOINT_EVERY == 0:
            _save_state(state, model, optimizer, settings, step + 1)
    save_checkpoint(out, model, tokenizer, settings)


def build_tokenizer(example: Example, settings: TrainSettings) -> PreTrainedTokenizerFast:
    """A tokenizer learned on the first 2,000 examples, with SDAR's special tokens and chat template.

    Of "words", one that was never seen becomes the end of text.
    """
    words, special = settings.tokenizer == "words", [PAD, START, END, MASK]
    tokenizer = Tokenizer(models.WordLevel(unk_token=PAD) if words else models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    size: dict[str, Any] = {"vocab_size": settings.vocab_size, "special_tokens": special, "show_progress": False}
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.WordLevelTrainer(**size) if words else trainers.BpeTrainer(**size, initial_alphabet=alphabet)
    texts = (f"user\n{question}\nassistant\n{answer}" for question, answer in map(example, range(2000)))
    tokenizer.train_from_iterator(texts, trainer)
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=PAD, eos_token=END, mask_token=MASK, chat_template=CHAT_TEMPLATE
    )


def target_config(tokenizer: PreTrainedTokenizerFast, settings: TrainSettings) -> Qwen3Config:
    return Qwen3Config(
        vocab_size=len(tokenizer),
        hidden_size=settings.hidden_size,
        intermediate_size=settings.intermediate_size,
        num_hidden_layers=settings.layers,
        num_attention_heads=settings.heads,
        num_key_value_heads=settings.kv_heads,
        head_dim=settings.hidden_size // settings.heads,
        max_position_embeddings=2048,
        rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        tie_word_embeddings=True,
        use_cache=False,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=[tokenizer.eos_token_id, tokenizer.pad_token_id],
        mask_token_id=tokenizer.mask_token_id,
        block_size=settings.block_length,
    )


# ---- batches


@dataclass(frozen=True)
class Batch:
    """`clean` [N, L] token ids; `noisy` [N, C, M] the copies of the last M positions; `weight` [N, C, M] float32."""

    clean: Tensor
    noisy: Tensor
    weight: Tensor


def _batch(example: Example, tokenizer: PreTrainedTokenizerFast, settings: TrainSettings, step: int) -> Batch:
    first, size = step // POOL * POOL * settings.batch_size, POOL * settings.batch_size
    encoded = [_encode(example, tokenizer, first + i) for i in range(size)]
    by_length = sorted(encoded, key=lambda pair: len(pair[0]) + len(pair[1]))
    pool = by_length[step % POOL * settings.batch_size :][: settings.batch_size]
    block = settings.block_length
    length = _round_up(max(len(prompt) + len(answer) for prompt, answer in pool), block)
    first = min(len(prompt) for prompt, _ in pool) // block * block
    clean = torch.full((len(pool), length), tokenizer.pad_token_id)
    prompt_lengths = torch.tensor([len(prompt) for prompt, _ in pool])
    ends = torch.tensor([len(prompt) + len(answer) for prompt, answer in pool])
    for row, (prompt, answer) in enumerate(pool):
        clean[row, : ends[row]] = torch.tensor(prompt + answer)
    generator = torch.Generator().manual_seed(settings.seed * 1_000_003 + step)
    return _add_noise(clean, prompt_lengths, ends, first, tokenizer.mask_token_id, block, generator)


def _encode(example: Example, tokenizer: PreTrainedTokenizerFast, index: int) -> tuple[list[int], list[int]]:
    question, answer = example(index)
    prompt = f"{START}user\n{question}{END}\n{START}assistant\n"
    return tokenizer.encode(prompt), tokenizer.encode(f"{answer}{END}")


def _add_noise(clean, prompt_lengths, ends, first, mask_id, block, generator) -> Batch:
    """Mask a uniform number of each block's answer positions; the weights make every block count the same."""
    positions = torch.arange(first, clean.shape[1])
    answer = (positions >= prompt_lengths[:, None])[:, None].expand(-1, NOISY_COPIES, -1)
    blocks = answer.unflatten(-1, (-1, block))
    size = blocks.sum(-1, keepdim=True)
    count = 1 + (torch.rand(size.shape, generator=generator) * size).long().clamp(max=(size - 1).clamp(min=0))
    score = torch.rand(blocks.shape, generator=generator).masked_fill(~blocks, 2.0)
    masked = (score.argsort(-1).argsort(-1) < count) & blocks
    pad = (positions >= ends[:, None])[:, None].unflatten(-1, (-1, block))
    weight = masked / count * torch.where(pad, PAD_WEIGHT, 1.0)
    tokens = clean[:, None, first:].expand(-1, NOISY_COPIES, -1)
    noisy = tokens.masked_fill(masked.flatten(-2), mask_id)
    return Batch(clean, noisy, weight.flatten(-2))


def block_diffusion_mask(clean_length: int, first: int, length: int, copies: int, block: int) -> Tensor:
    """[S, S] bool, True = visible, for `clean[:clean_length]` followed by `copies` noisy copies of [first, length).

    A clean position sees clean blocks up to its own; a noisy one the clean blocks before its own, and its own noisy
    block (BD3-LM, section 3.2).
    """
    noisy = torch.arange(first, length)
    blocks = torch.cat([torch.arange(clean_length), noisy.repeat(copies)]) // block
    copy = torch.cat([torch.zeros(clean_length), 1 + torch.arange(copies).repeat_interleave(len(noisy))])
    clean_key = copy[None, :] == 0
    from_clean = clean_key & (copy[:, None] == 0) & (blocks[None, :] <= blocks[:, None])
    from_noisy = clean_key & (copy[:, None] > 0) & (blocks[None, :] < blocks[:, None])
    own = (copy[:, None] == copy[None, :]) & ~clean_key & (blocks[:, None] == blocks[None, :])
    return from_clean | from_noisy | own


def _loss(model: Qwen3ForCausalLM, batch: Batch, config: Qwen3Config) -> Tensor:
    length, block = batch.clean.shape[1], config.block_size
    copies, span = batch.noisy.shape[1:]
    first, clean_length = length - span, length - block  # nothing sees the last clean block
    visible = block_diffusion_mask(clean_length, first, length, copies, block)
    bias = torch.zeros(visible.shape).masked_fill(~visible, -math.inf)[None, None]
    tokens = torch.cat([batch.clean[:, :clean_length], batch.noisy.flatten(1)], 1)
    positions = torch.cat([torch.arange(clean_length), torch.arange(first, length).repeat(copies)])
    hidden = model.model(
        input_ids=tokens, attention_mask=bias, position_ids=positions.expand(len(tokens), -1), use_cache=False
    ).last_hidden_state[:, clean_length:]
    weight = batch.weight.flatten(1)
    masked = weight > 0
    labels = batch.clean[:, None, first:].expand(-1, copies, -1).flatten(1)
    losses = F.cross_entropy(model.lm_head(hidden[masked]), labels[masked], reduction="none")
    return (losses * weight[masked]).sum() / weight.sum()


def _round_up(n: int, multiple: int) -> int:
    return -(-n // multiple) * multiple


# ---- optimisation and checkpoints


def _schedule(step: int, settings: TrainSettings) -> float:
    first, last = (settings.restart, settings.steps) if step >= settings.restart else (0, settings.restart)
    warm = min(1.0, (step - first + 1) / settings.warmup)
    return warm * (0.01 + 0.99 * 0.5 * (1 + math.cos(math.pi * (step - first) / (last - first))))


def _save_state(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, settings, step: int) -> None:
    tensors = {f"model/{name}": p.detach() for name, p in model.named_parameters()}
    for index, slots in optimizer.state_dict()["state"].items():
        tensors |= {f"optimizer/{index}/{slot}": value for slot, value in slots.items()}
    folder.mkdir(parents=True, exist_ok=True)
    header = {"step": str(step), "settings": json.dumps(asdict(settings))}
    save_file(tensors, folder / "state.partial", header)
    (folder / "state.partial").rename(folder / "state.safetensors")


def _restore(folder: Path, model: nn.Module, optimizer: torch.optim.Optimizer, settings) -> int:
    """The number of steps already done: 0 without a saved state."""
    path = folder / "state.safetensors"
    if not path.exists():
        return 0
    with safe_open(path, "pt") as file:
        header = file.metadata()
    if json.loads(header["settings"]) != asdict(settings):
        raise ValueError(f"{path}: made with other settings; remove it to start over")
    weights: dict[str, Tensor] = {}
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in load_file(path).items():
        kind, rest = name.split("/", 1)
        if kind == "model":
            weights[rest] = value
        else:
            index, slot = rest.split("/")
            slots.setdefault(int(index), {})[slot] = value
    model.load_state_dict(weights, strict=False)  # the tied head is stored once, as the embedding
    optimizer.load_state_dict({"state": slots, "param_groups": optimizer.state_dict()["param_groups"]})
    return int(header["step"])


def save_checkpoint(
    out: Path, model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, settings: TrainSettings
) -> None:
    """Write config.json (SDAR's keys), model.safetensors and the tokenizer, as the published checkpoints have them."""
    out.mkdir(parents=True, exist_ok=True)
    config = published_config(model.config) | {"torch_dtype": settings.dtype}
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n")
    weights = {name: p.detach().to(DTYPES[settings.dtype]).contiguous() for name, p in model.named_parameters()}
    save_file(weights, out / "model.safetensors", {"format": "pt", "training": json.dumps(asdict(settings))})
    tokenizer.save_pretrained(out)


def published_config(config: Qwen3Config) -> dict:
    """config.json with the keys that SDAR's own has, its training copy's `block_size` and `mask_token_id` included."""
    names = (
        "vocab_size hidden_size intermediate_size num_hidden_layers num_attention_heads num_key_value_heads head_dim "
        "max_position_embeddings rms_norm_eps tie_word_embeddings attention_bias hidden_act eos_token_id pad_token_id "
        "block_size mask_token_id"
    )
    fixed = {"architectures": ["SDARForCausalLM"], "model_type": "sdar"}
    return (
        fixed
        | {name: getattr(config, name) for name in names.split()}
        | {"rope_theta": config.rope_parameters["rope_theta"]}
    )
