"""What a running sweep shows: a live panel on a terminal, a line now and then in a log file.

    with progress.view(Console(), "quickstart") as shown:
        shown.update(Progress(cells_done=3, cells=20, shares=(Share("tiny-sdar", "arith", "control", 100, 12), ...)))

A view draws what it is given. It reads no ledger, asks no clock but the injected one, and never sleeps.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from typing import Protocol

from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bars
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

LINE_EVERY = 10.0  # seconds between plain lines
WIDE = 130  # columns from which tables stand side by side
SLOW = 0.1  # samples a second under which a rate is told by the minute
LONGEST_CAUSE = 60  # characters of an error in a plain line
STATES = ("busy", "idle", "loading", "waiting")  # of a worker, in the order in which they are told


@dataclass(frozen=True)
class Share:
    """What `method` (`control`, or `spot b8`) has to do, and has done, of `task` with `model`: samples and passes.

    `passes` are those of the `ok` samples. Of these, `paired` are those of samples whose control is known, for which
    the control needed `control` passes. A `diagnostic` method has seen the answer, and is best of nothing.
    """

    model: str
    task: str
    method: str
    planned: int
    ok: int = 0
    failed: int = 0
    passes: int = 0
    paired: int = 0
    control: int = 0
    diagnostic: bool = False


@dataclass(frozen=True)
class Failed:
    """A sample that failed."""

    cell: str
    row: str
    error: str


@dataclass(frozen=True)
class Progress:
    """A sweep at one moment. `rate` is samples a second, `seconds_left` None while it cannot be told.

    `workers` counts workers by model and state (STATES), those without a model under ""; `to_score` counts texts that
    are decoded and not scored yet; `causes` counts failed samples by error, `recent` names the last ones.
    """

    cells_done: int
    cells: int
    shares: tuple[Share, ...] = ()
    rate: float = 0.0
    seconds_left: float | None = None
    workers: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    to_score: int = 0
    causes: Mapping[str, int] = field(default_factory=dict)
    recent: tuple[Failed, ...] = ()

    @cached_property
    def samples(self) -> int:
        """How many are planned."""
        return sum(share.planned for share in self.shares)

    @cached_property
    def failed(self) -> int:
        """Samples whose record is a failure."""
        return sum(share.failed for share in self.shares)

    @cached_property
    def samples_done(self) -> int:
        """Samples with a record, failed ones included."""
        return self.failed + sum(share.ok for share in self.shares)

    @property
    def finished(self) -> bool:
        """Whether every planned sample has a record, failed ones included."""
        return self.samples_done >= self.samples

    @cached_property
    def nfe(self) -> dict[str, float]:
        """Mean passes a sample, by method that has any."""
        passes, ok = Counter[str](), Counter[str]()
        for share in self.shares:
            passes[share.method] += share.passes
            ok[share.method] += share.ok
        return {method: passes[method] / ok[method] for method in sorted(ok) if ok[method]}

    @cached_property
    def nfe_ratio(self) -> dict[str, float]:
        """The controls' passes over the method's, on the same prompts: how many times fewer it needs."""
        control, paired = Counter[str](), Counter[str]()
        for share in self.shares:
            control[share.method] += share.control
            paired[share.method] += share.paired
        return {method: control[method] / paired[method] for method in sorted(paired) if paired[method]}

    @property
    def best(self) -> str | None:
        """The method that needs the fewest passes against its control's, None while there is none."""
        out = {"control", *(share.method for share in self.shares if share.diagnostic)}
        ratios = {method: ratio for method, ratio in self.nfe_ratio.items() if method not in out}
        return max(ratios, key=ratios.__getitem__, default=None)


class View(Protocol):
    """Where progress goes."""

    def update(self, progress: Progress) -> None:
        """Show `progress`; cheap enough to call after every sample."""


@contextmanager
def view(console: Console, name: str = "sweep", clock: Callable[[], float] = time.monotonic) -> Iterator[View]:
    """A live panel if `console` is a terminal, else at most one line every LINE_EVERY seconds of `clock`."""
    if not console.is_terminal:
        lines = _Lines(console, clock)
        try:
            yield lines
        finally:
            lines.close()
        return
    with Live(console=console, refresh_per_second=4, transient=False) as live:
        yield _Live(live, name)


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


class _Live:
    def __init__(self, live: Live, name: str) -> None:
        self._live, self._name = live, name

    def update(self, progress: Progress) -> None:
        self._live.update(Screen(progress, self._name))  # drawn when it is shown, four times a second


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
    parts += [part for part in (_failed(progress), _pace(progress), _passes(progress)) if part]
    return ", ".join([*parts, *(part for part in (_to_score(progress), workers_line(progress)) if part)])


def _failed(progress: Progress) -> str:
    if not progress.failed:
        return ""
    cause = next(iter(progress.causes), "")
    short = cause if len(cause) <= LONGEST_CAUSE else f"{cause[: LONGEST_CAUSE - 1]}…"
    return f"{progress.failed} failed ({short})" if cause else f"{progress.failed} failed"


def _passes(progress: Progress) -> str:
    """`NFE 84.6, with spot b20 15.3 (5.53×)`."""
    control, best = progress.nfe.get("control"), progress.best
    said = [f"{control:.1f}"] if control is not None else []
    said += [f"with {best} {progress.nfe[best]:.1f} ({progress.nfe_ratio[best]:.2f}×)"] if best else []
    return f"NFE {', '.join(said)}" if said else ""


# ---- the panel


@dataclass(frozen=True)
class Screen:
    """The live panel, drawn for the console it is shown on: 80 columns and 24 lines are enough, more are used."""

    progress: Progress
    name: str = "sweep"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = max(console.size.height, 20) - 7  # but for the border, the bar, the facts and the cursor
        body = _wide if options.max_width >= WIDE else _narrow
        parts: list[RenderableType] = [_bar(self.progress.samples_done, self.progress.samples), _facts(self.progress)]
        inside = Group(*parts, *body(self.progress, lines))
        yield Panel(inside, title=Text(self.name), title_align="left", border_style="dim", padding=(0, 1))


def _bar(done: float, of: float, style: str = "bar.complete") -> Table:
    """A bare bar does not end its line."""
    bar = Table.grid(expand=True)
    bar.add_row(ProgressBar(total=max(of, 1), completed=done, complete_style=style, finished_style=style))
    return bar


def _facts(progress: Progress) -> Text:
    """How much is done, how fast it goes, and who is at work."""
    text = Text(
        f"{progress.samples_done:,}/{progress.samples:,} samples   {progress.cells_done:,}/{progress.cells:,} cells   "
    )
    text.append(f"{progress.failed:,} failed\n", style="red" if progress.failed else "dim")
    text.append("   ".join(part for part in (_pace(progress), _to_score(progress)) if part))
    if progress.workers:
        text.append(f"\n{workers_line(progress, by_model=False)}")
    return text


def _narrow(progress: Progress, lines: int) -> Iterator[RenderableType]:
    """One under another: models (or tasks), methods, failures, each cut to its part of the lines."""
    failed = [_cause(error, number) for error, number in progress.causes.items()]
    lines -= len(failed) + bool(failed)
    by_model = len({share.model for share in progress.shares}) > 1
    places = _places(progress.shares, "model" if by_model else "task")
    if len(places) > 1:
        most = max(6, lines - 3 - len(progress.nfe))  # methods show at most what is left
        yield ""
        yield _shares(progress, places, most, 24)
        lines -= 1 + min(len(places), most) + (len(places) > most)
    if progress.nfe:
        yield ""
        yield _methods(progress, max(3, lines - 2), 24)
    if failed:
        yield ""
        yield from failed


def _wide(progress: Progress, lines: int) -> Iterator[RenderableType]:
    """Models and tasks on the left, methods on the right, failures under them."""
    failed = max(len(progress.causes), len(progress.recent))
    lines = max(5, lines - failed - 2 * bool(failed))
    sides = Table.grid(expand=True, padding=(0, 4, 0, 0))
    sides.add_column(ratio=11)
    sides.add_column(ratio=9)
    places = _places(progress.shares, "model", "task")
    sides.add_row(_shares(progress, places, lines - 2, 30, 20), _methods(progress, lines - 2, 36))
    yield ""
    yield sides
    if failed:
        under = Table.grid(expand=True, padding=(0, 4, 0, 0))
        under.add_column(ratio=11)
        under.add_column(ratio=9)
        latest = Group(*(_one_line(f"{one.cell}, row {one.row}: {one.error}", "dim") for one in progress.recent))
        under.add_row(Group(*(_cause(error, number) for error, number in progress.causes.items())), latest)
        yield ""
        yield under


Places = Mapping[tuple[str, ...], Sequence[Share]]


def _places(shares: Sequence[Share], *axes: str) -> Places:
    places: dict[tuple[str, ...], list[Share]] = {}
    for share in shares:
        places.setdefault(tuple(getattr(share, axis) for axis in axes), []).append(share)
    return places


def _shares(progress: Progress, places: Places, most: int, *longest: int) -> Table:
    """A line a place: what is done of it, and, once a model, its workers. Of too many, those under way are shown."""
    shown = _table(*longest)
    shown.add_column(ratio=1)
    shown.add_column(justify="right")
    shown.add_column(justify="right", style="red")
    shown.add_column(style="dim")
    counts = {place: _counts(of) for place, of in places.items()}
    order = sorted(places, key=lambda place: _turn(progress, place, *counts[place])) if len(places) > most else places
    model = None
    for place in list(order)[:most]:
        ok, failed, planned = counts[place]
        names = [Text(name if depth or name != model else "") for depth, name in enumerate(place)]
        workers = _states(progress.workers.get(place[0], {})) if place[0] != model else ""
        done, lost = f"{ok + failed:,}/{planned:,}", f"{failed:,} failed" if failed else ""
        shown.add_row(*names, _bar(ok + failed, planned), done, lost, workers)
        model = place[0]
    return _more(shown, len(places) - most)


def _counts(shares: Sequence[Share]) -> tuple[int, int, int]:
    return sum(s.ok for s in shares), sum(s.failed for s in shares), sum(s.planned for s in shares)


def _turn(progress: Progress, place: tuple[str, ...], ok: int, failed: int, planned: int) -> tuple[bool, bool]:
    """Smallest first: what is under way, what has workers, the rest."""
    return not 0 < ok + failed < planned, place[0] not in progress.workers


def _methods(progress: Progress, most: int, longest: int) -> Table:
    """Mean NFE as bars against the largest, the shortest bar being the best method; the best first, but the control."""
    shown = _table(longest, header=True)
    shown.add_column("NFE", justify="right")
    shown.add_column("ratio", justify="right")
    shown.add_column(ratio=1)
    nfe, ratios = progress.nfe, progress.nfe_ratio
    order = sorted(nfe, key=lambda method: (method != "control", -ratios.get(method, 0.0), nfe[method]))
    for method in order[:most]:
        bar = _bar(nfe[method], max(nfe.values()), "cyan")
        ratio = f"{ratios[method]:.2f}×" if method in ratios and method != "control" else ""
        style = "bold" if method == progress.best else ""
        shown.add_row(Text(method, style=style), f"{nfe[method]:.1f}", Text(ratio, style=style), bar)
    return _more(shown, len(nfe) - most)


def _table(*longest: int, header: bool = False) -> Table:
    shown = Table(box=None, padding=(0, 1, 0, 0), show_header=header, header_style="dim", expand=True)
    for width in longest:
        shown.add_column(overflow="ellipsis", no_wrap=True, max_width=width)
    return shown


def _more(table: Table, more: int) -> Table:
    if more > 0:
        table.add_row(Text(f"and {more} more", style="dim"))
    return table


def _cause(error: str, number: int) -> Text:
    return _one_line(f"{number:,} × {error}", "red")


def _one_line(text: str, style: str) -> Text:
    return Text(text.replace("\n", " "), style=style, no_wrap=True, overflow="ellipsis")


def _pace(progress: Progress) -> str:
    if progress.finished:
        return "done"
    if progress.seconds_left is None:
        return "time left unknown"
    slow = progress.rate < SLOW
    rate = f"{60 * progress.rate:.2f} samples/min" if slow else f"{progress.rate:.2f} samples/s"
    return f"{rate}, {duration(progress.seconds_left)} left"


def _to_score(progress: Progress) -> str:
    return f"{progress.to_score:,} text{'s' * (progress.to_score > 1)} to score" if progress.to_score else ""


def workers_line(progress: Progress, by_model: bool = True) -> str:
    """`workers: sdar-8b 3 busy 1 loading; llada 2 busy`, or of all models together."""
    if by_model and len(progress.workers) > 1:
        each = (f"{model} {_states(states)}".strip() for model, states in progress.workers.items())
        return f"workers: {'; '.join(each)}"
    total = sum((Counter(states) for states in progress.workers.values()), Counter[str]())
    return f"workers: {_states(total)}" if total else ""


def _states(states: Mapping[str, int]) -> str:
    return " ".join(f"{states[state]} {state}" for state in STATES if states.get(state))


def duration(seconds: float) -> str:
    """Seconds for people: "42 s", "7 min 03 s", "3 h 07 min", "4 d 02 h"."""
    minutes, rest = divmod(round(seconds), 60)
    if minutes == 0:
        return f"{rest} s"
    if minutes < 60:
        return f"{minutes} min {rest:02d} s"
    hours = minutes // 60
    return f"{hours} h {minutes % 60:02d} min" if hours < 72 else f"{hours // 24} d {hours % 24:02d} h"
