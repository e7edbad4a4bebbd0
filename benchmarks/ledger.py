"""The ledger at the size of a paper: records appended, tailed as MLflow gets them, scanned by a resume, and aggregated.

    python benchmarks/ledger.py                    # 550,000 records in a folder, 11,000 on S3 (moto's server)
    python benchmarks/ledger.py --records 55000 --s3 0

Each part runs in a process of its own and prints its seconds and its peak memory. Records are as long as those of 256
tokens; one in twelve is a control's, with its text and tokens. Needs the test extra for S3, and 500 MB of disk.
"""

import argparse
import logging
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from orchestrator.grid import Cell  # noqa: E402
from orchestrator.ledger import Ledger, Sweep, write_sweep  # noqa: E402
from workers.store import Place, place  # noqa: E402

METHODS, ROWS = 12, 350  # cells of a group, the control among them, and its rows
TEXT = "Natalia sold 48 / 2 = 24 clips in May, and 48 + 24 = 72 clips altogether in April and May. " * 10
TOKENS = list(range(100_000, 100_256))


def sweep(folder: Place, records: int) -> Sweep:
    """Groups of METHODS cells by ROWS rows, as many as make up `records`."""
    groups = -(-records // (METHODS * ROWS))
    cells = tuple(cell(group, method) for group in range(groups) for method in range(METHODS))
    rows = tuple(f"test-{row}" for row in range(ROWS))
    config = {"store": str(folder.parent), "mlflow": None}
    return Sweep(folder, folder.name, config, cells, dict.fromkeys((cell.key for cell in cells), rows), {})


def cell(group: int, method: int) -> Cell:
    """A cell of a group; method 0 is the control."""
    drafter = ("spot", f"spot-{method}") if method else ("none", "none")
    return Cell(
        model=f"m{group % 8}", family="sdar", model_revision="aa", block_length=32, dtype="bfloat16", task="gsm8k",
        data_revision="bb", drafter=drafter[1], method=drafter[0], drafter_sha=None, drafter_options=(),
        budget=8 if method else 0, temperature=0.0, seed=group, gen_length=256, stop="eos",
    )  # fmt: skip


def records_of(made: Sweep, count: int) -> Iterator[dict[str, Any]]:
    """`count` decode records, row by row of every group."""
    number = 0
    for first in range(0, len(made.cells), METHODS):
        for row in made.rows[made.cells[first].key]:
            for method, cell in enumerate(made.cells[first : first + METHODS]):
                if number == count:
                    return
                yield record(cell.key, row, method == 0, number)
                number += 1


def record(cell: str, row: str, is_control: bool, number: int) -> dict[str, Any]:
    seconds = {"prefill": 0.0312345, "target": 1.2345678, "draft": 0.1234567, "rest": 0.0123456}
    return {
        "kind": "decode", "sweep": "paper", "cell": cell, "row": row, "attempt": 1, "device": "cuda",
        "dtype": "bfloat16", "threads": 1, "node": "node-17", "started": 1.7e9 + number,
        "finished": 1.7e9 + number + 1.4, "peak_bytes": 17_123_456_789, "status": "ok", "error": None,
        "identical": True, "difference": None,
        "text": f"{TEXT}{number}" if is_control else None, "tokens": TOKENS if is_control else None,
        "text_sha": f"{number // METHODS:016x}", "control_sha": f"{number // METHODS:016x}", "length": 256,
        "nfe": 256 if is_control else 61, "cache_passes": 1, "steps": 256, "drafted": 0 if is_control else 488,
        "drafted_passes": 0 if is_control else 60, "accepted": 0 if is_control else 195,
        "accepted_by_depth": [] if is_control else [60, 50, 40, 25, 12, 6, 2], "seconds": seconds, "control_nfe": 256,
        "control_seconds": 5.4321987,
    }  # fmt: skip


# ---- the parts, each a process


def append(folder: Place, count: int) -> str:
    made = sweep(folder, count)
    durable = batches = 0
    with Ledger.write(folder, 0.0) as ledger:
        write_sweep(made)
        for number, found in enumerate(records_of(made, count)):
            ledger.append(found)
            if tail := ledger.sync(number * 0.001):
                durable, batches = durable + len(tail), batches + metric_batches(tail)
        tail = ledger.sync(0.0, force=True)
        durable, batches = durable + len(tail), batches + metric_batches(tail)
    assert durable == count
    return f"{durable:,} durable, {batches:,} MLflow batches"


def metric_batches(tail: list[Any]) -> int:
    """How many requests the mirror would make of these records."""
    from orchestrator.tracking import sample_metrics

    return -(-sum(len(sample_metrics(found)) for found in tail) // 1000)


def scan(folder: Place, count: int) -> str:
    """What `resume` reads before it decodes."""
    results = Ledger(folder).results()
    assert len(results) == count
    done = sum(found["status"] == "ok" for found in results.values())
    passes = sum(found["nfe"] for found in results.values())
    return f"{done:,} results, {passes:,} passes"


def aggregate(folder: Place, count: int) -> str:
    from orchestrator import results

    made, samples = results.load(folder)
    table = results.summary(made, samples)
    assert sum(table["n"]) == count
    return f"{len(table):,} cells, NFE ratio {table['nfe_ratio'].max():.2f}"


PARTS = {"append": append, "resume scan": scan, "aggregate": aggregate}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=550_000)
    parser.add_argument("--s3", type=int, default=11_000, help="records on S3; 0 for none")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        name, where, count = asked.part
        began, busy = time.perf_counter(), time.process_time()
        said = PARTS[name](place(where), int(count))
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20
        took = f"{time.perf_counter() - began:6.1f} s ({time.process_time() - busy:.1f} s of CPU), {peak:.2f} GB"
        print(f"{name:12} {int(count):>9,} records {took}: {said}", flush=True)
        return
    with tempfile.TemporaryDirectory() as folder:
        measure(f"{folder}/paper", asked.records, dict(os.environ))
        if asked.s3:
            print("on S3 (moto's server on this machine)")
            measure_s3(folder, asked.s3)


def measure(where: str, count: int, environment: dict[str, str]) -> None:
    for name in PARTS:
        subprocess.run([sys.executable, __file__, "--part", name, where, str(count)], check=True, env=environment)


def measure_s3(folder: str, count: int) -> None:
    import boto3
    from moto.moto_server.threaded_moto_server import ThreadedMotoServer

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    keys = {"AWS_ACCESS_KEY_ID": "testing", "AWS_SECRET_ACCESS_KEY": "testing", "AWS_DEFAULT_REGION": "us-east-1"}
    os.environ.update(keys | {"AWS_ENDPOINT_URL": f"http://{host}:{port}", "SPOT_CACHE": f"{folder}/cache"})
    boto3.client("s3").create_bucket(Bucket="bucket")
    measure("s3://bucket/paper", count, dict(os.environ))
    server.stop()


if __name__ == "__main__":
    main()
