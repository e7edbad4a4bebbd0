"""Our draft-free decoder beside the obvious loop: tokens a second of both, and whether the tokens agree.

    OMP_NUM_THREADS=1 python benchmarks/draft_free.py
    OMP_NUM_THREADS=1 python benchmarks/draft_free.py --models sdar-100m --prompts 6 --gen-length 64

The loop is what one writes over transformers' Qwen3 and its cache: a prefill, a forward of the open block for each
denoising step, after which the cache is cropped back, and one more forward that stores a block when it is full. First
it has to reproduce the SDAR authors' own trajectories (tests/golden). T = 0, one commit a step; both decode each prompt
back to back, in alternate order, with equal weights and threads. Writes benchmarks/results/draft-free.md.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoTokenizer, DynamicCache, Qwen3ForCausalLM

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from decode import machine  # noqa: E402
from forward import SHAPES, fill, skeleton  # noqa: E402

from orchestrator.results import Terms, ratio  # noqa: E402
from spot import targets  # noqa: E402
from spot.decoder import Settings, decode  # noqa: E402
from spot.noise import Noise  # noqa: E402
from spot.targets import sdar  # noqa: E402
from spot.targets.checkpoint import read_config  # noqa: E402
from spot.targets.protocol import Target  # noqa: E402
from workers.tasks import arith  # noqa: E402

MODELS = ("tiny-sdar", "sdar-100m")
GOLDEN = ROOT / "tests" / "golden" / "sdar"
COLUMNS = ["model", "prompts", "tokens", "ours, tokens/s", "the loop, tokens/s", "ratio (95 %)", "tokens agree"]


@torch.inference_mode()
def obvious(model: Qwen3ForCausalLM, prompt: list[int], gen_length: int, size: int, mask_id: int) -> list[int]:
    """The text, prompt and all its blocks, by stock transformers alone."""
    device, first = model.device, len(prompt) // size * size
    total = -(-(len(prompt) + gen_length) // size) * size
    x = torch.full((1, total), mask_id, device=device)
    x[0, : len(prompt)] = torch.tensor(prompt, device=device)
    block = torch.arange(total, device=device) // size
    hidden = block[:, None] < block[None, :]
    mask = torch.zeros(1, 1, total, total, dtype=model.dtype, device=device).masked_fill(hidden, -torch.inf)
    cache = DynamicCache(config=model.config)

    def store(start: int, end: int) -> None:
        seen = mask[:, :, start:end, :end]
        model(x[:, start:end], attention_mask=seen, cache=cache, use_cache=True, logits_to_keep=1)

    if first:
        store(0, first)
    for start in range(first, total, size):
        opened, seen = x[:, start : start + size], mask[:, :, start : start + size, : start + size]
        while (masked := opened == mask_id).any():
            logits = model(opened, attention_mask=seen, cache=cache, use_cache=True).logits
            cache.crop(-size)
            confidence, token = logits.float().softmax(-1).max(-1)
            best = confidence.masked_fill(~masked, -torch.inf).argmax(-1, keepdim=True)
            opened.scatter_(1, best, token.gather(1, best))
        store(start, start + size)
    return x[0].tolist()


def ours(target: Target, prompt: list[int], gen_length: int) -> list[int]:
    """The same text by our decoder."""
    found = decode(target, prompt, Settings(gen_length, stop="length"), Noise(0))
    return prompt + [token for _, token in sorted(found.commits)]


def stock(folder: Path) -> Qwen3ForCausalLM:
    """transformers' own model with an SDAR checkpoint's weights."""
    model = Qwen3ForCausalLM(sdar.qwen3_config(read_config(folder, sdar.MODEL_TYPE)))
    model.load_state_dict(load_file(folder / "model.safetensors"), strict=not model.config.tie_word_embeddings)
    return model.eval()


def golden_runs() -> int:
    """How many of the authors' runs the loop reproduces: all those of one commit a step, or it is no control."""
    runs = json.loads((GOLDEN / "golden_decode.json").read_text())["runs"]
    runs = [run for run in runs if run["name"].endswith((".static.b8", ".static.b4"))]
    model, mask_id = stock(GOLDEN), read_config(GOLDEN, sdar.MODEL_TYPE)["mask_token_id"]
    for run in runs:
        given = run["params"]
        found = obvious(model, run["prompt_ids"], given["gen_length"], given["block_length"], mask_id)
        if found != run["output_ids"]:
            raise SystemExit(f"the loop does not reproduce {run['name']}")
    return len(runs)


@contextmanager
def checkpoint(name: str) -> Iterator[Path]:
    """The bundled model's folder, or one with a random model in the published layout."""
    if name == "tiny-sdar":
        yield ROOT / "assets" / name
        return
    published = SHAPES[name][1]
    mask_id = published["vocab_size"] - 1
    torch.manual_seed(0)
    model = skeleton(name, torch.float32)[1]
    fill(model, "cpu")
    with torch.no_grad():
        model.lm_head.weight[mask_id] = 0  # the loop goes on until no mask is left, so none may be written
    with tempfile.TemporaryDirectory() as folder:
        extra = {"model_type": sdar.MODEL_TYPE, "mask_token_id": mask_id, "eos_token_id": 0}
        Path(folder, "config.json").write_text(json.dumps(published | extra))
        save_file(model.state_dict(), Path(folder, "model.safetensors"))
        del model
        yield Path(folder)


def prompts_of(name: str, folder: Path, count: int) -> list[list[int]]:
    """Problems of arith through the chat template, or random tokens where there is no tokenizer."""
    if not (folder / "tokenizer.json").exists():
        drawn = np.random.default_rng(0)
        return [drawn.integers(1, SHAPES[name][1]["vocab_size"] - 1, 60 + 7 * n).tolist() for n in range(count)]
    tokenizer = AutoTokenizer.from_pretrained(folder)
    turns = [[{"role": "user", "content": row.prompt}] for row in arith.rows(count)]
    texts = [tokenizer.apply_chat_template(turn, add_generation_prompt=True, tokenize=False) for turn in turns]
    return [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def compare(name: str, asked: argparse.Namespace) -> list[str]:
    """The table's line of a model."""
    with checkpoint(name) as folder:
        target = targets.load("sdar", folder, asked.block, torch.float32, asked.device)
        model = stock(folder).to(asked.device)
        prompts = prompts_of(name, folder, asked.prompts)
    methods = {
        "ours": lambda prompt: ours(target, prompt, asked.gen_length),
        "loop": lambda prompt: obvious(model, prompt, asked.gen_length, asked.block, target.config.mask_id),
    }
    seconds, agree, tokens = np.zeros((len(prompts), 2)), 0, 0
    for method in methods.values():
        method(prompts[0])
    for number, prompt in enumerate(prompts):
        print(f"\r{name}: prompt {number + 1}", end="", file=sys.stderr, flush=True)
        spent: dict[str, list[float]] = {"ours": [], "loop": []}
        texts: dict[str, list[int]] = {}
        for turn in range(asked.repeats):
            for label in ("ours", "loop") if (number + turn) % 2 else ("loop", "ours"):
                started = time.perf_counter()
                texts[label] = methods[label](prompt)  # a list: on the host when it is returned
                spent[label].append(time.perf_counter() - started)
        seconds[number] = [statistics.median(spent["ours"]), statistics.median(spent["loop"])]
        agree += texts["ours"] == texts["loop"]
        tokens += len(texts["loop"]) - len(prompt)
    print(file=sys.stderr)
    mine, theirs = seconds.sum(0)
    _, low, high = ratio([Terms(np.arange(len(seconds)), seconds[:, 1], seconds[:, 0])])
    interval = f" ({low:.2f}–{high:.2f})" if low is not None else ""
    speeds = [f"{tokens / mine:.1f}", f"{tokens / theirs:.1f}", f"{theirs / mine:.2f}{interval}"]
    return [name, str(len(prompts)), str(tokens), *speeds, f"{agree}/{len(prompts)}"]


def main(arguments: list[str]) -> None:
    asked = _parse(arguments)
    golden = golden_runs()
    rows = [compare(name, asked) for name in asked.models]
    command = " ".join(["python benchmarks/draft_free.py", *arguments])
    head = (
        f"# draft-free\n\n`{command}`\n\n{machine()}; {asked.device}, float32, {torch.get_num_threads()} thread(s).\n\n"
        f"T = 0, one commit a step, block length {asked.block}, {asked.gen_length} tokens and what is left of the last "
        f"block; medians of {asked.repeats} decodings a prompt. The loop reproduces {golden} of the authors' runs.\n\n"
    )
    lines = [COLUMNS, ["---"] + ["---:"] * (len(COLUMNS) - 1), *rows]
    text = head + "".join(f"| {' | '.join(line)} |\n" for line in lines)
    print(text)
    (ROOT / "benchmarks" / "results" / "draft-free.md").write_text(text)


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--prompts", type=int, default=12)
    parser.add_argument("--gen-length", type=int, default=96)
    parser.add_argument("--repeats", type=int, default=1)
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
