"""The truth about a sweep: `<store>/<name>/sweep.yaml` and `segments/`, one record a line. design.md §5.

    from orchestrator.ledger import Ledger, read_sweep
    sweep = read_sweep(Path("runs/quickstart"))          # or place("s3://bucket/runs/quickstart")
    decodes = Ledger(sweep.folder).results()

The driver alone writes, or `rescore`: one at a time, by a lock in a folder and by a lease on S3. A record is in a file
of this machine at once, so a killed driver loses none, and durable with `sync`, every 10 s or 200 records, so a dead
machine loses at most those. Readers take no lock and pass over a torn tail. What a record measured, and its text, stay
on disk until they are asked for: a ledger of half a million records takes a quarter of a gigabyte.
"""

import errno
import json
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from sys import intern
from typing import Any, BinaryIO, Self

import yaml

from orchestrator import lease
from orchestrator.errors import UserError
from orchestrator.grid import Cell
from orchestrator.segments import Line, Log, lines, locked_by, open_to_write, read_segments
from workers.store import Place, S3Store, StoreError, open_store

SYNC_SECONDS = 10.0
SYNC_RECORDS = 200
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # what a disk says that has no room
Record = Mapping[str, Any]
Sample = tuple[str, str]  # (cell key, row id)
ScoreKey = tuple[str, str, str, str]  # (task, row id, text sha, scorer version)


@dataclass(frozen=True)
class Sweep:
    """sweep.yaml. `cells` are those of the grid as it was last run; `retired` those that it once had.

    `rows` maps a cell key to the row ids planned for it. `environment` is what the results were made with. `id` tells
    sweeps of one name apart; one from before there were ids has none.
    """

    folder: Place
    name: str
    config: dict[str, Any]
    cells: tuple[Cell, ...]
    rows: Mapping[str, tuple[str, ...]]
    environment: Mapping[str, Any] = field(default_factory=dict)
    retired: tuple[Cell, ...] = ()
    id: str = ""


# ---- sweep.yaml


def has_sweep(folder: Place) -> bool:
    """Whether there is a sweep in `folder`."""
    if isinstance(folder, Path):
        return (folder / "sweep.yaml").is_file()
    return "sweep.yaml" in open_store(folder).names()


def read_sweep(folder: Place) -> Sweep:
    """The sweep in `folder`. Raises UserError where there is none, or none that can be read."""
    try:
        text = open_store(folder).get("sweep.yaml")
    except (FileNotFoundError, NotADirectoryError):
        raise UserError(str(folder), "", "no sweep here; start one with: python launch.py run GRID") from None
    try:
        return _sweep(folder, yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, AttributeError, LookupError, TypeError, ValueError):
        wrong = "not a sweep.yaml this version can read; restore it, or start anew under another name="
        raise UserError(str(folder / "sweep.yaml"), "", wrong) from None


def _sweep(folder: Place, plain: Any) -> Sweep:
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
    open_store(sweep.folder).put("sweep.yaml", text.encode())


# ---- records


class Decoded(Record):
    """An `ok` decode record of which only what every pass over a sweep asks for is in memory."""

    __slots__ = ("_line", "_reader", "attempt", "cell", "difference", "nfe", "row", "text_sha")
    _CONSTANT = {"kind": "decode", "status": "ok"}  # noqa: RUF012
    _HELD = frozenset({"cell", "row", "attempt", "nfe", "text_sha", "difference"})

    def __init__(self, reader: "_Reader", line: Line, held: Record) -> None:
        self._reader, self._line = reader, line
        self.cell, self.row, self.attempt = intern(held["cell"]), intern(held["row"]), held["attempt"]
        self.nfe, self.text_sha, self.difference = held.get("nfe"), held.get("text_sha"), held.get("difference")

    def __getitem__(self, name: str) -> Any:
        if name in self._HELD and ((value := getattr(self, name)) is not None or name == "difference"):
            return value
        return self._CONSTANT.get(name) or self.whole()[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.whole())

    def __len__(self) -> int:
        return len(self.whole())

    def whole(self) -> Record:
        """All of it, from the disk."""
        return self._reader.record(self._line)


class _Reader:
    """Records by their place; the last one, and its file, are kept at hand. For one thread."""

    def __init__(self) -> None:
        self._file: tuple[Path, BinaryIO] | None = None
        self._last: tuple[Line, Record] | None = None

    def record(self, line: Line) -> Record:
        if self._last is None or self._last[0] != line:
            if self._file is None or self._file[0] != line.file:
                self._file = line.file, line.file.open("rb")
            opened = self._file[1]
            opened.seek(line.offset)
            self._last = line, json.loads(opened.readline())
        return self._last[1]


class Ledger:
    """The records of one sweep.

    `Ledger(folder)` reads what is complete in the files now, takes no lock and changes nothing. `Ledger.write` opens
    to append; close it, or use it in a `with`.
    """

    def __init__(self, folder: Place, log: Log | None = None) -> None:
        self.folder = folder
        self.ignored = 0  # decode records of a (cell, row) that already had one
        self.trouble: str | None = None  # why the last sync failed; it is tried again
        self._log = log
        self._reader = _Reader()
        self._results: dict[Sample, Record] = {}
        self._scores: dict[ScoreKey, Record] = {}
        self._unsynced: list[Line] = []
        self._synced_at = 0.0
        for line, held in _scan(log.files() if log else read_segments(folder), _head):
            if self._takes(held):
                self._index(line, held)
            else:
                self.ignored += 1

    @classmethod
    def write(cls, folder: Place, now: float, say: Callable[[str], None] = lambda line: None) -> "Ledger":
        """Locked for this process, a torn tail cut off, ready to append. UserError where another driver holds it.

        What an earlier driver on this machine could not upload is appended first. `say` tells the user what takes long.
        """
        try:
            log = open_to_write(folder, say)
        except OSError as error:
            raise UserError("", "", _unwritable(folder, error)) from None
        try:
            ledger = cls(folder, log)
            ledger._synced_at = now
            ledger._take_left_over(log, now)
            return ledger
        except BaseException:
            log.close()
            raise

    def records(self) -> Iterator[Record]:
        """Every complete record, in the order written. UserError where one before the last is damaged."""
        return (record for _, record in _scan(read_segments(self.folder), parse))

    def results(self) -> Mapping[Sample, Record]:
        """The decode record that counts for each (cell, row): the first `ok` one, else the last failure.

        design.md's "first record is the result" would leave nothing to a retry (`resume --retry-failed`): a failure is
        not a result, and one that was tried again says more of why. Records read what they hold when they are asked.
        """
        return self._results

    def decodes(self) -> Iterator[Record]:
        """The records of `results`, one after another and each whole: for who needs all that they hold."""
        return (held.whole() if isinstance(held, Decoded) else held for held in self._results.values())

    def scores(self) -> Mapping[ScoreKey, Record]:
        """The score of each (task, row, text sha, scorer version), oldest first: the last one made counts.

        A text that has one is scored again only where its score is an `error`, or `rescore --all` asks for it.
        """
        return self._scores

    def append(self, record: Record) -> bool:
        """Write `record`; False, and nothing written, where it is a decode whose place is taken already.

        StoreError where the disk is full, LeaseLost where another driver has taken over.
        """
        if not self._takes(record):
            self.ignored += 1
            return False
        assert self._log is not None, "open with Ledger.write to append"
        try:
            line = self._log.append(_line(record))
        except OSError as error:
            raise StoreError(_unwritable(self.folder, error)) from None
        self._index(line, record)
        self._unsynced.append(line)
        return True

    def sync(self, now: float, force: bool = False) -> list[Record]:
        """The records made durable by this call, oldest first: none until 10 s or 200 records have gone by.

        Where S3 does not take them, `trouble` says why, and they are tried again when 10 s have gone by; with `force`
        that is a StoreError. LeaseLost where another driver has taken over.
        """
        if not (force or now - self._synced_at >= SYNC_SECONDS or (self._full and not self.trouble)):
            return []
        self._synced_at = now
        if self._log is None or not (self._unsynced or force):
            return []
        try:
            self._log.sync()
        except OSError as error:
            self.trouble = _unwritable(self.folder, error)
            if force or not isinstance(error, StoreError):
                raise StoreError(f"{self.trouble}; {self._log.kept()}") from None
            return []
        self.trouble = None
        durable: list[Record] = [dict(self._reader.record(line)) for line in self._unsynced]
        self._unsynced.clear()
        return durable

    def close(self) -> None:
        """Sync, and let the next driver in. StoreError where the sync fails."""
        log, self._log = self._log, None
        if log is None:
            return
        try:
            if self._unsynced:
                log.sync()
        except OSError as error:
            raise StoreError(f"{_unwritable(self.folder, error)}; {log.kept()}") from None
        finally:
            log.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is not None and self._log is not None:  # a second failure would hide the first
            self._log.close()
            self._log = None
        self.close()

    @property
    def lag(self) -> int:
        """Records that are appended and not durable yet."""
        return len(self._unsynced)

    @property
    def _full(self) -> bool:
        return len(self._unsynced) >= SYNC_RECORDS

    def _takes(self, record: Record) -> bool:
        """Whether `record` counts beside those there are."""
        if record["kind"] == "score":
            return True
        held = self._results.get((record["cell"], record["row"]))
        return held is None or (held["status"] != "ok" and record["attempt"] > held["attempt"])

    def _index(self, line: Line, record: Record) -> None:
        if record["kind"] == "score":
            kept = _interned(record)
            self._scores.pop(score_key(kept), None)
            self._scores[score_key(kept)] = kept
        elif record["status"] == "ok":
            held = Decoded(self._reader, line, record)
            self._results[held.cell, held.row] = held
        else:
            self._results[intern(record["cell"]), intern(record["row"])] = _interned(record)

    def _take_left_over(self, log: Log, now: float) -> None:
        found = False
        for line in log.left_over():
            found = True
            record = json.loads(line)
            is_held = record["kind"] == "score" and self._scores.get(score_key(record)) == record
            if not is_held and self._takes(record):
                self.append(record)
        if found:
            self.sync(now, force=True)


def _interned(record: Record) -> dict[str, Any]:
    """`record` with its keys and short texts shared with other records."""
    return {intern(k): intern(v) if isinstance(v, str) and len(v) < 40 else v for k, v in record.items()}


_FIRST = ("kind", "cell", "row", "status", "text_sha", "nfe", "difference", "attempt")
_HEAD = re.compile(
    rb'\{"kind":"decode","cell":"([^"\\]+)","row":"([^"\\]+)","status":"ok","text_sha":"([^"\\]+)","nfe":(\d+),'
    rb'"difference":(?:null|"(\w+)"),"attempt":(\d+)[,}]'
)


_KEYS = {"decode": {"cell", "row", "status", "attempt"}, "score": {"task", "row", "text_sha", "scorer"}}


def parse(line: bytes) -> Record:
    """A line as the record that it is. Raises ValueError for any other."""
    record = json.loads(line)
    if not isinstance(record, dict) or not record.keys() >= _KEYS.get(record.get("kind", ""), {""}):
        raise ValueError(line)
    return record


def _line(record: Record) -> bytes:
    """`record` as a line of JSON, what `_head` looks for first."""
    ordered = {name: record[name] for name in _FIRST if name in record} | record  # type: ignore[operator]
    return json.dumps(ordered, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def _head(line: bytes) -> Record:
    """What `Decoded` holds of an `ok` decode record, without parsing its text; any other record whole."""
    found = _HEAD.match(line)
    if found is None or not line.endswith(b"}\n"):
        return parse(line)
    cell, row, sha, nfe, difference, attempt = found.groups()
    head = {"cell": cell.decode(), "row": row.decode(), "text_sha": sha.decode(), "nfe": int(nfe)}
    kind = difference.decode() if difference else None
    return head | {"kind": "decode", "status": "ok", "difference": kind, "attempt": int(attempt)}


def _scan(files: list[Path], parse: Callable[[bytes], Record]) -> Iterator[tuple[Line, Record]]:
    """Every complete line and what `parse` makes of it. UserError where one before the last of all is damaged."""
    for file in files:
        is_last = file == files[-1]
        damaged: int | None = None
        for number, (offset, line) in enumerate(lines(file, is_last), start=1):
            if damaged is not None:
                break
            try:
                record = parse(line)
            except ValueError:
                damaged = number
                continue
            yield Line(file, offset), record
        else:
            if damaged is None or is_last:  # a last line of zeros, from a power cut
                continue
        raise UserError(f"{file}:{damaged}", "", "damaged record; move this line out of the file")


def _unwritable(folder: Place, error: OSError) -> str:
    """What the disk says, or S3, and what to do about it."""
    if isinstance(error, StoreError):
        return str(error)
    remedy = "make room; no record is lost" if error.errno in FULL else "choose another with store=FOLDER"
    return f"{folder}: store: cannot be written ({error.strerror}); {remedy}"


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


def holder(folder: Place) -> str | None:
    """`host, process 123` of the live driver of this sweep, None where there is none (as far as this host can see)."""
    if isinstance(folder, Path):
        return locked_by(folder)
    found = lease.holder(S3Store(folder))
    return str(found) if found else None
