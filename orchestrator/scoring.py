"""Scoring, a step of its own beside decoding: decode records in, score records out, each text once. design.md §5.

A text is in the ledger before it is scored, and is scored once however many methods wrote it. Decoding never waits:
texts queue here, as keys, until a scorer takes them; what a crash or Ctrl-C leaves unscored, `resume` makes up.
Scorers run in this process's children (LocalScorers) or as Ray tasks (RayScorers).
"""

import queue
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Any, NamedTuple, Protocol

from orchestrator.config import Workers
from orchestrator.executors import connect, environment, one_line, reason, spare_cores
from orchestrator.grid import Cell
from orchestrator.ledger import Ledger, Record, ScoreKey
from orchestrator.plan import Judge, Task
from workers.tasks import Score

MakeJudge = Callable[[], Judge]
TextKey = tuple[str, str, str]  # (task, row id, text sha)
SENDS = 3  # of one text, before the machines that died of it, or around it, are its `error`


@dataclass(frozen=True)
class Request:
    """A text to score, with its row and the task's `score`."""

    key: ScoreKey
    score: Callable[[Any, str], Score] = field(hash=False)
    row: Any = field(hash=False)
    text: str
    sends: int = 1


class Verdict(NamedTuple):
    """What became of a request."""

    key: ScoreKey
    score: Score


class Scorers(Protocol):
    """Scores up to `room` texts at once. None of the calls but `collect` blocks."""

    room: int

    def submit(self, request: Request) -> None:
        """Score this; one verdict follows."""

    def collect(self, seconds: float) -> list[Verdict]:
        """The verdicts that have come; waits up to `seconds` for a first."""

    def close(self) -> None:
        """End everything; what is under way is lost."""


class Scoring:
    """The texts of a sweep that want a score. `turn` is called until `left` is 0."""

    def __init__(
        self,
        cells: Mapping[str, Cell],
        tasks: Mapping[str, Task],
        ledger: Ledger,
        make_scorers: Callable[[], Scorers],
        clock: Callable[[], float],
    ) -> None:
        self._cells, self._tasks, self._ledger = cells, tasks, ledger
        self._make_scorers, self._clock = make_scorers, clock
        self._rows = {name: {row.id: row for row in task.rows} for name, task in tasks.items()}
        self._texts: dict[TextKey, str] = {}
        self._backlog: deque[ScoreKey] = deque()
        self._in_flight: dict[ScoreKey, float] = {}  # and since when
        self._wanted: set[ScoreKey] = set()
        self._scorers: Scorers | None = None

    @property
    def left(self) -> int:
        """How many texts have been asked for and have no score yet."""
        return len(self._wanted)

    @property
    def queued(self) -> bool:
        """Whether texts wait for a scorer to be free."""
        return bool(self._backlog)

    def want(self, decodes: Iterable[Record], again: Callable[[Record], bool] = lambda score: False) -> None:
        """Have the texts of these records scored, if their score is missing, or of one to be made `again`.

        A record without a text has the text of another one, here or in an earlier call.
        """
        good = [(self._text_key(record), record) for record in decodes if record["status"] == "ok"]
        wanted = {text for text, _ in good if self._is_wanted(text, again)}
        for text, record in good:
            if text in wanted and text not in self._texts and record["text"] is not None:
                self._texts[text] = record["text"]
        for text in dict.fromkeys(text for text, _ in good if text in wanted):
            self._want(text)

    def turn(self, seconds: float = 0.0) -> list[Record]:
        """Hand out texts, and put in the ledger what has come back; waits up to `seconds` for something to come."""
        self._send()
        if self._scorers is None or not self._in_flight:
            return []
        records = [self._record(key, score, self._in_flight.pop(key)) for key, score in self._scorers.collect(seconds)]
        self._send()
        return records

    def close(self) -> None:
        """End the scorers."""
        if self._scorers is not None:
            self._scorers.close()

    def _text_key(self, record: Record) -> TextKey:
        return self._cells[record["cell"]].task, record["row"], record["text_sha"]

    def _is_wanted(self, text: TextKey, again: Callable[[Record], bool]) -> bool:
        key = (*text, self._tasks[text[0]].scorer)
        held = self._ledger.scores().get(key)
        return key not in self._wanted and (held is None or again(held))

    def _want(self, text: TextKey) -> None:
        key = (*text, self._tasks[text[0]].scorer)
        self._wanted.add(key)
        if text in self._texts:
            self._backlog.append(key)
        else:
            self._record(key, Score(None, None, "no record holds the text"), self._clock())

    def _send(self) -> None:
        if self._backlog and self._scorers is None:
            self._scorers = self._make_scorers()
        while self._backlog and self._scorers is not None and len(self._in_flight) < self._scorers.room:
            key = self._backlog.popleft()
            task, row, _, _ = key
            self._in_flight[key] = self._clock()
            self._scorers.submit(Request(key, self._tasks[task].score, self._rows[task][row], self._texts[key[:3]]))

    def _record(self, key: ScoreKey, score: Score, started: float) -> Record:
        record: dict[str, Any] = {"kind": "score", **dict(zip(("task", "row", "text_sha", "scorer"), key, strict=True))}
        record |= {"correct": score.correct, "answer": score.answer, "error": score.error}
        record |= {"notes": dict(score.notes)} if score.notes else {}
        self._ledger.append(record | {"started": started})
        self._wanted.discard(key)
        self._texts.pop(key[:3], None)
        return record


# ---- in children of this process


class LocalScorers:
    """`count` judges, each with a thread that waits for its child."""

    def __init__(self, make_judge: MakeJudge, count: int) -> None:
        self.room = 2 * count
        self._judges = [make_judge() for _ in range(count)]
        self._free: queue.SimpleQueue[Judge] = queue.SimpleQueue()
        self._verdicts: queue.SimpleQueue[Verdict] = queue.SimpleQueue()
        self._threads = ThreadPoolExecutor(count, "scorer")
        for judge in self._judges:
            self._free.put(judge)

    def submit(self, request: Request) -> None:
        self._threads.submit(self._score, request)

    def collect(self, seconds: float) -> list[Verdict]:
        try:
            found = [self._verdicts.get(seconds > 0, seconds or None)]
        except queue.Empty:
            return []
        while not self._verdicts.empty():
            found.append(self._verdicts.get())
        return found

    def close(self) -> None:
        self._threads.shutdown(wait=False, cancel_futures=True)
        for judge in self._judges:
            judge.close()
        self._threads.shutdown()

    def _score(self, request: Request) -> None:
        judge = self._free.get()
        try:
            score = judge.score(request.score, request.row, request.text)
        except Exception as error:  # a thread's exception would be nobody's
            score = Score(None, None, one_line(error))
        self._free.put(judge)
        self._verdicts.put(Verdict(request.key, score))


# ---- Ray


@lru_cache(maxsize=1)
def _judge(make_judge: MakeJudge) -> Judge:
    """The judge of this Ray process, which goes from one task to the next."""
    return make_judge()


def judged(make_judge: MakeJudge, request: Request) -> Score:
    """The Ray task."""
    return _judge(make_judge).score(request.score, request.row, request.text)


class RayScorers:
    """Ray tasks, a core each where `decoding` workers leave one over; else they share those that there are.

    A text whose machine dies is sent again, SENDS times at most. A Ray that was not there before ends with these.
    """

    def __init__(self, make_judge: MakeJudge, workers: Workers, count: int, decoding: int) -> None:
        import ray

        self.room, self._ray, self._make_judge = count, ray, make_judge
        self._own = not ray.is_initialized()
        if self._own:
            connect(workers, 0, count)
        cores = 1 if workers.address is None or spare_cores(workers, decoding) else 0
        options = {"num_cpus": cores, "max_retries": 0, "runtime_env": {"env_vars": environment(1)}}
        self._task = ray.remote(**options)(judged)
        self._calls: dict[Any, Request] = {}

    def submit(self, request: Request) -> None:
        self._calls[self._task.remote(self._make_judge, request)] = request

    def collect(self, seconds: float) -> list[Verdict]:
        if not self._calls:
            return []
        ready, _ = self._ray.wait(list(self._calls), timeout=seconds)
        if ready:
            ready, _ = self._ray.wait(list(self._calls), num_returns=len(self._calls), timeout=0)
        return [verdict for ref in ready if (verdict := self._verdict(ref)) is not None]

    def close(self) -> None:
        self._calls.clear()
        if self._own:
            self._ray.shutdown()

    def _verdict(self, ref: Any) -> Verdict | None:
        request = self._calls.pop(ref)
        try:
            return Verdict(request.key, self._ray.get(ref))
        except Exception as error:
            if request.sends >= SENDS:
                return Verdict(request.key, Score(None, None, reason(error)))
        self.submit(replace(request, sends=request.sends + 1))
        return None
