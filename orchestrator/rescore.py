"""Scores again without decoding, and the check that a scorer works here at all.

python launch.py rescore quickstart          # texts without a score, with an error, or of an older scorer
python launch.py rescore quickstart --all    # every text
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from orchestrator.config import Source
from orchestrator.grid import Cell
from orchestrator.ledger import Ledger, Record, Sweep
from orchestrator.plan import Task
from orchestrator.scoring import MakeJudge, Scorers, Scoring, TextKey
from workers.tasks import Canary, Score

WAIT_SECONDS = 0.5
Latest = Mapping[TextKey, Record]


# ---- canaries


def check_canaries(tasks: Mapping[str, Task], source: Source, make_judge: MakeJudge) -> None:
    """UserError where a task's scorer gets a text wrong whose verdict is known: it would get the others wrong too."""
    judge = make_judge()
    try:
        for name, task in tasks.items():
            for canary in task.canaries:
                if wrong := _wrong(canary, judge.score(task.score, canary.row, canary.text)):
                    raise source.error(f"task.{name}", f"its canary: {wrong}")
    finally:
        judge.close()


def _wrong(canary: Canary, score: Score) -> str | None:
    """What is wrong with the `score` of a canary, if anything."""
    if score.correct is canary.correct:
        return None
    if score.correct is None:
        return f"it cannot be scored here: {score.error}"
    words = {True: "right", False: "wrong"}
    verdict = f"a text known to be {words[canary.correct]} is judged {words[score.correct]} (answer {score.answer!r})"
    return f"{verdict}; mend the scorer or its options before anything is scored by it"


# ---- how far scoring is


def any_unscored(cells: Mapping[str, Cell], tasks: Mapping[str, Task], ledger: Ledger) -> bool:
    """Whether a text of these cells has no score of its task's scorer yet."""
    good = (r for r in ledger.results().values() if r["cell"] in cells and r["status"] == "ok")
    texts = ((cells[record["cell"]].task, record["row"], record["text_sha"]) for record in good)
    return any((*text, tasks[text[0]].scorer) not in ledger.scores() for text in texts)


@dataclass(frozen=True)
class TextCounts:
    """The texts of a sweep's planned samples, by what has become of them; `error` is one of the errors."""

    scored: int
    errors: int
    missing: int
    error: str | None = None


def latest_scores(ledger: Ledger) -> Latest:
    """The score that counts for each text: the last one made, by whatever version of the scorer."""
    made = sorted(ledger.scores().values(), key=lambda score: score.get("started") or 0)
    return {(score["task"], score["row"], score["text_sha"]): score for score in made}


def text_counts(cells: Iterable[Cell], rows: Mapping[str, tuple[str, ...]], ledger: Ledger) -> TextCounts:
    """`rows` are the planned row ids by cell key."""
    results = ledger.results()
    planned = ((cell.task, row, results.get((cell.key, row))) for cell in cells for row in rows[cell.key])
    texts = {(task, row, held["text_sha"]) for task, row, held in planned if held and held["status"] == "ok"}
    latest = latest_scores(ledger)
    scores = [latest[text] for text in texts if text in latest]
    errors = [str(score["error"]) for score in scores if score["correct"] is None]
    return TextCounts(len(scores) - len(errors), len(errors), len(texts) - len(scores), min(errors, default=None))


# ---- again


@dataclass(frozen=True)
class Rescored:
    """What `rescore` did: texts scored, verdicts changed, and (right, scored) samples by cell label, before and after.

    `counts` is the whole sweep's.
    """

    scored: int
    changed: int
    counts: TextCounts
    before: Mapping[str, tuple[int, int]]
    after: Mapping[str, tuple[int, int]]


def check_data(sweep: Sweep, tasks: Mapping[str, Task], source: Source) -> None:
    """UserError where a task's data is not what the sweep decoded."""
    for cell in sweep.cells:
        found = tasks[cell.task].revision
        if found != cell.data_revision:
            wrong = f"its data has changed since the sweep ({cell.data_revision}, now {found}); restore it"
            raise source.error(f"task.{cell.task}", f"{wrong}, or run the grid again")


def rescore(
    sweep: Sweep,
    tasks: Mapping[str, Task],
    ledger: Ledger,
    make_scorers: Callable[[], Scorers],
    every: bool,
    show: Callable[[int, int], None],
    clock: Callable[[], float],
) -> Rescored:
    """Score what has no score by the tasks' scorers, or an error; `every` text where asked. `show(done, all)`."""
    cells = {cell.key: cell for cell in sweep.cells}
    held = [
        ledger.results()[cell, row]
        for cell, ids in sweep.rows.items()
        for row in ids
        if (cell, row) in ledger.results()
    ]
    old, before = latest_scores(ledger), _right(sweep, ledger)
    scoring = Scoring(cells, tasks, ledger, make_scorers, clock)
    try:
        scoring.want(held, lambda score: every or score["correct"] is None)
        records: list[Record] = []
        total = scoring.left
        while scoring.left:
            records += scoring.turn(WAIT_SECONDS)
            ledger.sync(clock())
            show(len(records), total)
    finally:
        scoring.close()
    changed = sum(_changed(old.get((new["task"], new["row"], new["text_sha"])), new) for new in records)
    counts = text_counts(sweep.cells, sweep.rows, ledger)
    return Rescored(len(records), changed, counts, before, _right(sweep, ledger))


def _changed(old: Record | None, new: Record) -> bool:
    return old is not None and old["correct"] != new["correct"]


def _right(sweep: Sweep, ledger: Ledger) -> dict[str, tuple[int, int]]:
    """(right, scored) samples by cell label."""
    latest, results = latest_scores(ledger), ledger.results()
    found = {}
    for cell in sweep.cells:
        held = [results.get((cell.key, row), {}) for row in sweep.rows[cell.key]]
        good = [record for record in held if record.get("status") == "ok"]
        scores = [latest.get((cell.task, record["row"], record["text_sha"])) for record in good]
        verdicts = [score["correct"] for score in scores if score is not None and score["correct"] is not None]
        found[cell.label] = sum(verdicts), len(verdicts)
    return found
