"""One prompt, decoded in sight: what each pass was offered and what it accepted.

python launch.py decode "Mia has 3 pens. Mia buys 4 pens. How many pens does Mia have now?"
"""

from collections.abc import Iterator

from spot.decoder import Decoding
from workers.worker import Worker


def narrate(worker: Worker, decoding: Decoding) -> Iterator[str]:
    """A line a pass: drafts offered, drafts accepted, and the commits as position and token."""
    steps = iter(decoding.steps)
    for number, step in enumerate(decoding.passes, start=1):
        committed = [commit for _ in range(step.accepted + 1) for commit in next(steps)]
        tokens = "  ".join(f"{position}:{worker.text([token], special=True)!r}" for position, token in committed)
        yield f"pass {number:3}  drafted {step.drafted:2}  accepted {step.accepted:2}  {tokens}"


def summary(decoding: Decoding) -> str:
    drafted = [step for step in decoding.passes if step.drafted]
    acceptance = f"{sum(s.accepted for s in drafted) / len(drafted):.2f}" if drafted else "-"
    seconds = "  ".join(f"{phase} {1000 * value:.0f}" for phase, value in decoding.seconds.items())
    return (
        f"{len(decoding.commits)} commits in {decoding.nfe} passes and {decoding.cache_passes} cache passes, "
        f"{acceptance} accepted a drafted pass; ms: {seconds}"
    )
