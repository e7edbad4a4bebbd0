"""The page of an analysis, with its figures and CSV files beside it: self-contained, no network, no JavaScript.

python launch.py analyze quickstart        # writes runs/quickstart/analysis/index.html
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import PercentFormatter

from dashboards.plots import CONTROL, PALETTE, figure, legend, shares
from dashboards.report import environment
from orchestrator.analysis import PLACE, Analysis, percent, pivot, places, ratio, recovered

_ORACLES = {"positions": ("#333333", "-"), "tokens": ("#888888", "--"), "both": ("#c4c4c4", ":")}
Draw = Callable[[Axes, pd.DataFrame], None]


@dataclass(frozen=True)
class Picture:
    """A figure on the page; `table` is its numbers: a heading for each column, then rows of a name and cells."""

    heading: str
    caption: str
    svg: str
    headings: list[str]
    table: list[tuple[str, list[str]]]


def write(analysis: Analysis) -> Path:
    """Write index.html, a CSV file a table, and an SVG and a PNG file a figure into the analysis' folder."""
    analysis.folder.mkdir(parents=True, exist_ok=True)
    for name, table in analysis.tables.items():
        _put(analysis.folder / f"{name}.csv", table.to_csv(index=False, lineterminator="\n"))
    return _put(analysis.folder / "index.html", render(analysis))


def _put(file: Path, text: str) -> Path:
    """Write `file` whole or not at all: the report reads one of them."""
    unfinished = file.with_name(f"{file.name}.new")
    unfinished.write_text(text, encoding="utf-8")
    os.replace(unfinished, file)
    return file


def render(analysis: Analysis) -> str:
    """The page as a string; its figures are written on the way."""
    sections = [
        (place, _finding(lines, headroom), list(_section(analysis.folder, place, lines, headroom)))
        for place, lines in places(analysis.accuracy, PLACE)
        for headroom in [dict(places(analysis.headroom, PLACE)).get(place, analysis.headroom[:0])]
    ]
    lengths = [
        _picture(
            analysis.folder, f"{where} block length", where, *_LENGTHS, lines, ["name", "budget"], "block_length", ratio
        )
        for where, lines in places(analysis.lengths, ["checkpoint", "task", "temperature"])
    ]
    return environment().get_template("analysis.html.j2").render(
        name=analysis.name,
        facts=analysis.facts,
        sections=sections,
        lengths=lengths,
        files=[f"{name}.csv" for name in analysis.tables],
        failed=analysis.failed,
    )  # fmt: skip


def _section(folder: Path, place: str, lines: pd.DataFrame, headroom: pd.DataFrame) -> Iterator[Picture]:
    for by, (heading, caption, draw) in _BY.items():
        part = lines[lines["by"] == by]
        yield _picture(folder, f"{place} {by}", heading, caption, draw, part, ["measure"], "at", percent)
    if len(headroom):
        yield _picture(folder, f"{place} headroom", *_HEADROOM, headroom, ["name"], "budget", ratio)
    methods = headroom[headroom["knows"].isna() & headroom["oracle_share"].notna()]
    if len(methods):
        yield _picture(folder, f"{place} recovered", *_RECOVERED, methods, ["name"], "budget", recovered)


def _picture(
    folder: Path, name: str, heading: str, caption: str, draw: Draw, lines: pd.DataFrame, names: list[str],
    column: str, cell: Callable[[dict[str, Any]], str],
) -> Picture:  # fmt: skip
    with figure(png=True) as (axes, pictures):
        draw(axes, lines)
        legend(axes)
    file = folder / re.sub(r"[^\w.]+", "-", name)
    for kind, data in pictures.items():
        file.with_name(f"{file.name}.{kind}").write_bytes(data)
    headings = [str(value) for value in sorted(lines[column].unique())]
    return Picture(heading, caption, pictures["svg"].decode(), headings, list(pivot(lines, names, column, cell)))


def _finding(lines: pd.DataFrame, headroom: pd.DataFrame) -> str:
    """The section in a sentence."""
    first = lines.query("by == 'depth' and at == 0").set_index("measure")["share"]
    shares = [f"{name} {share:.0%}" for name, share in first.items() if name != "stale token" and pd.notna(share)]
    said = (
        f"The stale table names {first['stale token']:.1%} of the next tokens" if pd.notna(first["stale token"]) else ""
    )
    said += f"; of the next positions: {', '.join(shares)}." if shares else "."
    best = headroom[headroom["knows"] == "positions"].dropna(subset="nfe_ratio")
    if len(best):
        factors = dict.fromkeys(f"{factor:.1f}" for factor in (best["nfe_ratio"].min(), best["nfe_ratio"].max()))
        said += f" Drafting from the true positions would divide the passes by {' to '.join(factors)}."
    return said


# ---- figures


def _by_block(axes: Axes, lines: pd.DataFrame) -> None:
    shares(axes, lines)
    axes.set_xlabel("block of the answer")


def _by_depth(axes: Axes, lines: pd.DataFrame) -> None:
    shares(axes, lines)
    axes.set_xlabel("commits ahead")


def _headroom(axes: Axes, lines: pd.DataFrame) -> None:
    axes.axhline(1.0, color="#cccccc", linewidth=1)
    palette = _palette(lines)
    for name, part in lines.dropna(subset="nfe_ratio").sort_values("budget", kind="stable").groupby("name", sort=False):
        colour, style = palette[str(name)]
        axes.plot(part["budget"], part["nfe_ratio"], style, color=colour, marker="o", markersize=3.5, label=name)
    _budgets(axes, lines)
    axes.set(ylabel="NFE ratio")
    axes.set_ylim(bottom=0)


def _recovered(axes: Axes, lines: pd.DataFrame) -> None:
    axes.axhline(1.0, color=CONTROL, linestyle="--", linewidth=1, label="position oracle")
    palette = _palette(lines)
    for name, part in (
        lines.dropna(subset="oracle_share").sort_values("budget", kind="stable").groupby("name", sort=False)
    ):
        axes.plot(
            part["budget"], part["oracle_share"], color=palette[str(name)][0], marker="o", markersize=3.5, label=name
        )
    _budgets(axes, lines)
    axes.set(ylabel="share recovered", ylim=(0, 1.04))
    axes.yaxis.set_major_formatter(PercentFormatter(1.0))


def _palette(lines: pd.DataFrame) -> dict[str, tuple[str, str]]:
    """A colour and a line style a name: methods in the order of the sweep, oracles in grey."""
    knows = dict(zip(lines["name"], lines["knows"], strict=True))
    methods = [name for name, known in knows.items() if pd.isna(known)]
    oracles = {name: _ORACLES[known] for name, known in knows.items() if name not in methods}
    return oracles | {name: (PALETTE[index % len(PALETTE)], "-") for index, name in enumerate(methods)}


def _budgets(axes: Axes, lines: pd.DataFrame) -> None:
    budgets = sorted(lines["budget"].unique())
    axes.set_xscale("log", base=2)
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.minorticks_off()
    axes.set_xlabel("budget (draft states a pass)")


def _by_length(axes: Axes, lines: pd.DataFrame) -> None:
    names, budgets = list(lines["name"].unique()), sorted(lines["budget"].unique())
    for (name, budget), part in lines.dropna(subset="nfe_ratio").groupby(["name", "budget"], sort=False):
        faint = 0.35 + 0.65 * (budgets.index(budget) + 1) / len(budgets)
        part = part.sort_values("block_length")
        axes.plot(part["block_length"], part["nfe_ratio"], color=PALETTE[names.index(name) % len(PALETTE)], alpha=faint,
                  marker="o", markersize=3.5, label=f"{name} {budget}")  # fmt: skip
    lengths = sorted(lines["block_length"].unique())
    axes.set_xticks(lengths, [str(length) for length in lengths])
    axes.set(xlabel="block length", ylabel="NFE ratio")
    axes.set_ylim(bottom=0)


_BY = {
    "block": (
        "What and where, by block",
        "How often the stale table names the next token, and each ranking the next position. SDAR-8B in the "
        "paper: tokens 92 % in the first block, confidence 3 % by the ninth.",
        _by_block,
    ),
    "depth": (
        "What and where, by depth",
        "The same after that many further, true commits. "
        "SDAR-8B in the paper: order model 75 %, stale confidence 22 %.",
        _by_depth,
    ),
}
_HEADROOM = (
    "Headroom",
    "Passes divided by; † has seen the answer. In the paper, on GSM8K: true positions 5.4 to 7.1 at budgets 8 to 20.",
    _headroom,
)
_RECOVERED = (
    "Recovered",
    "Share of the passes saved by the position oracle that a method saves. SPOT in the paper: 70 to 85 %.",
    _recovered,
)
_LENGTHS = ("NFE ratio of one checkpoint at several block lengths; fainter: smaller budgets.", _by_length)
