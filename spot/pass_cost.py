"""What a pass with n drafts costs on this device, and what it brings: spot-auto's budget follows (design.md §4)."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from spot.decoder import Decoding, Settings, decode
from spot.drafters.protocol import Context
from spot.drafters.spot import Spot
from spot.noise import Noise
from spot.targets.protocol import Target
from spot.tree import State

REPEATS = 3
BLOCKS = 4  # that are decoded to measure with
GROUPS = 4  # of passes, by how sure the order model is of the first commit


@dataclass(frozen=True)
class Curve:
    """Values measured at numbers of `drafts`, ascending: linear between, and on at the last slope; never falling."""

    drafts: tuple[int, ...]
    values: tuple[float, ...]

    @staticmethod
    def of(measured: dict[int, float]) -> "Curve":
        """Noise only slows a pass down: where more drafts were measured lower, the fewer are no higher."""
        drafts, values = zip(*sorted(measured.items()), strict=True)
        return Curve(drafts, tuple(accumulate(reversed(values), min))[::-1])

    def __call__(self, drafts: int) -> float:
        if len(self.drafts) == 1:
            return self.values[0]
        right = next((i for i, n in enumerate(self.drafts) if i and drafts <= n), len(self.drafts) - 1)
        (n0, n1), (v0, v1) = self.drafts[right - 1 : right + 1], self.values[right - 1 : right + 1]
        return v0 + (v1 - v0) * (drafts - n0) / (n1 - n0)


@dataclass(frozen=True)
class PassCost:
    """What passes cost and bring here.

    `seconds` are those of a pass by its number of drafts, drafting included, and `accepted` the mean number accepted;
    `pace` is the most steps a second that one budget for all passes made. `sureness` has (m, f), ascending from m = 0:
    where the first draft's mass is at least m, f times the mean is accepted.
    """

    seconds: Curve
    accepted: Curve
    pace: float
    sureness: tuple[tuple[float, float], ...] = ((0.0, 1.0),)

    def best_budget(self, first_mass: float, most: int) -> int:
        """The n up to `most` that gains most, the smallest at a tie.

        What a pass gains is the steps it makes less those that its seconds make elsewhere, at `pace`: the most steps a
        *pass* second would favour short passes wherever they are unsure (renewal reward: Ross, Stochastic Processes).
        """
        factor = next(factor for bound, factor in reversed(self.sureness) if first_mass >= bound)
        gain = [factor * self.accepted(n) - self.pace * self.seconds(n) for n in range(most + 1)]
        return gain.index(max(gain))


@dataclass
class _Noting:
    """Drafts what SPOT does and notes the mass of each pass's first draft."""

    spot: Spot
    first_masses: list[float] = field(default_factory=list)

    def draft(self, context: Context, budget: int) -> list[State]:
        drafts = self.spot.grow(context, budget)
        if drafts:
            self.first_masses.append(math.exp(drafts[0].log_mass))
        return [draft.state for draft in drafts]


def measure_pass_cost(
    target: Target, prompt: list[int], settings: Settings, spot: Spot, budgets: Sequence[int]
) -> PassCost:
    """Decode up to BLOCKS blocks of `prompt`, draft-free and at each of `budgets` (above 0), the fastest of REPEATS.

    A block's first pass has no drafts: it is taken off at what a draft-free pass takes.
    """
    asked = replace(settings, gen_length=min(settings.gen_length, BLOCKS * target.config.block_length))
    seconds: dict[int, dict[str, float]] = {}
    decodings: dict[int, Decoding] = {}
    masses: dict[int, list[float]] = {}
    for _ in range(REPEATS):
        for budget in (0, *budgets):
            noting = _Noting(spot)
            found = decodings[budget] = decode(target, prompt, asked, Noise(0), noting, budget)
            masses[budget] = noting.first_masses
            fastest = seconds.setdefault(budget, found.seconds)
            seconds[budget] = {
                phase: min(fastest[phase], found.seconds[phase]) for phase in ("target", "draft", "rest")
            }
    drafted = {n: found for n, found in decodings.items() if any(p.drafted for p in found.passes)}
    plain = {phase: value / decodings[0].nfe for phase, value in seconds[0].items()}
    each = {0: sum(plain.values())}
    for n, found in drafted.items():
        passes = sum(p.drafted > 0 for p in found.passes)
        undrafted = {phase: (found.nfe - passes) * plain[phase] for phase in ("target", "rest")}
        spent = {phase: (value - undrafted.get(phase, 0)) / passes for phase, value in seconds[n].items()}
        each[n] = sum(spent.values())
        if n == min(drafted):
            each[0] += spent["draft"]  # a pass that drafts nothing has asked the drafter too
    accepted = Curve.of(
        {0: 0.0, **{n: _mean([p.accepted for p in found.passes if p.drafted]) for n, found in drafted.items()}}
    )
    pace = max(len(found.steps) / sum(seconds[n].values()) for n, found in decodings.items())
    return PassCost(Curve.of(each), accepted, pace, _sureness(drafted, masses, accepted))


def _sureness(
    drafted: dict[int, Decoding], masses: dict[int, list[float]], accepted: Curve
) -> tuple[tuple[float, float], ...]:
    """PassCost.sureness, of as many passes a group."""
    passes = sorted(
        (mass, p.accepted, accepted(n))
        for n, found in drafted.items()
        for mass, p in zip(masses[n], (p for p in found.passes if p.drafted), strict=True)
    )
    size = max(1, math.ceil(len(passes) / GROUPS))
    groups = [passes[i : i + size] for i in range(0, len(passes), size)]
    factors = [sum(got for _, got, _ in group) / (sum(mean for *_, mean in group) or 1.0) for group in groups]
    bounds = [0.0, *(group[0][0] for group in groups[1:])]
    return tuple(zip(bounds, factors or [1.0], strict=True))


def _mean(values: list[int]) -> float:
    return sum(values) / len(values)
