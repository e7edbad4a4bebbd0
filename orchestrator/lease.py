"""One driver a sweep, on a store that has no locks: an object that its holder keeps rewriting. design.md §5.

    lease = acquire(open_store("s3://bucket/runs/quickstart"), "s3://bucket/runs/quickstart", this_process())
    lease.keep()       # renews it from a thread, until
    lease.release()

Every holder has an epoch of its own, one more than the last. Whoever wants a lease that is held watches its ETag for
TTL seconds: if it changes, the holder lives; if not, the lease is taken over, and only one can (If-Match). One held by
a dead process of this machine is not watched. A holder that was cut off learns from its next renewal that it has lost,
and from its next segment too (orchestrator/segments.py), so no clock has to be trusted.
"""

import json
import os
import socket
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from threading import Event, Thread
from uuid import uuid4

from orchestrator.errors import UserError
from workers.store import Bucket

NAME = "lease"
TTL = 30.0  # seconds without a renewal after which a lease may be taken over
RENEW_SECONDS = 8.0
LOOK_SECONDS = 2.0  # how often a lease that is watched is looked at


@dataclass(frozen=True)
class Holder:
    """Who has the lease, as the object says it. `beat` counts renewals, so that every one has another ETag.

    `machine` is a boot of a machine, and on it the process namespace: where a pid and `started` mean something.
    """

    host: str
    pid: int
    machine: str
    started: str
    token: str
    epoch: int = 1
    beat: int = 0
    released: bool = False

    def __str__(self) -> str:
        return f"{self.host}, process {self.pid}"

    @property
    def data(self) -> bytes:
        return json.dumps(asdict(self)).encode()


def this_process() -> Holder:
    """This process as a holder to be."""
    return Holder(socket.gethostname(), os.getpid(), _machine(), started(os.getpid()), uuid4().hex)


class LeaseLost(UserError):
    """Another driver has this sweep now: nothing may be written any more."""


class Lease:
    """A lease that is held."""

    def __init__(self, bucket: Bucket, where: str, holder: Holder, etag: str) -> None:
        self.holder, self.lost = holder, False
        self._bucket, self._where, self._etag = bucket, where, etag
        self._end, self._thread = Event(), Thread(target=self._renew_until_end, name="lease", daemon=True)

    def renew(self, released: bool = False) -> None:
        """Say that the holder lives. LeaseLost where another has taken over, OSError where S3 does not answer."""
        then = replace(self.holder, beat=self.holder.beat + 1, released=released)
        etag = _write(self._bucket, then, self._etag)
        if etag is None:
            self.lost = True
            self.check()
            return
        self.holder, self._etag = then, etag

    def check(self) -> None:
        """Raises LeaseLost if that is known."""
        if self.lost:
            try:
                now = _read(self._bucket)
            except OSError:
                now = None
            by = f" by {now[0]}" if now and now[0].token != self.holder.token else ""
            raise LeaseLost(self._where, "", f"this driver was cut off and its sweep taken over{by}; it stops here")

    def keep(self) -> None:
        """Renew from a thread until `release`."""
        self._thread.start()

    def release(self) -> None:
        """Let the next driver have it at once. What goes wrong here costs that one a wait, no more."""
        self._end.set()
        if self._thread.is_alive():
            self._thread.join()
        if not self.lost:
            try:
                self.renew(released=True)
            except (LeaseLost, OSError):
                return

    def _renew_until_end(self) -> None:
        while not self._end.wait(RENEW_SECONDS) and not self.lost:
            try:
                self.renew()
            except (LeaseLost, OSError):  # the first is found by `check`, the second may pass
                continue


def acquire(
    bucket: Bucket,
    where: str,
    me: Holder,
    say: Callable[[str], None] = lambda line: None,
    sleep: Callable[[float], object] = time.sleep,
) -> Lease:
    """The lease of the sweep at `where`. UserError, naming the holder, where it has one that lives."""
    seen = _read(bucket)
    if seen is not None and not (seen[0].released or _is_dead(seen[0])):
        seen = _watch(bucket, where, seen, say, sleep)
    epoch = seen[0].epoch + 1 if seen else 1
    mine = replace(me, epoch=epoch)
    etag = _write(bucket, mine, seen[1] if seen else None)
    if etag is None:
        raise _held(where, _read(bucket))
    if bucket.create(NAME, mine.data) is not None:
        wrong = "this store ignores If-None-Match, and could not keep two drivers apart; name a folder, or another S3"
        raise UserError(where, "store", wrong)
    return Lease(bucket, where, mine, etag)


def holder(bucket: Bucket) -> Holder | None:
    """Who has the lease; None where nobody does, or its holder has died or been silent for TTL seconds."""
    seen = _read(bucket)
    if seen is None or seen[0].released or _is_dead(seen[0]) or seen[2] > TTL:
        return None
    return seen[0]


def _watch(
    bucket: Bucket,
    where: str,
    seen: tuple[Holder, str, float],
    say: Callable[[str], None],
    sleep: Callable[..., object],
) -> tuple[Holder, str, float] | None:
    """The lease as it is once its holder has been silent for TTL, or has released it."""
    say(f"{seen[0]} has this sweep; watching for {TTL:g} s whether it lives")
    for _ in range(round(TTL / LOOK_SECONDS)):
        sleep(LOOK_SECONDS)
        now = _read(bucket)
        if now is None or now[0].released:
            return now
        if now[1] != seen[1]:
            raise _held(where, now)
    return seen


def _held(where: str, now: tuple[Holder, str, float] | None) -> UserError:
    by = f" ({now[0]})" if now else ""
    return UserError(where, "", f"another driver is running this sweep{by}; wait for it, or stop it")


def _read(bucket: Bucket) -> tuple[Holder, str, float] | None:
    """The holder, the lease's ETag and its age in seconds."""
    try:
        found = bucket.read(NAME)
    except FileNotFoundError:
        return None
    return Holder(**json.loads(found.data)), found.etag, found.age


def _write(bucket: Bucket, holder: Holder, etag: str | None) -> str | None:
    """Put `holder` in the place of what has `etag` (None: of nothing). The new ETag; None if it was something else."""
    written = bucket.create(NAME, holder.data) if etag is None else bucket.swap(NAME, holder.data, etag)
    if written is None:  # or it was written, the answer was lost, and the request sent again
        now = _read(bucket)
        if now and now[0] == holder:
            return now[1]
        if now and now[0].token == holder.token:  # an earlier renewal was written
            return _write(bucket, holder, now[1])
    return written


def _is_dead(holder: Holder) -> bool:
    """Whether it was a process of this machine, and is no more. False where that cannot be known."""
    return holder.machine == _machine() != "" and started(holder.pid) != holder.started


def _machine() -> str:
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:  # no Linux
        return ""


def started(pid: int) -> str:
    """When a process was started, in ticks since boot; empty where there is none. A pid comes back, this does not."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return ""
    fields = stat.rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
