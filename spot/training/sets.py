"""Calibrates SPOT-Sets: cross-entropy on which positions pass the threshold in the step after k further steps.

python launch.py calibrate-sets --model tiny-sdar-96 --threshold 0.9 --threshold 0.99
"""

import math
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from spot.options import check_training
from spot.order_model import OrderModel, load_order_model, provenance
from spot.sets_model import SetsModel, save_sets_model
from spot.training.order import hold_out
from spot.training.traces import Trace

DEEPEST = 4
DEPTH_DECAY = 0.6


@dataclass(frozen=True)
class SetsSettings:
    """What decides the trained head, beside the traces; ValueError, `key: what is wrong`, for what cannot."""

    steps: int = 600
    batch_size: int = 192
    rate: float = 3e-3
    seed: int = 0

    def __post_init__(self) -> None:
        check_training(self)


@dataclass(frozen=True)
class Questions:
    """N questions "who passes next?": the table [N, B, 32]; masks [N, B] at table, root and branch; passes [N, B]."""

    log_probs: Tensor
    table_masked: Tensor
    root_masked: Tensor
    masked: Tensor
    passes: Tensor
    threshold: float

    def logits(self, model: SetsModel) -> Tensor:
        masks = (self.table_masked, self.root_masked, self.masked)
        return model(self.log_probs, self.log_probs[..., 0], *masks, self.threshold)[1]

    def to(self, device: torch.device | str) -> "Questions":
        return replace(self, **{name: v.to(device) for name, v in vars(self).items() if isinstance(v, Tensor)})

    def loss(self, model: SetsModel) -> Tensor:
        """Cross-entropy a masked position, nats."""
        logits = self.logits(model)[self.masked]
        return F.binary_cross_entropy_with_logits(logits, self.passes[self.masked].float())


class SetsTraces:
    """Traces of one threshold, end to end; ValueError where no block took two steps, which leaves no questions."""

    def __init__(self, traces: list[Trace], threshold: float) -> None:
        if all(trace.steps < 2 for trace in traces):
            which = f"all {len(traces)} blocks to learn from, or held out,"
            raise ValueError(f"threshold: at {threshold:g} {which} are filled in one step")
        self.threshold = threshold
        self.tables = torch.cat([trace.log_probs for trace in traces])
        self.masks = torch.cat([trace.masked for trace in traces])
        self.left = torch.cat([torch.arange(trace.steps - 1, -1, -1) for trace in traces])
        steps = torch.tensor([trace.steps for trace in traces])
        self._row = torch.arange(len(self.left)) + torch.arange(len(traces)).repeat_interleave(steps)
        # what a step commits because it is the best, not because it passes, is no commit of its own
        self.passes = self.masks[self._row] & (self.tables[..., 0] > math.log(threshold))

    def questions(self, table: Tensor, depth: Tensor) -> Questions:
        """After one step since tables `table` [N], and `depth` [N] hypothetical ones."""
        row = self._row[table]
        return Questions(
            self.tables[table],
            self.masks[row],
            self.masks[row + 1],
            self.masks[row + 1 + depth],
            self.passes[table + 1 + depth],
            self.threshold,
        )

    def sample(self, size: int, generator: torch.Generator) -> Questions:
        depth = torch.multinomial(DEPTH_DECAY ** torch.arange(DEEPEST), size, replacement=True, generator=generator)
        asked = (self.left > 0).nonzero().squeeze(-1)
        table = asked[torch.randint(len(asked), (size,), generator=generator)]
        return self.questions(table, depth.minimum(self.left[table] - 1))

    def every(self, depth: int) -> Questions:
        table = (self.left > depth).nonzero().squeeze(-1)
        return self.questions(table, torch.full_like(table, depth))


def make_sets_model(
    order: Path,
    traces: dict[float, list[Trace]],
    settings: SetsSettings,
    out: Path,
    made_of: dict[str, Any],
    device: str = "cpu",
    report: Callable[[str], None] = print,
) -> "SetAccuracy":
    """Calibrate a head for the order model in the file `order` on traces by threshold, and write the checkpoint `out`.

    A tenth of the prompts is held out to measure on; its accuracy by threshold is returned, and kept in the header.
    Raises ValueError for a threshold at which no block took two steps.
    """
    split = {threshold: hold_out(found) for threshold, found in traces.items()}
    training = [SetsTraces(train, threshold) for threshold, (_, train) in split.items()]
    held_out = [SetsTraces(held, threshold) for threshold, (held, _) in split.items()]
    model = calibrate_sets(load_order_model(order), training, settings, report, device)
    found = {f"{part.threshold:g}": set_accuracy(model, part) for part in held_out}
    once = provenance(order)
    rows = {task: [*once.get("trained_on", {}).get(task, []), *ids] for task, ids in made_of["trained_on"].items()}
    trained_on = once.get("trained_on", {}) | {task: sorted(set(ids)) for task, ids in rows.items()}
    made = {
        **made_of,
        "trained_on": trained_on,
        "order_model": {k: once.get(k) for k in ("model", "revision", "prompts")},
    }
    partial = out.with_name(f"{out.name}.partial")
    save_sets_model(model.cpu(), partial, {**made, "settings": asdict(settings), "held_out_accuracy": found})
    partial.replace(out)
    return found


def calibrate_sets(
    order: OrderModel,
    traces: list[SetsTraces],
    settings: SetsSettings,
    report: Callable[[str], None] = print,
    device: str = "cpu",
) -> SetsModel:
    """A head for `order`, which stays as it is, fitted to `traces` of one or several thresholds.

    Deterministic in order model, traces and settings on one machine.
    """
    torch.manual_seed(settings.seed)
    generator = torch.Generator().manual_seed(settings.seed)
    model = SetsModel(order.requires_grad_(False)).to(device)
    parameters = [p for p in model.parameters() if p.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=settings.rate, weight_decay=0.01)
    running = None
    for step in range(settings.steps):
        optimizer.param_groups[0]["lr"] = settings.rate * 0.5 * (1 + math.cos(math.pi * step / settings.steps))
        loss = traces[step % len(traces)].sample(settings.batch_size, generator).to(device).loss(model)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        running = loss.item() if running is None else 0.95 * running + 0.05 * loss.item()
        if (step + 1) % 50 == 0:
            report(f"step {step + 1}/{settings.steps}  loss {running:.4f}")
    return model.eval().requires_grad_(False)


SetAccuracy = dict[str, dict[str, list[float | None]]]


@torch.inference_mode()
def set_accuracy(model: SetsModel, held_out: SetsTraces) -> dict[str, list[float | None]]:
    """By number of hypothetical steps: how often those likelier to pass than not are those that do; None for none."""
    result: dict[str, list[float | None]] = {"sets_model": [], "stale_confidence": []}
    for depth in range(DEEPEST):
        asked = held_out.every(depth).to(model.order.temperature.device)
        stale = (asked.log_probs[..., 0] > math.log(held_out.threshold)) & asked.masked
        for name, guess in (("sets_model", asked.logits(model) > 0), ("stale_confidence", stale)):
            right = (guess == asked.passes).all(-1)
            result[name].append(round(right.double().mean().item(), 4) if len(right) else None)
    return result
