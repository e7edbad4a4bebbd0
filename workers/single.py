"""One prompt, decoded in sight: what each pass was offered and what it accepted.

python launch.py decode "Mia has 3 pens. Mia buys 4 pens. How many pens does Mia have now?"
"""

from collections.abc import Iterator

from spot.decoder import Decoding
from workers.replay import Replay


def narrate(replay: Replay) -> Iterator[str]:
    """A line a pass: drafts offered, drafts accepted, and the commits as position and token."""
    pieces = replay["pieces"]
    for number, (steps, drafts, accepted) in enumerate(replay["passes"], start=1):
        commits = [pair for step in steps for pair in zip(step[::2], step[1::2], strict=True)]
        tokens = "  ".join(f"{position}:{pieces[piece]!r}" for position, piece in commits)
        yield f"pass {number:3}  drafted {len(drafts):2}  accepted {len(accepted):2}  {tokens}"


def summary(decoding: Decoding) -> str:
    drafted = [step for step in decoding.passes if step.drafted]
    acceptance = f"{sum(s.accepted for s in drafted) / len(drafted):.2f}" if drafted else "-"
    seconds = "  ".join(f"{phase} {1000 * value:.0f}" for phase, value in decoding.seconds.items())
    return (
        f"{len(decoding.commits)} commits in {decoding.nfe} passes, {decoding.cache_passes} more for the cache; "
        f"{acceptance} accepted a drafted pass; ms: {seconds}"
    )
