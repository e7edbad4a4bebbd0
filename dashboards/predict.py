"""Throughput between the budgets that were decoded, from what passes cost and accept at these.

A text of S steps takes U passes without drafts (each block's first) and D = (S - U) / (1 + a(n)) with up to n, of which
a(n) are accepted: its decoding takes p + U c(0) + D (c(n) + d(n)) seconds, p the prefill's, c a pass's and d its
drafting's, and the control's measured seconds are divided by that. At a budget that was decoded this is what was
measured. Between two, a goes along log(1 + n), all else straight; c(0) is the control's. No budget beyond the largest,
and none below the smallest: what a pass of one draft costs more than a pass without (a drafter that is asked, a pass of
several states) cannot be told from the records of larger budgets, and is no share of theirs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pandas as pd

from orchestrator import results

_SUMS = ("nfe", "control_nfe", "drafted", "drafted_passes", "accepted", "seconds_prefill", "seconds_target",
         "seconds_draft", "seconds_rest", "control_seconds")  # fmt: skip


@dataclass(frozen=True)
class Prediction:
    """Throughput ratio over the draft-free control at each of `budgets`, the smallest decoded to the largest.

    `miss` is how far, as a share, the prediction is from the measured ratio of a budget that it was not told, at worst;
    None where no budget lies between two others.
    """

    budgets: tuple[int, ...]
    ratios: tuple[float, ...]
    miss: float | None

    @property
    def best(self) -> tuple[int, float]:
        """The budget of most throughput, the smallest of several, and its ratio."""
        at = self.ratios.index(max(self.ratios))
        return self.budgets[at], self.ratios[at]


def predictions(samples: pd.DataFrame) -> dict[str, Prediction]:
    """By drafter, from samples (`results.frame`) of one model, task and temperature; oracles, untimed, left out.

    Only samples with the control's text are counted, as in the measured ratio. Nothing without the control's records.
    """
    good = samples[samples["status"].eq("ok") & samples["identical"].eq(True) & samples["seconds"].notna()]
    good = good[~good["method"].map(results.is_oracle).astype(bool)]
    sums = good[["drafter", "budget"]].join(good[list(_SUMS)].apply(pd.to_numeric)).assign(texts=1)
    sums = sums.groupby(["drafter", "budget"], sort=False).sum().reset_index()
    control, methods = sums[sums["drafter"] == results.CONTROL], sums[sums["drafter"] != results.CONTROL]
    methods = methods[methods["drafted_passes"] > 0].sort_values("budget", kind="stable")
    if control.empty:
        return {}
    plain = float((control["seconds_target"].sum() + control["seconds_rest"].sum()) / control["nfe"].sum())
    return {str(name): _prediction(own, plain) for name, own in methods.groupby("drafter", sort=False)}


def _prediction(own: pd.DataFrame, plain: float) -> Prediction:
    """Of a drafter whose sums over texts are `own`, a line a budget; a pass without drafts takes `plain` seconds."""
    budgets = tuple(range(int(own["budget"].min()), int(own["budget"].max()) + 1))
    return Prediction(budgets, tuple(_ratios(own, plain, budgets)), _miss(own, plain))


def _ratios(own: pd.DataFrame, plain: float, budgets: Sequence[int]) -> list[float]:
    """The ratio at each of `budgets`, which lie within those of `own`."""
    at = np.asarray(budgets, float)
    n, texts, drafted, passes = (own[name].to_numpy(float) for name in ("budget", "texts", "drafted_passes", "nfe"))
    spent = (own["seconds_target"] + own["seconds_rest"]).to_numpy(float) - (passes - drafted) * plain

    def straight(values: np.ndarray) -> np.ndarray:
        return np.interp(at, n, values)

    accepted = np.interp(np.log1p(at), np.log1p(n), own["accepted"] / drafted)
    cost = straight((spent + own["seconds_draft"].to_numpy(float)) / drafted)
    undrafted = straight((passes - drafted) / texts)
    steps, prefill, control = (
        straight(own[name] / texts) for name in ("control_nfe", "seconds_prefill", "control_seconds")
    )
    seconds = prefill + undrafted * plain + (steps - undrafted) / (1 + accepted) * cost
    return [float(ratio) for ratio in control / seconds]


def _miss(own: pd.DataFrame, plain: float) -> float | None:
    """The worst miss at a budget between others that is left out."""
    misses = []
    for line in own.iloc[1:-1].itertuples():
        (ratio,) = _ratios(own.drop(line.Index), plain, [line.budget])
        (measured,) = _ratios(own.loc[[line.Index]], plain, [line.budget])
        misses.append(abs(ratio / measured - 1))
    return max(misses, default=None)
