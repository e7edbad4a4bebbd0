"""The figures of a report, each from rows of `results.over_seeds` to one SVG string. No file, no network, no state.

`figure` and `legend` are the house style, for other pages' figures too.

    svg = nfe_by_budget(rows, colours(rows))

Text stays text (the page's fonts, selectable); a method has one colour in every figure.
"""

from __future__ import annotations

import io
import math
import re
import warnings
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import matplotlib
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, PercentFormatter

from dashboards.predict import Prediction
from orchestrator import results

Row = dict[str, Any]
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#8c6d31",
           "#a6192e", "#1b5e20", "#b8a800", "#ff7f9f", "#3b3b98", "#00897b", "#d81bd8", "#6d4c41")  # fmt: skip
CONTROL = "#555555"
MOST_INSIDE = 6  # lines of a legend that stands within the axes
_MEASURES = {
    "stale token": ("#333333", "--"),
    "order model": ("#0072b2", "-"),
    "stale confidence": ("#d55e00", "-"),
    "noise-aware": ("#009e73", ":"),  # the same as stale confidence at T = 0
}
_PHASES = {"prefill": "#b8c4d0", "target": "#0072b2", "draft": "#e69f00", "rest": "#dddddd"}
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "spot", "font.family": "sans-serif", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#999999", "axes.labelcolor": "#333333",
    "axes.grid": True, "grid.color": "#eeeeee", "axes.axisbelow": True, "xtick.color": "#555555",
    "ytick.color": "#555555", "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.6,
    "text.parse_math": False,  # a name may have dollars
}  # fmt: skip

warnings.filterwarnings("ignore", "Glyph .* missing from font")  # the page, or MLflow's, has letters that we lack


def colours(rows: Iterable[Row]) -> dict[str, str]:
    """A colour a drafter, by order of first appearance; the control is grey."""
    names = dict.fromkeys(row["drafter"] for row in rows if row["drafter"] != results.CONTROL)
    palette = {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}
    return palette | {results.CONTROL: CONTROL}


def nfe_by_budget(rows: list[Row], palette: dict[str, str]) -> str:
    """NFE per sample against budget, one line a drafter, the control as the level to beat."""
    with _figure() as (axes, svg):
        for row in rows:
            if row["drafter"] == results.CONTROL and row["nfe"] is not None:
                axes.axhline(row["nfe"], color=CONTROL, linestyle="--", linewidth=1, label=f"control{_done(row)}")
        for drafter, points in _lines(rows, "nfe"):
            budgets, nfe = [point["budget"] for point in points], [point["nfe"] for point in points]
            spread = [point.get("nfe_sd") or 0.0 for point in points]
            axes.errorbar(budgets, nfe, yerr=spread if any(spread) else None, color=palette[drafter], marker="o",
                          markersize=4, capsize=2, label=_label(points[0]))  # fmt: skip
            _unfinished(axes, points, nfe, palette[drafter])
        axes.set(ylabel="NFE per sample")
        axes.set_ylim(bottom=0)
        _budgets(axes, rows)
        legend(axes)
    return svg()


def throughput_by_budget(rows: list[Row], palette: dict[str, str], predicted: Mapping[str, Prediction]) -> str:
    """Throughput ratio against budget: points as measured, with intervals; lines as predicted, the best starred.

    A star has its budget beside it: it may be one that is no tick of the axis.
    """
    with _figure() as (axes, svg):
        axes.axhline(1.0, color=CONTROL, linestyle="--", linewidth=1, label="control")
        for drafter, points in _lines(rows, "throughput_ratio"):
            _measured(axes, points, "throughput_ratio", color=palette[drafter], label=_label(points[0]))
            _unfinished(axes, points, [point["throughput_ratio"] for point in points], palette[drafter])
        for drafter, line in predicted.items():
            axes.plot(line.budgets, line.ratios, color=palette[drafter], linewidth=1)
            axes.plot(*line.best, "*", color=palette[drafter], markersize=11, markeredgecolor="white",
                      markeredgewidth=0.7, zorder=6)  # fmt: skip
            axes.annotate(f"{line.best[0]}", line.best, textcoords="offset points", xytext=(6, 5), fontsize=8,
                          fontweight="bold", color=palette[drafter], zorder=6)  # fmt: skip
        axes.set(ylabel="throughput ratio")
        axes.set_ylim(bottom=0)
        _budgets(axes, rows)
        legend(axes)
    return svg()


def _measured(axes: Axes, points: list[Row], name: str, **style: Any) -> None:
    """`points` against their budgets, with their intervals, or deviations over seeds, where they have these."""
    values = [point[name] for point in points]
    ends = [[_end(point, name, sign) for point in points] for sign in (-1, 1)]
    errors = [[abs(end - value) for end, value in zip(side, values, strict=True)] for side in ends]
    axes.errorbar([point["budget"] for point in points], values, yerr=errors if any(map(any, errors)) else None,
                  linestyle="", marker="o", markersize=4.5, capsize=2, elinewidth=1, **style)  # fmt: skip


def _end(point: Row, name: str, sign: int) -> float:
    """The lower or the upper end of what a measured value may be; the value itself where nothing is known of it."""
    bound = point.get(f"{name}_{'high' if sign > 0 else 'low'}")
    return bound if bound is not None else point[name] + sign * (point.get(f"{name}_sd") or 0.0)


def _budgets(axes: Axes, rows: list[Row]) -> None:
    """The budgets there are as the ticks of a logarithmic axis."""
    budgets = sorted({row["budget"] for row in rows if row["budget"]})
    axes.set_xlabel("budget (draft states a pass)")
    if budgets:
        axes.set_xscale("log", base=2)
        axes.set_xticks(ticks := _apart(budgets), [str(budget) for budget in ticks])
        axes.set_xlim(budgets[0] / 1.2, budgets[-1] * 1.2)
        axes.minorticks_off()


def _apart(budgets: list[int]) -> list[int]:
    """Of rising `budgets` the last, and those before it whose labels have room on the axis."""
    kept: list[int] = []
    for budget in reversed(budgets):
        if not kept or kept[-1] / budget >= (budgets[-1] / budgets[0]) ** 0.06:
            kept.append(budget)
    return kept[::-1]


def throughput_by_nfe(rows: list[Row], palette: dict[str, str]) -> str:
    """Throughput ratio against NFE ratio; on the ideal line drafting and verifying would cost nothing."""
    timed = [row for row in rows if row["throughput_ratio"] is not None]  # the control among them, at (1, 1)
    (left, right), (bottom, top) = (_range([row[name] for row in timed]) for name in ("nfe_ratio", "throughput_ratio"))
    with _figure() as (axes, svg):
        axes.plot([0, right], [0, right], color=CONTROL, linestyle="--", linewidth=1, label="ideal")
        axes.axhline(1.0, color="#cccccc", linewidth=1)
        for drafter, points in _lines(timed, "throughput_ratio"):
            ratios = [(point["nfe_ratio"], point["throughput_ratio"]) for point in points]
            axes.plot(*zip(*ratios, strict=True), color=palette[drafter], marker="o", markersize=4,
                      label=_label(points[0]))  # fmt: skip
            _unfinished(axes, points, [point["throughput_ratio"] for point in points], palette[drafter], "nfe_ratio")
            for point, at in zip(points, ratios, strict=True):
                axes.annotate(f"{point['budget']}", at, textcoords="offset points", xytext=(4, -9), fontsize=7,
                              color="#777777")  # fmt: skip
        axes.set(xlabel="NFE ratio", ylabel="throughput ratio", xlim=(left, right), ylim=(bottom, top))
        legend(axes)
    return svg()


def survival(rows: list[Row], palette: dict[str, str]) -> str:
    """How deep acceptance reaches: the share of drafted passes that accept at least d drafts, at the largest budget."""
    with _figure() as (axes, svg):
        deepest = 1
        for drafter, points in _lines(rows, "survival"):
            curve = points[-1]["survival"]
            deepest = max(deepest, len(curve))
            axes.plot(range(len(curve) + 1), [1.0, *curve], color=palette[drafter], marker="o", markersize=3,
                      label=f"{_label(points[-1])}, budget {points[-1]['budget']}{_done(points[-1])}")  # fmt: skip
        axes.set(xlabel="depth d", ylabel="passes accepting ≥ d", ylim=(0.0, 1.03), xlim=(0.0, deepest + 0.3))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axes)
    return svg()


def time_split(rows: list[Row], palette: dict[str, str]) -> str:
    """Where decoding time goes, one bar a cell, summing to 1. `palette` is unused: the colours are the phases'."""
    timed = [row for row in rows if row["time_target"] is not None and not results.is_oracle(row["method"])]
    with _figure(height=max(1.9, 0.9 + 0.24 * len(timed))) as (axes, svg):
        start = [0.0] * len(timed)
        for phase, colour in _PHASES.items():
            share = [row[f"time_{phase}"] for row in timed]
            axes.barh(range(len(timed)), share, left=start, color=colour, height=0.7, label=phase)
            start = [low + width for low, width in zip(start, share, strict=True)]
        axes.set_yticks(range(len(timed)), list(map(_name, timed)))
        axes.set(xlabel="share of decoding time", xlim=(0.0, 1.0))
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(-0.02, 1.0), handlelength=1.0, columnspacing=1.2)
    return svg()


def accuracy(rows: list[Row], palette: dict[str, str]) -> str:
    """Accuracy of every cell, with its interval; the band is the control's."""
    known = [row for row in rows if row["accuracy"] is not None]
    with _figure(height=max(1.9, 0.9 + 0.24 * len(known))) as (axes, svg):
        for place, row in enumerate(known):
            low, high = _end(row, "accuracy", -1), _end(row, "accuracy", 1)
            if row["drafter"] == results.CONTROL:
                axes.axvspan(low, high, color="#888888", alpha=0.12, linewidth=0)
            errors = [[abs(end - row["accuracy"])] for end in (low, high)]  # rounding can put an end on the other side
            axes.errorbar([row["accuracy"]], [place], xerr=errors, color=palette[row["drafter"]], marker="o",
                          markersize=4, capsize=2, clip_on=False)  # fmt: skip  # whole at 0 and 100 %, too
            _unfinished(axes, [row], [place], palette[row["drafter"]], "accuracy")
        axes.set_yticks(range(len(known)), list(map(_name, known)))
        axes.set(xlabel="accuracy", xlim=_around([_end(row, "accuracy", sign) for row in known for sign in (-1, 1)]))
        axes.xaxis.set_major_locator(MaxNLocator(5))  # labels as wide as 100 % do not run into each other
        axes.xaxis.set_major_formatter(PercentFormatter(1.0))
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
    return svg()


def right_by(by: str, lines: pd.DataFrame) -> str:
    """`shares` as a picture of its own."""
    with _figure() as (axes, svg):
        shares(axes, lines)
        axes.set_xlabel({"block": "block of the answer", "depth": "commits ahead"}[by])
        legend(axes)
    return svg()


def shares(axes: Axes, lines: pd.DataFrame) -> None:
    """Lines of an analysis' table `accuracy`: the share right of each measure, by what they are `at`."""
    for name, part in lines.dropna(subset="share").groupby("measure", sort=False):
        colour, style = _MEASURES[str(name)]
        axes.plot(part["at"], part["share"], style, color=colour, marker="o", markersize=3.5, label=name)
    axes.set(ylabel="share right", ylim=(0, 1.04))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _around(shares: list[float]) -> tuple[float, float]:
    """Limits with some air around `shares`, a fifth apart at least, and never beyond 0 and 1, where no share is."""
    low, high = min(shares, default=0.0), max(shares, default=1.0)
    air = max(0.02, (0.2 - (high - low)) / 2)
    return max(low - air, 0.0), min(high + air, 1.0)


def _name(row: Row) -> str:
    return results.method_name(row) + (f" {row['budget']}" if row["budget"] else "") + _done(row)


def _label(row: Row) -> str:
    """In a legend; a name that begins with `_` would not be in it."""
    name = results.method_name(row)
    return f"\u200b{name}" if name.startswith("_") else name


def _done(row: Row) -> str:
    return f" ({row['n']}/{row['planned']})" if row["n"] < row["planned"] else ""


def _unfinished(axes: Axes, points: list[Row], heights: list[float], colour: str, across: str = "budget") -> None:
    """Hollow points over those of incomplete cells."""
    at = [(point[across], height) for point, height in zip(points, heights, strict=True) if _done(point)]
    if at:
        axes.plot(*zip(*at, strict=True), "o", color=colour, markerfacecolor="white", markersize=4, zorder=5,
                  clip_on=False)  # fmt: skip


def _range(values: list[float]) -> tuple[float, float]:
    """Limits with some air that show the ratio 1."""
    low, high = min([1.0, *values]), max([1.0, *values])
    air = 0.12 * max(high - low, 0.5)
    return low - air, high + air


def _lines(rows: list[Row], needed: str) -> Iterator[tuple[str, list[Row]]]:
    """The drafters in order of appearance, each with its rows by rising budget; rows without `needed` left out."""
    order = {drafter: index for index, drafter in enumerate(dict.fromkeys(row["drafter"] for row in rows))}
    usable = [row for row in rows if row[needed] is not None and row["drafter"] != results.CONTROL]
    usable.sort(key=lambda row: (order[row["drafter"]], row["budget"]))
    for drafter, points in groupby(usable, key=lambda row: row["drafter"]):
        yield drafter, list(points)


def legend(axes: Axes) -> None:
    """Where it hides least, or, of more than MOST_INSIDE lines, below a picture that grows by it; none without one."""
    handles, labels = axes.get_legend_handles_labels()
    drawn = axes.get_figure()
    if len(labels) > MOST_INSIDE and isinstance(drawn, Figure):
        drawn.set_figheight(drawn.get_figheight() + 0.18 * math.ceil(len(labels) / 2))
        drawn.legend(handles, labels, loc="outside lower center", ncols=2, handlelength=1.6)
    elif labels:
        axes.legend(loc="best", handlelength=1.6)


@contextmanager
def _figure(width: float = 4.4, height: float = 3.0) -> Iterator[tuple[Axes, Any]]:
    """Axes to draw on, and a function that gives the SVG once the block has ended. Inches."""
    with figure(width, height) as (axes, pictures):
        yield axes, lambda: pictures["svg"].decode()


@contextmanager
def figure(width: float = 4.4, height: float = 3.0, png: bool = False) -> Iterator[tuple[Axes, dict[str, bytes]]]:
    """Axes to draw on, and a dict that has the picture as "svg", and as "png" too, once the block has ended. Inches."""
    pictures: dict[str, bytes] = {}
    with matplotlib.rc_context(STYLE):
        drawn = Figure(figsize=(width, height), layout="constrained")
        yield drawn.add_subplot(), pictures
        written = io.BytesIO()
        drawn.savefig(written, format="svg", metadata={"Date": None, "Creator": None}, transparent=True)
        pictures["svg"] = _bare(written.getvalue().decode()).encode()
        if png:
            drawn.savefig(written := io.BytesIO(), format="png", dpi=160)
            pictures["png"] = written.getvalue()


def with_own_ids(svg: str, prefix: str) -> str:
    """A picture that refers to no part of another one, which a page may have folded up: then it is not there."""
    return re.sub(r'( id="|url\(#|href="#)', rf"\g<1>{prefix}", svg)


def _bare(svg: str) -> str:
    """A picture without what a page has no use for: metadata, ids that nothing refers to, thousandths of a point."""
    svg = re.sub(r"<!--.*?-->|<metadata>.*?</metadata>", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    referred = set(re.findall(r"#([\w-]+)", svg))
    svg = re.sub(r' id="([\w-]+)"', lambda found: found[0] if found[1] in referred else "", svg)
    places = re.compile(r' (?:d|x|y|width|height|transform)="[^"]+"')
    svg = places.sub(lambda found: re.sub(r"(\.\d\d)\d+", r"\1", found[0]), svg)
    return re.sub(r"\s*\n\s*", "\n", svg)
