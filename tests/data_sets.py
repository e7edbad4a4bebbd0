"""Data for the task tests: ten rows of our own a task, and the real data sets where there are any."""

import os
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
OWN = ROOT / "tests" / "data"


def real(name: str) -> str:
    """The path of a real data file, such as "gsm8k/test.jsonl"; skips the test by that name where there is none."""
    path = Path(os.environ.get("SPOT_DATA", ROOT.parent / "shared" / "data")) / name
    if not path.exists():
        pytest.skip(f"no {path}: SPOT_DATA names the folder of the real data sets")
    return str(path)


def own(name: str) -> str:
    """The path of our own ten rows of a task."""
    return str(OWN / f"{name}.jsonl")
