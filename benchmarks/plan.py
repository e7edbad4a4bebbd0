"""Expanding and planning 100,000 cells, on the bundled targets and drafters: seconds by part, on the clock and of CPU.

    python benchmarks/plan.py

Builds nothing and writes nothing but the lines below. Starting Python and importing torch are not counted.
"""

import io
import json
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from decode import machine
from rich.console import Console

from orchestrator import config as configs
from orchestrator.outlook import as_dict, outlook, printed
from orchestrator.plan import backend, make_plan

AXES = {
    "models": "tiny-sdar,tiny-sdar-96",
    "tasks": "arith",
    "drafters": "spot,spot-gamma,spot-chain,stale,ssd,blockspec,spiffy,spot-edge,spot-auto,stale-noise-aware",
    "budgets": ",".join(map(str, range(0, 50))),
    "temperatures": ",".join(str(t / 10) for t in range(1, 11)),
    "seeds": ",".join(map(str, range(10))),
}
LIMIT = 350


def main() -> None:
    seconds: dict[str, tuple[float, float]] = {}
    began = time.perf_counter(), time.process_time()

    def took(what: str) -> None:
        nonlocal began
        now = time.perf_counter(), time.process_time()
        seconds[what], began = (now[0] - began[0], now[1] - began[1]), now

    config, source = configs.load("methods", [f"limit={LIMIT}", *(f"{axis}=[{v}]" for axis, v in AXES.items())])
    took("reading the grid")
    workers = backend()
    took("imports")
    plan = make_plan(config, source, workers)
    took("finding models, drafters and data; expanding")
    cells = len(plan.cells)
    took("keys")
    found = outlook(plan, {})
    took("counting, passes, loads")
    console = Console(file=io.StringIO())
    for part in printed(found):
        console.print(part)
    took("printing")
    text = json.dumps(as_dict(found))
    took("as JSON")
    del seconds["imports"]
    print(f"# Planning\n\n`python benchmarks/plan.py`\n\n{machine()}.\n")
    print(f"{cells:,} cells, {plan.samples:,} samples, {len(text) / 1e6:.0f} MB of JSON\n")
    print(f"    {'':46} seconds   of CPU")
    for what, (wall, cpu) in [*seconds.items(), ("all", tuple(map(sum, zip(*seconds.values(), strict=True))))]:
        print(f"    {what:46}{wall:8.2f}{cpu:9.2f}")


if __name__ == "__main__":
    main()
