"""What a verification pass costs beside a draft-free one: by model shape, prefix, number of states and layout.

    OMP_NUM_THREADS=1 python benchmarks/forward.py                        # tiny-sdar and 100M parameters on the CPU
    python benchmarks/forward.py --shape sdar-8b llada-8b --device cuda --prefix 512 2048 --states 1 9 21 65

Weights are random, of the real shapes; a shape that does not fit in memory is skipped with a line that says so. One
state is the draft-free pass, N + 1 states a budget of N. Each turn times every pass over a shape and prefix, and ratios
are medians of those within a turn, so that a busy machine slows both sides. Prints a Markdown table; --out writes it to
a file too.

On CUDA the last column is the time over the least that memory bandwidth allows: the bytes of the weights and of the
cache that the pass reads, over the bandwidth of a copy measured in the same run.
"""

import argparse
import random
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from decode import machine  # noqa: E402

from spot.targets.checkpoint import free_bytes, read_config  # noqa: E402
from spot.targets.protocol import LAYOUTS, Target, TargetConfig  # noqa: E402
from workers.memory import peak_bytes, reset_peak  # noqa: E402

_CHUNK = 512  # tokens of a prefix that are stored at a time, so that the scores of a long one take little memory


def _sdar(hidden: int, mlp: int, layers: int, heads: int, kv_heads: int, head_dim: int, vocab: int) -> dict[str, Any]:
    return {
        "vocab_size": vocab, "hidden_size": hidden, "intermediate_size": mlp, "num_hidden_layers": layers,
        "num_attention_heads": heads, "num_key_value_heads": kv_heads, "head_dim": head_dim, "hidden_act": "silu",
        "max_position_embeddings": 32768, "rms_norm_eps": 1e-6, "rope_theta": 1e6, "tie_word_embeddings": False,
        "attention_bias": False,
    }  # fmt: skip


SHAPES: dict[str, tuple[str, dict[str, Any]]] = {
    "tiny-sdar": ("sdar", read_config(ROOT / "assets" / "tiny-sdar", "sdar")),
    "sdar-100m": ("sdar", _sdar(768, 2048, 12, 12, 4, 64, 16384)),
    "sdar-1.7b": ("sdar", _sdar(2048, 6144, 28, 16, 8, 128, 151936)),
    "sdar-4b": ("sdar", _sdar(2560, 9728, 36, 32, 8, 128, 151936)),
    "sdar-8b": ("sdar", _sdar(4096, 12288, 36, 32, 8, 128, 151936)),
    "llada2-mini": ("llada2", {
        "vocab_size": 157184, "hidden_size": 2048, "intermediate_size": 5120, "num_hidden_layers": 20,
        "num_attention_heads": 16, "num_key_value_heads": 4, "head_dim": 128, "max_position_embeddings": 32768,
        "rms_norm_eps": 1e-6, "rope_theta": 6e5, "partial_rotary_factor": 0.5, "tie_word_embeddings": False,
        "hidden_act": "silu", "moe_intermediate_size": 512, "num_experts": 256, "num_experts_per_tok": 8,
        "num_shared_experts": 1, "n_group": 8, "topk_group": 4, "routed_scaling_factor": 2.5, "norm_topk_prob": True,
        "first_k_dense_replace": 1,
    }),
    "llada-8b": ("llada", {
        "vocab_size": 126464, "d_model": 4096, "mlp_hidden_size": 12288, "n_layers": 32, "n_heads": 32,
        "n_kv_heads": 32, "max_sequence_length": 4096, "rms_norm_eps": 1e-5, "rope_theta": 5e5,
    }),
    "dream-7b": ("dream", {
        "vocab_size": 152064, "hidden_size": 3584, "intermediate_size": 18944, "num_hidden_layers": 28,
        "num_attention_heads": 28, "num_key_value_heads": 4, "max_position_embeddings": 131072, "rms_norm_eps": 1e-6,
        "rope_theta": 1e6, "tie_word_embeddings": False, "hidden_act": "silu",
    }),
}  # fmt: skip
"""Family and config.json, as published, by name; sdar-100m is nobody's."""


@dataclass(frozen=True)
class Case:
    """A kind of pass. `ready` precedes every `run` and is not timed; `tokens` [T] go through the layers.

    `cached` positions are read from the cache. `label` is the layout, or says that it is the pass that makes the cache.
    """

    states: int
    label: str
    run: Callable[[], object]
    tokens: int
    cached: int
    ready: Callable[[], object] = lambda: None
    seconds: list[float] = field(default_factory=list)


def main(arguments: list[str]) -> None:
    asked = _parse(arguments)
    dtype = getattr(torch, asked.dtype or ("bfloat16" if asked.device == "cuda" else "float32"))
    bandwidth = copy_bandwidth() if asked.device == "cuda" else None
    lines = [_line(_columns(bandwidth)), _line(["---"] * 4 + ["---:"] * (len(_columns(bandwidth)) - 4))]
    skipped = []
    for shape in asked.shape:
        family, model = skeleton(shape, dtype)
        needed, free = needed_bytes(model, asked), free_bytes(asked.device)
        if free is not None and needed > free:
            skipped.append(
                f"{shape}: skipped; {needed / 1e9:.1f} GB needed, {free / 1e9:.1f} GB free on {asked.device}"
            )
            print(skipped[-1], file=sys.stderr)
            continue
        fill(model, asked.device)
        target = family.target(model, TargetConfig(asked.block, family.MASK_ID, frozenset(), family.BLOCK_CAUSAL))
        for prefix in asked.prefix:
            cases = passes(target, model.config.vocab_size, prefix, asked)
            peaks = [_measure_peak(case, asked.device) for case in cases]
            measure(cases, asked)
            print(f"{shape}, prefix {prefix}: {len(cases[0].seconds)} turns", file=sys.stderr)
            for case, peak in zip(cases, peaks, strict=True):
                lines.append(_line(_row(shape, model, prefix, case, cases[0], peak, bandwidth)))
        del model, target, cases
        if asked.device == "cuda":
            torch.cuda.empty_cache()
    text = "".join(f"{line}\n" for line in [*_head(arguments, asked, bandwidth), *lines, *(f"\n{s}." for s in skipped)])
    print(text)
    if asked.out:
        asked.out.write_text(text)


def skeleton(shape: str, dtype: torch.dtype) -> tuple[Any, PreTrainedModel]:
    """The family's module, and a shape's stock model on the meta device."""
    name, published = SHAPES[shape]
    family = import_module(f"spot.targets.{name}")
    with torch.device("meta"):
        return family, family.build(published).to(dtype)


def fill(model: PreTrainedModel, device: str) -> None:
    """Move a model from the meta device, with random weights: norms are 1, biases of routers 0."""
    model.to_empty(device=device)
    with torch.no_grad():
        for name, weight in model.named_parameters():
            weight.fill_(1) if "norm" in name else weight.normal_(0, 0.02)
        for buffer in model.buffers():
            buffer.zero_()
    rotary = model.model.rotary_emb
    model.model.rotary_emb = type(rotary)(model.config).to(device)  # its buffers are computed, not stored
    if model.config.tie_word_embeddings:
        model.lm_head.weight = model.model.embed_tokens.weight


def needed_bytes(model: PreTrainedModel, asked: argparse.Namespace) -> int:
    """Weights, a cache a layout and what the largest pass holds at once; an estimate from above."""
    size, most = model.dtype.itemsize, max(asked.states)
    weights = sum(tensor.numel() for tensor in [*model.parameters(), *model.buffers()])
    longest, config = max(asked.prefix) + asked.block, model.config
    cache = (len(asked.layout) + 1) * longest * _cache_elements(model)
    rows = max(most * asked.block, longest)  # the pass that makes an approximate cache computes the whole text
    scores = config.num_attention_heads * rows * (longest + (most - 1) * asked.block)
    logits = most * asked.block * config.vocab_size
    return (weights + cache) * size + (3 * scores + 2 * logits) * (size + 4)


def passes(loaded: Target, vocabulary: int, prefix: int, asked: argparse.Namespace) -> list[Case]:
    """All the passes over one prefix; the first is the draft-free one, which the others are compared with."""
    drawn = torch.Generator().manual_seed(0)
    # no masks: alike tokens would all go to the same few experts
    tokens = torch.randint(vocabulary, (prefix + max(asked.states) * asked.block,), generator=drawn)
    text, nodes = tokens[:prefix].tolist(), tokens[prefix:].view(-1, asked.block).to(asked.device)
    targets = {layout: copy(loaded) for layout in dict.fromkeys(["batch", *asked.layout])}
    cases = []
    for layout, target in targets.items():
        _store(target, text, layout)
        target(nodes[:1])  # where the cache is approximate, this is what makes it
        for states in asked.states if layout in asked.layout else []:
            cases.append(Case(states, layout, _pass(target, nodes[:states]), states * asked.block, prefix))
    cases.sort(key=lambda case: (case.states, case.label))
    if not cases or (cases[0].states, cases[0].label) != (1, "batch"):
        cases.insert(0, Case(1, "batch", _pass(targets["batch"], nodes[:1]), asked.block, prefix))
    if not loaded.config.block_causal:
        first = copy(loaded)
        cases.append(
            Case(1, "refresh", _pass(first, nodes[:1]), prefix + asked.block, 0, ready=lambda: first.prefill(text))
        )
    return cases


def measure(cases: list[Case], asked: argparse.Namespace) -> None:
    """Time the cases in turns, each turn in an order of its own, as a pass finds the caches that the last one left."""
    drawn, started = random.Random(0), time.perf_counter()
    while len(cases[0].seconds) < asked.repeats or time.perf_counter() - started < asked.seconds:
        for case in drawn.sample(cases, len(cases)):
            case.seconds.append(timed(case, asked.device))


def _pass(target: Target, nodes: Tensor) -> Callable[[], Tensor]:
    return lambda: target(nodes)


def _store(target: Target, text: list[int], layout: str) -> None:
    """Give a target its prefix: block by block where the cache is exact."""
    if not target.config.block_causal:
        target.prefill(text, layout)
        return
    target.prefill([], layout)
    size = target.config.block_length
    step = max(1, _CHUNK // size) * size
    for start in range(0, len(text), step):
        target.advance(torch.tensor(text[start : start + step], device=target.device))
        target(torch.empty(0, size, dtype=torch.long, device=target.device))


def timed(case: Case, device: str) -> float:
    """Seconds of one pass, from an idle device to the end of its last kernel."""
    case.ready()
    if device == "cuda":
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda.synchronize()
        start.record()
        case.run()
        end.record()
        end.synchronize()
        return start.elapsed_time(end) / 1000
    started = time.perf_counter()
    case.run()
    return time.perf_counter() - started


def copy_bandwidth(size: int = 1 << 30) -> float:
    """Bytes a second that a copy on the CUDA device reads and writes."""
    source = torch.empty(size, dtype=torch.uint8, device="cuda")
    to = torch.empty_like(source)
    case = Case(0, "copy", lambda: to.copy_(source), 0, 0)
    timed(case, "cuda")
    return 2 * size / statistics.median(timed(case, "cuda") for _ in range(20))


def read_bytes(model: PreTrainedModel, case: Case) -> float:
    """Bytes of the weights and of the cache that a pass reads: of experts, those that random routing would choose.

    Embeddings are not counted, of which a pass reads a row a token, unless they are the head too.
    """
    config = model.config
    head = model.lm_head.weight if config.tie_word_embeddings else None
    weights = sum(
        weight.numel() * _share(config, name, case.tokens)
        for name, weight in model.named_parameters()
        if "embed_tokens" not in name or head is not None
    )
    return (weights + case.cached * _cache_elements(model)) * model.dtype.itemsize


def _share(config: Any, name: str, tokens: int) -> float:
    """The expected share of a tensor that `tokens` tokens use."""
    if ".experts." not in name:
        return 1.0
    return 1 - (1 - config.num_experts_per_tok / config.n_routed_experts) ** tokens


def _cache_elements(model: PreTrainedModel) -> int:
    """Of keys and values, a position."""
    config = model.config
    return 2 * config.num_hidden_layers * config.num_key_value_heads * model.model.layers[0].self_attn.head_dim


def _measure_peak(case: Case, device: str) -> int | None:
    """The peak memory of a pass, which is its first one: it may load and choose kernels, and is not timed."""
    reset_peak(device)
    timed(case, device)
    return peak_bytes(device)


def _columns(bandwidth: float | None) -> list[str]:
    last = ["ratio to the floor"] if bandwidth else []
    return ["shape", "parameters", "dtype", "layout", "prefix", "states", "ms", "ratio", "peak MB", *last]


def _row(
    shape: str, model: PreTrainedModel, prefix: int, case: Case, free: Case, peak: int | None, bandwidth: float | None
) -> list[str]:
    parameters = sum(weight.numel() for weight in model.parameters())
    count = f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.1f} M"
    seconds = statistics.median(case.seconds)
    ratio = statistics.median(one / other for one, other in zip(case.seconds, free.seconds, strict=True))
    dtype = str(model.dtype).removeprefix("torch.")
    cells = [shape, count, dtype, case.label, str(prefix), str(case.states), f"{1000 * seconds:.2f}"]
    cells += [f"{ratio:.2f}", f"{peak / 1e6:.0f}" if peak else "–"]
    return cells + ([f"{seconds * bandwidth / read_bytes(model, case):.2f}"] if bandwidth else [])


def _head(arguments: list[str], asked: argparse.Namespace, bandwidth: float | None) -> Iterator[str]:
    command = " ".join(["python benchmarks/forward.py", *arguments])
    yield f"# forward\n\n`{command}`\n"
    if bandwidth:
        yield f"{torch.cuda.get_device_name()}, which copies {bandwidth / 1e9:.0f} GB/s; {machine()}.\n"
    else:
        yield f"{machine()}; {torch.get_num_threads()} thread(s).\n"
    yield (
        f"Medians of at least {asked.repeats} turns over random weights; block length {asked.block}. One state is the "
        "draft-free pass; ratios are to it in the same turn, at the same shape and prefix.\n"
    )


def _line(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", nargs="+", choices=SHAPES, default=["tiny-sdar", "sdar-100m"])
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--dtype", choices=["float32", "bfloat16", "float16"], help="bfloat16 on CUDA, else float32")
    parser.add_argument("--prefix", nargs="+", type=int, default=[128, 512], help="a multiple of the block length")
    parser.add_argument("--states", nargs="+", type=int, default=[1, 2, 5, 9, 21])
    parser.add_argument("--layout", nargs="+", choices=LAYOUTS, default=list(LAYOUTS))
    parser.add_argument("--repeats", type=int, default=9, help="turns, at least")
    parser.add_argument("--seconds", type=float, default=20, help="turns of a shape and prefix go on at least so long")
    parser.add_argument("--block", type=int, default=32)
    parser.add_argument("--out", type=Path)
    asked = parser.parse_args(arguments)
    for name in ("prefix", "states", "repeats", "block"):
        values = getattr(asked, name)
        if min(values if isinstance(values, list) else [values]) < 1:
            parser.error(f"--{name}: at least 1")
    if any(prefix % asked.block for prefix in asked.prefix):
        parser.error(f"--prefix: not a multiple of the block length {asked.block}")
    return asked


if __name__ == "__main__":
    main(sys.argv[1:])
