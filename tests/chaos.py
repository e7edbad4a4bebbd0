"""A sweep on a three-node Ray cluster whose drivers, actors and nodes are killed at random, and proof that it is whole.

    python -m tests.chaos --minutes 5 --kills 50 --seed 0
    python -m tests.chaos --minutes 5 --kills 50 --seed 0 --s3 0.2        # on S3, of whose requests a fifth fail

Real target, real drafters, real Ray; all on this machine. A sweep that is done before the last kill is given more rows.
Afterwards every (cell, row) has one record, equal to that of an undisturbed run in one process, and no process is left;
on S3, every record that a killed driver had written is in the ledger as it was. Exit code 0 if all of it holds.
"""

import argparse
import json
import os
import random
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Any

from orchestrator.ledger import Ledger, read_sweep
from orchestrator.segments import lines
from workers.store import cache_folder, place

ROOT = Path(__file__).parents[1]
MARK = "SPOT_CHAOS"  # in the environment of every process of one run, and so how they are found
GRID = ("quickstart", "drafters=[spot]", "budgets=[0,8]", "temperatures=[0,1]", "decode.gen_length=64", "mlflow=null")
DECIDED = ("status", "text_sha", "length", "nfe", "cache_passes", "drafted", "accepted", "identical")
ENDINGS = ("SIGKILL", "SIGKILL", "SIGTERM", "SIGINT")  # of a driver: a crash, or as a batch system or a user ends it
KINDS = ("actor",) * 12 + ("node",) * 4 + ENDINGS
QUICK = {  # a node that was killed is dead in a second or two, not in twenty
    "RAY_health_check_initial_delay_ms": "1000",
    "RAY_health_check_period_ms": "500",
    "RAY_health_check_failure_threshold": "3",
    "RAY_worker_niceness": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "OMP_NUM_THREADS": "1",
}
HEAD = {"num_cpus": 1, "object_store_memory": 100 << 20, "include_dashboard": False}
NODE_STARTS = 5
END_SECONDS = 30.0  # for processes to be gone
FAULTS = ("500", "503", "torn", "lost", "cut") * 8 + ("silence",)  # of tests/s3.py; that one takes 20 seconds
GAVE_UP = re.compile(r"s3://.*(reached max retries|endpoint URL|response stream)")  # a request failed once too often


def say(text: str) -> None:
    print(f"{time.strftime('%H:%M:%S')} {text}", flush=True)


@contextmanager
def environment(values: dict[str, str]) -> Iterator[None]:
    """With `values` in it, for this process and its children."""
    before = dict(os.environ)
    os.environ.update(values)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


# ---- processes


def processes(mark: str) -> dict[int, str]:
    """Command lines of the live processes that carry `mark`, this one apart."""
    found = {}
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            marked = f"{MARK}={mark}".encode() in (folder / "environ").read_bytes().split(b"\0")
            dead = (folder / "stat").read_text().rpartition(")")[2].split()[0] in "ZX"
            if marked and not dead and int(folder.name) != os.getpid():
                found[int(folder.name)] = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:  # it ended meanwhile
            continue
    return found


def actors(mark: str) -> list[int]:
    return sorted(pid for pid, command in processes(mark).items() if command.startswith("ray::Host"))


def left_after(seconds: float, mark: str, like: str = "") -> dict[int, str]:
    """The marked processes whose command line holds `like` that are still there after up to so many seconds."""
    until = time.monotonic() + seconds
    while (left := {pid: line for pid, line in processes(mark).items() if like in line}) and time.monotonic() < until:
        time.sleep(0.2)
    return left


# ---- S3


@contextmanager
def faulty_s3(folder: str, rate: float, chance: random.Random) -> Iterator[Any]:
    """moto's server as a process, behind a proxy that fails `rate` of the requests; the environment says where."""
    import boto3

    from tests.s3 import access, proxy_before

    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        while not _answers(port):
            assert server.poll() is None, "moto's server did not start"
            time.sleep(0.2)
        with proxy_before(port) as proxy, environment(access(proxy) | {"SPOT_CACHE": f"{folder}/cache"}):
            boto3.client("s3").create_bucket(Bucket="bucket")
            proxy.fault = lambda method, path: chance.choice(FAULTS) if chance.random() < rate else None
            yield proxy
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 1.0).close()
    except OSError:
        return False
    return True


def journals() -> list[dict[str, Any]]:
    """What drivers on S3 have written and may not have sent."""
    found = cache_folder().glob("ledgers/*/journals/*.jsonl")
    return [json.loads(line) for file in found for _, line in lines(file, is_last=True)]


# ---- what is killed


class Site:
    """The cluster and the driver of one run."""

    def __init__(self, cluster: Any, store: str, mark: str, limit: int, chance: random.Random, said: IO[str]) -> None:
        self.cluster, self.store, self.mark, self.limit, self.chance = cluster, store, mark, limit, chance
        self.nodes = [self.new_node() for _ in range(2)]
        self.kills: Counter[str] = Counter()
        self.written: list[dict[str, Any]] = []  # by killed drivers, where it is not in the store itself
        self.gave_up = 0  # drivers whose S3 did not answer
        self.said, self.on_s3 = said, store.startswith("s3://")
        self.driver = self.start("run")

    def start(self, verb: str) -> "subprocess.Popen[bytes]":
        """A driver: `run` grows the sweep to the present limit, `resume` goes on with it."""
        asked = (*GRID, f"limit={self.limit}", "retries=20") if verb == "run" else (GRID[0],)
        command = [sys.executable, "launch.py", verb, *asked, f"workers.address={self.cluster.address}"]
        self.verb = verb
        self.said.seek(0)
        self.said.truncate()
        streams: dict[str, Any] = {"stdout": subprocess.DEVNULL, "stderr": self.said}
        return subprocess.Popen([*command, f"store={self.store}"], cwd=ROOT, **streams)

    def new_node(self) -> Any:
        """Ray gives a node 30 seconds to start, which on a busy machine is not always enough."""
        there = processes(self.mark)
        for _ in range(NODE_STARTS - 1):
            try:
                return self.cluster.add_node(num_cpus=1)
            except Exception as late:
                say(f"a node did not start: {late}"[:100])
                for pid in [pid for pid, line in processes(self.mark).items() if "raylet" in line and pid not in there]:
                    os.kill(pid, signal.SIGKILL)
        return self.cluster.add_node(num_cpus=1)

    def kill(self, kind: str) -> bool:
        """One kill; whether there was something to kill."""
        alive = actors(self.mark)
        if not alive or (kind == "SIGKILL" and self.on_s3 and not journals()):  # nothing would be learnt
            return False
        if kind == "actor":
            os.kill(self.chance.choice(alive), signal.SIGKILL)
        elif kind == "node":
            self.cluster.remove_node(self.nodes.pop(self.chance.randrange(len(self.nodes))), allow_graceful=False)
            self.nodes.append(self.new_node())
        else:
            self._end_driver(signal.Signals[kind])
        self.kills[kind] += 1
        say(f"kill {self.kills.total()}: {kind if kind in ('actor', 'node') else f'driver by {kind}'}")
        return True

    def _end_driver(self, number: signal.Signals) -> None:
        """What is no crash has to be answered with the right exit code."""
        self.driver.send_signal(number)
        code = self.driver.wait(300)
        expected = (-number,) if number == signal.SIGKILL else (128 + number, 0)
        if code not in expected:
            self.go_on(code)
            return
        self.written += journals() if self.on_s3 and number == signal.SIGKILL else []
        self.driver = self.start("resume")

    def go_on(self, code: int) -> None:
        """After a driver that nobody killed: done, or S3 failed it; AssertionError for any other reason."""
        self.said.seek(0)
        why = self.said.read().strip().rpartition("\n")[2]
        if code == 0:
            self.limit *= 2
            say(f"done before the last kill: on to {self.limit} rows")
        else:
            assert code in (2, 3) and GAVE_UP.search(why), f"a driver exited with {code}: {why}"
            self.gave_up += 1
            say(f"a driver gave up ({code}): {why}")
        self.driver = self.start(self.verb if code else "run")

    def finish(self, seconds: float) -> None:
        """Let the sweep come to its end."""
        while code := self.driver.wait(seconds):
            self.go_on(code)


def disturb(site: Site, kinds: Iterator[str], kills: int, mean_seconds: float) -> None:
    while site.kills.total() < kills:
        time.sleep(site.chance.expovariate(1 / mean_seconds) if mean_seconds else 0.2)
        if (code := site.driver.poll()) is not None:
            site.go_on(code)
            continue
        kind = next(kinds)
        while not site.kill(kind) and site.driver.poll() is None:
            time.sleep(0.2)


# ---- the proof


def decoded(store: str) -> dict[tuple[str, str], list[Any]]:
    """What decides a result, by (cell, row). Every planned one has one record, or this fails."""
    folder = place(store) / GRID[0]
    sweep = read_sweep(folder)
    records = [record for record in Ledger(folder).records() if record["kind"] == "decode"]
    times = Counter((record["cell"], record["row"]) for record in records)
    planned = {(cell, row) for cell, rows in sweep.rows.items() for row in rows}
    assert planned == times.keys(), f"{len(planned - times.keys())} of {len(planned)} samples have no record"
    assert set(times.values()) == {1}, f"recorded more than once: {[key for key, n in times.items() if n > 1]}"
    return {(record["cell"], record["row"]): [record.get(name) for name in DECIDED] for record in records}


def check_journals(site: Site) -> None:
    """What killed drivers had written was appended as it was, and nothing is still to be."""
    held = [json.dumps(dict(record), sort_keys=True) for record in Ledger(place(site.store) / GRID[0]).records()]
    lost = {json.dumps(record, sort_keys=True) for record in site.written} - set(held)
    assert not lost, f"{len(lost)} records of killed drivers are lost, as {min(lost)[:200]}"
    assert not journals(), "journals are left that no driver appended"


def undisturbed(store: str, limit: int) -> dict[tuple[str, str], list[Any]]:
    """The same by one process that nobody touches."""
    asked = [*GRID, f"limit={limit}", "workers.executor=inline", f"store={store}"]
    subprocess.run([sys.executable, "launch.py", "run", *asked], cwd=ROOT, stdout=subprocess.DEVNULL, check=True)
    return decoded(store)


@contextmanager
def cluster_of_three(mark: str) -> Iterator[Any]:
    """A head, which stays, and room for two nodes beside it; its processes carry `mark`."""
    from ray.cluster_utils import Cluster

    with environment(QUICK | {MARK: mark, "PYTHONPATH": str(ROOT)}):
        cluster = Cluster(initialize_head=True, head_node_args=HEAD)
        try:
            yield cluster
        finally:
            cluster.shutdown()


def chaos(kills: int, mean_seconds: float, seed: int, store: str, limit: int, kinds: Sequence[str] = ()) -> Site:
    """Run it; AssertionError where the sweep is not whole. `kinds` in order, or at random."""
    mark, chance = uuid.uuid4().hex, random.Random(seed)
    order = iter(kinds) if kinds else iter(lambda: chance.choice(KINDS), None)
    with cluster_of_three(mark) as cluster, tempfile.TemporaryFile("w+") as said:
        site = Site(cluster, store, mark, limit, chance, said)
        try:
            disturb(site, order, kills, mean_seconds)
            say(f"{kills} kills ({dict(site.kills)}); now to the end")
            site.finish(1800)
        finally:
            site.driver.kill()
        left = left_after(END_SECONDS, mark, "ray::Host")
        assert not left, f"actors outlived their driver: {left}"
    left = left_after(END_SECONDS, mark)
    assert not left, f"processes are left: {left}"
    return site


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--limit", type=int, default=32, help="rows to begin with")
    parser.add_argument("--s3", type=float, metavar="RATE", help="a store on S3, and how many of its requests fail")
    parser.add_argument("store", nargs="?", help="store=FOLDER; a temporary one by default")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        store = (asked.store or f"store={folder}/chaos").removeprefix("store=")
        if asked.s3:
            s3, store = stack.enter_context(faulty_s3(folder, asked.s3, random.Random(asked.seed))), "s3://bucket/chaos"
        began = time.monotonic()
        site = chaos(asked.kills, 60 * asked.minutes / asked.kills, asked.seed, store, asked.limit)
        found = decoded(store)
        say(f"{len(found)} samples, each recorded once; {time.monotonic() - began:.0f} s; now the undisturbed run")
        assert found == undisturbed(f"{folder}/undisturbed", site.limit), "results differ from an undisturbed run"
        result = {"kills": dict(site.kills), "samples": len(found), "equal": True, "processes left": 0}
        if asked.s3:
            check_journals(site)
            result |= {"requests": len(s3.seen), "drivers that gave up": site.gave_up}
            result |= {"records of killed drivers": len({json.dumps(record) for record in site.written})}
    say(json.dumps(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())
