"""`launch.py probe`: a target, three prompts and one drafter, as a small grid; and what is found, as tables.

workers/probe.py measures. The findings are kept as JSON; `launch.py plan` reads them (orchestrator/estimate.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from orchestrator import config as configs
from orchestrator.config import AXES, COMMAND_LINE, Config, Source
from orchestrator.errors import UserError
from orchestrator.estimate import counted

if TYPE_CHECKING:
    from workers.probe import Decoded, Findings

PROMPTS = 3
BUDGETS = (8, 20)
_NOTHING = "–"


def asked(model: str, task: str, drafter: str, overrides: Sequence[str]) -> tuple[Config, Source]:
    """The first rows of `task` in data-set order, at T = 0, draft-free and drafted, in this process."""
    for key in (text.partition("=")[0] for text in overrides):
        if key in AXES:
            raise UserError(COMMAND_LINE, key, "no axis here; a probe is of one MODEL, --task and --drafter, at T = 0")
    for section, name in (("model", model), ("task", task), ("drafter", drafter)):
        configs.check_one(section, name)
    chosen = [f"models=[{model}]", f"tasks=[{task}]", f"drafters=[{drafter}]", f"budgets=[{_commas(BUDGETS)}]"]
    chosen += ["temperatures=[0]", "seeds=[0]", f"limit={PROMPTS}", "shuffle=false"]
    here = ["workers.executor=inline", "workers.address=null"]
    return configs.load("quickstart", [*chosen, *overrides, *here])


def check_out(out: Path) -> None:
    """The findings' file can be written, which is known before anything is measured."""
    try:
        if out.is_dir():
            raise UserError(COMMAND_LINE, "out", f"{out}: a folder; the name of a file expected")
        out.parent.mkdir(parents=True, exist_ok=True)
        with out.open("a"):
            pass
        if not out.stat().st_size:
            out.unlink()
    except OSError as error:
        raise UserError(COMMAND_LINE, "out", f"{out}: {error.strerror}") from None


def write(found: Findings, out: Path) -> None:
    out.write_text(json.dumps(found.as_dict(), indent=1) + "\n")


# ---- what a terminal shows


def printed(found: Findings) -> Iterator[RenderableType]:
    """The tables for a terminal of 80 columns."""
    limits = f"tolerance {found.rounding.tolerance:.1e}"
    for title, table in (
        ("", _facts(found)),
        (f"{found.task}, {counted(len(found.rows), 'prompt')}, T 0, {found.drafter}", _decoded(found)),
        (f"A state's logits among others and alone: largest difference ({limits})", _rounding(found)),
        ("Right, %, by number of commits ahead", _accuracy(found)),
        ("A pass by number of nodes", _passes(found)),
    ):
        if table is not None:
            yield ""
            if title:
                yield Text(title, style="bold")
            yield table
    yield ""


def _facts(found: Findings) -> Table:
    machine, memory = found.machine, found.memory
    threads = f", {counted(found.threads, 'thread')}" if found.device == "cpu" else ""
    sizes = (("weights", memory.weights), ("peak", memory.peak), ("free before loading", memory.free))
    table = Table.grid(padding=(0, 2, 0, 0))
    table.add_column(style="dim")
    for name, value in (
        ("machine", f"{machine['name']} ({found.device}{threads}), torch {machine['torch']}"),
        ("target", f"{found.model}, {found.family}, {_large(found.parameters)} parameters in {found.dtype}"),
        ("revision", found.revision),
        ("memory", ", ".join(f"{_bytes(size)} {what}" for what, size in sizes if size is not None)),
        ("loading", f"{found.load_seconds:.1f} s"),
    ):
        table.add_row(name, Text(value))
    return table


def _decoded(found: Findings) -> Table:
    names = ("budget", "NFE", "NFE ratio", "accepted", "tokens/s", "thr. ratio", "ms/pass")
    table = _table(*names, "identical")
    for line in found.decoded:
        table.add_row(
            str(line.budget) if line.budget else "control",
            f"{line.nfe:.1f}",
            f"{line.nfe_ratio:.2f}",
            _NOTHING if line.accepted is None else f"{line.accepted:.2f}",
            f"{line.tokens_per_second:.1f}",
            _NOTHING if line.throughput_ratio is None else f"{line.throughput_ratio:.2f}",
            _milliseconds(line.pass_seconds),
            _identical(line, len(found.rows)),
        )
    return table


def _identical(line: Decoded, texts: int) -> str:
    """`3/3`, or `1/3, 2 numeric`."""
    return ", ".join([f"{line.identical}/{texts}", *(f"{count} {what}" for what, count in line.different.items())])


def _rounding(found: Findings) -> Table:
    differences = found.rounding.differences
    counts = sorted({d.nodes for d in differences})
    table = _table("nodes", *map(str, counts))
    for layout in dict.fromkeys(d.layout for d in differences):
        table.add_row(layout, *(f"{d.largest:.1e}" if d.largest else "0" for d in differences if d.layout == layout))
    return table


def _accuracy(found: Findings) -> Table | None:
    if not found.accuracy:
        return None
    shown = 6
    table = _table("commits ahead", *map(str, range(shown)))
    for share in found.accuracy:
        cells = (_NOTHING if value is None else f"{100 * value:.1f}" for value in share.by_depth[:shown])
        table.add_row(share.measure, *cells)
    return table


def _passes(found: Findings) -> Table:
    table = _table("nodes", *(str(line.nodes) for line in found.passes))
    table.add_row("ms", *(_milliseconds(line.seconds) for line in found.passes))
    table.add_row("ratio", *(_NOTHING if line.ratio is None else f"{line.ratio:.2f}" for line in found.passes))
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(box=None, padding=(0, 1, 0, 0), header_style="dim")
    table.add_column(first, no_wrap=True)
    for name in others:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _milliseconds(seconds: float | None) -> str:
    return _NOTHING if seconds is None else f"{1000 * seconds:.1f}"


def _bytes(count: int) -> str:
    return f"{count / 1e9:.1f} GB" if count >= 1e9 else f"{count / 1e6:.1f} MB"


def _large(count: int) -> str:
    return f"{count / 1e9:.2f} B" if count >= 1e9 else f"{count / 1e6:.2f} M"


def _commas(numbers: Sequence[int]) -> str:
    return ",".join(map(str, numbers))
