"""The truth about a sweep: `<store>/<name>/sweep.yaml` and `segments/NNN.jsonl`, one record a line. design.md §5.

    from orchestrator.ledger import Ledger, read_sweep
    sweep = read_sweep(Path("runs/quickstart"))
    decodes = Ledger(sweep.folder).results()

The driver alone writes, or `rescore` (flock; a dead holder's lock is free at once). A record reaches the file at
once, so a killed driver loses none, and the disk with `sync`, every 10 s or 200 records, so a dead machine loses at
most those. A torn last line is cut before anything is appended. Readers take no lock and pass over a torn tail.
"""

import fcntl
import json
import os
import socket
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Self

import yaml

from orchestrator.errors import UserError
from orchestrator.grid import Cell

SYNC_SECONDS = 10.0
SYNC_RECORDS = 200
SEGMENT_BYTES = 64 << 20
Record = dict[str, Any]
Sample = tuple[str, str]  # (cell key, row id)
ScoreKey = tuple[str, str, str, str]  # (task, row id, text sha, scorer version)


@dataclass(frozen=True)
class Sweep:
    """sweep.yaml. `cells` are those of the grid as it was last run; `retired` those that it once had.

    `rows` maps a cell key to the row ids planned for it. `environment` is what the results were made with. `id` tells
    sweeps of one name apart; one from before there were ids has none.
    """

    folder: Path
    name: str
    config: dict[str, Any]
    cells: tuple[Cell, ...]
    rows: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, Any] = field(default_factory=dict)
    retired: tuple[Cell, ...] = ()
    id: str = ""


# ---- sweep.yaml


def read_sweep(folder: Path) -> Sweep:
    """The sweep in `folder`. Raises UserError where there is none, or none that can be read."""
    path = folder / "sweep.yaml"
    if not path.is_file():
        raise UserError(str(folder), "", "no sweep here; start one with: python launch.py run GRID")
    try:
        return _sweep(folder, yaml.load(path.read_text(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError):
        wrong = "not a sweep.yaml this version can read; restore it, or start anew under another name="
        raise UserError(str(path), "", wrong) from None


def _sweep(folder: Path, plain: Any) -> Sweep:
    lists = [tuple(ids) for ids in plain["row_lists"]]
    return Sweep(
        folder=folder,
        name=plain["name"],
        config={"store": plain["config"]["store"], "mlflow": plain["config"]["mlflow"], **plain["config"]},
        cells=tuple(_cell(cell) for cell in plain["cells"]),
        rows={cell["key"]: lists[cell["rows"]] for cell in plain["cells"]},
        environment=plain["environment"],
        retired=tuple(_cell(cell) for cell in plain["retired"]),
        id=plain.get("id", ""),
    )


def _cell(plain: Mapping[str, Any]) -> Cell:
    cell = Cell.from_dict(plain)
    if cell.key != plain["key"]:  # another version gave cells other fields
        raise ValueError(plain["key"])
    return cell


def write_sweep(sweep: Sweep) -> None:
    """sweep.yaml, replaced whole or not at all."""
    lists = {ids: number for number, ids in enumerate(dict.fromkeys(sweep.rows.values()))}
    plain = {
        "name": sweep.name,
        "id": sweep.id,
        "config": sweep.config,
        "environment": dict(sweep.environment),
        "cells": [
            {"key": c.key, "label": c.label, "rows": lists[sweep.rows[c.key]], **c.as_dict()} for c in sweep.cells
        ],
        "retired": [{"key": c.key, "label": c.label, **c.as_dict()} for c in sweep.retired],
        "row_lists": [list(ids) for ids in lists],  # cells of a group share one list; `rows` is its number
    }
    dumper = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
    text = yaml.dump(plain, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=None, width=120)
    temporary = sweep.folder / "sweep.yaml.new"
    with temporary.open("w") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, sweep.folder / "sweep.yaml")
    _sync_folder(sweep.folder)


# ---- segments


class Ledger:
    """The records of one sweep.

    `Ledger(folder)` reads what is complete in the files now, takes no lock and changes nothing. `Ledger.write` opens
    to append; close it, or use it in a `with`.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ignored = 0  # decode records of a (cell, row) that already had one
        self._results: dict[Sample, Record] = {}
        self._scores: dict[ScoreKey, Record] = {}
        self._lock: IO[str] | None = None
        self._file: IO[bytes] | None = None
        self._unsynced: list[Record] = []
        self._synced_at = 0.0
        for record in self.records():
            self._index(record)

    @classmethod
    def write(cls, folder: Path, now: float) -> "Ledger":
        """Locked for this process, a torn tail cut off, ready to append. UserError where another driver holds it."""
        try:
            (folder / "segments").mkdir(parents=True, exist_ok=True)
            lock = _acquire(folder)
        except OSError as error:
            wrong = f"cannot be written ({error.strerror}); choose another with store=FOLDER"
            raise UserError(str(folder), "store", wrong) from None
        segments = _segments(folder)
        if segments:
            _cut_torn_tail(segments[-1])
        ledger = cls(folder)
        ledger._lock, ledger._synced_at = lock, now
        return ledger

    def records(self) -> Iterator[Record]:
        """Every complete record on file, in the order written. UserError where a line before the last is damaged."""
        segments = _segments(self.folder)
        for path in segments:
            data = path.read_bytes()
            whole = _whole(data) if path == segments[-1] else len(data)
            for number, line in enumerate(data[:whole].splitlines(), start=1):
                try:
                    yield json.loads(line)
                except ValueError:
                    raise UserError(f"{path}:{number}", "", "damaged record; move this line out of the file") from None

    def results(self) -> Mapping[Sample, Record]:
        """The decode record that counts for each (cell, row): the first `ok` one, else the last failure.

        design.md's "first record is the result" would leave nothing to a retry (`resume --retry-failed`): a failure is
        not a result, and one that was tried again says more of why.
        """
        return self._results

    def scores(self) -> Mapping[ScoreKey, Record]:
        """The score of each (task, row, text sha, scorer version), oldest first: the last one made counts.

        A text that has one is scored again only where its score is an `error`, or `rescore --all` asks for it.
        """
        return self._scores

    def append(self, record: Record) -> bool:
        """Write `record`; False, and nothing written, where it is a decode whose place is taken already."""
        if not self._index(record):
            return False
        file = self._segment()
        file.write(json.dumps(record, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
        file.flush()
        self._unsynced.append(record)
        return True

    def sync(self, now: float, force: bool = False) -> list[Record]:
        """The records made durable by this call, oldest first: none until 10 s or 200 records have gone by."""
        due = now - self._synced_at >= SYNC_SECONDS or len(self._unsynced) >= SYNC_RECORDS
        if self._file is None or not (due or force):
            return []
        os.fsync(self._file.fileno())
        durable, self._unsynced, self._synced_at = self._unsynced, [], now
        return durable

    def close(self) -> None:
        """Sync, and free the lock."""
        if self._file is not None:
            os.fsync(self._file.fileno())
            self._file.close()
        if self._lock is not None:
            self._lock.truncate(0)
            self._lock.close()
        self._file = self._lock = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _index(self, record: Record) -> bool:
        if record["kind"] == "score":
            self._scores.pop(score_key(record), None)
            self._scores[score_key(record)] = record
            return True
        sample = (record["cell"], record["row"])
        held = self._results.get(sample)
        if held is not None and (held["status"] == "ok" or record["attempt"] <= held["attempt"]):
            self.ignored += 1
            return False
        self._results[sample] = record
        return True

    def _segment(self) -> IO[bytes]:
        """The open segment; a new one is begun where the last has grown past 64 MiB."""
        assert self._lock is not None, "open with Ledger.write to append"
        if self._file is not None and self._file.tell() >= SEGMENT_BYTES:
            os.fsync(self._file.fileno())
            self._file.close()
            self._file = None
        if self._file is None:
            self._file = _next_segment(self.folder).open("ab")
            _sync_folder(self.folder / "segments")
        return self._file


def end_status(rows: Mapping[str, tuple[str, ...]], results: Mapping[Sample, Record]) -> str:
    """MLflow's word for a sweep at its end; `rows` are the planned ones by cell.

    KILLED with a sample undone, for whatever reason: the ledger does not know it, and MLflow shows what the ledger
    says. A failed sample is a result; a losslessness bug fails the sweep.
    """
    held = [results.get((cell, row)) for cell, planned in rows.items() for row in planned]
    if None in held:
        return "KILLED"
    return "FAILED" if any(record and record.get("difference") == "bug" for record in held) else "FINISHED"


def score_key(record: Record) -> ScoreKey:
    """What a score record is the score of."""
    return record["task"], record["row"], record["text_sha"], record["scorer"]


def holder(folder: Path) -> str | None:
    """`host, process 123` of the live driver of this sweep, None where there is none (as far as this host can see)."""
    try:
        host, pid = (folder / "lock").read_text().split()
    except (OSError, ValueError):
        return None
    alive = host != socket.gethostname() or Path(f"/proc/{pid}").exists()
    return f"{host}, process {pid}" if alive else None


def _acquire(folder: Path) -> IO[str]:
    """The sweep's lock, held until the file is closed or this process ends in whatever way."""
    lock = (folder / "lock").open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        lock.close()
        raise UserError(
            str(folder), "", f"another driver is running this sweep ({holder(folder)}); wait for it, or stop it"
        ) from None
    lock.truncate(0)
    lock.write(f"{socket.gethostname()} {os.getpid()}")
    lock.flush()
    return lock


def _segments(folder: Path) -> list[Path]:
    return sorted((folder / "segments").glob("*.jsonl"))


def _next_segment(folder: Path) -> Path:
    segments = _segments(folder)
    if segments and segments[-1].stat().st_size < SEGMENT_BYTES:
        return segments[-1]
    return folder / "segments" / f"{len(segments) + 1:03d}.jsonl"


def _whole(data: bytes) -> int:
    """The length of `data` without a torn last line: one that lacks its newline or is no JSON."""
    end = data.rfind(b"\n") + 1
    start = data.rfind(b"\n", 0, max(end - 1, 0)) + 1
    try:
        json.loads(data[start:end] or b"0")
    except ValueError:
        return start
    return end


def _cut_torn_tail(path: Path) -> None:
    data = path.read_bytes()
    if (whole := _whole(data)) < len(data):
        with path.open("r+b") as file:
            file.truncate(whole)
            os.fsync(file.fileno())


def _sync_folder(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY)
    os.fsync(descriptor)
    os.close(descriptor)
