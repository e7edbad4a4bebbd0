"""One file a task: `rows(**options)` gives the data, `score(row, text, **options)` a verdict, `SCORER` names the rules.

A user's task is one such file here and one YAML in configs/task/, whose keys are the options of the two functions. A
module may hold `CANARIES`: texts of known verdict, scored before anything of the sweep is.
"""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from importlib import import_module
from pkgutil import iter_modules
from typing import Any

from spot.options import check_options, option_names
from workers.tasks.data import NotDownloaded
from workers.work import UNRESOLVED, Absent

HELPERS = {"answers", "data", "maths", "programs"}  # modules here that are no tasks


@dataclass(frozen=True)
class Row:
    """One question. `prompt` is the user's turn, before the chat template; `reference` the data's own answer.

    `columns` has the data set's further columns that scoring needs, such as a program's tests.
    """

    id: str
    prompt: str
    reference: str
    columns: Mapping[str, str] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Score:
    """A verdict on a text, and the answer that was read from it (None where none was found).

    `correct` None: it could not be judged, and `error` says why. `notes` are a task's further words on it, such as
    the verdict by another rule or the sandbox that a program ran in.
    """

    correct: bool | None
    answer: str | None
    error: str | None = None
    notes: Mapping[str, Any] = field(default_factory=dict, hash=False)


@dataclass(frozen=True)
class Canary:
    """A text whose verdict is known."""

    row: Row
    text: str
    correct: bool


@dataclass(frozen=True)
class Task:
    """A loaded task. `revision` is the sha256 of its rows, so that changed data makes new cells.

    `score` has its options bound, and pickles by its module's name; `scorer` is the version of its rules.
    """

    name: str
    revision: str
    scorer: str
    rows: tuple[Row, ...]
    score: Callable[[Row, str], Score]
    canaries: tuple[Canary, ...] = ()


def load_task(name: str, options: dict[str, Any]) -> Task:
    """The task `name` with the options of its YAML; `task` among them names the module, by default `name`.

    Raises ValueError, in one line, for an unknown module or option or data that cannot be read; Absent for a published
    data set that is not downloaded.
    """
    options = dict(options)
    module_name = options.pop("task", name)
    known = sorted(m.name for m in iter_modules(__path__) if m.name not in HELPERS)
    if module_name not in known:
        raise ValueError(f"task: no task {module_name!r}; there are {', '.join(known)}")
    module = import_module(f"workers.tasks.{module_name}")
    of_score = {key: options.pop(key) for key in option_names(module.score, SCORED) if key in options}
    check_options(module_name, module.score, of_score, SCORED)
    check_options(module_name, module.rows, options)

    def task(revision: str, rows: tuple[Row, ...]) -> Task:
        canaries = tuple(getattr(module, "CANARIES", ()))
        return Task(name, revision, module.SCORER, rows, partial(module.score, **of_score), canaries)

    try:
        rows = tuple(module.rows(**options))
    except NotDownloaded as error:
        stand_ins = tuple(Row(f"row {number}", "", "") for number in range(error.size))
        raise Absent(str(error), task(UNRESOLVED, stand_ins)) from None
    return task(_revision(rows), rows)


SCORED = ("row", "text")  # what `score` is given beside its options


def _revision(rows: tuple[Row, ...]) -> str:
    plain = [[row.id, row.prompt, row.reference, *([dict(row.columns)] if row.columns else [])] for row in rows]
    return hashlib.sha256(json.dumps(plain).encode()).hexdigest()[:16]
