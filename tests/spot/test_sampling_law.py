"""At T > 0 the texts have the law of draft-free decoding with fresh noise at each step, drafts or none."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass
from functools import cache
from itertools import product

import torch

from spot.decoder import Decoding, Settings, decode
from spot.drafters.protocol import Context
from spot.drafters.stale import Stale
from spot.noise import Noise
from spot.tree import State
from tests.spot.support import TableTarget

TOKENS, SIZE = 3, 3
TARGET = TableTarget(TOKENS, SIZE)
MASK, NOTHING = TOKENS, (TOKENS,) * SIZE
THRESHOLD = 0.3


@cache
def next_law(before: tuple, state: tuple, threshold: float | None = None) -> dict[tuple, float]:
    """The probability of each state that a step leads to: every draw of all masked positions' tokens."""
    z = TARGET.table[TARGET.number(torch.tensor(before)), TARGET.number(torch.tensor(state))].double()
    p, surprise = z[:, :TOKENS].softmax(-1).tolist(), (z.logsumexp(-1, keepdim=True) - z).tolist()
    masked = [i for i, token in enumerate(state) if token == MASK]
    found: dict[tuple, float] = defaultdict(float)
    for tokens in product(range(TOKENS), repeat=len(masked)):
        drawn = dict(zip(masked, tokens, strict=True))
        least = min(drawn, key=lambda i: surprise[i][drawn[i]])
        sure = [i for i in drawn if threshold and surprise[i][drawn[i]] < -math.log(threshold)]
        after = tuple(drawn[i] if i in {least, *sure} else token for i, token in enumerate(state))
        found[after] += math.prod(p[i][token] for i, token in drawn.items())
    return dict(found)


@cache
def law(before: tuple, state: tuple = NOTHING, threshold: float | None = None) -> dict[tuple, float]:
    """The probability of each full block after `before`, by recursion."""
    if MASK not in state:
        return {state: 1.0}
    found: dict[tuple, float] = defaultdict(float)
    for after, chance in next_law(before, state, threshold).items():
        for full, rest in law(before, after, threshold).items():
            found[full] += chance * rest
    return dict(found)


def second_law(threshold: float | None) -> dict[tuple, float]:
    """The probability of each second block."""
    found: dict[tuple, float] = defaultdict(float)
    for first, chance in law(NOTHING, NOTHING, threshold).items():
        for second, rest in law(first, NOTHING, threshold).items():
            found[second] += chance * rest
    return dict(found)


@dataclass(frozen=True)
class Drawn:
    """`Noise.gumbel` of one seed, drawn for all seeds at once to save time: G [positions, steps, tokens]."""

    gumbel_table: torch.Tensor

    def gumbel(self, positions: torch.Tensor, steps: torch.Tensor, indices: torch.Tensor) -> torch.Tensor:
        return self.gumbel_table[positions, steps, indices]


class Likeliest:
    """Drafts the two likeliest next states, and the likeliest after each: right often, and quick to say."""

    def draft(self, context: Context, budget: int) -> list[State]:
        first = likeliest(context.block)[:2]
        return [*first, *(after for state in first for after in likeliest(state)[:1])]


@cache
def likeliest(state: State) -> list[State]:
    """The states that a step of the first block may lead to, the likeliest first."""
    found = next_law(NOTHING, state) if MASK in state else {}
    return sorted(found, key=found.__getitem__, reverse=True)


@cache
def all_noise() -> torch.Tensor:
    """[seeds, positions, steps, tokens] of keys that differ by seed."""
    keys = torch.tensor([Noise.keyed(seed, "task", "row").key for seed in range(20_000)])
    axes = (torch.arange(n).view(-1, *[1] * after) for n, after in ((2 * SIZE, 2), (SIZE + 1, 1), (TOKENS + 1, 0)))
    return Noise(keys[:, None, None, None]).gumbel(*axes)


@torch.inference_mode()
def decodings(seeds: int, blocks: int, threshold: float | None = None, drafter=None, noise=None) -> list[Decoding]:
    asked = Settings(blocks * SIZE, 1.0, "length", threshold)
    every = (all_noise() if noise is None else noise)[:seeds]
    return [decode(TARGET, [], asked, Drawn(drawn), drafter, 4) for drawn in every]


def texts(*asked, **options) -> list[tuple]:
    return [tuple(found.tokens) for found in decodings(*asked, **options)]


def surprising(found: list[tuple], expected: dict[tuple, float]) -> bool:
    """Whether a chi-square test rejects `expected` at one in a thousand (Wilson and Hilferty's quantile)."""
    assert math.isclose(sum(expected.values()), 1.0)
    counts, cells, rest = Counter(found), [], [0.0, 0.0]
    for text, p in expected.items():
        if p * len(found) >= 5:
            cells.append((counts[text], p * len(found)))
        else:
            rest = [rest[0] + counts[text], rest[1] + p * len(found)]
    cells += [tuple(rest)] if rest[1] >= 5 else []
    statistic, freedom = sum((n - e) ** 2 / e for n, e in cells), len(cells) - 1
    spread = 2 / (9 * freedom)
    return statistic > freedom * (1 - spread + 3.0902 * math.sqrt(spread)) ** 3


def test_what_is_drawn_for_all_seeds_at_once_is_the_noise_of_each():
    at = torch.tensor([4]), torch.tensor([2]), torch.arange(3)
    assert torch.equal(Drawn(all_noise()[7]).gumbel(*at), Noise.keyed(7, "task", "row").gumbel(*at))


def test_draft_free_texts_have_the_law_of_fresh_noise_at_each_step():
    assert not surprising(texts(20_000, blocks=1), law(NOTHING))


def test_drafted_texts_have_it_too():
    found = decodings(20_000, blocks=1, drafter=Likeliest())
    assert not surprising([tuple(decoding.tokens) for decoding in found], law(NOTHING))
    assert sum(decoding.nfe for decoding in found) < 0.8 * 20_000 * SIZE  # the drafts were taken


def test_a_threshold_has_its_own_law():
    found = texts(6_000, blocks=1, threshold=THRESHOLD)
    assert not surprising(found, law(NOTHING, NOTHING, THRESHOLD))
    assert surprising(found, law(NOTHING))


def test_the_law_is_the_same_with_drafts_across_the_block_edge():
    for threshold in (None, THRESHOLD):
        found = texts(2_500, blocks=2, threshold=threshold, drafter=Stale(edge=True))
        assert not surprising([text[:SIZE] for text in found], law(NOTHING, NOTHING, threshold))
        assert not surprising([text[SIZE:] for text in found], second_law(threshold))


def test_one_noise_for_all_steps_would_be_another_law():
    frozen = all_noise()[:, :, :1].expand(-1, -1, SIZE + 1, -1)
    assert surprising(texts(3_000, blocks=1, noise=frozen), law(NOTHING))
