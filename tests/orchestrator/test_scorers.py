"""Scoring beside decoding: each text once, never waited for, and sent again when a machine dies under it."""

import sys
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest

from orchestrator.config import Workers
from orchestrator.executors import wanted_scorers
from orchestrator.ledger import Ledger
from orchestrator.rescore import text_counts
from orchestrator.scoring import SENDS, LocalScorers, RayScorers, Request, Scoring, Verdict
from tests.orchestrator.conftest import drive, plan_of
from tests.orchestrator.fakes import FakeJudge, Fakes, FakeTask
from workers.tasks import Score


class Held:
    """Scorers that keep what they are given until `let_go`."""

    room = 2

    def __init__(self):
        self.requests, self.submitted, self.free = [], [], False

    def submit(self, request):
        self.requests.append(request)
        self.submitted.append(request.key)

    def collect(self, seconds):
        done, self.requests = (self.requests, []) if self.free else ([], self.requests)
        return [Verdict(r.key, FakeJudge().score(r.score, r.row, r.text)) for r in done]

    def close(self): ...


@pytest.fixture
def decoded(folder):
    """A plan, and a ledger that has its decodes and no score."""
    drive(Fakes(), folder, "limit=6")
    segment = folder / "segments" / "001.jsonl"
    lines = [line for line in segment.read_text().splitlines() if '"kind":"decode"' in line]
    segment.write_text("".join(line + "\n" for line in lines))
    return plan_of(Fakes(), "limit=6")


def scoring_of(plan, ledger, scorers, tasks=None):
    return Scoring(plan.cells, tasks or plan.tasks, ledger, lambda: scorers, lambda: 7.0)


def test_a_text_is_sent_once_though_many_methods_wrote_it_and_it_is_asked_for_again(decoded, folder):
    scorers = Held()
    with Ledger.write(folder, 0.0) as ledger:
        scoring = scoring_of(decoded, ledger, scorers)
        records = list(ledger.results().values())
        scoring.want(records)
        assert scoring.left == 6  # of 30 samples
        scoring.turn()
        scoring.want(records)
        assert (len(scorers.requests), scoring.left, scoring.queued) == (Held.room, 6, True)
        scorers.free = True
        while scoring.left:
            scoring.turn()
        scoring.want(records)
        assert scoring.left == 0
    assert len(scorers.submitted) == len(set(scorers.submitted)) == 6
    scores = list(Ledger(folder).scores().values())
    assert [score["started"] for score in scores] == [7.0] * 6
    assert all("notes" not in score for score in scores)


def test_a_text_that_no_record_holds_has_an_error(decoded, folder):
    with Ledger.write(folder, 0.0) as ledger:
        record = next(record for record in ledger.results().values() if record["text"] is None)
        scoring = scoring_of(decoded, ledger, Held())
        scoring.want([record])
        assert scoring.left == 0
    (score,) = Ledger(folder).scores().values()
    assert (score["correct"], score["error"]) == (None, "no record holds the text")


def test_notes_of_a_verdict_are_kept(decoded, folder):
    class Noting(Held):
        def collect(self, seconds):
            done, self.requests = self.requests, []
            return [Verdict(r.key, Score(True, "4", notes={"sandbox": "bwrap"})) for r in done]

    with Ledger.write(folder, 0.0) as ledger:
        scoring = scoring_of(decoded, ledger, Noting())
        scoring.want(ledger.results().values())
        scoring.turn()
    assert {tuple(score["notes"].items()) for score in Ledger(folder).scores().values()} == {(("sandbox", "bwrap"),)}


def test_no_scorer_is_started_where_there_is_nothing_to_score(folder):
    plan = plan_of(Fakes())
    with Ledger.write(folder, 0.0) as ledger:
        scoring = Scoring(plan.cells, plan.tasks, ledger, lambda: pytest.fail("started"), lambda: 0.0)
        scoring.want([])
        assert scoring.turn() == []
        scoring.close()


def test_texts_are_counted_by_what_has_become_of_them(decoded, folder):
    cells, rows = decoded.grid.cells, decoded.rows
    counts = text_counts(cells, rows, Ledger(folder))
    assert (counts.scored, counts.errors, counts.missing, counts.error) == (0, 0, 6, None)
    row = decoded.grid.rows[decoded.grid.cells[0].group][0]
    drive(Fakes(task=FakeTask("fake", unscorable=row)), folder, "limit=6")
    counts = text_counts(cells, rows, Ledger(folder))
    assert (counts.scored, counts.errors, counts.missing) == (5, 1, 0)
    assert counts.error == "RuntimeError: this text breaks the scorer"


# ---- local


def request(number, score=None):
    task = FakeTask("fake")
    return Request(("fake", f"r{number}", "sha", "1"), score or task.score, task.rows[number], f"r{number}")


@pytest.mark.parametrize("count", [1, 3])
def test_local_scorers_give_every_text_the_verdict_that_its_scorer_gives(count):
    scorers, found = LocalScorers(FakeJudge, count), {}
    for number in range(20):
        scorers.submit(request(number))
    while len(found) < 20:
        found |= {verdict.key[1]: verdict.score.correct for verdict in scorers.collect(5.0)}
    scorers.close()
    assert found == {f"r{number}": number % 2 == 0 for number in range(20)}


def test_local_scorers_say_nothing_of_what_is_not_done_and_end_what_is_under_way_when_closed():
    begun, closed = threading.Event(), threading.Event()

    class Slow(FakeJudge):
        def score(self, score, row, text):
            begun.set()
            closed.wait(10.0)
            raise RuntimeError("closed")

        def close(self):
            closed.set()

    scorers = LocalScorers(Slow, 1)
    scorers.submit(request(0))
    scorers.submit(request(1))
    assert begun.wait(10.0)
    assert scorers.collect(0.0) == []
    scorers.close()
    assert [verdict.score.error for verdict in scorers.collect(0.0)] == ["RuntimeError: closed"]  # and one never began


# ---- Ray, of which a stand-in is enough here; test_ray.py has the real one


class FakeRay:
    """Tasks whose machine dies `deaths` times, and then not."""

    def __init__(self, deaths):
        self.deaths, self.sent = deaths, []

    def remote(self, **options):
        self.options = options
        return lambda function: SimpleNamespace(remote=self._send)

    def _send(self, make_judge, request):
        self.sent.append(request)
        return len(self.sent) - 1

    def wait(self, refs, num_returns=1, timeout=None):
        return refs, []

    def get(self, ref):
        if ref < self.deaths:
            raise RuntimeError("The node died")
        request = self.sent[ref]
        return FakeJudge().score(request.score, request.row, request.text)

    def is_initialized(self):
        return True


@pytest.mark.parametrize(("deaths", "error"), [(0, None), (SENDS - 1, None), (SENDS, "worker died: The node died")])
def test_a_text_whose_machine_dies_is_sent_again_a_bounded_number_of_times(deaths, error, monkeypatch):
    ray, found = FakeRay(deaths), []
    monkeypatch.setitem(sys.modules, "ray", ray)
    scorers = RayScorers(FakeJudge, Workers(), 1, 1)
    scorers.submit(request(0))
    while not found:
        found = scorers.collect(0.0)
    assert [verdict.score.error for verdict in found] == [error]
    assert len(ray.sent) == min(deaths + 1, SENDS)
    assert scorers.collect(0.0) == []


@pytest.mark.parametrize(("cores", "asked"), [(4, 0), (6, 1)])
def test_scorers_have_a_core_each_where_decoding_leaves_one_over(cores, asked, monkeypatch):
    ray = FakeRay(0)
    monkeypatch.setitem(sys.modules, "ray", ray)
    monkeypatch.setattr("orchestrator.executors._machines", lambda workers: [{"CPU": cores}])
    RayScorers(FakeJudge, Workers(address="there:1", threads=2), 1, 2)
    assert ray.options["num_cpus"] == asked


@pytest.mark.parametrize(
    ("cores", "decoding", "scorers", "wanted"),
    [(2, 2, "auto", 1), (8, 4, "auto", 4), (64, 8, "auto", 8), (2, 0, "auto", 2), (2, 2, 5, 5)],
)
def test_as_many_texts_are_scored_at_once_as_cores_are_left(cores, decoding, scorers, wanted, monkeypatch):
    monkeypatch.setattr("orchestrator.executors._machines", lambda workers: [{"CPU": cores}])
    assert wanted_scorers(replace(Workers(), scorers=scorers), decoding) == wanted
