"""A target on this machine: memory, speed, rounding, what is known of its order, and what a pass costs by its nodes.

    python launch.py probe tiny-sdar

Texts are decoded as in a sweep: control and drafted back to back, warmed, their differences judged. Logits and passes
are of the block after the first prompt's whole ones (after all of it, if the target is not block-causal).
"""

import platform
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor

from spot import analysis
from spot.commit import choose
from spot.decoder import Settings, next_states
from spot.drafters.protocol import Drafter
from spot.drafters.spot import Spot
from spot.drafters.spot_auto import SpotAuto
from spot.noise import Noise
from spot.order_model import OrderModel
from spot.targets.checkpoint import free_bytes
from spot.targets.protocol import LAYOUTS, Target
from spot.tree import State
from spot.verdict import TOLERANCE
from workers.work import DecodeSpec, ModelSpec, SampleTask
from workers.worker import Worker, checkpoint_folder, decode_settings, environment

FORMAT = 1  # raised when the findings' fields change
NODES = (1, 2, 3, 5, 9, 21, 65)
COMPARED = (1, 9, 21)  # the control, and budgets 8 and 20
REPEATS = 5
_CPUINFO = Path("/proc/cpuinfo")
Say = Callable[[str], None]


@dataclass(frozen=True)
class Memory:
    """Bytes: free on the device before loading, the weights', and the most while decoding (see workers/memory.py)."""

    free: int | None
    weights: int
    peak: int | None


@dataclass(frozen=True)
class Decoded:
    """The prompts at one budget; 0 is draft-free. Ratios are the control's passes, and seconds, over these.

    `pass_seconds` are all of decoding, prefill and drafting included, a pass. The throughput ratio is of the texts that
    are `identical` to the control's; how many are not, by verdict (numeric, bug), is `different`.
    """

    budget: int
    nfe: float
    nfe_ratio: float
    accepted: float | None
    tokens_per_second: float
    throughput_ratio: float | None
    pass_seconds: float
    identical: int
    different: dict[str, int]


@dataclass(frozen=True)
class Difference:
    """How far, at most, `nodes` states' logits in one pass in `layout` are from those that each has alone, in a row."""

    layout: str
    nodes: int
    largest: float


@dataclass(frozen=True)
class Rounding:
    """`largest_logit` of the compared states; differences up to `tolerance` are rounding to spot/verdict.py."""

    largest_logit: float
    tolerance: float
    differences: tuple[Difference, ...]


@dataclass(frozen=True)
class Share:
    """How often one of spot.analysis.MEASURES is right, by the number of commits since its table, less one."""

    measure: str
    by_depth: list[float | None]


@dataclass(frozen=True)
class PassSeconds:
    """Seconds of a pass with so many nodes, the step rule included, and their ratio to one node's; None: no memory."""

    nodes: int
    seconds: float | None
    ratio: float | None


@dataclass(frozen=True)
class Findings:
    """What a probe writes. `accuracy` is empty for the threshold rule, which has no single next position."""

    format: int
    model: str
    family: str
    revision: str
    block_length: int
    dtype: str
    device: str
    threads: int
    machine: dict[str, Any]
    made: str
    task: str
    rows: tuple[str, ...]
    drafter: str
    drafter_sha: str | None
    decode: DecodeSpec
    parameters: int
    load_seconds: float
    memory: Memory
    decoded: tuple[Decoded, ...]
    rounding: Rounding
    accuracy: tuple[Share, ...]
    passes: tuple[PassSeconds, ...]

    def as_dict(self) -> dict[str, Any]:
        """Plain values, for JSON."""
        return asdict(self)


@dataclass(frozen=True)
class Loaded:
    """A worker, the seconds that it took to load, and the bytes that were free before."""

    model: ModelSpec
    worker: Worker
    seconds: float
    free: int | None


def load(model: ModelSpec, say: Say) -> Loaded:
    """The worker of `model`. A checkpoint that is not on this machine is fetched first, and that is not timed."""
    say(f"loading {model.name} on {model.device} …")
    checkpoint_folder(model)
    free, began = free_bytes(model.device), time.perf_counter()
    return Loaded(model, Worker(model), time.perf_counter() - began, free)


def probe(loaded: Loaded, tasks: Sequence[SampleTask], say: Say) -> Findings:
    """Decode `tasks`, which ask for the control and one drafter at several budgets, and measure.

    Raises ValueError where a text could not be decoded.
    """
    model, worker, task = loaded.model, loaded.worker, tasks[0]
    drafter = task.methods[0].drafter
    assert drafter is not None
    records = list(_decode(worker, tasks, say))
    settings, prompt = decode_settings(task.decode, None), worker.prompt_ids(task.prompt)
    accuracy = _accuracy(worker, tasks, settings, say)
    say("comparing logits …")
    rounding = compare_logits(worker.target, prompt, settings)
    say(f"timing passes of 1 to {NODES[-1]} nodes …")
    passes = time_passes(worker.target, prompt, settings)
    parameters, weights = _size(worker.target)
    peaks = [record["peak_bytes"] for _, record in records if record["peak_bytes"] is not None]
    return Findings(
        format=FORMAT,
        model=model.name,
        family=model.family,
        revision=model.revision,
        block_length=model.block_length,
        dtype=model.dtype,
        device=model.device,
        threads=model.threads,
        machine=machine(model),
        made=time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        task=task.task,
        rows=tuple(task.row for task in tasks),
        drafter=drafter.name,
        drafter_sha=drafter.sha,
        decode=task.decode,
        parameters=parameters,
        load_seconds=loaded.seconds,
        memory=Memory(loaded.free, weights, max(peaks, default=None)),
        decoded=_by_budget(records),
        rounding=rounding,
        accuracy=accuracy,
        passes=passes,
    )


def machine(model: ModelSpec) -> dict[str, Any]:
    """What sweep.yaml says of the environment, and the device's `name`."""
    about = environment(model)
    return about | {"name": about["device"] if model.device == "cuda" else _processor()}


def _processor() -> str:
    found = re.search(r"model name\s*: (.+)", _CPUINFO.read_text()) if _CPUINFO.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _size(target: Any) -> tuple[int, int]:
    """How many parameters, and their bytes with the buffers'."""
    parameters = list(target.parameters())
    return sum(p.numel() for p in parameters), sum(
        t.numel() * t.element_size() for t in [*parameters, *target.buffers()]
    )


# ---- texts


def _decode(worker: Worker, tasks: Sequence[SampleTask], say: Say) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """The budget and the record of every cell."""
    for number, task in enumerate(tasks, start=1):
        say(f"decoding {number}/{len(tasks)} …")
        methods = ([task.control] if task.control else []) + list(task.methods)
        for method, record in zip(methods, worker.sample(task), strict=True):
            if record["status"] != "ok":
                raise ValueError(f"row {task.row} at budget {method.budget}: {record['error']}")
            yield method.budget, record


def _by_budget(records: Sequence[tuple[int, Mapping[str, Any]]]) -> tuple[Decoded, ...]:
    budgets = sorted({budget for budget, _ in records})
    return tuple(_decoded(budget, [record for b, record in records if b == budget]) for budget in budgets)


def _decoded(budget: int, records: list[Mapping[str, Any]]) -> Decoded:
    nfe, drafted = _sum(records, "nfe"), _sum(records, "drafted_passes")
    seconds = [sum(record["seconds"].values()) for record in records]
    pairs = [(r["control_seconds"], own) for r, own in zip(records, seconds, strict=True) if r["identical"]]
    verdicts = [record["difference"] for record in records if not record["identical"]]
    return Decoded(
        budget=budget,
        nfe=nfe / len(records),
        nfe_ratio=_sum(records, "control_nfe") / nfe,
        accepted=_sum(records, "accepted") / drafted if drafted else None,
        tokens_per_second=_sum(records, "length") / sum(seconds),
        throughput_ratio=sum(c for c, _ in pairs) / sum(own for _, own in pairs) if pairs else None,
        pass_seconds=sum(seconds) / nfe,
        identical=len(pairs),
        different={verdict: verdicts.count(verdict) for verdict in sorted(set(verdicts))},
    )


def _sum(records: list[Mapping[str, Any]], field: str) -> int:
    return sum(record[field] for record in records)


def _accuracy(worker: Worker, tasks: Sequence[SampleTask], settings: Settings, say: Say) -> tuple[Share, ...]:
    if settings.threshold is not None:
        return ()

    def texts() -> Iterator[tuple[list[int], Noise]]:
        for number, task in enumerate(tasks, start=1):
            say(f"watching {number}/{len(tasks)} …")
            yield worker.prompt_ids(task.prompt), Noise.keyed(task.decode.seed, task.task, task.row)

    order = _order_model(worker.drafter(tasks[0], tasks[0].methods[0]))
    found = analysis.measure(worker.target, texts(), settings, order)
    # at T = 0 the coupled sample is the stale table's own best token
    return tuple(Share(name, found.by_depth(name)) for name in found.hits if name != analysis.NOISE_AWARE)


def _order_model(drafter: Drafter) -> OrderModel | None:
    drafter = drafter.spot if isinstance(drafter, SpotAuto) else drafter
    return drafter.order if isinstance(drafter, Spot) else None


# ---- passes


@torch.inference_mode()
def compare_logits(target: Target, prompt: list[int], settings: Settings) -> Rounding:
    """The same states alone and among others, in both layouts: where these differ, texts may (design.md §3)."""
    _, states = _open(target, prompt, settings, "batch", max(COMPARED))
    alone = torch.cat([_exact(target(_nodes(target, [state]))) for state in states])
    dtype = target(_nodes(target, states[:1])).dtype
    differences = []
    for layout in LAYOUTS:
        _open(target, prompt, settings, layout, 1)
        for count in COMPARED:
            together = _exact(target(_nodes(target, states[:count])))
            differences.append(Difference(layout, count, (together - alone[:count]).abs().max().item()))
    largest = alone.abs().max().item()
    return Rounding(largest, TOLERANCE[dtype] * max(largest, 1.0), tuple(differences))


def time_passes(target: Target, prompt: list[int], settings: Settings) -> tuple[PassSeconds, ...]:
    """The median of REPEATS passes at each of NODES, in turn, after one of each that warms.

    Where memory does not suffice for a pass, it and larger ones have no seconds.
    """
    start, states = _open(target, prompt, settings, settings.layout, NODES[-1])
    seconds: dict[int, list[float]] = {count: [] for count in NODES}
    for _ in range(1 + REPEATS):
        for count in list(seconds):
            try:
                seconds[count].append(_time_pass(target, states[:count], start, settings))
            except torch.OutOfMemoryError:
                seconds = {fewer: taken for fewer, taken in seconds.items() if fewer < count}
                break
    medians = {count: median(taken[1:]) for count, taken in seconds.items()}
    return tuple(
        PassSeconds(count, medians[count], medians[count] / medians[1])
        if count in medians
        else PassSeconds(count, None, None)
        for count in NODES
    )


@torch.inference_mode()
def _time_pass(target: Target, states: list[State], start: int, settings: Settings) -> float:
    began = time.perf_counter()
    logits = target(_nodes(target, states))
    next_states(logits, states, start, 0, target.config.mask_id, settings, Noise(0))  # waits for the device
    return time.perf_counter() - began


def _open(target: Target, prompt: list[int], settings: Settings, layout: str, count: int) -> tuple[int, list[State]]:
    """Begin the block after `prompt`'s whole ones: where it starts, and `count` states of it.

    Its first pass, which stores what comes before it, is made here.
    """
    size, mask_id = target.config.block_length, target.config.mask_id
    start = len(prompt) // size * size if target.config.block_causal else len(prompt)
    end = start + -(-settings.gen_length // size) * size
    target.prefill(prompt[:start], layout, settings.cache, end if settings.suffix == "keep" else None)
    logits = target(_nodes(target, [(mask_id,) * size]))
    tokens, _ = choose(logits[0], mask_id, 0.0, None)
    return start, _states(tokens.tolist(), mask_id, count)


def _states(tokens: list[int], mask_id: int, count: int) -> list[State]:
    """The k-th has `tokens` at the bits of k and masks elsewhere: no two alike, as long as a block has so many."""
    different = 2 ** len(tokens) - 1  # all but the full block
    numbers = (k % different for k in range(count))
    return [tuple(token if k >> place & 1 else mask_id for place, token in enumerate(tokens)) for k in numbers]


def _nodes(target: Target, states: list[State]) -> Tensor:
    return torch.tensor(states, device=target.device)


def _exact(logits: Tensor) -> Tensor:
    """In a dtype that holds differences of logits."""
    return logits.to(torch.promote_types(logits.dtype, torch.float32))
