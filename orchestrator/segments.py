"""The files that a ledger's lines are in: appended to in a folder, created one after another on S3. design.md §5.

    log = open_to_write(place("s3://bucket/runs/quickstart"))
    log.append(b'{"kind":"decode",...}\\n')     # in a file of this machine at once: a killed driver loses nothing
    log.sync()                                  # and durable

In a folder, that file is the segment and `sync` is fsync; flock keeps other drivers out. On S3 it is a journal in
`cache_folder()`, and `sync` uploads what it has grown by as a segment, `EPOCH-SEQUENCE.jsonl` by the lease's epoch,
which must not be there yet. What could not be uploaded stays in the journal, and the next driver on this machine
appends it to the ledger. A new driver first seals the earlier epochs: the name that their next segment would have gets
an empty object, so that a driver that was cut off finds its place taken, and what is once in the log stays first in it.
"""

import fcntl
import hashlib
import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from orchestrator.errors import UserError
from orchestrator.lease import Lease, acquire, started, this_process
from workers.store import PARTIAL, Bucket, Place, S3Path, S3Store, Tag, cache_folder, sync_folder

SEGMENT_BYTES = 64 << 20
DOWNLOADS = 16  # at once


class Line(NamedTuple):
    """Where a line is."""

    file: Path
    offset: int


class Log(Protocol):
    """The segments of one sweep, open to append."""

    def files(self) -> list[Path]:
        """The segments that were there when the log was opened, in order."""
        ...

    def left_over(self) -> Iterator[bytes]:
        """Lines that an earlier driver on this machine could not make durable."""
        ...

    def append(self, line: bytes) -> Line:
        """Write a line whole or not at all; raises OSError for a full disk, LeaseLost if another driver took over."""
        ...

    def sync(self) -> None:
        """Make durable what was appended; raises OSError where that fails, and may be called again."""

    def kept(self) -> str:
        """Where lines are that `sync` fails to make durable, in words."""
        ...

    def close(self) -> None:
        """Let the next driver in. Does not sync."""


def read_segments(folder: Place) -> list[Path]:
    """The segments as they are now, in order, as files of this machine: those on S3 are fetched, once."""
    if isinstance(folder, Path):
        return sorted((folder / "segments").glob("*.jsonl"))
    return fetch_segments(S3Store(folder / "segments"), _cache(folder))


def open_to_write(folder: Place, say: Callable[[str], None] = lambda line: None) -> Log:
    """The log, for this process alone. UserError, naming its driver, where another has it."""
    if isinstance(folder, Path):
        return FolderLog(folder)
    lease = acquire(S3Store(folder), str(folder), this_process(), say)
    lease.keep()
    try:
        return BucketLog(lease, S3Store(folder / "segments"), _cache(folder))
    except BaseException:
        lease.release()
        raise


def lines(file: Path, is_last: bool) -> Iterator[tuple[int, bytes]]:
    """(offset, line) of every complete line. A torn one at the end of the last segment is passed over."""
    with file.open("rb") as opened:
        offset = 0
        for line in opened:
            if not line.endswith(b"\n") and is_last:
                return
            yield offset, line
            offset += len(line)


class Appended:
    """A file that lines are appended to, each whole or not at all."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND, 0o644)
        self.size = os.fstat(self.descriptor).st_size

    def append(self, line: bytes) -> Line:
        start, written = self.size, 0
        try:
            while written < len(line):  # a disk that fills up takes a part, and then raises
                written += os.write(self.descriptor, line[written:])
        except OSError:
            os.ftruncate(self.descriptor, start)
            raise
        self.size += len(line)
        return Line(self.path, start)

    def close(self) -> None:
        os.close(self.descriptor)


# ---- in a folder


class FolderLog:
    """`segments/NNN.jsonl`, each begun when the last has grown past 64 MiB. `lock` is held until the process ends."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._file = folder / "segments", None
        self._folder.mkdir(parents=True, exist_ok=True)
        self._lock = _flock(folder)
        if segments := self.files():
            cut_torn_tail(segments[-1])

    def files(self) -> list[Path]:
        return sorted(self._folder.glob("*.jsonl"))

    def left_over(self) -> Iterator[bytes]:
        return iter(())

    def append(self, line: bytes) -> Line:
        if self._file is None or self._file.size >= SEGMENT_BYTES:
            self._file = self._next(self._file)
        return self._file.append(line)

    def sync(self) -> None:
        if self._file is not None:
            os.fsync(self._file.descriptor)

    def kept(self) -> str:
        return "what was durable still is"

    def close(self) -> None:
        if self._file is not None:
            self._file.close()
        self._lock.truncate(0)
        self._lock.close()

    _file: Appended | None

    def _next(self, full: Appended | None) -> Appended:
        if full is not None:
            self.sync()
            full.close()
        segments = self.files()
        goes_on = bool(segments) and segments[-1].stat().st_size < SEGMENT_BYTES
        file = Appended(segments[-1] if goes_on else self._folder / f"{len(segments) + 1:03d}.jsonl")
        sync_folder(self._folder)
        return file


def _flock(folder: Path) -> IO[bytes]:
    """The sweep's lock, held until the file is closed or this process ends in whatever way."""
    lock = (folder / "lock").open("ab", buffering=0)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        wrong = f"another driver is running this sweep ({locked_by(folder)}); wait for it, or stop it"
        raise UserError(str(folder), "", wrong) from None
    try:
        lock.truncate(0)
        lock.write(f"{socket.gethostname()} {os.getpid()} {started(os.getpid())}".encode())
    except OSError:  # a full disk
        lock.close()
        raise
    return lock


def locked_by(folder: Path) -> str | None:
    """`host, process 123` of the driver that has the lock, None where none lives (as far as this host can see)."""
    try:
        host, pid, began = (folder / "lock").read_text().split(" ")
    except (OSError, ValueError):
        return None
    alive = host != socket.gethostname() or started(int(pid)) == began  # a pid comes back
    return f"{host}, process {pid}" if alive else None


def cut_torn_tail(path: Path) -> None:
    """Cut off a last line that lacks its newline or is no JSON, as a power cut leaves it."""
    data = path.read_bytes()
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    whole = end if is_json(data[start:end] or b"0") else start
    if whole < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())


def is_json(line: bytes) -> bool:
    try:
        json.loads(line)
    except ValueError:
        return False
    return True


# ---- on S3


class BucketLog:
    """Segments on a store of which others may be writers too, as far as the lease does not keep them out."""

    def __init__(self, lease: Lease, segments: Bucket, cache: Path) -> None:
        self._lease, self._segments, self._journals = lease, segments, cache / "journals"
        self._sequence = self._uploaded = 0
        seal(segments, lease.holder.epoch)
        self._files = fetch_segments(segments, cache)
        self._journals.mkdir(parents=True, exist_ok=True)
        self._left_over = [path for path in sorted(self._journals.iterdir()) if _is_abandoned(path)]
        self._journal = Appended(self._journals / f"{lease.holder.token}.jsonl")
        fcntl.flock(self._journal.descriptor, fcntl.LOCK_EX)

    def files(self) -> list[Path]:
        return self._files

    def left_over(self) -> Iterator[bytes]:
        for journal in self._left_over:
            yield from (line for _, line in lines(journal, is_last=True))

    def append(self, line: bytes) -> Line:
        self._lease.check()
        return self._journal.append(line)

    def sync(self) -> None:
        self._lease.check()
        while self._uploaded < self._journal.size:
            data = os.pread(self._journal.descriptor, SEGMENT_BYTES, self._uploaded)
            self._upload(data[: data.rfind(b"\n") + 1])
        for journal in self._left_over:  # they are in this one, or were in the log before
            journal.unlink(missing_ok=True)
        self._left_over = []

    def kept(self) -> str:
        return f"the records that are not there yet are kept in {self._journal.path}, for the next run on this machine"

    def close(self) -> None:
        if self._uploaded == self._journal.size:
            self._journal.path.unlink(missing_ok=True)
        self._journal.close()
        self._lease.release()

    def _upload(self, data: bytes) -> None:
        name = segment_name(self._lease.holder.epoch, self._sequence + 1)
        if self._segments.create(name, data) is None:
            data = self._segments.get(name)  # an earlier attempt's, whose answer was lost; empty, if it was sealed
        if not data:
            self._lease.lost = True
            self._lease.check()
        self._sequence += 1
        self._uploaded += len(data)


def segment_name(epoch: int, sequence: int) -> str:
    """Names sort as (epoch, sequence) do."""
    return f"{epoch:06d}-{sequence:06d}.jsonl"


def seal(segments: Bucket, epoch: int) -> None:
    """From here on no driver of an earlier epoch can add a segment."""
    sizes: dict[int, list[int]] = {}
    for name, tag in segments.tags().items():
        if not re.fullmatch(r"\d{6}-\d{6}\.jsonl", name):  # a folder's segment, copied here, has no epoch
            continue
        sizes.setdefault(int(name.partition("-")[0]), []).append(tag.size)
    for earlier in range(1, epoch):
        there = sizes.get(earlier, [])
        sequence = len(there) + 1
        while not (there and there[-1] == 0):
            name = segment_name(earlier, sequence)
            sealed = segments.create(name, b"") is not None
            there = [0 if sealed else len(segments.get(name))]  # a segment that came meanwhile is one of the log
            sequence += 1


def fetch_segments(segments: Bucket, cache: Path) -> list[Path]:
    """The segments as files in `cache`; those that were fetched before, and have the same ETag, are there already."""
    tags = {name: tag for name, tag in segments.tags().items() if tag.size and name.endswith(".jsonl")}
    files = {name: cache / _file_name(name, tag) for name, tag in tags.items()}
    cache.mkdir(parents=True, exist_ok=True)
    for file in set(cache.glob("*.jsonl")) - set(files.values()):
        if f"{file.name.rpartition('-')[0]}.jsonl" in tags:  # one of an earlier sweep that was deleted
            file.unlink(missing_ok=True)
    missing = [name for name, file in files.items() if not file.exists()]
    with ThreadPoolExecutor(DOWNLOADS) as threads:
        list(threads.map(lambda name: _fetch(segments, name, files[name]), missing))
    return list(files.values())


def _fetch(segments: Bucket, name: str, file: Path) -> None:
    partial = file.with_name(f"{file.name}.{os.getpid()}{PARTIAL}")
    partial.write_bytes(segments.get(name))
    partial.replace(file)


def _file_name(name: str, tag: Tag) -> str:
    return f"{name.removesuffix('.jsonl')}-{re.sub(r'[^0-9A-Za-z]', '', tag.etag)}.jsonl"


def _cache(folder: S3Path) -> Path:
    return cache_folder() / "ledgers" / hashlib.sha256(str(folder).encode()).hexdigest()[:16]


def _is_abandoned(journal: Path) -> bool:
    """Whether its driver has ended, in whatever way."""
    with journal.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
    return True
