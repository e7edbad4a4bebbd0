"""A sweep end to end in this process: what is recorded, what a crash costs, what a changed grid reuses."""

import signal
from dataclasses import replace

import pytest

from orchestrator.executors import InlineExecutor
from orchestrator.ledger import Ledger
from orchestrator.scoring import Verdict
from tests.orchestrator.conftest import Quiet, drive, plan_of, samples
from tests.orchestrator.fakes import FakeJudge, Fakes, FakeTask


def test_every_sample_of_the_grid_is_decoded_once_and_scored_once(folder):
    fakes = Fakes()
    outcome = drive(fakes, folder)
    plan = plan_of(fakes)
    assert outcome.exit_code == 0
    assert outcome.ran == plan.samples == 15  # 5 cells, 3 rows
    assert sorted(samples(fakes.journal)) == sorted((key, row) for key, rows in plan.rows.items() for row in rows)
    assert len(Ledger(folder).scores()) == 3  # one text a row: the methods' texts are the control's


def test_a_finished_sweep_starts_no_worker(folder):
    drive(Fakes(), folder)
    again = Fakes()
    assert drive(again, folder).ran == 0
    assert again.loads == again.journal == []


class Crash(BaseException):
    """The driver's process dies: nothing may catch it."""


def crashing_after(fakes, events):
    class Crashing(InlineExecutor):
        left = events

        def wait(self, seconds):
            if Crashing.left == 0:
                raise Crash
            Crashing.left -= 1
            return super().wait(seconds)

    return lambda: Crashing(fakes.make_worker)


@pytest.mark.parametrize("events", range(1, 6))
def test_a_driver_that_dies_at_any_moment_is_resumed_without_loss_or_repetition(folder, events):
    whole = folder.with_name("whole")
    drive(Fakes(), whole, "limit=6")
    first, second = Fakes(), Fakes()
    with pytest.raises(Crash):
        drive(first, folder, "limit=6", make_executor=crashing_after(first, events))
    recorded = set(Ledger(folder).results())
    assert drive(second, folder, "limit=6").exit_code == 0
    assert not recorded & set(samples(second.journal))
    assert Ledger(folder).results() == Ledger(whole).results()
    assert len(list(Ledger(folder).records())) == len(list(Ledger(whole).records()))


def test_scores_that_a_crash_prevented_are_made_up_without_decoding(folder):
    drive(Fakes(), folder)
    segment = folder / "segments" / "001.jsonl"
    decodes = [line for line in segment.read_text().splitlines() if '"kind":"decode"' in line]
    segment.write_text("".join(line + "\n" for line in decodes))
    fakes = Fakes()
    assert drive(fakes, folder).ran == 0
    assert len(Ledger(folder).scores()) == 3
    assert fakes.journal == []


def test_a_new_scorer_version_scores_again_and_decodes_nothing(folder):
    drive(Fakes(), folder)
    fakes = Fakes(task=FakeTask("fake", scorer="fake-2"))
    drive(fakes, folder)
    assert fakes.journal == []
    assert {score["scorer"] for score in Ledger(folder).scores().values()} == {"fake-1", "fake-2"}


def test_a_scorer_that_raises_costs_one_score(folder):
    row = plan_of(Fakes()).grid.rows[plan_of(Fakes()).grid.cells[0].group][0]
    outcome = drive(Fakes(task=FakeTask("fake", unscorable=row)), folder)
    scores = Ledger(folder).scores().values()
    assert outcome.exit_code == 0
    assert [score["error"] for score in scores if score["row"] == row] == ["RuntimeError: this text breaks the scorer"]
    assert all(score["error"] is None for score in scores if score["row"] != row)


def test_a_text_that_could_not_be_scored_is_not_tried_again_by_a_resume(folder):
    row = first_row(Fakes())
    outcome = drive(Fakes(task=FakeTask("fake", unscorable=row)), folder)
    assert (outcome.texts.scored, outcome.texts.errors, outcome.texts.missing) == (2, 1, 0)
    before = len(list(Ledger(folder).records()))
    assert drive(Fakes(), folder).texts.errors == 1
    assert len(list(Ledger(folder).records())) == before


class Slow:
    """Scorers that have nothing until someone waits for them; `stuck` ones not even then."""

    room = 100

    def __init__(self, seen, stuck=False):
        self._seen, self._stuck, self._requests = seen, stuck, []

    def submit(self, request):
        self._requests.append(request)

    def collect(self, seconds):
        if not seconds:
            return []
        self._seen()
        done, self._requests = ([], self._requests) if self._stuck else (self._requests, [])
        return [Verdict(r.key, FakeJudge().score(r.score, r.row, r.text)) for r in done]

    def close(self): ...


def test_decoding_never_waits_for_a_score_and_no_worker_waits_for_the_last_ones(folder):
    decoded, fakes, view = [], Fakes(), Quiet()
    executor = InlineExecutor(fakes.make_worker)
    scorers = Slow(lambda: decoded.append((len(Ledger(folder).results()), executor._workers)))
    outcome = drive(fakes, folder, make_executor=lambda: executor, make_scorers=lambda: scorers, view=view)
    assert decoded == [(15, {})]  # waited for once, when all was decoded and the workers gone
    assert (outcome.exit_code, outcome.texts.scored) == (0, 3)
    assert max(shown.to_score for shown in view.shown if not shown.finished) > 0
    assert view.shown[-1].to_score == 0


def test_ctrl_c_leaves_the_scores_that_do_not_come_soon_to_a_resume(folder):
    now, said = [0.0], []

    def waited():
        now[0] += 1.0
        if now[0] == 3.0:
            signal.raise_signal(signal.SIGINT)

    stuck = Slow(waited, stuck=True)
    outcome = drive(Fakes(), folder, make_scorers=lambda: stuck, said=said, clock=lambda: now[0])
    assert now == [8.0]  # five seconds of grace
    assert (outcome.exit_code, outcome.ran, outcome.texts.missing) == (130, 15, 3)
    fakes = Fakes()
    resumed = drive(fakes, folder)
    assert (resumed.exit_code, resumed.ran, resumed.texts.scored) == (0, 0, 3)
    assert fakes.loads == []
    assert said == ["stopping after what is in flight; once more to stop now"]


def test_a_larger_limit_and_a_longer_axis_decode_only_what_is_new(folder):
    drive(Fakes(), folder)
    held = set(Ledger(folder).results())
    fakes = Fakes()
    drive(fakes, folder, "limit=5", "budgets=[0,4,8,16]")
    new = {(key, row) for key, rows in plan_of(fakes, "limit=5", "budgets=[0,4,8,16]").rows.items() for row in rows}
    assert set(samples(fakes.journal)) == new - held


def test_a_control_that_is_recorded_is_not_asked_for_again(folder):
    drive(Fakes(), folder, "budgets=[0,4]")
    fakes = Fakes()
    drive(fakes, folder, "budgets=[0,4,8]")
    assert all(task.control is None for task in fakes.journal)


def first_row(fakes, *overrides):
    plan = plan_of(fakes, *overrides)
    return plan.grid.rows[plan.grid.cells[0].group][0]


def test_a_poison_sample_becomes_one_failed_record_and_the_sweep_goes_on(folder):
    row, said = first_row(Fakes()), []
    outcome = drive(Fakes(deadly=frozenset({("spot", row)})), folder, "budgets=[0,4]", said=said)
    failed = {sample: record for sample, record in Ledger(folder).results().items() if record["status"] == "failed"}
    assert [(cell.drafter, at) for cell, at, _ in outcome.failed] == [("spot", row)]
    assert [record["error"] for record in failed.values()] == ["MemoryError: CUDA error: out of memory"]
    assert [record["attempt"] for record in failed.values()] == [3]  # twice with the others, once alone
    assert outcome.exit_code == 1
    assert outcome.status == "FINISHED"
    assert len(said) == 3


def test_a_failed_sample_is_done_until_it_is_retried(folder):
    row = first_row(Fakes())
    drive(Fakes(failing=frozenset({("spot", row)})), folder, "budgets=[0,4]")
    assert drive(Fakes(), folder, "budgets=[0,4]").ran == 0
    retried = Fakes()
    outcome = drive(retried, folder, "budgets=[0,4]", retry_failed=True)
    assert (outcome.ran, outcome.exit_code) == (1, 0)
    assert [task.methods[0].attempt for task in retried.journal] == [2]
    assert all(record["status"] == "ok" for record in Ledger(folder).results().values())


def test_a_sample_that_fails_again_stays_failed_and_can_be_retried_once_more(folder):
    failing = Fakes(failing=frozenset({("spot", first_row(Fakes()))}))
    drive(failing, folder, "budgets=[0,4]")
    drive(failing, folder, "budgets=[0,4]", retry_failed=True)
    outcome = drive(Fakes(), folder, "budgets=[0,4]", retry_failed=True)
    assert (outcome.ran, outcome.exit_code) == (1, 0)


def test_a_losslessness_bug_fails_the_sweep_and_says_where(folder):
    row, said = first_row(Fakes()), []
    outcome = drive(Fakes(buggy=frozenset({("stale", row)})), folder, "budgets=[0,4]", said=said)
    assert (outcome.exit_code, outcome.status) == (1, "FAILED")
    assert [(cell.drafter, at) for cell, at in outcome.bugs] == [("stale", row)]
    assert drive(Fakes(), folder, "budgets=[0,4]").exit_code == 1  # and it stays so
    assert row in said[0]


def test_a_model_that_cannot_be_loaded_is_given_up_and_its_samples_stay_open(folder):
    outcome = drive(Fakes(unloadable=frozenset({"tiny-sdar"})), folder)
    assert outcome.given_up == {"tiny-sdar": "OSError: weights cannot be read"}
    assert (outcome.exit_code, outcome.ran, outcome.status) == (3, 0, "KILLED")  # as `sync` would have it
    assert drive(Fakes(), folder).exit_code == 0


def test_progress_counts_what_was_there_before(folder):
    drive(Fakes(), folder)
    view = Quiet()
    drive(Fakes(), folder, "limit=5", view=view)
    assert view.shown[0].samples_done >= 15
    assert view.shown[-1].samples_done == view.shown[-1].samples == 25
    assert view.shown[-1].nfe["spot b8"] == 92


class Recorder:
    lag = 0

    def __init__(self):
        self.decodes, self.scores, self.status = [], [], None

    def push(self, decodes, scores):
        self.decodes += decodes
        self.scores += scores

    def finish(self, status):
        self.status = status


def test_the_mirror_sees_every_record_once_and_the_end(folder):
    mirror = Recorder()
    drive(Fakes(), folder, mirror=mirror)
    assert len(mirror.decodes) == 15
    assert len(mirror.scores) == 3
    assert mirror.status == "FINISHED"


def test_the_mirror_is_told_of_a_driver_that_fails(folder):
    mirror, fakes = Recorder(), Fakes()
    with pytest.raises(Crash):
        drive(fakes, folder, mirror=mirror, make_executor=crashing_after(fakes, 3))
    assert mirror.status == "FAILED"


def interrupting(fakes, times):
    class Interrupting(InlineExecutor):
        def submit(self, worker, job, task):
            super().submit(worker, job, task)
            for _ in range(times):
                signal.raise_signal(signal.SIGINT)

    return lambda: Interrupting(fakes.make_worker)


def test_one_ctrl_c_lets_the_samples_in_flight_end(folder):
    mirror, fakes = Recorder(), Fakes()
    outcome = drive(fakes, folder, "limit=20", mirror=mirror, workers=1, make_executor=interrupting_once(fakes))
    assert (outcome.exit_code, outcome.status, mirror.status) == (130, "KILLED", "KILLED")
    assert 0 < len(fakes.journal) < 20
    assert len(Ledger(folder).results()) == outcome.ran == 5 * len(fakes.journal)


def interrupting_once(fakes):
    class Once(InlineExecutor):
        done = False

        def submit(self, worker, job, task):
            super().submit(worker, job, task)
            if not self.done:
                self.done = True
                signal.raise_signal(signal.SIGINT)

    return lambda: Once(fakes.make_worker)


def test_a_second_ctrl_c_stops_at_once(folder):
    mirror, fakes = Recorder(), Fakes()
    with pytest.raises(KeyboardInterrupt):
        drive(fakes, folder, mirror=mirror, make_executor=interrupting(fakes, 2))
    assert mirror.status == "KILLED"
    assert drive(Fakes(), folder).exit_code == 0


def test_a_signal_before_the_work_begins_stops_at_once(folder):
    mirror = Recorder()
    with pytest.raises(KeyboardInterrupt):
        drive(Fakes(), folder, mirror=mirror, make_executor=lambda: signal.raise_signal(signal.SIGTERM))
    assert mirror.status == "KILLED"


def test_a_signal_while_mlflow_is_brought_up_changes_nothing_and_a_second_one_stops(folder):
    class Signalled(Recorder):
        def finish(self, status):
            super().finish(status)
            signal.raise_signal(signal.SIGTERM)

    mirror, said = Signalled(), []
    assert drive(Fakes(), folder, mirror=mirror, said=said).exit_code == 0
    assert mirror.status == "FINISHED"
    assert said == ["ending; once more to stop now"]


def test_a_disk_that_fails_at_the_end_still_ends_the_sweep_in_mlflow(folder, monkeypatch):
    def failing(ledger, now, force=False):
        if force:
            raise OSError("no space left")
        return []

    monkeypatch.setattr(Ledger, "sync", failing)
    mirror = Recorder()
    with pytest.raises(OSError, match="no space left"):
        drive(Fakes(), folder, mirror=mirror)
    assert mirror.status == "FAILED"


def test_a_record_for_a_place_already_taken_is_ignored_and_counted(folder):
    class Twice(InlineExecutor):
        def wait(self, seconds):
            return [replace(e, records=e.records * 2) if hasattr(e, "records") else e for e in super().wait(seconds)]

    fakes = Fakes()
    outcome = drive(fakes, folder, make_executor=lambda: Twice(fakes.make_worker))
    assert (outcome.ran, outcome.ignored) == (15, 15)
