"""Every drafter beside the draft-free control, in one run: passes, throughput, where the time goes, memory.

    python benchmarks/decode.py methods                               # writes benchmarks/results/methods.md
    python benchmarks/decode.py methods temperatures=[1] name=methods-T1
    python benchmarks/decode.py methods decode.unmasking=threshold drafters=[spot-sets,spot] name=methods-threshold

The arguments are those of `launch.py run`: the sweep is run, or gone on with, and its ledger read. Ratios are paired:
the control decodes each prompt in the same actor, back to back with the methods.
"""

import platform
import sys
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from launch import main as launch  # noqa: E402
from orchestrator import config as configs  # noqa: E402
from orchestrator import results  # noqa: E402

COLUMNS = {
    "model": "model", "method": "method", "budget": "budget", "temperature": "T", "n": "n", "nfe": "NFE",
    "nfe_ratio": "NFE ratio",
    "throughput": "throughput ratio (95 %)", "efficiency": "efficiency", "target": "target", "draft": "draft",
    "rest": "rest", "memory": "peak MB", "accuracy": "accuracy", "identical": "identical",
}  # fmt: skip


def table(summary: pd.DataFrame) -> str:
    """Markdown: a line a cell. Efficiency is the throughput ratio over the NFE ratio; phases are shares of the time."""
    lines = [list(COLUMNS.values()), ["---"] * len(COLUMNS)]
    lines += [_line(row) for row in summary.to_dict("records")]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def _line(row: dict[str, Any]) -> list[str]:
    ratio, nfe_ratio = row["throughput_ratio"], row["nfe_ratio"]
    timed = ratio is not None and row["throughput_ratio_low"] is not None
    interval = f"{ratio:.2f} ({row['throughput_ratio_low']:.2f}–{row['throughput_ratio_high']:.2f})" if timed else "–"
    shown = {
        "model": row["model"],
        "method": results.method_name(row),
        "budget": str(row["budget"]),
        "temperature": f"{row['temperature']:g}",
        "n": f"{row['n']}/{row['planned']}",
        "nfe": f"{row['nfe']:.1f}",
        "nfe_ratio": f"{nfe_ratio:.2f}",
        "throughput": interval,
        "efficiency": f"{ratio / nfe_ratio:.2f}" if timed else "–",
        **{phase: f"{row[f'time_{phase}']:.0%}" for phase in ("target", "draft", "rest")},
        "memory": f"{row['peak_bytes'] / 1e6:.0f}" if row["peak_bytes"] else "–",
        "accuracy": f"{row['accuracy']:.1%}" if row["accuracy"] is not None else "–",
        "identical": f"{row['identical']:.1%}",
    }
    return [shown[name] for name in COLUMNS]


def main(arguments: list[str]) -> int:
    code = launch(["run", *arguments])
    if code:
        return code
    config, _ = configs.load(arguments[0], arguments[1:])
    sweep, samples = results.load(config.folder)
    head = (
        f"# {config.name}\n\n`python benchmarks/decode.py {' '.join(arguments)}`\n\n"
        f"{machine()}; commit {sweep.environment['commit']}; "
        f"{config.workers.device}, {config.workers.threads} thread(s) a worker.\n\n"
    )
    text = table(results.summary(sweep, samples))
    path = ROOT / "benchmarks" / "results" / f"{config.name}.md"
    path.write_text(head + text)
    print(text)
    print(path.relative_to(ROOT))
    return 0


def machine() -> str:
    """The processor and the versions that a number depends on."""
    path = Path("/proc/cpuinfo")
    lines = path.read_text().splitlines() if path.exists() else []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    processor = f"{len(names)} cores of {names[0]}" if names else platform.processor()
    return ", ".join([processor, *(f"{name} {version(name)}" for name in ("torch", "transformers", "ray"))])


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
