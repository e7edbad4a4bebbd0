"""What the sandbox costs a program: a bare interpreter beside each of its modes.

    python benchmarks/sandbox.py
    python benchmarks/sandbox.py --seconds 60 --out benchmarks/results/sandbox.md

The program is a function of one line and its check, so that what is timed is the starting and ending of everything. A
turn runs each once, in an order of its own, and ratios are medians of those within a turn, so that a busy machine slows
all of them. A mode that does not work here is left out with a line that says why.
"""

import argparse
import os
import platform
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "benchmarks")]

from decode import machine  # noqa: E402

from workers.sandbox import MODES, check, run_program  # noqa: E402

CODE = "def add(a, b):\n    return a + b\n"
CHECKS = "assert add(1, 2) == 3\n"
BARE = "python -I -S"


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=10, help="how long to go on taking turns")
    parser.add_argument("--turns", type=int, default=20, help="turns to take at least")
    parser.add_argument("--out", type=Path, help="a Markdown file to write too")
    asked = parser.parse_args(arguments)
    kinds: dict[str, Callable[[], None]] = {BARE: bare}
    left_out = []
    for mode in MODES:
        try:
            check(mode)
        except ValueError as error:
            left_out.append(f"{mode}: left out; {error}")
        else:
            kinds[mode] = partial(sandboxed, mode)
    seconds = measure(kinds, asked.turns, asked.seconds)
    text = report(arguments, seconds, left_out)
    print(text)
    if asked.out:
        asked.out.write_text(text)


def bare() -> None:
    # the interpreter that programs run in, which knows nothing of a virtual environment's packages
    python = os.path.realpath(sys.executable)
    subprocess.run([python, "-I", "-S", "-c", CODE + CHECKS], check=True)


def sandboxed(mode: str) -> None:
    verdict = run_program(CODE, CHECKS, mode)
    if not verdict.passed:
        raise SystemExit(f"{mode}: {verdict.reason}")


def measure(kinds: dict[str, Callable[[], None]], turns: int, at_least: float) -> dict[str, list[float]]:
    """Seconds by kind and turn."""
    seconds: dict[str, list[float]] = {name: [] for name in kinds}
    drawn, started = random.Random(0), time.perf_counter()
    while len(seconds[BARE]) < turns or time.perf_counter() - started < at_least:
        for name in drawn.sample(sorted(kinds), len(kinds)):
            before = time.perf_counter()
            kinds[name]()
            seconds[name].append(time.perf_counter() - before)
    return seconds


def report(arguments: list[str], seconds: dict[str, list[float]], left_out: list[str]) -> str:
    turns, user = len(seconds[BARE]), "root" if os.geteuid() == 0 else "a user"
    lines = [
        f"# sandbox\n\n`{' '.join(['python benchmarks/sandbox.py', *arguments])}`\n",
        f"{machine()}; Python {platform.python_version()}, Linux {platform.release()}, {bubblewrap()}, as {user}.\n",
        f"Medians of {turns} turns, one program at a time, at a load of {os.getloadavg()[0]:.1f}; "
        "over is what a program costs beyond the bare interpreter.\n",
        "| | ms | over, ms | ratio |",
        "| --- | ---: | ---: | ---: |",
    ]
    for name, times in seconds.items():
        pairs = list(zip(times, seconds[BARE], strict=True))
        over, ratio = (statistics.median(f(a, b) for a, b in pairs) for f in (lambda a, b: a - b, lambda a, b: a / b))
        lines.append(f"| {name} | {1000 * statistics.median(times):.1f} | {1000 * over:.1f} | {ratio:.2f} |")
    return "".join(f"{line}\n" for line in [*lines, *(f"\n{line}." for line in left_out)])


def bubblewrap() -> str:
    try:
        return subprocess.run(["bwrap", "--version"], capture_output=True, text=True, check=True).stdout.strip()
    except OSError:
        return "no bubblewrap"


if __name__ == "__main__":
    main(sys.argv[1:])
