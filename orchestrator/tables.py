"""What the numbers of results.py look like: two layouts, and for each a terminal, Markdown, LaTeX, HTML and CSV.

    rows = results.over_seeds(results.summary(sweep, samples), samples)
    print(tables.to_latex(tables.main(rows)))

`main` is the layout of a paper's main table: a row a method, for each task and budget its NFE and its throughput ratio,
a table a model and temperature. `long` has a line for each cell and more about it. A layout is a Sheet of formatted
entries; a format writes any Sheet, but CSV, which has the numbers as they are.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import groupby
from typing import Any, Literal

import pandas as pd
from rich.cells import cell_len, set_cell_size
from rich.console import Console, ConsoleOptions, RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator.results import CONTROL, is_oracle, met, method_name, tally

NOTHING = "–"
LEAST_NAME = 8  # columns of a terminal that a name has at least
_FORMATS = {"nfe": "{:.1f}", "nfe_ratio": "{:.2f}", "throughput_ratio": "{:.2f}", "acceptance": "{:.2f}",
            "oracle_share": "{:.0%}", "accuracy": "{:.1%}", "identical": "{:.1%}"}  # fmt: skip
_SPREAD = ("nfe", "nfe_ratio", "throughput_ratio", "acceptance", "accuracy")  # shown with a deviation over seeds
_SHARED, _TIED, _BUG = "‡", "≈", "!"


@dataclass(frozen=True)
class Entry:
    """A number as it is printed. `spread` is its deviation over seeds, `interval` its 95 % one over prompts.

    `marks` are ‡ (timed on a shared GPU), ≈ (tied with the best) and ! (a text differs for no numeric reason); `note`
    is n/N of what is incomplete, with its failures, or how many texts differ within rounding.
    """

    text: str
    spread: str = ""
    interval: str = ""
    marks: str = ""
    note: str = ""
    best: bool = False
    partial: bool = False
    bug: bool = False


@dataclass(frozen=True)
class Column:
    """`groups` are the headings above it, outermost first. `minor`: its deviation goes first where there is no room.

    A `section` column has, in a terminal, a line of its own where its value changes.
    """

    heading: str
    narrow: str = ""
    groups: tuple[str, ...] = ()
    words: bool = False
    minor: bool = False
    section: bool = False


@dataclass(frozen=True)
class Line:
    """An entry a column; `kind` is "control", "method" or "oracle"."""

    entries: tuple[Entry, ...]
    kind: str = "method"


@dataclass(frozen=True)
class Panel:
    """One table; `title` may be empty."""

    title: str
    columns: tuple[Column, ...]
    lines: tuple[Line, ...]


@dataclass(frozen=True)
class Note:
    """A sentence. One that is `of` a detail of entries, by its name, stands only where a rendering has that detail."""

    text: str
    of: str = ""


@dataclass(frozen=True)
class Sheet:
    """Tables of one layout, and what their marks mean."""

    panels: tuple[Panel, ...]
    notes: tuple[Note, ...]

    def said(self, details: Collection[str]) -> list[str]:
        """The notes of a rendering that has these details."""
        return [note.text for note in self.notes if not note.of or note.of in details]


# ---- the two layouts


def main(rows: pd.DataFrame) -> Sheet:
    """The paper's main table of `rows`, those of `results.over_seeds(summary, samples)`.

    A panel a (model, temperature, length): a line a method, control first and oracles last, and for each task and
    budget two columns, NFE and throughput ratio. The best of a column is `best`, one that ties with it is marked; an
    incomplete cell notes n/N and what failed, and is neither. Where the grid has no such cell, the entry is empty. The
    control, which has no budget, is shown at each.
    """
    records = rows.to_dict("records")
    panels = tuple(_main_panel(title, list(group)) for title, group in _by(records, _main_title))
    return Sheet(panels, (_against(records, "Throughput ratios are"), *_tally(rows), *_notes(records, panels)))


def _by(records: Sequence[Mapping[str, Any]], key: Callable[[Mapping[str, Any]], Any]) -> Iterator[tuple[Any, list]]:
    """Groups in order of appearance."""
    groups: dict[Any, list] = {}
    for record in records:
        groups.setdefault(key(record), []).append(record)
    return iter(groups.items())


def _main_title(row: Mapping[str, Any]) -> str:
    to_the_end = "" if row["stop"] == "eos" else ", all decoded"
    return f"{row['model']} · T = {row['temperature']:g} · {row['gen_length']} tokens{to_the_end}"


def _main_panel(title: str, records: list[Mapping[str, Any]]) -> Panel:
    budgets = _budgets(records)
    fields = [(task, budget) for task in budgets for budget in budgets[task]]
    columns = [Column("method", words=True)]
    for task, budget in fields:
        columns += [Column("NFE", groups=(task, f"budget {budget}")),
                    Column("thr. ratio", narrow="thr.", groups=(task, f"budget {budget}"))]  # fmt: skip
    lines = []
    for name, group in _by(records, method_name):
        at = {(row["task"], row["budget"]): row for row in group}
        kind = _kind(group[0])
        entries = [Entry(name)]
        for task, budget in fields:
            row = at.get((task, 0 if kind == "control" else budget))
            entries += _main_entries(row) if row is not None else [Entry(""), Entry("")]
        lines.append(Line(tuple(entries), kind))
    order = ("control", "method", "oracle")
    return Panel(title, tuple(columns), tuple(sorted(lines, key=lambda line: order.index(line.kind))))


def _budgets(records: Sequence[Mapping[str, Any]]) -> dict[str, list[int]]:
    """Those of each task's methods; 0 where there is but the control."""
    return {task: sorted({row["budget"] for row in group if row["method"] != CONTROL} or {0})
            for task, group in _by(records, lambda row: row["task"])}  # fmt: skip


def _main_entries(row: Mapping[str, Any]) -> list[Entry]:
    partial = row["n"] < row["planned"]
    note, bug = _done(row) if partial else "", bool(row["bug"])
    nfe = _entry(row, "nfe", note=note, partial=partial, bug=bug, marks=_BUG if bug else "")
    found = _of(met(row), row["n"]), _within_rounding(row)
    return [nfe, _entry(row, "throughput_ratio", note=" ".join(filter(None, found)), partial=partial or bool(found[0]))]


def _of(k: int, n: int) -> str:
    """`k/n` where a number is of fewer samples than were decoded."""
    return f"{k}/{n}" if 0 < k < n else ""


def _within_rounding(row: Mapping[str, Any]) -> str:
    return f"({row['numeric']})" if row["numeric"] else ""


def _kind(row: Mapping[str, Any]) -> str:
    return "control" if row["method"] == CONTROL else "oracle" if is_oracle(row["method"]) else "method"


def long(rows: pd.DataFrame) -> Sheet:
    """A line for each of `rows` (`results.over_seeds`), with all that a reader asks of a cell.

    Model and task are columns where they tell lines apart, the oracle's share where there is one, wins, ties and losses
    where the ratios are against another method than the control.
    """
    records = rows.to_dict("records")
    pair = records[0]["pair"] if records else "control"
    columns = _long_columns(records, pair)
    lines = [Line(tuple(_long_entry(row, name) for name in columns), _kind(row)) for row in records]
    against = () if pair == "control" else (_against(records, "Ratios are"), *_tally(rows))
    wilson = "; of an accuracy, Wilson's" if any(row["accuracy"] is not None for row in records) else ""
    ranges = Note(f"Ranges are 95 % intervals over prompts: of a ratio, a paired bootstrap{wilson}.", "interval")
    unscored = any(_of(row["scored"], row["n"]) for row in records)
    scored = (Note("k/n by an accuracy: of the k of n texts that are scored."),) if unscored else ()
    panels = (Panel("", tuple(columns.values()), tuple(lines)),)
    return Sheet(panels, (*against, *_notes(records, panels), ranges, *scored))


def _long_columns(records: list[dict[str, Any]], pair: str) -> dict[str, Column]:
    versus = "" if pair == "control" else f" vs {pair}"
    columns = {
        "model": Column("model", words=True, section=True),
        "task": Column("task", words=True, section=True),
        "method": Column("method", words=True),
        "budget": Column("budget", "bud-\nget"),
        "temperature": Column("T"),
        "nfe": Column("NFE", minor=True),
        "nfe_ratio": Column(f"NFE ratio{versus}", "NFE\nratio"),
        "throughput_ratio": Column(f"throughput ratio{versus}", "thr.\nratio"),
        "wins": Column("wins–ties–losses", "wins–ties–\nlosses"),
        "acceptance": Column("acceptance", "accept-\nance", minor=True),
        "oracle_share": Column("oracle share", "oracle\nshare"),
        "accuracy": Column("accuracy", "accu-\nracy"),
        "identical": Column("identical", "iden-\ntical"),
        "done": Column("n/N"),
    }
    left_out = {name for name in ("model", "task") if len({row[name] for row in records}) <= 1}
    left_out |= set() if any(row["oracle_share"] is not None for row in records) else {"oracle_share"}
    left_out |= set() if versus else {"wins"}
    return {name: column for name, column in columns.items() if name not in left_out}


def _long_entry(row: Mapping[str, Any], name: str) -> Entry:
    match name:
        case "method":
            return Entry(method_name(row))
        case "budget" | "temperature":
            return Entry(f"{row[name]:g}")
        case "wins":
            return Entry(f"{row['wins']}–{row['ties']}–{row['losses']}" if met(row) else NOTHING)
        case "done":
            return Entry(_done(row), partial=row["n"] < row["planned"])
        case "identical":
            return _entry(row, name, note=_within_rounding(row), bug=bool(row["bug"]), marks=_BUG if row["bug"] else "")
        case "accuracy":
            found = _of(row["scored"], row["n"])
            return _entry(row, name, note=found, partial=bool(found))
        case "nfe_ratio":  # it ranks as NFE does
            found = _of(met(row), row["n"])
            return _entry({**row, "nfe_ratio_rank": row["nfe_rank"]}, name, note=found, partial=bool(found))
        case "nfe":
            return _entry({**row, "nfe_rank": None}, name)
    return _entry(row, name) if name in _FORMATS else Entry(str(row[name]))


def _entry(row: Mapping[str, Any], name: str, marks: str = "", **more: Any) -> Entry:
    if row[name] is None:
        return Entry(NOTHING, **more)
    number, rank = _FORMATS[name].format, row.get(f"{name}_rank")
    low, high, deviation = (row.get(f"{name}_{end}") for end in ("low", "high", "sd"))
    own = name in ("nfe_ratio", "throughput_ratio") and (row["method"], row["pair"]) == (
        CONTROL,
        "control",
    )  # by definition 1
    shared = _SHARED if name == "throughput_ratio" and row["shared"] else ""
    return Entry(
        text=number(row[name]),
        spread=number(deviation) if deviation is not None and name in _SPREAD and not own else "",
        interval=f"{number(low)}–{number(high)}" if low is not None and not own else "",
        marks=marks + (_TIED if rank == "tied" else "") + shared,
        best=rank == "best",
        **more,
    )


def _done(row: Mapping[str, Any]) -> str:
    """`5/8 1✗`: decoded of planned, and failed."""
    return f"{row['n']}/{row['planned']}" + (f" {row['failed']}✗" if row["failed"] else "")


def _against(records: Sequence[Mapping[str, Any]], what: str) -> Note:
    pair = records[0]["pair"] if records else "control"
    if pair == "control":
        return Note(f"{what} against the draft-free control, decoded beside each sample.")
    at = "" if pair.endswith(":control") else " at the same budget"
    none = "" if any(map(met, records)) else ": none"
    return Note(f"{what} against {pair}{at}, over the samples that both have{none}.")


def _tally(rows: pd.DataFrame) -> tuple[Note, ...]:
    """Against another method than the control: the cells won, tied and lost."""
    pair = rows["pair"].iloc[0] if len(rows) else "control"
    if pair == "control":
        return ()
    told = []
    for method, by in tally(rows).items():
        if any(map(sum, by.values())) and method != pair:
            passes, speed = ("–".join(map(str, by[name])) for name in ("nfe_ratio", "throughput_ratio"))
            told.append(f"{method} {passes} by NFE, {speed} by throughput")
    how = "a tie is a paired ratio whose 95 % interval holds 1"
    return (Note(f"Complete cells won–tied–lost against {pair} ({how}): {'; '.join(told) or 'none'}."),)


def deviation(records: Iterable[Mapping[str, Any]]) -> str:
    """What the deviations of some lines of `results.over_seeds` are ones of."""
    own = {bool(row["own_prompts"]) for row in records if row["nfe_sd"] is not None}
    each = {frozenset([True]): ", each with its own prompts", frozenset([True, False]): ", in some lines each with its "
            "own prompts"}  # fmt: skip
    return "the deviation over seeds" + each.get(frozenset(own), "")


def _notes(records: Sequence[Mapping[str, Any]], panels: Sequence[Panel]) -> tuple[Note, ...]:
    """What of the marks needs a word, given what is there."""
    marks = {mark for panel in panels for line in panel.lines for entry in line.entries for mark in entry.marks}
    tied = "≈ tied with the best at its budget: equal as printed, or the 95 % interval of their paired ratio holds 1."
    failed = "; k✗: k samples failed" if any(row["failed"] for row in records) else ""
    said = [
        (_TIED in marks, tied),
        (any(row["n"] < row["planned"] for row in records), f"n/N: incomplete, and not ranked{failed}."),
        (any(_of(met(row), row["n"]) for row in records), "k/n by a ratio: over the k of n samples that have a pair."),
        (any(row["numeric"] for row in records), "(k): k texts differ from the control within rounding."),
        (_BUG in marks, "!: a text differs from the control for no numeric reason."),
        (any(is_oracle(row["method"]) for row in records), "† diagnostic: has seen the answer, untimed, not ranked."),
        (_SHARED in marks, "‡ timed on a GPU that other workers used, too."),
    ]
    told = (Note(sentence) for there, sentence in said if there)
    return Note("Bold: the best at its budget.", "best"), Note(f"± is {deviation(records)}.", "spread"), *told


# ---- terminal


def terminal(sheet: Sheet, width: int) -> RenderableType:
    """For a terminal of `width` columns: wide tables are cut between columns and go on below, no number is cut."""
    return _Terminal(sheet, width)


@dataclass(frozen=True)
class _Terminal:
    """What prints itself: whether anything is bold is the console's to say."""

    sheet: Sheet
    width: int

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[RenderableType]:
        details: set[str] = set()
        for panel in self.sheet.panels:
            if panel.title:
                yield Text(panel.title, style="cyan")
            if any(column.groups for column in panel.columns):
                yield from _grids(panel, self.width)
                room = [{"best", "spread"}] * len(panel.columns)
            else:
                kept = [index for index, column in enumerate(panel.columns) if not column.section]
                detail = _detail(panel, kept, self.width)
                yield from _listing(panel, kept, detail, self.width)
                room = [_room(column, detail) for column in panel.columns]
            details |= _details(panel, room)
        if console.color_system is None:  # a file, or a pipe
            details -= {"best"}
        if said := self.sheet.said(details):
            yield Text(" ".join(said), style="dim italic")


def _room(column: Column, detail: int) -> set[str]:
    """The details that `_in_terminal` has of an entry in `column`."""
    left = detail - column.minor
    return {"best"} | ({"spread"} if left > 0 else set()) | ({"interval"} if left > 2 else set())


def _details(panel: Panel, room: Sequence[set[str]]) -> set[str]:
    """The details of the entries that a rendering has which has `room` for these in each column."""
    columns = zip(*(line.entries for line in panel.lines), strict=True)
    return {name for entries, names in zip(columns, room, strict=False) for name in names
            if any(getattr(entry, name) for entry in entries)}  # fmt: skip


def _in_a_file(sheet: Sheet) -> list[str]:
    """The notes of Markdown, LaTeX and HTML, which have every detail but intervals below groups."""
    details: set[str] = set()
    for panel in sheet.panels:
        details |= _details(panel, [{"best", "spread"} | (set() if column.groups else {"interval"})
                                    for column in panel.columns])  # fmt: skip
    return sheet.said(details)


def _style(entry: Entry) -> str:
    return "bold" if entry.best else "red" if entry.bug else "yellow" if entry.partial else ""


def _detail(panel: Panel, kept: Sequence[int], width: int) -> int:
    """How much there is room for in the columns `kept`: intervals (3), minor deviations (2), the others (1)."""
    fits = (sum(widths) + len(widths) <= width for widths in (_widths(panel, kept, detail) for detail in (3, 2, 1)))
    return next((detail for detail, there in zip((3, 2, 1), fits, strict=True) if there), 0)


def _widths(panel: Panel, kept: Sequence[int], detail: int) -> list[int]:
    """Of the columns `kept`, under their narrow headings."""
    cells = _listed(panel, kept, detail)
    headings = ((panel.columns[index].narrow or panel.columns[index].heading).split("\n") for index in kept)
    return [max(map(cell_len, [*heading, *(line[place].plain for line in cells)]))
            for place, heading in enumerate(headings)]  # fmt: skip


def _listing(panel: Panel, kept: Sequence[int], detail: int, width: int) -> Iterator[RenderableType]:
    """The columns `kept`. Names are folded where there is no room; headings are narrow where the whole ones do not fit.
    Section columns become title lines."""
    cells, widths = _listed(panel, kept, detail), _widths(panel, kept, detail)
    names = [place for place, index in enumerate(kept) if panel.columns[index].words]
    while sum(widths) + len(widths) > width and (widths[widest := max(names, key=widths.__getitem__)]) > LEAST_NAME:
        widths[widest] -= 1
    headings = _headings([panel.columns[index] for index in kept], widths, width - sum(widths) - len(widths))

    def table(lines: Sequence[list[Text]], header: bool) -> Table:
        shown = Table(box=None, padding=(0, 1, 0, 0), header_style="dim", show_header=header)
        for heading, index, needed in zip(headings, kept, widths, strict=True):
            justify: Literal["left", "right"] = "left" if panel.columns[index].words else "right"
            shown.add_column(heading, width=needed, justify=justify, overflow="fold", vertical="bottom")
        for line in lines:
            shown.add_row(*line)
        return shown

    sections = [index for index, column in enumerate(panel.columns) if column.section]
    titles = [" · ".join(line.entries[index].text for index in sections) for line in panel.lines]
    if not any(titles):
        yield table(cells, header=True)
        return
    yield table([], header=True)
    for title, group in groupby(zip(titles, cells, strict=True), lambda entry: entry[0]):
        yield Text(title, style="cyan")
        yield table([line for _, line in group], header=False)


def _headings(columns: Sequence[Column], widths: list[int], room: int) -> list[str]:
    """Whole headings where they fit, over several lines at least; `widths` grow by what these take of `room`."""
    for needed in (_longest_word, cell_len):  # every heading's words first, then lines
        for place, column in enumerate(columns):
            more = needed(column.heading) - widths[place]
            if 0 < more <= room:
                widths[place] += more
                room -= more
    return [column.heading if _longest_word(column.heading) <= there else column.narrow or column.heading
            for column, there in zip(columns, widths, strict=True)]  # fmt: skip


def _longest_word(text: str) -> int:
    return max(map(cell_len, text.split()), default=0)


def _listed(panel: Panel, kept: Sequence[int], detail: int) -> list[list[Text]]:
    """The entries of the columns `kept`, a list a line."""
    marks = {index: max((len(line.entries[index].marks) for line in panel.lines), default=0) for index in kept}
    return [
        [
            Text(
                _in_terminal(line.entries[index], detail - panel.columns[index].minor, marks[index]),
                _style(line.entries[index]),
            )
            for index in kept
        ]
        for line in panel.lines
    ]


def _in_terminal(entry: Entry, detail: int, marks: int) -> str:
    """Of numbers with `marks` in their column, so that they stay in line where one beside them is marked."""
    number = f"{entry.text}±{entry.spread}" if entry.spread and detail > 0 else entry.text
    interval = f" [{entry.interval}]" if entry.interval and detail > 2 else ""
    return " ".join(filter(None, (number + interval + entry.marks.ljust(marks), entry.note)))


def _grids(panel: Panel, width: int) -> list[RenderableType]:
    """The panel under its groups' headings, cut where `width` ends; what is noted of a number stands below it.

    Headings are narrow where whole ones would cut it more often.
    """
    columns = [[line.entries[index] for line in panel.lines] for index in range(len(panel.columns))]
    cells = [_stacked(column) for column in columns]
    gaps = [1 if i and panel.columns[i].groups == panel.columns[i - 1].groups else 2 for i in range(len(cells))]
    whole = [column.heading for column in panel.columns]
    narrow = [column.narrow or column.heading for column in panel.columns]
    headings, (needed, pieces) = whole, _cut(panel, cells, gaps, whole, width)
    if len(pieces) > len(_cut(panel, cells, gaps, narrow, width)[1]):
        headings, (needed, pieces) = narrow, _cut(panel, cells, gaps, narrow, width)
    return [Text("\n").join(_grid(panel, cells, piece, needed, gaps, headings)) for piece in pieces]


def _cut(
    panel: Panel, cells: list[list[list[str]]], gaps: list[int], headings: list[str], width: int
) -> tuple[list[int], list[list[int]]]:
    """How wide each column is under `headings`, and which columns stand beside each other in `width`."""
    needed = [max(cell_len(part) for stack in [[heading], *stacks] for part in stack)
              for heading, stacks in zip(headings, cells, strict=True)]  # fmt: skip
    for names, start, size in _groups(panel.columns):  # no heading is wider than what it stands over
        heading = max((len(name) + 4 for name in names), default=0)
        needed[start] += max(0, heading + gaps[start] - sum(needed[i] + gaps[i] for i in range(start, start + size)))
    pieces: list[list[int]] = [[]]
    room = width - needed[0]
    for _, group in groupby(range(1, len(panel.columns)), lambda index: panel.columns[index].groups):
        indices = list(group)
        takes = sum(needed[index] + gaps[index] for index in indices)
        if pieces[-1] and takes > room:
            pieces.append([])
            room = width - needed[0]
        pieces[-1] += indices
        room -= takes
    return needed, pieces


def _stacked(column: Sequence[Entry]) -> list[list[str]]:
    """Of each entry the number and what is noted below it; numbers stay in line where one beside them is marked."""
    marks = max((len(entry.marks) for entry in column), default=0)
    numbers = [entry.text + (f"±{entry.spread}" if entry.spread else "") for entry in column]
    return [[number + entry.marks.ljust(marks), *([entry.note] if entry.note else [])]
            for entry, number in zip(column, numbers, strict=True)]  # fmt: skip


def _grid(
    panel: Panel,
    cells: list[list[list[str]]],
    piece: list[int],
    needed: list[int],
    gaps: list[int],
    headings: list[str],
) -> Iterator[Text]:
    for depth in range(len(panel.columns[piece[0]].groups)):
        heading = " " * needed[0]
        for name, start, size in _spans([panel.columns[index] for index in piece], depth):
            width = sum(needed[index] + gaps[index] for index in piece[start : start + size])
            gap = gaps[piece[start]]
            heading += " " * gap + f" {name} ".center(width - gap, "─")
        yield Text(heading, style="dim")
    names = [headings[index] for index in piece]
    first = panel.columns[0].heading.ljust(needed[0])
    heads = (" " * gaps[index] + name.rjust(needed[index]) for index, name in zip(piece, names, strict=True))
    yield Text(first + "".join(heads), "dim")
    for number, line in enumerate(panel.lines):
        stacks = [cells[index][number] for index in piece]
        for level in range(max(map(len, stacks))):
            row = Text(set_cell_size(line.entries[0].text if level == 0 else "", needed[0]))
            for index, stack in zip(piece, stacks, strict=True):
                part = stack[level] if level < len(stack) else ""
                row.append(" " * gaps[index]).append(part.rjust(needed[index]), _style(line.entries[index]))
            yield row
    yield Text("")


# ---- files


def to_csv(table: pd.DataFrame) -> str:
    """Every column of `results.summary`, or of `over_seeds`, in full precision, one line a row."""
    return table.to_csv(index=False, lineterminator="\n")


def main_csv(rows: pd.DataFrame) -> str:
    """The numbers of `main` in full precision: a line a (model, temperature, method), columns by task and budget.

    Columns are `TASK/BUDGET/NAME`; NAME is nfe, throughput_ratio, either with `_sd`, n or planned. The control, which
    has no budget, is at each of its task's, as in `main`.
    """
    names = ["nfe", "nfe_sd", "throughput_ratio", "throughput_ratio_sd", "n", "planned"]
    lines: dict[tuple[Any, ...], dict[str, Any]] = {}
    records = rows.to_dict("records")
    budgets = _budgets(records)
    for row in records:
        key = {name: row[name] for name in ("model", "temperature", "gen_length", "stop")} | {
            "method": method_name(row)
        }
        line = lines.setdefault(tuple(key.values()), key | {"pair": row["pair"]})
        for budget in budgets[row["task"]] if row["method"] == CONTROL else [row["budget"]]:
            line.update({f"{row['task']}/{budget}/{name}": row[name] for name in names})
    return to_csv(pd.DataFrame(list(lines.values()), dtype=object))  # or a count beside a missing one is a float


def to_markdown(sheet: Sheet) -> str:
    """Markdown tables; the best in bold, headings of groups joined to those of their columns."""
    return "\n".join(
        [*(_markdown_panel(panel) for panel in sheet.panels), *_paragraph(_markdown(" ".join(_in_a_file(sheet))))]
    )


def _paragraph(text: str) -> list[str]:
    return [text + "\n"] if text else []


def _markdown(text: str) -> str:
    """A name as it is: no markup, no tag, no end of a column."""
    return re.sub(r"[\\|*_`<\[~$&]", r"\\\g<0>", text)


def _markdown_panel(panel: Panel) -> str:
    title = f"**{_markdown(panel.title)}**\n\n" if panel.title else ""
    lines = [[_markdown(" ".join((*column.groups, column.heading))) for column in panel.columns],
             [":---" if column.words else "---:" for column in panel.columns],
             *([_in_markdown(entry, column) for entry, column in zip(line.entries, panel.columns, strict=True)]
               for line in panel.lines)]  # fmt: skip
    return title + "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _in_markdown(entry: Entry, column: Column) -> str:
    number = _markdown(entry.text) + (f" ± {entry.spread}" if entry.spread else "")
    number = f"**{number}**" if entry.best else number
    interval = f"[{entry.interval}]" if entry.interval and not column.groups else ""
    return " ".join(filter(None, (number, interval, entry.marks, entry.note)))


_LATEX = {"\\": r"\textbackslash{}", "{": r"\{", "}": r"\}", "$": r"\$", "&": r"\&", "#": r"\#", "%": r"\%",
          "_": r"\_", "^": r"\textasciicircum{}", "~": r"\textasciitilde{}", "<": r"\textless{}",
          ">": r"\textgreater{}", "|": r"\textbar{}", '"': r"\textquotedbl{}", "–": "--", "†": r"$\dagger$",
          "‡": r"$\ddagger$", "≈": r"$\approx$", "±": r"$\pm$", "×": r"$\times$", "·": r"$\cdot$", "✗": " failed",
          "[": "{[}", "*": "{*}"}  # fmt: skip  # a line that began with the last two would be an argument of \\


_GREEK = (
    "alpha beta gamma delta epsilon zeta eta theta iota kappa lambda mu nu xi pi rho sigma tau upsilon varphi chi psi "
    "omega Gamma Delta Theta Lambda Xi Pi Sigma Phi Psi Omega"
)
_LATEX |= {
    letter: rf"$\{name}$" for letter, name in zip("αβγδεζηθικλμνξπρστυφχψωΓΔΘΛΞΠΣΦΨΩ", _GREEK.split(), strict=True)
}


def to_latex(sheet: Sheet) -> str:
    r"""A booktabs `tabular` a panel, as a paragraph of its own; one wider than the text is shrunk to it.

    Needs `\usepackage{booktabs}`, graphicx where one is shrunk, and, for a quotation mark in a name, T1 fonts. Titles
    and notes are comments: what they say belongs in a caption.
    """
    panels = "\n\n".join("\n".join(_latex_panel(panel)) for panel in sheet.panels)
    return "\n".join([panels, *(f"% {note}" for note in _in_a_file(sheet))]) + "\n"


def _latex_panel(panel: Panel) -> Iterator[str]:
    if panel.title:
        yield f"% {panel.title}"
    yield r"\sbox0{%"
    yield rf"\begin{{tabular}}{{{''.join('l' if column.words else 'r' for column in panel.columns)}}}"
    yield r"\toprule"
    for depth in range(max(len(column.groups) for column in panel.columns)):
        spans = _spans(panel.columns, depth)
        heads = [rf"\multicolumn{{{size}}}{{c}}{{{_latex(name)}}}" if name else "" for name, _, size in spans]
        yield rf"{' & '.join(heads)} \\"
        yield "".join(rf"\cmidrule(lr){{{start + 1}-{start + size}}}" for name, start, size in spans if name)
    yield rf"{' & '.join(_latex(column.heading) for column in panel.columns)} \\"
    yield r"\midrule"
    for kind, lines in groupby(panel.lines, lambda line: line.kind):
        if kind == "oracle" and any(column.groups for column in panel.columns):
            yield r"\midrule"
        for line in lines:
            yield rf"{' & '.join(map(_in_latex, line.entries, panel.columns))} \\"
    yield r"\bottomrule"
    yield r"\end{tabular}}%"
    yield r"\noindent\ifdim\wd0>\linewidth\resizebox{\linewidth}{!}{\usebox0}\else\usebox0\fi"


def _spans(columns: Sequence[Column], depth: int) -> list[tuple[str, int, int]]:
    """The headings at `depth` of the groups: name (empty over a column without), first column, number of columns."""
    return [(names[-1] if names else "", start, size) for names, start, size in _groups(columns, depth + 1)]


def _groups(columns: Sequence[Column], levels: int | None = None) -> list[tuple[tuple[str, ...], int, int]]:
    """Columns side by side with the same outer `levels` of groups: these, the first column, the number of columns."""
    found = []
    for names, indices in groupby(range(len(columns)), lambda index: columns[index].groups[:levels]):
        members = list(indices)
        found.append((names, members[0], len(members)))
    return found


def _latex(text: str) -> str:
    return "".join(map(_latex_letter, text))


def _latex_letter(letter: str) -> str:
    """What pdflatex can print for `letter`; it knows no other letters than Latin ones."""
    return _LATEX.get(letter) or (letter if letter <= "\u017f" else f"U+{ord(letter):04X}")


def _in_latex(entry: Entry, column: Column) -> str:
    number = rf"\textbf{{{_latex(entry.text)}}}" if entry.best else _latex(entry.text)
    spread = rf"{{\scriptsize$\pm${_latex(entry.spread)}}}" if entry.spread else ""
    interval = rf" {{\scriptsize {_latex(entry.interval)}}}" if entry.interval and not column.groups else ""
    note = rf" {{\scriptsize {_latex(entry.note)}}}" if entry.note else ""
    return number + spread + interval + _latex(f" {entry.marks}" if entry.marks else "") + note


HTML_STYLE = """
.scroll { overflow-x: auto; }
.sheet { border-collapse: collapse; font-variant-numeric: tabular-nums; margin: 0 0 1rem; }
.sheet caption { text-align: left; font-weight: 600; padding: .5rem 0; }
.sheet th, .sheet td { padding: .25rem .6rem; text-align: right; white-space: nowrap; }
.sheet td { border-bottom: 1px solid #e3e6e9; vertical-align: top; }
.sheet th { font-weight: 500; color: #66707a; font-size: .85em; border-bottom: 0; }
.sheet .words { text-align: left; padding-left: 0; }
.sheet th.group { text-align: center; border-bottom: 1px solid #b9bfc5; }
.sheet thead tr:last-child th { border-bottom: 1px solid #1d2329; }
.sheet td.first, .sheet th.first { padding-left: 1.4rem; }
.sheet small { color: #66707a; font-size: .78em; }
.sheet small.below { display: block; } .sheet small.note { color: #9a6700; display: block; font-style: normal; }
.sheet tr.oracle td { color: #66707a; font-style: italic; }
.sheet tr.oracle.begins td { border-top: 1px solid #66707a; }
.sheet td.partial { color: #9a6700; } .sheet td.bug { color: #b3261e; font-weight: 600; }
.sheet-notes { color: #66707a; max-width: 60rem; }
"""


def to_html(sheet: Sheet) -> str:
    """`<table class="sheet">` a panel and a paragraph of notes, all escaped: a fragment, for a page with HTML_STYLE."""
    said = _in_a_file(sheet)
    notes = f'<p class="sheet-notes">{escape(" ".join(said))}</p>\n' if said else ""
    return "".join("".join(_html_panel(panel)) for panel in sheet.panels) + notes


def html_page(sheet: Sheet, title: str) -> str:
    """`to_html` as a document of its own."""
    font = 'body { font: 15px/1.5 system-ui, "Liberation Sans", sans-serif; color: #1d2329; margin: 2rem; }'
    head = '<!doctype html>\n<html lang="en">\n<meta charset="utf-8">\n'
    head += f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)}</title>\n'
    return f"{head}<style>\n{font}{HTML_STYLE}</style>\n<h1>{escape(title)}</h1>\n{to_html(sheet)}</html>\n"


def _html_panel(panel: Panel) -> Iterator[str]:
    yield '<div class="scroll" tabindex="0"><table class="sheet">\n'
    if panel.title:
        yield f"<caption>{escape(panel.title)}</caption>\n"
    yield "<thead>\n"
    depths = max(len(column.groups) for column in panel.columns)
    firsts = {start for name, start, _ in _spans(panel.columns, depths - 1) if name} if depths else set()
    for depth in range(depths):
        spans = _spans(panel.columns, depth)
        heads = (f'<th colspan="{size}"{_class("group" * bool(name))}>{escape(name)}</th>' for name, _, size in spans)
        yield f"<tr>{''.join(heads)}</tr>\n"
    classes = [" ".join(filter(None, ("words" * column.words, "first" * (index in firsts))))
               for index, column in enumerate(panel.columns)]  # fmt: skip
    heads = (f"<th{_class(kind)}>{escape(column.heading)}</th>"
             for kind, column in zip(classes, panel.columns, strict=True))  # fmt: skip
    yield f"<tr>{''.join(heads)}</tr>\n</thead>\n<tbody>\n"
    before = ""
    for line in panel.lines:
        begins = " begins" * (line.kind == "oracle" != before)
        cells = map(_in_html, line.entries, panel.columns, classes)
        yield f'<tr class="{line.kind}{begins}">{"".join(cells)}</tr>\n'
        before = line.kind
    yield "</tbody></table></div>\n"


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _in_html(entry: Entry, column: Column, classes: str) -> str:
    state = " ".join(filter(None, (classes, "partial" * entry.partial, "bug" * entry.bug)))
    number = f"<b>{escape(entry.text)}</b>" if entry.best else escape(entry.text)
    spread, interval = (f"±{entry.spread}" if entry.spread else ""), entry.interval if not column.groups else ""
    below = _class("below" * bool(column.groups))  # a paper's table is wide enough as it is
    note = f'<small class="note">{escape(entry.note)}</small>' if entry.note else ""
    title = f' title="95 % interval {escape(entry.interval)}"' if entry.interval else ""
    small = "".join(f" <small{below}>{escape(part)}</small>" for part in (spread, interval) if part)
    return f"<td{_class(state)}{title}>{' '.join(filter(None, (number, escape(entry.marks))))}{small}{note}</td>"


LAYOUTS: Mapping[str, Callable[[pd.DataFrame], Sheet]] = {"long": long, "paper": main}
FORMATS: Mapping[str, Callable[[Sheet], str]] = {"markdown": to_markdown, "latex": to_latex, "html": to_html}
