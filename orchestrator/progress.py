"""What a running sweep shows: a live panel on a terminal, a line now and then in a log file.

    with progress.view(Console()) as shown:
        shown.update(Progress(cells_done=3, cells=20, samples_done=240, samples=2000, ...))

A view draws what it is given. It reads no ledger, asks no clock but the injected one, and never sleeps.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_EVERY = 10.0  # seconds between plain lines
_SHOWN_METHODS = 12


@dataclass(frozen=True)
class Progress:
    """A sweep at one moment. `rate` is samples a second, `seconds_left` None while it cannot be told.

    `workers` counts workers by state ("busy", "loading", "wanted", ...); `nfe` is the mean NFE by method label.
    `to_score` counts texts that are decoded and not scored yet; `causes` counts failed samples by error.
    """

    cells_done: int
    cells: int
    samples_done: int
    samples: int
    failed: int = 0
    rate: float = 0.0
    seconds_left: float | None = None
    workers: dict[str, int] = field(default_factory=dict)
    nfe: dict[str, float] = field(default_factory=dict)
    to_score: int = 0
    causes: dict[str, int] = field(default_factory=dict)

    @property
    def finished(self) -> bool:
        """Whether every planned sample has a record, failed ones included."""
        return self.samples_done >= self.samples


class View(Protocol):
    """Where progress goes."""

    def update(self, progress: Progress) -> None:
        """Show `progress`; cheap enough to call after every sample."""


@contextmanager
def view(console: Console, clock: Callable[[], float] = time.monotonic) -> Iterator[View]:
    """A live panel if `console` is a terminal, else at most one line every LINE_EVERY seconds of `clock`."""
    if not console.is_terminal:
        lines = _Lines(console, clock)
        try:
            yield lines
        finally:
            lines.close()
        return
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        yield _Panel(live)


@contextmanager
def counter(
    console: Console, what: str, clock: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[int, int], None]]:
    """`show(done, all)`: a bar if `console` is a terminal, else a line every LINE_EVERY seconds."""
    lines_at = clock() + LINE_EVERY
    columns = (TextColumn(what), BarColumn(None), MofNCompleteColumn(), TimeRemainingColumn())
    with Bars(*columns, console=console, transient=True, disable=not console.is_terminal) as bars:
        bar = bars.add_task(what, total=None)

        def show(done: int, total: int) -> None:
            nonlocal lines_at
            bars.update(bar, completed=done, total=total)
            if not console.is_terminal and clock() >= lines_at:
                lines_at = clock() + LINE_EVERY
                console.print(f"{done}/{total} {what}", highlight=False)

        yield show


class _Panel:
    def __init__(self, live: Live) -> None:
        self._live = live

    def update(self, progress: Progress) -> None:
        self._live.update(panel(progress))


class _Lines:
    def __init__(self, console: Console, clock: Callable[[], float]) -> None:
        self._console, self._clock = console, clock
        self._next = float("-inf")
        self._unshown: Progress | None = None

    def update(self, progress: Progress) -> None:
        self._unshown = progress
        if self._clock() >= self._next:
            self._next = self._clock() + LINE_EVERY
            self.close()

    def close(self) -> None:
        """Print what was held back, so that a log always ends with the last state."""
        if self._unshown is not None:
            self._console.print(line(self._unshown), highlight=False, soft_wrap=True)
            self._unshown = None


def line(progress: Progress) -> str:
    """One line of plain text."""
    parts = [f"{progress.samples_done}/{progress.samples} samples", f"{progress.cells_done}/{progress.cells} cells"]
    parts += [f"{progress.failed} failed"] if progress.failed else []
    parts += [part for part in (_pace(progress), _to_score(progress), _workers(progress)) if part]
    return ", ".join(parts)


def panel(progress: Progress) -> RenderableType:
    """The live panel: bar, facts, mean NFE a method; fits 80 columns and uses what a wider terminal offers."""
    bar = Table.grid(expand=True)  # a bare bar does not end its line
    bar.add_row(ProgressBar(total=max(progress.samples, 1), completed=progress.samples_done))
    parts: list[RenderableType] = [bar, _facts(progress)]
    for error, failed in progress.causes.items():
        parts.append(Text(f"{failed} × {error}", style="red", no_wrap=True, overflow="ellipsis"))
    if progress.nfe:
        parts += [Text(), _methods(progress.nfe)]
    return Panel(Group(*parts), title="sweep", title_align="left", border_style="dim", padding=(0, 1))


def _facts(progress: Progress) -> Text:
    """Two lines: how much is done, and how fast it goes."""
    text = Text(f"{progress.samples_done}/{progress.samples} samples   {progress.cells_done}/{progress.cells} cells   ")
    text.append(f"{progress.failed} failed\n", style="red" if progress.failed else "dim")
    parts = (_pace(progress), _to_score(progress), _workers(progress))
    text.append("   ".join(part for part in parts if part), style="dim")
    return text


def _methods(nfe: dict[str, float]) -> Table:
    """Mean NFE as bars against the largest, the shortest bar being the best method."""
    shown = Table(box=None, padding=(0, 1, 0, 0), show_header=False, expand=True)
    shown.add_column(overflow="ellipsis", no_wrap=True, max_width=28)
    shown.add_column(justify="right")
    shown.add_column(ratio=1)
    longest = max(nfe.values()) or 1.0
    for label, passes in list(nfe.items())[:_SHOWN_METHODS]:
        shown.add_row(Text(label), f"{passes:.1f}", ProgressBar(total=longest, completed=passes, complete_style="cyan",
                                                          finished_style="cyan"))  # fmt: skip
    if len(nfe) > _SHOWN_METHODS:
        shown.add_row(Text(f"and {len(nfe) - _SHOWN_METHODS} more", style="dim"))
    return shown


def _pace(progress: Progress) -> str:
    if progress.finished:
        return "done"
    left = "time left unknown" if progress.seconds_left is None else f"{duration(progress.seconds_left)} left"
    return f"{progress.rate:.2f} samples/s, {left}"


def _to_score(progress: Progress) -> str:
    return f"{progress.to_score} texts to score" if progress.to_score else ""


def _workers(progress: Progress) -> str:
    states = " ".join(f"{count} {state}" for state, count in sorted(progress.workers.items()))
    return states and f"workers: {states}"


def duration(seconds: float) -> str:
    """Seconds for people: "42 s", "7 min 03 s", "3 h 07 min"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    return f"{minutes // 60} h {minutes % 60:02d} min"
