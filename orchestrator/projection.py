"""What MLflow is to show of a ledger, line by line: no MLflow here, and nothing that the ledger does not have.

    projection = Projection(sweep)
    projection.advance(Projection.ALL, most=1000)
    for view in projection.views.values():
        points = [point for entry in view.pending for point in projection.points(view, entry)]

A line of the ledger becomes entries of the cells that show it: a decode record of its own cell, a score of every cell
with that text. Lines are numbered, and the ledger only grows, so one number says how far a cell's run has come: that
is the mirror's cursor (mlflow_runs.py keeps it in the run's tags). In memory are places of lines, never their texts.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

from orchestrator.errors import UserError
from orchestrator.grid import Cell, Group
from orchestrator.ledger import Record, Sweep, parse
from orchestrator.segments import read_segments

_NONE = -1
_OFFSET_BITS = 40  # of a place: the segment's number above, the byte in it below


class Point(NamedTuple):
    """A value of a metric. `when` in unix milliseconds."""

    name: str
    value: float
    when: int
    step: int


class Entry(NamedTuple):
    """A line that a cell's run shows: line `number` made it so, the line itself is at `place`."""

    number: int
    place: int
    step: int
    after_failure: bool = False


@dataclass
class View:
    """One cell, as far as the ledger was read. `places` are its results by step; `left` and `unscored` count rows."""

    cell: Cell
    steps: dict[str, int]
    places: array[int]
    left: int
    unscored: int = 0
    failed: dict[int, int] = field(default_factory=dict)  # step -> the last failed attempt
    pending: list[Entry] = field(default_factory=list)

    @property
    def complete(self) -> bool:
        """Whether every row has a decode record."""
        return not self.left


@dataclass(slots=True)
class _Text:
    """A text of a row: who generated it, and the places of its scores."""

    shown: list[tuple[View, int]] = field(default_factory=list)
    scores: list[int] = field(default_factory=list)


class Projection:
    """The cells of a sweep, and the lines of its ledger that their runs show. For one thread."""

    ALL = 1 << 62

    def __init__(self, sweep: Sweep) -> None:
        self.read = 0  # lines
        self.views: dict[str, View] = {}
        self.groups: dict[Group, list[View]] = {}
        self._folder = sweep.folder
        self._texts: dict[tuple[str, str, str], _Text] = {}
        self._files: list[Path] = []
        self._at = (0, 0)  # the next line's segment and byte
        self._open: tuple[int, BinaryIO] | None = None
        steps: dict[tuple[str, ...], dict[str, int]] = {}
        for cell in sweep.cells:
            rows = sweep.rows[cell.key]
            if rows not in steps:
                steps[rows] = {row: step for step, row in enumerate(rows)}
            view = View(cell, steps[rows], array("q", [_NONE]) * len(rows), len(rows))
            self.views[cell.key] = view
            self.groups.setdefault(cell.group, []).append(view)

    def advance(self, until: int, most: int) -> int:
        """Read `most` lines further at most, and none from number `until` on; how many there were."""
        before = self.read
        for place, record in self._lines(min(most, until - self.read)):
            if record["kind"] == "score":
                self._score(place, record)
            elif (view := self.views.get(record["cell"])) and (step := view.steps.get(record["row"])) is not None:
                self._decode(place, record, view, step)
            self.read += 1
        return self.read - before

    def _decode(self, place: int, record: Record, view: View, step: int) -> None:
        """The first `ok` record counts, before it the last failure, as in `Ledger.results`."""
        is_new, before = view.places[step] == _NONE, view.failed.get(step)
        if not is_new and (before is None or record["attempt"] <= before):
            return
        view.places[step] = place
        view.left -= is_new
        view.pending.append(Entry(self.read, place, step, before is not None))
        if record["status"] != "ok":
            view.failed[step] = record["attempt"]
            return
        view.failed.pop(step, None)
        text = self._texts.setdefault((view.cell.task, record["row"], record["text_sha"]), _Text())
        text.shown.append((view, step))
        view.unscored += not text.scores
        view.pending += [Entry(self.read, score, step) for score in text.scores]

    def _score(self, place: int, record: Record) -> None:
        text = self._texts.setdefault((record["task"], record["row"], record["text_sha"]), _Text())
        for view, step in text.shown:
            view.unscored -= not text.scores
            view.pending.append(Entry(self.read, place, step))
        text.scores.append(place)

    # ---- what lines say

    def points(self, entry: Entry) -> list[Point]:
        """The metrics of one entry; none for a score without a verdict."""
        record = self.record(entry.place)
        if record["kind"] == "score":
            when, known = milliseconds(record["started"]), record["correct"] is not None
            return [Point("correct", float(record["correct"]), when, entry.step)] if known else []
        values, when = sample_metrics(record), milliseconds(record["finished"])
        if entry.after_failure and record["status"] == "ok":
            values["failed"] = 0.0
        return [Point(name, value, when, entry.step) for name, value in values.items()]

    def started(self, entry: Entry) -> int:
        """When the work that it tells of began, in unix milliseconds."""
        return milliseconds(self.record(entry.place)["started"])

    def records(self, views: list[View]) -> tuple[list[Record], list[Record]]:
        """The decode records that count for these cells, and the scores of their texts."""
        decodes = [self.record(place) for view in views for place in view.places if place != _NONE]
        cells = {view.cell.key: view.cell for view in views}
        keys = [(cells[r["cell"]].task, r["row"], r["text_sha"]) for r in decodes if r["status"] == "ok"]
        scores = [self.record(place) for key in dict.fromkeys(keys) for place in self._texts[key].scores]
        return decodes, scores

    def record(self, place: int) -> Record:
        """The record at a place."""
        index, offset = place >> _OFFSET_BITS, place & ((1 << _OFFSET_BITS) - 1)
        if self._open is None or self._open[0] != index:
            self.close()
            self._open = index, self._files[index].open("rb")
        self._open[1].seek(offset)
        return parse(self._open[1].readline())

    def close(self) -> None:
        """Let go of the file that is open."""
        if self._open is not None:
            self._open[1].close()
        self._open = None

    # ---- reading

    def _lines(self, most: int) -> Iterator[tuple[int, Record]]:
        """(place, record) of the next lines. UserError for a damaged one that others follow."""
        if most <= 0:
            return
        self._files = read_segments(self._folder)
        for index in range(self._at[0], len(self._files)):
            offset = self._at[1] if index == self._at[0] else 0
            with self._files[index].open("rb") as file:
                file.seek(offset)
                for line in file:
                    if (record := self._parsed(line, index, offset)) is None:
                        return
                    self._at = index, offset + len(line)
                    yield index << _OFFSET_BITS | offset, record
                    offset += len(line)
                    most -= 1
                    if not most:
                        return

    def _parsed(self, line: bytes, index: int, offset: int) -> Record | None:
        """None for what is no whole record, and the end of all: it is being written, or was when the power went."""
        try:
            if line.endswith(b"\n"):
                return parse(line)
        except ValueError:
            pass
        file = self._files[index]
        if index == len(self._files) - 1 and offset + len(line) >= file.stat().st_size:
            return None
        raise UserError(f"{file}: byte {offset}", "", "damaged record; move this line out of the file")


def count_lines(files: list[tuple[Path, int]]) -> int:
    """The lines in the first so many bytes of each of these files."""
    found = 0
    for path, size in files:
        with path.open("rb") as file:
            while size > 0 and (data := file.read(min(size, 1 << 20))):
                found += data.count(b"\n")
                size -= len(data)
    return found


def milliseconds(seconds: float | None) -> int:
    """MLflow's unit of time."""
    return int(1000 * (seconds or 0))


def sample_metrics(record: Record) -> dict[str, float]:
    """The per-sample metrics of a decode record by name. A number that does not exist is absent, never NaN.

    nfe (target passes), tokens_per_pass, tokens_per_second (to the first stop id), acceptance (accepted per drafted
    pass), seconds_PHASE, identical (to the control's text, 0 or 1); `failed` alone where there is no text.
    """
    if record["status"] != "ok":
        return {"failed": 1.0}
    seconds, length = record["seconds"], record["length"]
    values: dict[str, Any] = {"nfe": record["nfe"], "identical": record["identical"]}
    if record["nfe"]:
        values["tokens_per_pass"] = length / record["nfe"]
    if record["drafted_passes"]:
        values["acceptance"] = record["accepted"] / record["drafted_passes"]
    if sum(seconds.values()) > 0:
        values["tokens_per_second"] = length / sum(seconds.values())
    values |= {f"seconds_{phase}": spent for phase, spent in seconds.items()}
    return {name: float(value) for name, value in values.items() if value is not None}
