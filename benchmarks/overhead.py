"""What a sweep costs beside decoding: one Ray actor against a bare loop over the same sample tasks.

    python benchmarks/overhead.py --limit 8 --rounds 3

The sweep is the whole of `launch.py run quickstart`: Ray, ledger, scorers, MLflow. Times are from the first record's
start to the last one's end, and so leave out what happens once: starting Ray, loading, the report. Rounds alternate,
since machines drift; each pair gives a ratio.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path

from orchestrator import config as configs
from orchestrator.config import ROOT
from orchestrator.ledger import Ledger, Record
from orchestrator.plan import backend, make_plan
from workers.worker import Worker


def span(records: Iterable[Record]) -> tuple[float, float]:
    """(seconds from the first start to the last end, seconds spent in decoding)."""
    decodes = [record for record in records if record["kind"] == "decode"]
    assert all(record["status"] == "ok" for record in decodes)
    last, first = max(record["finished"] for record in decodes), min(record["started"] for record in decodes)
    return last - first, sum(record["finished"] - record["started"] for record in decodes)


def bare(grid: list[str]) -> tuple[float, float]:
    """The loop that anyone would write, with a worker that is as new as an actor's: both warm every batch shape."""
    plan = make_plan(*configs.load("quickstart", grid), backend())
    worker = Worker(plan.models["tiny-sdar"])
    return span(record for wave in plan.waves({}) for task in wave for record in worker.run(task))


def swept(grid: list[str]) -> tuple[float, float, float]:
    """(span, decoding, the rest of the command's time) in seconds."""
    began = time.perf_counter()
    with tempfile.TemporaryDirectory() as store:
        command = [sys.executable, "launch.py", "run", "quickstart", *grid, "workers.count=1", f"store={store}"]
        subprocess.run(command, cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
        whole, decoding = span(Ledger(Path(store) / "quickstart").records())
    return whole, decoding, time.perf_counter() - began - whole


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    asked = parser.parse_args()
    grid = [f"limit={asked.limit}"]
    plan = make_plan(*configs.load("quickstart", grid), backend())
    print(f"{sum(map(len, plan.waves({})))} sample tasks, {plan.samples} samples; seconds")
    print("   bare loop  (decoding)    sweep  (decoding)  ratio   start and end")
    ratios = []
    for _ in range(asked.rounds):
        (loop, inside), (sweep, decoding, rest) = bare(grid), swept(grid)
        ratios.append(sweep / loop)
        print(f"{loop:12.2f}{inside:12.2f}{sweep:9.2f}{decoding:12.2f}{sweep / loop:7.3f}{rest:16.1f}", flush=True)
    print(f"median ratio {statistics.median(ratios):.3f}")


if __name__ == "__main__":
    main()
