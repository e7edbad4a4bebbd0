"""The figures among a run's artifacts in MLflow: `plots/NAME.svg`, by path.

files = of_cell(samples, line)      # one finished cell: passes sample by sample, acceptance by depth
files = of_sweep(rows)              # the report's figures, for each model, task and temperature
"""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Mapping
from typing import Any

import matplotlib
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from dashboards import plots
from orchestrator import results

_OF_SWEEP: dict[str, Callable[[list[plots.Row], dict[str, str]], str]] = {
    "nfe": plots.nfe_by_budget,
    "throughput": plots.throughput_by_nfe,
    "acceptance": plots.survival,
    "time": plots.time_split,
}


def of_cell(samples: pd.DataFrame, line: Mapping[str, Any]) -> dict[str, bytes]:
    """One figure of a cell, from its samples (`results.frame`) and its line of `results.summary`.

    Left, target passes of each sample, the hardest for the control first, with the control's behind them; right, in
    which share of the drafted passes at least so many drafts were accepted.
    """
    if not line["n"]:
        return {}
    written = io.BytesIO()
    with matplotlib.rc_context(plots.STYLE):
        drawn = Figure(figsize=(8.4, 3.4))
        left, right = drawn.subplots(1, 2, width_ratios=(3, 2))
        drawn.subplots_adjust(left=0.08, right=0.98, top=0.88, bottom=0.16, wspace=0.24)  # constrained layout is slow
        drawn.suptitle(line["label"], fontsize=9, parse_math=False)
        _passes(left, samples[samples["status"] == "ok"], line["method"])
        _depths(right, line["survival"])
        drawn.savefig(written, format="svg", metadata={"Date": None, "Creator": None})
    return {"plots/passes.svg": written.getvalue()}


def of_sweep(rows: pd.DataFrame) -> dict[str, bytes]:
    """The report's figures, from `results.over_seeds`."""
    measured = [row for row in rows.to_dict("records") if row["n"]]
    palette = plots.colours(measured)
    groups: dict[str, list[plots.Row]] = {}
    for row in measured:
        group = f"{row['model']}-{row['task']}-T{row['temperature']:g}"
        groups.setdefault(re.sub(r"[^\w.-]", "_", group), []).append(row)
    return {
        f"plots/{group}-{name}.svg": draw(found, palette).encode()
        for group, found in groups.items()
        for name, draw in _OF_SWEEP.items()
    }


def _passes(axes: Axes, good: pd.DataFrame, method: str) -> None:
    good = good.sort_values("control_nfe", ascending=False, kind="stable")
    edges = np.arange(len(good) + 1) - 0.5
    axes.stairs(good["control_nfe"].astype(float), edges, fill=True, color="#dddddd", label="control")
    if method != results.CONTROL:
        axes.plot(np.arange(len(good)), good["nfe"].astype(float), ".", color=plots.PALETTE[0], label="method")
    axes.set(xlabel="samples", ylabel="target passes (NFE)", xlim=(-0.5, len(good) - 0.5), ylim=(0, None))
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    plots.legend(axes)


def _depths(axes: Axes, survival: list[float] | None) -> None:
    axes.set(xlabel="drafts accepted in a row, at least", ylabel="share of drafted passes", ylim=(0, 1))
    if not survival:
        axes.set_axis_off()
        return
    axes.bar(np.arange(1, len(survival) + 1), survival, color=plots.PALETTE[0])
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
