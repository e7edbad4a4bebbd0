"""Where a sweep stands, by its ledger alone: with or without a driver, from any machine that sees the store.

    python launch.py status quickstart      # once
    python launch.py watch quickstart       # until it ends

The segments are followed as a log is, from where the last look ended; nothing is locked, changed or started.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from functools import cached_property
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from orchestrator.errors import UserError
from orchestrator.grid import Cell
from orchestrator.ledger import Record, Sample, Sweep, parse, read_sweep, score_key
from orchestrator.progress import Progress
from orchestrator.rescore import TextCounts
from orchestrator.segments import read_segments
from orchestrator.tally import Failures, Tally
from orchestrator.workload import WORDS, CellState, count
from workers.store import Place, open_store

WORKERS = "workers.json"  # the driver's word on its workers: of this moment, and so no record
MOST_LINES = 40  # of a table of cells; of more, places are counted
SHOWN = 3  # cells, and rows, that a group of failures names


class Tail:
    """The records of a ledger's segments, each once. `segments` gives their files, in order, as they are now."""

    def __init__(self, segments: Callable[[], Sequence[Path]]) -> None:
        self._segments = segments
        self._read: Counter[str] = Counter()  # bytes, by file name

    def read(self) -> Iterator[Record]:
        """What has been appended since the last call. A line that is still being written waits for the next one.

        Raises UserError for a damaged line that others follow, and for a file that cannot be read.
        """
        segments = self._segments()
        for path in segments:
            try:
                with path.open("rb") as file:
                    file.seek(self._read[path.name])
                    data = file.read()
            except OSError as error:
                raise UserError(str(path), "", f"cannot be read: {error.strerror}") from None
            lines = data[: data.rfind(b"\n") + 1].splitlines(keepends=True)
            for number, line in enumerate(lines):
                try:
                    record = parse(line)
                except ValueError:
                    if path == segments[-1] and number == len(lines) - 1:
                        break  # torn: the next driver cuts it off
                    where = f"{path}: byte {self._read[path.name]}"
                    raise UserError(where, "", "damaged record; move this line out of the file") from None
                self._read[path.name] += len(line)
                yield record


def follow(folder: Place) -> Iterator["Standing"]:
    """The standing of the sweep in `folder`, brought up to date at each step. Raises UserError where there is none."""
    standing, tail = Standing(read_sweep(folder)), Tail(lambda: read_segments(folder))
    while True:
        standing.add(tail.read())
        yield standing


def write_workers(folder: Place, workers: Mapping[str, Mapping[str, int]]) -> None:
    """Tell whoever watches the sweep in `folder` how many workers there are, by model and state. Raises OSError."""
    open_store(folder).put(WORKERS, json.dumps(workers).encode())


def read_workers(folder: Place) -> dict[str, dict[str, int]]:
    """What the driver last told of its workers; nothing where it has told nothing. Stale where there is no driver."""
    try:
        return json.loads(open_store(folder).get(WORKERS))
    except FileNotFoundError:
        return {}


class Standing:
    """What the records of a sweep say so far, in constant time a record."""

    def __init__(self, sweep: Sweep) -> None:
        self.sweep = sweep
        self.results: dict[Sample, Record] = {}  # what the ledger says of each, without texts and times
        self._tally = Tally(sweep.cells, sweep.rows)
        sets = {rows: frozenset(rows) for rows in set(sweep.rows.values())}  # the cells of a group share one
        self._rows = {key: sets[rows] for key, rows in sweep.rows.items()}
        self._texts: set[tuple[str, str, str]] = set()
        self._scores: dict[tuple[str, str, str], Record] = {}

    @cached_property
    def cells(self) -> Mapping[str, Cell]:
        """By key."""
        return {cell.key: cell for cell in self.sweep.cells}

    def add(self, records: Iterable[Record]) -> None:
        """Take the records in, oldest first."""
        for record in records:
            if record["kind"] == "score":
                self._add_score(record)
            elif record["cell"] in self.cells and record["row"] in self._rows[record["cell"]]:
                self._add_decode(record)

    def _add_score(self, record: Record) -> None:
        text, started = score_key(record)[:3], record.get("started") or 0
        if started >= self._scores.get(text, {}).get("started", 0):
            self._scores[text] = {"started": started, "correct": record["correct"], "error": record.get("error")}

    def _add_decode(self, record: Record) -> None:
        """As the ledger has it: the first `ok` record is the result, else the last failure."""
        sample = (record["cell"], record["row"])
        held = self.results.get(sample)
        if held is not None and (held["status"] == "ok" or record["attempt"] <= held["attempt"]):
            return
        self.results[sample] = {key: record.get(key) for key in ("status", "attempt", "nfe")}
        self._tally.add(record, record.get("control_nfe"), record["finished"])
        if record["status"] == "ok":
            self._texts.add((self.cells[record["cell"]].task, record["row"], record["text_sha"]))

    @property
    def ended(self) -> bool:
        """Every planned sample has a record, and every text a score."""
        return not self._tally.left and not self.texts.missing

    @property
    def texts(self) -> TextCounts:
        """How far scoring is."""
        scores = [self._scores[text] for text in self._texts if text in self._scores]
        errors = [str(score["error"]) for score in scores if score["correct"] is None]
        missing = len(self._texts) - len(scores)
        return TextCounts(len(scores) - len(errors), len(errors), missing, min(errors, default=None))

    @property
    def states(self) -> tuple[CellState, ...]:
        """How far every cell is."""
        return count(self.sweep.cells, self.sweep.rows, self.results).states

    def progress(self, now: float, workers: Mapping[str, Mapping[str, int]] | None = None) -> Progress:
        """What to show at `now`, in unix seconds; the rate is of the records' own times."""
        return self._tally.progress(now, workers, self.texts.missing)

    def failures(self) -> list[Failures]:
        """The failed samples by what went wrong, the most frequent first. Errors that differ in numbers are alike."""
        return self._tally.failures()

    def as_dict(self, driver: str | None, shown: Progress) -> dict[str, Any]:
        """What `status --json` says: everything but the single samples."""
        states = self.states
        return {
            "sweep": self.sweep.name,
            "folder": str(self.sweep.folder),
            "driver": driver,
            "finished": shown.finished,
            **_progress_dict(shown),
            "texts": asdict(self.texts),
            "states": state_counts(states),
            "failures": [asdict(group) for group in self.failures()],
            "table": [state_dict(state) for state in states],
        }

    def line(self, driver: str | None, shown: Progress) -> dict[str, Any]:
        """What a line of `watch --json` says."""
        return {"sweep": self.sweep.name, "driver": driver, "finished": shown.finished, **_progress_dict(shown)}


def _progress_dict(shown: Progress) -> dict[str, Any]:
    names = ("cells", "cells_done", "samples", "samples_done", "failed", "rate", "seconds_left", "nfe", "nfe_ratio")
    return {name: getattr(shown, name) for name in (*names, "workers", "to_score", "causes")}


# ---- states, as tables and as JSON


def state_counts(states: Iterable[CellState]) -> dict[str, int]:
    """Cells by state."""
    counts = Counter(state.word for state in states)
    return {word: counts[word] for word in WORDS}


def state_dict(state: CellState) -> dict[str, Any]:
    """A line of a `table` in JSON."""
    cell = state.cell
    axes = ("key", "model", "task", "drafter", "budget", "temperature", "seed")
    counts = {"state": state.word, "planned": state.planned, "done": state.done, "failed": state.failed}
    return {axis: getattr(cell, axis) for axis in axes} | counts | {"nfe": state.nfe}


def states_table(states: Sequence[CellState]) -> Table:
    """A line a cell; of more than MOST_LINES cells, a line a model, task and temperature, or a model."""
    if len(states) <= MOST_LINES:
        return _cells_table(states)
    by_place: dict[tuple[str, ...], list[CellState]] = {}
    for state in states:
        by_place.setdefault(_place(state.cell), []).append(state)
    if len(by_place) <= MOST_LINES:
        return _places_table(by_place)
    by_model: dict[tuple[str, ...], list[CellState]] = {}
    for place, members in by_place.items():
        by_model.setdefault(place[:1], []).extend(members)
    return _places_table(by_model)


def _place(cell: Cell) -> tuple[str, ...]:
    return cell.model, cell.task, f"T{cell.temperature:g}"


def _cells_table(states: Sequence[CellState]) -> Table:
    table = _table("cell", "state", numbers=("done", "failed", "NFE"))
    for state in states:
        done = f"{state.done}/{state.planned}"
        failed, nfe = str(state.failed or ""), f"{state.nfe:.1f}" if state.nfe is not None else ""
        table.add_row(Text(state.cell.label), state.word, done, failed, nfe)
    return table


def _places_table(places: Mapping[tuple[str, ...], Sequence[CellState]]) -> Table:
    table = _table("cells of", numbers=("cells", *WORDS, "samples", "failed"))
    for place, states in places.items():
        counts = (str(number or "") for number in state_counts(states).values())
        done, planned, failed = (sum(getattr(s, name) for s in states) for name in ("done", "planned", "failed"))
        table.add_row(Text(" · ".join(place)), str(len(states)), *counts, f"{done}/{planned}", str(failed or ""))
    return table


def failures_table(groups: Sequence[Failures]) -> Table:
    """A line a group: what, how often, where first."""
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    table.add_column("failed", justify="right")
    table.add_column("cause")
    table.add_column("error, cells and first rows", overflow="fold", ratio=1)
    for group in groups:
        cells, rows = _first(group.cells), _first(group.rows)
        table.add_row(str(group.count), Text(group.cause), Text(f"{group.error}\n{cells}\nrows {rows}"))
    return table


def _first(names: Sequence[str]) -> str:
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return ", ".join(names[:SHOWN]) + more


def _table(*words: str, numbers: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="dim")
    for word in words:
        table.add_column(word)
    for number in numbers:
        table.add_column(number, justify="right")
    return table
