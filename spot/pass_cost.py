"""What a pass with n drafts costs on this device, and what it brings: spot-auto's budget follows (design.md §4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from spot.decoder import Decoding, Settings, decode
from spot.drafters.protocol import Drafter
from spot.noise import Noise
from spot.targets.protocol import Target

REPEATS = 3


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
    """By number of drafts: the seconds of a pass, drafting included, and the mean number of drafts accepted in it."""

    seconds: Curve
    accepted: Curve


def measure_pass_cost(
    target: Target, prompt: list[int], settings: Settings, drafter: Drafter, budgets: Sequence[int]
) -> PassCost:
    """Decode two blocks after `prompt` at each of `budgets` (above 0) and take the fastest of REPEATS a pass.

    A pass that drafts nothing has asked the drafter too: its cost is that of a plain one and of drafting one state.
    """
    short = replace(settings, gen_length=2 * target.config.block_length, stop="length")
    best: dict[int, dict[str, float]] = {}
    accepted: dict[int, float] = {}
    for _ in range(REPEATS):
        for budget in (0, *budgets):
            found = decode(target, prompt, short, Noise(0), drafter, budget)
            phases = best.setdefault(budget, {})
            for phase in ("target", "draft", "rest"):
                phases[phase] = min(phases.get(phase, float("inf")), found.seconds[phase] / found.nfe)
            accepted[budget] = _accepted(found)
    best[0]["draft"] = best[min(budgets)]["draft"]
    return PassCost(Curve.of({budget: sum(phases.values()) for budget, phases in best.items()}), Curve.of(accepted))


def _accepted(found: Decoding) -> float:
    """The mean number of drafts accepted in a pass that had any."""
    drafted = [p.accepted for p in found.passes if p.drafted]
    return sum(drafted) / len(drafted) if drafted else 0.0
