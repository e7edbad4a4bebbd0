"""What a pass with n drafts costs on this device: spot-auto weighs prefix mass against it (design.md §4)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from spot.decoder import Settings, decode
from spot.drafters.protocol import Drafter
from spot.noise import Noise
from spot.targets.protocol import Target

REPEATS = 3


@dataclass(frozen=True)
class PassCost:
    """Seconds of a pass, drafting included, measured at `drafts` and linear between. Convex, and never falling."""

    drafts: tuple[int, ...]
    seconds: tuple[float, ...]

    @staticmethod
    def of(measured: dict[int, float]) -> "PassCost":
        """The lower convex hull of what was measured: noise and steps would stop a budget short of a cheaper one."""
        hull: list[tuple[int, float]] = []
        highest = 0.0
        for point in sorted(measured.items()):
            highest = max(highest, point[1])
            point = (point[0], highest)
            while len(hull) > 1 and _slope(hull[-2], hull[-1]) >= _slope(hull[-1], point):
                hull.pop()
            hull.append(point)
        drafts, seconds = zip(*hull, strict=True)
        return PassCost(drafts, seconds)

    def __call__(self, drafts: int) -> float:
        """Seconds of a pass with `drafts` drafts; the last slope goes on beyond what was measured."""
        if len(self.drafts) == 1:
            return self.seconds[0]
        right = next((i for i, n in enumerate(self.drafts[1:-1], start=1) if drafts <= n), len(self.drafts) - 1)
        left, point = right - 1, (self.drafts[right], self.seconds[right])
        slope = _slope((self.drafts[left], self.seconds[left]), point)
        return point[1] + slope * (drafts - point[0])


def _slope(a: tuple[int, float], b: tuple[int, float]) -> float:
    return (b[1] - a[1]) / (b[0] - a[0])


def measure_pass_cost(
    target: Target, prompt: list[int], settings: Settings, drafter: Drafter, budgets: Sequence[int]
) -> PassCost:
    """Decode two blocks after `prompt` at each of `budgets` and take the fastest of REPEATS a drafted pass."""
    short = replace(settings, gen_length=2 * target.config.block_length, stop="length")
    best: dict[int, float] = {}
    for _ in range(REPEATS):
        for budget in budgets:
            found = decode(target, prompt, short, Noise(0), drafter, budget)
            spent = (sum(found.seconds.values()) - found.seconds["prefill"]) / found.nfe
            best[budget] = min(best.get(budget, spent), spent)
    return PassCost.of(best)
