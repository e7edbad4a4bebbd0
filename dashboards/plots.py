"""The figures of a report, each from rows of `results.over_seeds` to one SVG string. No file, no network, no state.

`figure` and `legend` are the house style, for other pages' figures too.

    svg = nfe_by_budget(rows, colours(rows))

Text stays text (the page's fonts, selectable); a method has one colour in every figure.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import groupby
from typing import Any

import matplotlib
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from orchestrator import results

Row = dict[str, Any]
PALETTE = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f3c8d", "#8c6d31")
CONTROL = "#555555"
_PHASES = {"prefill": "#b8c4d0", "target": "#0072b2", "draft": "#e69f00", "rest": "#dddddd"}
STYLE: Any = {
    "svg.fonttype": "none", "svg.hashsalt": "spot", "font.family": "sans-serif", "font.size": 9,
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": "#999999", "axes.labelcolor": "#333333",
    "axes.grid": True, "grid.color": "#eeeeee", "axes.axisbelow": True, "xtick.color": "#555555",
    "ytick.color": "#555555", "legend.frameon": False, "legend.fontsize": 8, "lines.linewidth": 1.6,
}  # fmt: skip


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
                axes.axhline(row["nfe"], color=CONTROL, linestyle="--", linewidth=1, label="control")
        for drafter, points in _lines(rows, "nfe"):
            budgets, nfe = [point["budget"] for point in points], [point["nfe"] for point in points]
            spread = [point.get("nfe_sd") or 0.0 for point in points]
            axes.errorbar(budgets, nfe, yerr=spread if any(spread) else None, color=palette[drafter], marker="o",
                          markersize=4, capsize=2, label=drafter)  # fmt: skip
        axes.set(xlabel="budget (draft states a pass)", ylabel="NFE per sample")
        axes.set_ylim(bottom=0)
        budgets = sorted({row["budget"] for row in rows if row["budget"]})
        if budgets:
            axes.set_xscale("log", base=2)
            axes.set_xticks(budgets, [str(budget) for budget in budgets])
            axes.set_xlim(budgets[0] / 1.2, budgets[-1] * 1.2)
            axes.minorticks_off()
        legend(axes)
    return svg()


def throughput_by_nfe(rows: list[Row], palette: dict[str, str]) -> str:
    """Throughput ratio against NFE ratio; on the ideal line drafting and verifying would cost nothing."""
    timed = [row for row in rows if row["throughput_ratio"] is not None]  # the control among them, at (1, 1)
    (left, right), (bottom, top) = (_range([row[name] for row in timed]) for name in ("nfe_ratio", "throughput_ratio"))
    with _figure() as (axes, svg):
        axes.plot([0, right], [0, right], color=CONTROL, linestyle="--", linewidth=1, label="ideal")
        axes.axhline(1.0, color="#cccccc", linewidth=1)
        for drafter, points in _lines(timed, "throughput_ratio"):
            ratios = [(point["nfe_ratio"], point["throughput_ratio"]) for point in points]
            axes.plot(*zip(*ratios, strict=True), color=palette[drafter], marker="o", markersize=4, label=drafter)
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
                      label=f"{drafter}, budget {points[-1]['budget']}")  # fmt: skip
        axes.set(xlabel="depth d", ylabel="passes accepting ≥ d", ylim=(0.0, 1.03), xlim=(0.0, deepest + 0.3))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        legend(axes)
    return svg()


def time_split(rows: list[Row], palette: dict[str, str]) -> str:
    """Where decoding time goes, one bar a cell, summing to 1. `palette` is unused: the colours are the phases'."""
    timed = [row for row in rows if row["time_target"] is not None]
    names = [results.method_name(row) + (f" {row['budget']}" if row["budget"] else "") for row in timed]
    with _figure(height=max(1.9, 0.9 + 0.24 * len(timed))) as (axes, svg):
        start = [0.0] * len(timed)
        for phase, colour in _PHASES.items():
            share = [row[f"time_{phase}"] for row in timed]
            axes.barh(range(len(timed)), share, left=start, color=colour, height=0.7, label=phase)
            start = [low + width for low, width in zip(start, share, strict=True)]
        axes.set_yticks(range(len(timed)), names)
        axes.set(xlabel="share of decoding time", xlim=(0.0, 1.0))
        axes.grid(visible=False, axis="y")
        axes.invert_yaxis()
        axes.legend(ncols=4, loc="lower left", bbox_to_anchor=(-0.02, 1.0), handlelength=1.0, columnspacing=1.2)
    return svg()


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
    """Where it hides least; none without a labelled line."""
    if axes.get_legend_handles_labels()[0]:
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
        pictures["svg"] = written.getvalue()[written.getvalue().index(b"<svg") :]
        if png:
            drawn.savefig(written := io.BytesIO(), format="png", dpi=160)
            pictures["png"] = written.getvalue()
