"""The thin shell around the schedule: its decisions become calls, what happens becomes records. design.md §5.

The ledger comes first: a record is appended, then scored, and MLflow sees it only once it is on disk. The driver
decides nothing about the work (schedule.py), waits for no score while there is decoding to do (scoring.py) and knows
nothing of Ray (executors.py).
"""

import math
import signal
import socket
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from orchestrator.errors import Exit
from orchestrator.estimate import task_cost
from orchestrator.executors import Died, Event, Executor, Finished, Joined, Left, Started
from orchestrator.grid import Cell
from orchestrator.lease import LeaseLost
from orchestrator.ledger import Ledger, Record, end_status
from orchestrator.live import Live, Meter, NoMeter
from orchestrator.plan import Plan
from orchestrator.progress import View
from orchestrator.rescore import TextCounts, text_counts
from orchestrator.schedule import Assign, Decision, Job, Schedule, Start
from orchestrator.scoring import Scorers, Scoring
from workers.failure import Cause
from workers.work import MethodTask, ModelSpec, SampleTask

WAIT_SECONDS = 0.5  # how long to wait for an event before looking at the clock again
QUEUED_SECONDS = 0.05  # the same where texts wait for a scorer to be free
GRACE_SECONDS = 5.0  # after Ctrl-C, for the scores that come soon; `resume` makes up the others


class Mirror(Protocol):
    """Where durable records are shown besides the ledger: orchestrator.tracking.Mirror, or nothing.

    `behind` once finished: whether it lacks something that the ledger has; `error` says why. `lag` is how many of the
    records that it was given it has not shown yet.
    """

    behind: bool
    error: str | None

    @property
    def lag(self) -> int:
        """As above."""
        ...

    def push(self, decodes: list[Record], scores: list[Record]) -> None:
        """Take the records; never blocks, never raises."""

    def finish(self, status: str) -> object:
        """The sweep ended: "FINISHED", "FAILED" or "KILLED"."""


class NoMirror:
    """Shows nothing: `mlflow: null`."""

    behind = False
    error: str | None = None
    lag = 0

    def push(self, decodes: list[Record], scores: list[Record]) -> None: ...

    def finish(self, status: str) -> None: ...


class Patience:
    """Nobody is there to work: that may change, on a cluster, but not for ever."""

    def __init__(self, seconds: float, say: Callable[[str], None]) -> None:
        self._seconds, self._say = seconds, say
        self._since: float | None = None

    def ended(self, stuck: bool, now: float) -> str | None:
        """Why nothing more is waited for, once a schedule has been `stuck` for too long."""
        if not stuck:
            self._since = None
        elif self._since is None:
            self._since = now
            self._say(f"no worker is there; waiting up to {self._seconds:g} s for the cluster to start one")
        elif now - self._since > self._seconds:
            return f"no worker came within {self._seconds:g} s (workers.scale_timeout)"
        return None


@dataclass(frozen=True)
class Outcome:
    """How a run ended. `bugs` and `failed` list the (cell, row) of the whole sweep, not of this run alone.

    `status` is MLflow's word for it, `texts` is how far scoring is. `ran` counts the decode records of this run,
    `ignored` those that came for a place already taken; `given_up` says which models could not be loaded, and why, and
    `stopped` why nothing more was begun: their samples are left undone. `signal` is the one that ended it, 0 if none.
    """

    ran: int
    ignored: int
    failed: tuple[tuple[Cell, str, str], ...]  # (cell, row, error)
    bugs: tuple[tuple[Cell, str], ...]
    given_up: dict[str, str]
    stopped: str | None
    signal: int
    status: str
    texts: TextCounts

    @property
    def exit_code(self) -> int:
        """As orchestrator/errors.py has them; a scorer's error fails no sweep."""
        if self.signal:
            return Exit.SIGNAL + self.signal
        if self.stopped or self.given_up:
            return Exit.GAVE_UP
        return Exit.FAILED if self.bugs or self.failed else Exit.COMPLETE


class Driver:
    """Runs what a plan's ledger lacks. `say` prints a line for the user; `clock` gives unix seconds."""

    def __init__(
        self,
        plan: Plan,
        ledger: Ledger,
        make_executor: Callable[[], Executor],
        make_scorers: Callable[[], Scorers],
        mirror: Mirror,
        view: View,
        say: Callable[[str], None],
        clock: Callable[[], float] = time.time,
        meter: Meter | None = None,
    ) -> None:
        self._plan, self._ledger, self._mirror = plan, ledger, mirror
        self._make_executor, self._say, self._clock = make_executor, say, clock
        self._live = Live(plan, ledger, view, meter or NoMeter())
        self._ran = self._failures = 0  # records of this run, and those of them that are failures
        self._scoring = Scoring(plan.cells, plan.tasks, ledger, make_scorers, clock)
        self._until = self._scores_until = math.inf
        self._patience = Patience(plan.config.workers.scale_timeout, say)
        self._stopped: str | None = None
        self._trouble: str | None = None
        self._signals: list[int] = []
        self._on_first_signal: Callable[[int], None] = _stop

    def run(self, retry_failed: bool = False, fail_fast: bool = False) -> Outcome:
        """Decode, score and record everything that is missing; returns when nothing is, or on Ctrl-C.

        `fail_fast` begins nothing more once a sample has failed. Raises OSError where the ledger cannot be written.
        """
        status, self._fail_fast = "FAILED", fail_fast
        with self._handling_signals():
            try:
                outcome = self._run(retry_failed)
                status = outcome.status
                return outcome
            except KeyboardInterrupt:
                status = "KILLED"
                raise
            except LeaseLost:
                status = ""  # another driver has this sweep, and its MLflow runs
                raise
            finally:
                if status:
                    self._end(status)

    def _run(self, retry_failed: bool) -> Outcome:
        held = self._ledger.results().items()
        self._scoring.want(record for (cell, _), record in held if cell in self._plan.cells)
        results = self._ledger.results()
        waves = self._plan.waves(results, retry_failed)
        schedule = Schedule(waves, retries=self._plan.config.retries, cost=task_cost(self._plan, results))
        if not schedule.finished or self._scoring.left:
            self._work(schedule)
        return self._outcome(schedule)

    def _end(self, status: str) -> None:
        """Whatever becomes of the last sync, MLflow is told that the sweep has ended."""
        self._signals, self._on_first_signal = [], lambda _: self._say("ending; once more to stop now")
        try:
            self._publish(force=True)
        except BaseException as error:
            status = "" if isinstance(error, LeaseLost) else "FAILED"
            raise
        finally:
            if status:
                self._mirror.finish(status)

    # ---- the loop

    def _work(self, schedule: Schedule) -> None:
        executor = None
        try:
            if not schedule.finished:
                executor = self._make_executor()
            self._on_first_signal = partial(self._drain, schedule)
            while executor is not None and not schedule.finished and self._clock() < self._until:
                self._turn(schedule, executor)
            self._finish_scores(schedule, executor)
            self._show(schedule, last=True)
        finally:
            self._scoring.close()
            if executor is not None:
                executor.close()

    def _drain(self, schedule: Schedule, number: int) -> None:
        """Ctrl-C waits for what is in flight; SIGTERM is a notice, and waits for so long."""
        schedule.drain()
        now = self._clock()
        if number == signal.SIGTERM:
            self._until = now + self._plan.config.workers.grace
        self._scores_until = min(now + GRACE_SECONDS, self._until)
        self._say("stopping after what is in flight; once more to stop now")

    def _turn(self, schedule: Schedule, executor: Executor) -> None:
        for decision in schedule.decide(self._clock()):
            carry_out(decision, executor, self._plan.models)
        for event in executor.wait(QUEUED_SECONDS if self._scoring.queued else WAIT_SECONDS):
            self._take(event, schedule)
        self._scoring.turn()
        self._wait_for_workers(schedule)
        self._show(schedule)

    def _wait_for_workers(self, schedule: Schedule) -> None:
        if why := self._patience.ended(schedule.stuck, self._clock()):
            self._stop_early(schedule, why)

    def _stop_early(self, schedule: Schedule, why: str) -> None:
        if self._stopped is None:
            self._stopped = why
            self._say(f"stopping: {why}")
            schedule.drain()

    def _finish_scores(self, schedule: Schedule, executor: Executor | None) -> None:
        """Wait for the scores; the workers need not. After Ctrl-C, only for those that come soon."""
        if executor is not None and self._scoring.left:
            for decision in schedule.dismiss():
                carry_out(decision, executor, self._plan.models)
        while self._scoring.left and self._clock() < self._scores_until:
            self._scoring.turn(WAIT_SECONDS)
            self._show(schedule)

    def _show(self, schedule: Schedule, last: bool = False) -> None:
        self._publish()
        self._live.show(self._clock(), schedule.states(), self._scoring.left, self._mirror.lag, last)

    def _take(self, event: Event, schedule: Schedule) -> None:
        if isinstance(event, Died):
            self._say(f"worker {event.worker}: {event.error}")
        condemned = take(event, schedule, self._clock())
        if isinstance(event, Finished):
            self._record(event.records)
        elif isinstance(event, Died) and condemned is not None:
            self._record(failures(condemned, event.error, event.cause, self._clock()))
        self._count_failures(schedule)

    def _count_failures(self, schedule: Schedule) -> None:
        failed, tolerate = self._failures, self._plan.config.tolerate
        if failed and self._fail_fast:
            schedule.drain()
        if tolerate is not None and failed > tolerate * self._plan.samples:
            samples = f"{failed} of {self._plan.samples} samples failed in this run"
            self._stop_early(schedule, f"{samples}, more than tolerate={tolerate:g} allows")

    def _record(self, records: list[Record]) -> None:
        """Append them all, then have them scored: a method's text may be in its control's record."""
        accepted = [record for record in records if self._ledger.append(record)]
        for record in accepted:
            self._live.add(record, self._clock())
            self._ran += 1
            self._failures += record["status"] != "ok"
            if record.get("difference") == "bug":
                self._say(f"bug: {self._plan.cells[record['cell']].label}, row {record['row']}: not the control's text")
        self._scoring.want(accepted)

    def _publish(self, force: bool = False) -> None:
        """Sync when it is due, and show MLflow what is durable now."""
        durable, before = self._ledger.sync(self._clock(), force), self._trouble
        self._trouble = self._ledger.trouble
        if self._trouble and not before:
            self._say(f"{self._trouble}; decoding goes on, records are kept on this machine and sent again")
        if durable:
            decodes = [record for record in durable if record["kind"] == "decode"]
            self._mirror.push(decodes, [record for record in durable if record["kind"] == "score"])

    # ---- the end

    def _outcome(self, schedule: Schedule) -> Outcome:
        samples = [(cell, row) for key, cell in self._plan.cells.items() for row in self._plan.rows[key]]
        results = self._ledger.results()
        held = [(cell, row, results[cell.key, row]) for cell, row in samples if (cell.key, row) in results]
        return Outcome(
            ran=self._ran,
            ignored=self._ledger.ignored,
            failed=tuple((cell, row, record["error"]) for cell, row, record in held if record["status"] == "failed"),
            bugs=tuple((cell, row) for cell, row, record in held if record.get("difference") == "bug"),
            given_up=schedule.given_up,
            stopped=self._stopped,
            signal=self._signals[0] if self._signals and (len(held) < len(samples) or self._scoring.left) else 0,
            status=end_status(self._plan.rows, results),
            texts=text_counts(self._plan.grid.cells, self._plan.rows, self._ledger),
        )

    @contextmanager
    def _handling_signals(self) -> Iterator[None]:
        """Ctrl-C or SIGTERM stops what has not begun, lets what is running end, and leaves the end alone.

        A second one raises KeyboardInterrupt.
        """

        def handle(number: int, _: object) -> None:
            self._signals.append(number)
            if len(self._signals) > 1:
                _stop(number)
            self._on_first_signal(number)

        before = {number: signal.signal(number, handle) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _stop(number: int) -> None:
    raise KeyboardInterrupt(number)


def carry_out(decision: Decision, executor: Executor, models: Mapping[str, ModelSpec]) -> None:
    """The schedule's decision as a call."""
    if isinstance(decision, Start):
        executor.start(decision.worker, models[decision.model])
    elif isinstance(decision, Assign):
        executor.submit(decision.worker, decision.job.number, decision.job.task)
    else:
        executor.stop(decision.worker)


def take(event: Event, schedule: Schedule, now: float) -> Job | None:
    """What happened, told to the schedule; the job that a death condemns, if any."""
    if isinstance(event, Died):
        return schedule.died(event.worker, event.error, event.cause, now)
    if isinstance(event, Joined):
        schedule.joined(event.worker, event.kind)
    elif isinstance(event, Left):
        schedule.left(event.worker)
    elif isinstance(event, Started):
        schedule.started(event.worker)
    else:
        schedule.finished_job(event.worker, event.job)
    return None


def failures(job: Job, error: str, cause: Cause, now: float) -> list[Record]:
    """The `failed` decode records of a condemned job, one a cell."""
    task = job.task
    assert isinstance(task, SampleTask)  # a sweep has no others
    methods = [method for method in (task.control, *task.methods) if method is not None]
    return [failure(task, method, error, cause, now) for method in methods]


def failure(task: SampleTask, method: MethodTask, error: str, cause: Cause, now: float) -> Record:
    """A `failed` decode record, without anything measured."""
    return {
        "kind": "decode",
        "sweep": task.sweep,
        "cell": method.cell,
        "row": task.row,
        "attempt": method.attempt,
        "status": "failed",
        "error": error,
        "cause": cause,
        "device": task.model.device,
        "dtype": task.model.dtype,
        "threads": task.model.threads,
        "per_gpu": task.model.per_gpu,
        "node": socket.gethostname(),
        "started": now,
        "finished": now,
    }
