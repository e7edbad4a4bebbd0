"""What a pass with n drafts costs on this device: spot-auto weighs prefix mass against it (design.md §4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate

from spot.decoder import Settings, decode
from spot.drafters.protocol import Drafter
from spot.noise import Noise
from spot.targets.protocol import Target

REPEATS = 3


@dataclass(frozen=True)
class PassCost:
    """Seconds of a pass, drafting included, measured at numbers of `drafts`, 0 first; linear between, never falling."""

    drafts: tuple[int, ...]
    seconds: tuple[float, ...]

    @staticmethod
    def of(measured: dict[int, float]) -> "PassCost":
        """Noise only slows a pass down: where more drafts were measured to cost less, the fewer cost no more."""
        drafts, seconds = zip(*sorted(measured.items()), strict=True)
        return PassCost(drafts, tuple(accumulate(reversed(seconds), min))[::-1])

    def __call__(self, drafts: int) -> float:
        """Seconds of a pass with `drafts` drafts; the last slope goes on beyond what was measured."""
        if len(self.drafts) == 1:
            return self.seconds[0]
        right = next((i for i, n in enumerate(self.drafts) if i and drafts <= n), len(self.drafts) - 1)
        (n0, n1), (s0, s1) = self.drafts[right - 1 : right + 1], self.seconds[right - 1 : right + 1]
        return s0 + (s1 - s0) * (drafts - n0) / (n1 - n0)


def measure_pass_cost(
    target: Target, prompt: list[int], settings: Settings, drafter: Drafter, budgets: Sequence[int]
) -> PassCost:
    """Decode two blocks after `prompt` at each of `budgets` (above 0) and take the fastest of REPEATS a pass.

    A pass that drafts nothing has asked the drafter too: its cost is that of a plain one and of drafting one state.
    """
    short = replace(settings, gen_length=2 * target.config.block_length, stop="length")
    best: dict[int, dict[str, float]] = {}
    for _ in range(REPEATS):
        for budget in (0, *budgets):
            found = decode(target, prompt, short, Noise(0), drafter, budget)
            phases = best.setdefault(budget, {})
            for phase in ("target", "draft", "rest"):
                phases[phase] = min(phases.get(phase, float("inf")), found.seconds[phase] / found.nfe)
    best[0]["draft"] = best[min(budgets)]["draft"]
    return PassCost.of({budget: sum(phases.values()) for budget, phases in best.items()})
