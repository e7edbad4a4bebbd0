"""What the project's own sources are: a hash each of what decodes and of what scores, kept with a sweep's results."""

import hashlib
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[1]
DECODER = ("spot/*.py", "spot/drafters/*.py", "spot/targets/*.py", "workers/worker.py")
SCORERS = ("workers/tasks/*.py", "workers/scoring.py", "workers/sandbox*.py")


def decoder() -> str:
    """16 hex digits that change with any source that texts or passes may follow from; training has none of these."""
    return _hash(DECODER)


def scorers() -> str:
    """The same of verdicts."""
    return _hash(SCORERS)


def _hash(patterns: tuple[str, ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(file for pattern in patterns for file in PROJECT.glob(pattern)):
        digest.update(f"{path.relative_to(PROJECT)} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    return digest.hexdigest()[:16]
