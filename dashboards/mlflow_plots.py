"""The figures among a run's artifacts in MLflow: `plots/NAME.svg`, by path.

files = of_cell(samples, line)      # one finished cell: passes sample by sample, acceptance by depth
files = of_sweep(summary)           # the report's figures, for each model, task and temperature
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
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
    """Figures of one cell, from its samples (`results.frame`) and its line of `results.summary`."""
    drawn = {"plots/nfe.svg": _passes(samples, line)} if line["n"] else {}
    return drawn | ({"plots/acceptance.svg": _depths(line)} if line["survival"] else {})


def of_sweep(summary: pd.DataFrame) -> dict[str, bytes]:
    """The report's figures, from `results.summary`."""
    if summary.empty:
        return {}
    rows = [row for row in results.over_seeds(summary).to_dict("records") if row["n"]]
    palette = plots.colours(rows)
    groups: dict[str, list[plots.Row]] = {}
    for row in rows:
        groups.setdefault(f"{row['model']}-{row['task']}-T{row['temperature']:g}", []).append(row)
    return {
        f"plots/{re.sub(r'[^0-9A-Za-z.-]', '_', group)}-{name}.svg": draw(found, palette).encode()
        for group, found in groups.items()
        for name, draw in _OF_SWEEP.items()
    }


def _passes(samples: pd.DataFrame, line: Mapping[str, Any]) -> bytes:
    """Target passes of each sample, the hardest for the control first, with the control's behind them."""
    good = samples[samples["status"] == "ok"].sort_values("control_nfe", ascending=False)
    place = np.arange(len(good))
    with plots.figure(6.0, 3.2) as (axes, pictures):
        axes.fill_between(place, good["control_nfe"].astype(float), step="mid", color="#dddddd", label="control")
        if line["method"] != results.CONTROL:
            axes.plot(place, good["nfe"].astype(float), ".", color=plots.PALETTE[0], label=line["label"])
        axes.set(xlabel="samples", ylabel="target passes (NFE)", xlim=(-0.5, len(good) - 0.5))
        axes.set_ylim(bottom=0)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        plots.legend(axes)
    return pictures["svg"]


def _depths(line: Mapping[str, Any]) -> bytes:
    """In which share of the drafted passes at least so many drafts were accepted."""
    with plots.figure(4.4, 3.2) as (axes, pictures):
        depth = np.arange(1, len(line["survival"]) + 1)
        axes.bar(depth, line["survival"], color=plots.PALETTE[0])
        axes.set(xlabel="drafts accepted in a row, at least", ylabel="share of drafted passes")
        axes.set_ylim(0, 1)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    return pictures["svg"]
