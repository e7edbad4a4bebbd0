"""Draft-free traces: what the target saw before each step, and what it committed. T = 0."""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from spot.decoder import Settings, Visit, decode
from spot.drafters.protocol import StaleTable
from spot.noise import Noise
from spot.targets.protocol import Target


@dataclass(frozen=True)
class Trace:
    """One block filled in S steps: the stale tables before each step, and the masks before each step and at the end.

    log_probs [S, B, 32] float32 and indices [S, B, 32] int32 as `StaleTable` has them; masked [S + 1, B] bool, so that
    step s commits where masked[s] & ~masked[s + 1]; tokens [B] int32, the full block. `block` is the block's index in
    the answer, 0 first.
    """

    log_probs: Tensor
    indices: Tensor
    masked: Tensor
    tokens: Tensor
    block: int

    @property
    def steps(self) -> int:
        return len(self.log_probs)


def collect(target: Target, prompts: Iterable[list[int]], settings: Settings) -> list[Trace]:
    """The traces of every block that draft-free decoding of `prompts` (token ids) fills."""
    return [trace for prompt in prompts for trace in _collect_one(target, prompt, settings)]


def _collect_one(target: Target, prompt: list[int], settings: Settings) -> list[Trace]:
    seen: dict[int, list[tuple[Visit, StaleTable]]] = {}
    mask_id = target.config.mask_id

    def watch(visit: Visit) -> None:
        table = StaleTable.read(visit.logits, visit.state, mask_id)
        seen.setdefault(visit.start, []).append((visit, table))

    found = dict(decode(target, prompt, settings, Noise(0), watch=watch).commits)
    traces = []
    for block, (start, steps) in enumerate(seen.items()):
        first = steps[0][0].state
        tokens = torch.tensor([found.get(start + i, token) for i, token in enumerate(first)], dtype=torch.int32)
        masks = [table.masked.cpu() for _, table in steps]
        log_probs = torch.stack([table.log_probs for _, table in steps]).cpu()
        indices = torch.stack([table.indices for _, table in steps]).int().cpu()
        traces.append(Trace(log_probs, indices, torch.stack([*masks, torch.zeros_like(masks[0])]), tokens, block))
    return traces


def pack(traces: list[Trace]) -> bytes:
    """A shard, as a safetensors file: the traces end to end, with their numbers of steps and blocks."""
    stacked = {name: torch.cat([getattr(t, name) for t in traces]) for name in ("log_probs", "indices", "masked")}
    stacked["tokens"] = torch.stack([trace.tokens for trace in traces])
    steps = torch.tensor([trace.steps for trace in traces])
    return save(stacked | {"steps": steps, "blocks": torch.tensor([trace.block for trace in traces])})


def unpack(data: bytes) -> list[Trace]:
    """The traces that `pack` was given. Raises ValueError for other bytes."""
    try:
        shard = load(data)
        steps = shard["steps"].tolist()
        parts = (
            shard["log_probs"].split(steps),
            shard["indices"].split(steps),
            shard["masked"].split([s + 1 for s in steps]),
        )
        return [Trace(*part) for part in zip(*parts, shard["tokens"], shard["blocks"].tolist(), strict=True)]
    except (SafetensorError, KeyError, TypeError, RuntimeError) as error:
        raise ValueError(f"no shard of traces ({error})") from None
