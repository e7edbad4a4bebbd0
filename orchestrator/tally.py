"""What the records of a sweep come to so far, counted as they come: `run`, `watch` and the cluster's dashboard show it.

tally = Tally(sweep.cells, sweep.rows)
tally.add(record, record.get("control_nfe"), at=record["finished"])
shown = tally.progress(now)
"""

import re
from collections import Counter, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice

from orchestrator.grid import Cell
from orchestrator.ledger import Record, Sample
from orchestrator.progress import Failed, Progress, Share

RATE_SECONDS = 300.0  # the rate is that of the last so many seconds
MOST_CAUSES = 3  # that a progress tells
MOST_RECENT = 3  # failed samples that it names


@dataclass(frozen=True)
class Failures:
    """Failed samples of one kind: `error` is the first's own words, `cells` and `rows` are the first ones'."""

    cause: str
    error: str
    count: int
    cells: tuple[str, ...]
    rows: tuple[str, ...]


class Tally:
    """Running counts, in constant time a record. A record is added once, and only one that the ledger takes."""

    def __init__(self, cells: Iterable[Cell], rows: Mapping[str, Sequence[str]]) -> None:
        """`rows` are those planned, by cell key."""
        self._cells = {cell.key: cell for cell in cells}
        self._left = {key: len(rows[key]) for key in self._cells}
        self._shares: dict[tuple[str, str, str], Share] = {}  # as planned
        self._sums: dict[tuple[str, str, str], Counter[str]] = {}  # and what came, by its names in `Share`
        for key, cell in self._cells.items():
            axes, diagnostic = share_of(cell), cell.method.startswith("oracle")
            planned = self._shares[axes].planned if axes in self._shares else 0
            self._shares[axes] = Share(*axes, planned + len(rows[key]), diagnostic=diagnostic)
            self._sums.setdefault(axes, Counter())
        self._cells_done = sum(not left for left in self._left.values())
        self._alike: dict[Sample, tuple[str, str]] = {}  # the group of a failed sample
        self._groups: dict[tuple[str, str], dict[Sample, str]] = {}  # (cause, error without numbers) -> errors
        self._finished: deque[tuple[float, float]] = deque()  # when a record came, and when its decoding had begun
        self._latest = float("-inf")

    def add(self, record: Record, control_nfe: int | None = None, at: float | None = None) -> None:
        """Count a decode record that came `at` unix seconds (None: in an earlier run); it may follow a failure's.

        `control_nfe` is the number of passes of the control on the same prompt, where it is known.
        """
        key, sample = record["cell"], (record["cell"], record["row"])
        sums, before = self._sums[share_of(self._cells[key])], self._alike.pop(sample, None)
        if before is None:
            self._left[key] -= 1
            self._cells_done += not self._left[key]
        else:
            sums["failed"] -= 1
            self._forget(sample, before)
        if at is not None:
            self._finished.append((at, at - (record["finished"] - record["started"])))
            self._latest = max(self._latest, at)
        if record["status"] != "ok":
            sums["failed"] += 1
            self._remember(sample, record)
            return
        sums.update(ok=1, passes=record["nfe"])
        if control_nfe is not None:
            sums.update(paired=record["nfe"], control=control_nfe)

    def _remember(self, sample: Sample, record: Record) -> None:
        cause, error = record.get("cause") or "", str(record["error"])
        alike = cause, re.sub(r"0x[0-9a-f]+|\d+", "#", error)
        self._alike[sample] = alike
        self._groups.setdefault(alike, {})[sample] = error

    def _forget(self, sample: Sample, alike: tuple[str, str]) -> None:
        del self._groups[alike][sample]
        if not self._groups[alike]:
            del self._groups[alike]

    @property
    def left(self) -> int:
        """Samples without a record."""
        return sum(self._left.values())

    @property
    def failed(self) -> int:
        """Samples whose record is a failure."""
        return len(self._alike)

    def failures(self) -> list[Failures]:
        """The failed samples by what went wrong, the most frequent first. Errors that differ in numbers are alike."""
        found = [self._failures(cause, members) for (cause, _), members in self._groups.items()]
        return sorted(found, key=lambda group: -group.count)

    def _failures(self, cause: str, members: Mapping[Sample, str]) -> Failures:
        cells = tuple(dict.fromkeys(self._cells[cell].label for cell, _ in members))
        rows = tuple(dict.fromkeys(row for _, row in members))
        error = next(iter(members.values()))
        return Failures(cause or error.partition(":")[0], error, len(members), cells, rows)

    def progress(
        self, now: float, workers: Mapping[str, Mapping[str, int]] | None = None, to_score: int = 0
    ) -> Progress:
        """What to show at `now`, in unix seconds; `workers` counts them by model and state."""
        rate, left = self._rate(now), self.left
        return Progress(
            cells_done=self._cells_done,
            cells=len(self._left),
            shares=tuple(_with(share, self._sums[axes]) for axes, share in self._shares.items()),
            rate=rate,
            seconds_left=left / rate if rate > 0 else None,
            workers=workers or {},
            to_score=to_score,
            causes=self._causes(),
            recent=tuple(self._recent()),
        )

    def _rate(self, now: float) -> float:
        now = max(now, self._latest)  # a worker's clock may be ahead
        while self._finished and self._finished[0][0] < now - RATE_SECONDS:
            self._finished.popleft()
        if not self._finished:
            return 0.0
        elapsed = min(RATE_SECONDS, now - self._finished[0][1])
        return len(self._finished) / elapsed if elapsed > 0 else 0.0

    def _causes(self) -> dict[str, int]:
        most = sorted(self._groups.values(), key=len, reverse=True)[:MOST_CAUSES]
        return {next(iter(members.values())): len(members) for members in most}

    def _recent(self) -> Iterable[Failed]:
        for cell, row in islice(reversed(self._alike), MOST_RECENT):
            sample = cell, row
            yield Failed(self._cells[cell].label, row, self._groups[self._alike[sample]][sample])


def _with(share: Share, came: Counter[str]) -> Share:
    ok, failed, passes = came["ok"], came["failed"], came["passes"]
    return replace(share, ok=ok, failed=failed, passes=passes, paired=came["paired"], control=came["control"])


def share_of(cell: Cell) -> tuple[str, str, str]:
    """Model, task and method."""
    return cell.model, cell.task, method_of(cell)


def method_of(cell: Cell) -> str:
    """`control`, or `spot b8`."""
    return "control" if cell.is_control else f"{cell.drafter} b{cell.budget}"
