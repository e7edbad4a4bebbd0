"""Draft-free traces: what the target saw before each commit, and where it committed. T = 0."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from spot.decoder import Settings, Visit, decode
from spot.drafters.protocol import StaleTable
from spot.noise import Noise
from spot.targets.protocol import Target


@dataclass(frozen=True)
class Trace:
    """One block of S commits. log_probs [S, B, 32] float32, masked [S, B] bool: table and mask before each commit.

    order [S] int64: the position committed. `block` is the block's index in the answer, 0 first.
    """

    log_probs: Tensor
    masked: Tensor
    order: Tensor
    block: int


def collect(target: Target, prompts: Iterable[list[int]], settings: Settings) -> list[Trace]:
    """The traces of every block that draft-free decoding of `prompts` (token ids) fills."""
    traces = []
    for prompt in prompts:
        tables: dict[int, list[StaleTable]] = {}

        def watch(visit: Visit, tables=tables) -> None:
            masked = torch.tensor(visit.state, device=visit.logits.device) == target.config.mask_id
            tables.setdefault(visit.start, []).append(StaleTable.read(visit.logits, masked, target.config.mask_id))

        commits = iter(decode(target, prompt, settings, Noise(0), watch=watch).commits)
        for block, (start, seen) in enumerate(tables.items()):
            order = torch.tensor([next(commits)[0] - start for _ in seen])
            log_probs = torch.stack([table.log_probs for table in seen]).cpu()
            traces.append(Trace(log_probs, torch.stack([table.masked for table in seen]).cpu(), order, block))
    return traces


def save_traces(traces: list[Trace], path: Path) -> None:
    """Write a shard: the traces end to end, with their lengths and blocks."""
    stacked = {name: torch.cat([getattr(trace, name) for trace in traces]) for name in ("log_probs", "masked", "order")}
    lengths = torch.tensor([len(trace.order) for trace in traces])
    save_file(stacked | {"lengths": lengths, "blocks": torch.tensor([trace.block for trace in traces])}, path)


def load_traces(path: Path) -> list[Trace]:
    shard = load_file(path)
    lengths = shard["lengths"].tolist()
    parts = (shard[name].split(lengths) for name in ("log_probs", "masked", "order"))
    return [Trace(*part) for part in zip(*parts, shard["blocks"].tolist(), strict=True)]
