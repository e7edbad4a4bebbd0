"""Runs launch.py with a crash built in: `python -m tests.crash WHAT RECORDS launch-arguments...`

After the RECORDS-th decode record the driver kills itself (`driver`), itself before its records are on disk
(`driver-unsynced`), or one of its actors (`actor`), with SIGKILL.
"""

import os
import signal
import sys
import time
from pathlib import Path

import launch
from orchestrator.ledger import Ledger


def crash_after(what: str, records: int) -> None:
    append, seen = Ledger.append, []

    def counting(ledger: Ledger, record: dict) -> bool:
        taken = append(ledger, record)
        seen.append(record["kind"])
        if seen.count("decode") == records and record["kind"] == "decode":
            if what == "actor":
                os.kill(actors()[0], signal.SIGKILL)
            else:
                if what == "driver":
                    ledger.sync(time.time(), force=True)
                os.kill(os.getpid(), signal.SIGKILL)
        return taken

    Ledger.append = counting


def actors() -> list[int]:
    """Process ids of the Ray actors below this process."""
    parents = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            pid, fields = int(stat.parent.name), stat.read_text().rpartition(")")[2].split()
            parents[pid] = int(fields[1])
        except OSError:  # it ended meanwhile
            continue
    return sorted(pid for pid in parents if is_actor(pid) and os.getpid() in ancestors(pid, parents))


def is_actor(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Host")
    except OSError:
        return False


def ancestors(pid: int, parents: dict[int, int]) -> set[int]:
    found = set()
    while (pid := parents.get(pid, 0)) > 1:
        found.add(pid)
    return found


if __name__ == "__main__":
    crash_after(sys.argv[1], int(sys.argv[2]))
    sys.exit(launch.main(sys.argv[3:]))
