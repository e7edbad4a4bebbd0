"""The MLflow mirror at the size of a paper, against what MLflow itself costs; and decoding without its server.

    python benchmarks/mirror.py                     # 550,000 records, hours on a small machine
    python benchmarks/mirror.py --records 50000
    python benchmarks/mirror.py --records 0 --pairs 5     # the decode rate with the server stopped, in pairs

Each part runs in a process of its own and prints its seconds and its peak memory. `bare` is the bound: as many metrics
as the mirror sends, 1000 a request by MlflowClient.log_batch, to as many runs, and nothing else. `mirror` reads the
ledger and sends it, `finish` gives every cell its summary, generations and figures, and `again` finds nothing to do.
SQLite in a temporary folder; 5 GB of disk for all of it.

A pair is one small sweep by one Ray actor, with the server (a process of its own on this machine) running and
one with it stopped, in alternating order; the rate is samples a second from the first record's start to the last end.
"""

import argparse
import json
import os
import resource
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from ledger import METHODS, records_of, sweep  # noqa: E402

from orchestrator.ledger import Ledger, read_sweep, write_sweep  # noqa: E402
from orchestrator.segments import read_segments  # noqa: E402

SWEEP = ("quickstart", "drafters=[spot]", "budgets=[0,8]", "temperatures=[0]", "workers.count=1")


# ---- parts, each a process; they return what is to be said, and numbers for the ratios


def append(folder: Path, count: int) -> dict[str, Any]:
    """Decode records, and a score for the text of every row of a group."""
    made, scores = sweep(folder, count), 0
    with Ledger.write(folder, 0.0) as ledger:
        write_sweep(made)
        cells = {cell.key: cell for cell in made.cells}
        for number, record in enumerate(records_of(made, count)):
            ledger.append(record)
            if number % METHODS == 0:
                scores += 1
                ledger.append(_score(record, cells[record["cell"]].task))
            if number % 50_000 == 0:
                ledger.sync(0.0, force=True)
    return {"said": f"{count:,} decode records and {scores:,} scores"}


def _score(record: dict[str, Any], task: str) -> dict[str, Any]:
    named = {"kind": "score", "task": task, "row": record["row"], "text_sha": record["text_sha"], "scorer": "v1"}
    return named | {"correct": True, "answer": "72", "error": None, "started": record["finished"] + 1.0}


def bare(folder: Path, count: int) -> dict[str, Any]:
    """MLflow's own cost of so many metrics in so many runs."""
    from mlflow.entities import Metric

    from orchestrator.mlflow_store import connect
    from orchestrator.projection import Projection

    projection = Projection(read_sweep(folder))
    projection.advance(2, 2)
    (first, *_) = (entry for view in projection.views.values() for entry in view.pending)
    names = [point.name for point in projection.points(first)] + ["acceptance", "correct"]
    client = connect(f"sqlite:///{folder.parent}/bare.db")
    experiment = client.create_experiment("bare")
    began, busy, sent = time.perf_counter(), time.process_time(), 0
    for view in projection.views.values():
        run = client.create_run(experiment).info.run_id
        rows = min(len(view.steps), -(-count // len(projection.views)))
        metrics = (Metric(name, 1.5, 1_700_000_000_000 + step, step) for step in range(rows) for name in names)
        while batch := list(islice(metrics, 1000)):
            client.log_batch(run, metrics=batch)
            sent += len(batch)
    return _cost("bare", began, busy) | {"metrics": sent, "said": f"{sent:,} metrics"}


def mirror(folder: Path, count: int) -> dict[str, Any]:
    """All that the ledger has, from nothing; then the ends of the runs."""
    from orchestrator.mlflow_runs import Runs
    from orchestrator.projection import Projection
    from orchestrator.tracking import catch_up

    uri, made = f"sqlite:///{folder.parent}/mlflow.db", read_sweep(folder)
    from orchestrator.mlflow_store import connect

    connect(uri).search_experiments()  # makes the database: seconds
    began, busy = time.perf_counter(), time.process_time()
    runs, projection = Runs(uri, made, _drawings()), Projection(made)
    catch_up(runs, projection)
    sent = _metrics(Path(uri.removeprefix("sqlite:///")))
    cost = _cost("mirror", began, busy)
    rate = f"{count / cost['seconds']['mirror']:,.0f} records a second, {sent:,} metrics"
    peak = _peak()
    began, busy = time.perf_counter(), time.process_time()
    runs.settle(projection)
    ended = _cost("finish", began, busy)
    said = f"{rate}, peak {peak:.2f} GB; summaries of {len(made.cells):,} cells {ended['seconds']['finish']:.1f} s"
    return {
        "seconds": cost["seconds"] | ended["seconds"],
        "cpu": cost["cpu"] | ended["cpu"],
        "metrics": sent,
        "said": said,
    }


def again(folder: Path, count: int) -> dict[str, Any]:
    """What a resumed sweep's mirror does before it is up to date: nothing is missing."""
    from orchestrator.mlflow_runs import Runs
    from orchestrator.projection import Projection
    from orchestrator.tracking import catch_up

    made = read_sweep(folder)
    began, busy = time.perf_counter(), time.process_time()
    runs, projection = Runs(f"sqlite:///{folder.parent}/mlflow.db", made), Projection(made)
    catch_up(runs, projection)
    runs.settle(projection)
    return _cost("again", began, busy) | {"said": f"{projection.read:,} lines read"}


def _drawings() -> Any:
    from dashboards import mlflow_plots
    from orchestrator.mlflow_runs import Drawings

    return Drawings(lambda folder: None, mlflow_plots.of_cell, mlflow_plots.of_sweep)


def _cost(name: str, began: float, busy: float) -> dict[str, Any]:
    return {"seconds": {name: time.perf_counter() - began}, "cpu": {name: time.process_time() - busy}}


def _metrics(database: Path) -> int:
    import sqlite3

    with sqlite3.connect(database) as opened:
        return int(opened.execute("select count(*) from metrics").fetchone()[0])


def _peak() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


PARTS = {"append": append, "bare": bare, "mirror": mirror, "again": again}


def measure(count: int) -> None:
    """Every part, and the ratio of the mirror to the bare calls, by the metric."""
    found: dict[str, dict[str, Any]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for name in PARTS:
            command = [sys.executable, __file__, "--part", name, f"{folder}/paper", str(count)]
            ran = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            found[name] = json.loads(ran.stdout.splitlines()[-1])
            line = found[name]
            print(
                f"{name:7} {line['wall']:8.1f} s ({line['busy']:.1f} s of CPU), {line['peak']:.2f} GB: {line['said']}",
                flush=True,
            )
    for clock in ("seconds", "cpu"):
        each = {name: found[name][clock][name] / found[name]["metrics"] for name in ("mirror", "bare")}
        what = "on the clock" if clock == "seconds" else "CPU"
        print(f"mirror / bare, {what}: {each['mirror'] / each['bare']:.3f} ({1e6 * each['bare']:.0f} µs a metric bare)")


# ---- decoding with the server stopped


def decode(folder: Path, uri: str, samples: int) -> float:
    """A sweep's samples a second, by its records."""
    where = [f"store={folder}", f"mlflow={uri}", f"limit={samples}"]
    command = [sys.executable, str(ROOT / "launch.py"), "run", *SWEEP, *where]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=ROOT)
    records = list(Ledger(folder / "quickstart").decodes())
    assert read_segments(folder / "quickstart")
    return len(records) / (max(r["finished"] for r in records) - min(r["started"] for r in records))


@contextmanager
def server(folder: Path) -> Iterator[str]:
    """An MLflow server's address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    store = ["--backend-store-uri", f"sqlite:///{folder}/server.db", "--artifacts-destination", str(folder / "files")]
    command = [sys.executable, "-m", "mlflow", "server", *store, "--port", str(port), "--workers", "1"]
    with (folder / "log").open("w") as log:
        running = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
    try:
        while running.poll() is None:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5)
                break
            except OSError:
                time.sleep(0.5)
        yield f"http://127.0.0.1:{port}"
    finally:
        os.killpg(running.pid, 15)
        running.wait()


def compare(pairs: int, samples: int) -> None:
    """The rate with the server stopped over the rate with it running, pair by pair."""
    ratios = []
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        for pair in range(pairs):
            rates: dict[bool, float] = {}
            for up in (True, False) if pair % 2 == 0 else (False, True):
                where = folder / f"{pair}-{up}"
                if up:
                    with server(folder) as uri:
                        rates[up] = decode(where, uri, samples)
                else:
                    with socket.socket() as taken:  # bound but not listening: connections are refused
                        taken.bind(("127.0.0.1", 0))
                        rates[up] = decode(where, f"http://127.0.0.1:{taken.getsockname()[1]}", samples)
            ratios.append(rates[False] / rates[True])
            print(f"pair {pair}: {rates[True]:.3f} samples/s with the server, {rates[False]:.3f} without", flush=True)
    print(
        f"without / with the server: median {statistics.median(ratios):.3f} of {', '.join(f'{r:.3f}' for r in ratios)}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--records", type=int, default=550_000, help="0 for none")
    parser.add_argument("--pairs", type=int, default=0, help="of small sweeps, with the server and without")
    parser.add_argument("--samples", type=int, default=20, help="rows of such a sweep")
    parser.add_argument("--part", nargs=3, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.part:
        name, where, count = asked.part
        began, busy = time.perf_counter(), time.process_time()
        found = PARTS[name](Path(where), int(count))
        found |= {"wall": time.perf_counter() - began, "busy": time.process_time() - busy, "peak": _peak()}
        print(json.dumps(found))
        return
    if asked.records:
        measure(asked.records)
    if asked.pairs:
        compare(asked.pairs, asked.samples)


if __name__ == "__main__":
    main()
