"""One file a task: `rows(**options)` gives the data, `score(row, text)` a verdict, `SCORER` names the rules.

A user's task is one such file here and one YAML in configs/task/.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import astuple, dataclass
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from spot.options import check_options


@dataclass(frozen=True)
class Row:
    """One question. `prompt` is the user's turn, before the chat template; `reference` the data's own answer."""

    id: str
    prompt: str
    reference: str


@dataclass(frozen=True)
class Score:
    """A verdict on a text, and the answer that was read from it (None where none was found)."""

    correct: bool
    answer: str | None


@dataclass(frozen=True)
class Task:
    """A loaded task. `revision` is the sha256 of its rows, so that changed data makes new cells."""

    name: str
    revision: str
    scorer: str
    rows: tuple[Row, ...]
    score: Callable[[Row, str], Score]


def load_task(name: str, options: dict[str, Any]) -> Task:
    """The task `name` with the options of its YAML; `task` among them names the module, by default `name`.

    Raises ValueError, in one line, for an unknown module or option or data that cannot be read.
    """
    options = dict(options)
    module_name = options.pop("task", name)
    known = sorted(m.name for m in iter_modules(__path__) if m.name != "answers")
    if module_name not in known:
        raise ValueError(f"task: no task {module_name!r}; there are {', '.join(known)}")
    module = import_module(f"workers.tasks.{module_name}")
    check_options(module_name, module.rows, options)
    rows = tuple(module.rows(**options))
    digest = hashlib.sha256(json.dumps([astuple(row) for row in rows]).encode()).hexdigest()
    return Task(name, digest[:16], module.SCORER, rows, module.score)
