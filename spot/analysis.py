"""What a drafter could know: the tokens, and the order of commits, as the stale table tells them (paper, section 3).

    found = measure(target, [(prompt, Noise.keyed(0, "arith", "7"))], Settings(gen_length=128), order_model)
    found.by_depth("order model")

Texts are decoded draft-free and watched. From the table of each step, one commit old when it is read, the commits
that follow are guessed: the next one (depth 0), the one after it given the true next commit (depth 1), and so on.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from spot.commit import surprise
from spot.decoder import Settings, Visit, decode
from spot.drafters.protocol import StaleTable
from spot.drafters.tokens import coupled
from spot.noise import Noise
from spot.order_model import OrderModel
from spot.targets.protocol import Target
from spot.training.order import DEEPEST, Examples

TOKENS = "stale token"
ORDER_MODEL, STALE, NOISE_AWARE = "order model", "stale confidence", "noise-aware"
MEASURES = (TOKENS, ORDER_MODEL, STALE, NOISE_AWARE)


@dataclass(frozen=True)
class Watched:
    """A text's draft-free decoding, S steps of one commit each, on the target's device.

    log_probs and indices [S, B, 32] are the table that each step's pass gives; masked [S, B] bool is the block before
    the step, which commits `token` [S] at `position` [S] of the block at `start` [S]. `step` [S] counts from 0 in each
    block, `left` [S] the steps that follow in it; `block` [S] is its index in the answer.
    """

    log_probs: Tensor
    indices: Tensor
    masked: Tensor
    position: Tensor
    token: Tensor
    start: Tensor
    step: Tensor
    left: Tensor
    block: Tensor


@dataclass(frozen=True)
class Accuracy:
    """`asked` [D, K] questions at each depth and block of the answer, and the `hits` [D, K] of each measure, int64."""

    asked: Tensor
    hits: Mapping[str, Tensor]

    def by_depth(self, measure: str) -> list[float | None]:
        """The share of hits at depth 0, 1, ..., over all blocks; None where nothing was asked. KeyError if absent."""
        return _shares(self.hits[measure].sum(1), self.asked.sum(1))

    def by_block(self, measure: str) -> list[float | None]:
        """The share of hits at depth 0 in block 0, 1, ... of the answer."""
        return _shares(self.hits[measure][0], self.asked[0])


def measure(
    target: Target, texts: Iterable[tuple[list[int], Noise]], settings: Settings, order: OrderModel | None = None
) -> Accuracy:
    """Decode `texts` (token ids and noise) and tell how often each of MEASURES is right; without `order`, of the rest.

    "stale token": the stale table, coupled with the shared noise at T > 0, names the token at the position that is
    committed. The others rank positions; a hit is the position committed next. "order model" by log q, "stale
    confidence" by the stale probability of the position's best token, "noise-aware" by that of the coupled token at
    temperature T. ValueError for the threshold rule, which has no single next position.
    """
    if settings.threshold is not None:
        raise ValueError("threshold: a step commits one position here")
    answers = [guess(watch(target, prompt, settings, noise), noise, settings, order) for prompt, noise in texts]
    return _tally(torch.cat(answers), [name for name in MEASURES if order or name != ORDER_MODEL])


def watch(target: Target, prompt: list[int], settings: Settings, noise: Noise) -> Watched:
    """Decode `prompt` draft-free, keeping every pass's table."""
    visits: list[tuple[int, int]] = []
    tables: list[StaleTable] = []

    def see(visit: Visit) -> None:
        visits.append((visit.start, visit.step))
        tables.append(StaleTable.read(visit.logits, visit.state, target.config.mask_id))

    commits = decode(target, prompt, settings, noise, watch=see).commits
    position, token = torch.tensor(commits, device=target.device).unbind(-1)
    start, step = torch.tensor(visits, device=target.device).unbind(-1)
    block = (start - start[0]) // target.config.block_length
    return Watched(
        log_probs=torch.stack([table.log_probs for table in tables]),
        indices=torch.stack([table.indices for table in tables]),
        masked=torch.stack([table.masked for table in tables]),
        position=position - start,
        token=token,
        start=start,
        step=step,
        left=block.bincount()[block] - 1 - step,
        block=block,
    )


@torch.inference_mode()
def guess(seen: Watched, noise: Noise, settings: Settings, order: OrderModel | None = None) -> Tensor:
    """[Q, 2 + M] int64: the depth and block of each question, and whether each measure's answer is right."""
    return torch.cat([_guess(seen, depth, noise, settings.temperature, order) for depth in range(DEEPEST)])


def _guess(seen: Watched, depth: int, noise: Noise, temperature: float, order: OrderModel | None) -> Tensor:
    table = (seen.left > depth).nonzero().squeeze(-1)
    ahead = table + 1 + depth  # the step whose commit is guessed
    stale, masked, label = seen.log_probs[table], seen.masked[ahead], seen.position[ahead]
    places = seen.start[ahead, None, None] + torch.arange(masked.shape[1], device=table.device)[:, None]
    scores = coupled(stale, seen.indices[table], places, seen.step[ahead, None, None], temperature, noise)
    rank = scores.argmax(-1, keepdim=True)
    named = seen.indices[table].gather(-1, rank).squeeze(-1).gather(-1, label[:, None]).squeeze(-1)
    aware = surprise(stale / temperature, rank) if temperature else -stale[..., 0]
    hits = [named == seen.token[ahead]]
    if order is not None:
        asked = Examples(
            stale, seen.masked[table], seen.masked[table + 1], masked, label, torch.full_like(table, depth)
        )
        hits.append(asked.scores(order).argmax(-1) == label)
    hits += [doubt.masked_fill(~masked, torch.inf).argmin(-1) == label for doubt in (-stale[..., 0], aware)]
    return torch.stack([torch.full_like(table, depth), seen.block[table], *hits], -1)


def _tally(answers: Tensor, measures: list[str]) -> Accuracy:
    depth, block = answers[:, 0], answers[:, 1]
    blocks = int(block.max()) + 1 if len(block) else 0
    cell = depth * blocks + block

    def count(where: Tensor) -> Tensor:
        return cell[where].bincount(minlength=DEEPEST * blocks).view(DEEPEST, blocks).cpu()

    hits = {name: count(answers[:, 2 + column] == 1) for column, name in enumerate(measures)}
    return Accuracy(count(depth >= 0), hits)


def _shares(hits: Tensor, asked: Tensor) -> list[float | None]:
    pairs = zip(hits.tolist(), asked.tolist(), strict=True)
    return [hit / total if total else None for hit, total in pairs]
