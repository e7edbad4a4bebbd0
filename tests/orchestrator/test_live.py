"""What a run tells of itself while it is at work, and that none of it can end it."""

from itertools import count

import pytest

from orchestrator import live
from orchestrator.ledger import Ledger, Sweep
from orchestrator.standing import Standing, read_workers
from tests.orchestrator.conftest import Quiet, drive, plan_of
from tests.orchestrator.fakes import Fakes
from workers.store import place

pytest_plugins = ["tests.s3"]

FIRST, SECOND, *_ = next(iter(plan_of(Fakes()).grid.rows.values()))
FAILING = frozenset([("spot", FIRST), ("stale", SECOND)])


def seen_by_watch(folder, *overrides):
    plan = plan_of(Fakes(), *overrides)
    standing = Standing(Sweep(folder, "mine", {}, plan.grid.cells, plan.rows))
    standing.add(Ledger(folder).records())
    return standing.progress(now=1000.0)


def test_a_run_and_who_watches_it_elsewhere_see_the_same(folder):
    view = Quiet()
    drive(Fakes(failing=FAILING), folder, "limit=9", view=view)
    mine, theirs = view.shown[-1], seen_by_watch(folder, "limit=9")
    assert mine.shares == theirs.shares
    assert mine.causes == theirs.causes == {"ValueError: no": 4}
    assert mine.recent == theirs.recent
    assert (mine.cells_done, mine.samples_done, mine.failed) == (5, 45, 4)


def test_a_run_that_goes_on_shows_the_passes_and_ratios_of_the_runs_before(folder):
    drive(Fakes(failing=FAILING), folder)
    again = Quiet()
    drive(Fakes(), folder, "limit=5", view=again)
    assert again.shown[0].nfe_ratio.keys() == {"control", "spot b4", "spot b8", "stale b4", "stale b8"}
    assert again.shown[-1].shares == seen_by_watch(folder, "limit=5").shares
    assert again.shown[-1].nfe_ratio["spot b8"] == pytest.approx(100 / 92)


def test_a_failure_that_is_retried_is_shown_no_more(folder):
    drive(Fakes(failing=FAILING), folder)
    again = Quiet()
    drive(Fakes(), folder, view=again, retry_failed=True)
    assert (again.shown[-1].failed, again.shown[-1].causes, again.shown[-1].recent) == (0, {}, ())
    assert again.shown[-1].samples_done == again.shown[-1].samples == 15


def test_a_terminal_is_not_drawn_at_every_record_but_always_at_the_end(folder):
    view, clock = Quiet(), count(100.0, live.SHOW_SECONDS / 20)
    drive(Fakes(), folder, "limit=40", view=view, clock=clock.__next__)
    assert len(view.shown) < 40  # of two hundred records
    assert view.shown[-1].finished


def test_the_store_has_the_workers_by_model_and_state(folder):
    drive(Fakes(), folder)
    (states,) = read_workers(folder).values()
    assert sum(states.values()) in (1, 2)
    assert states.keys() <= {"busy", "idle", "loading"}


def test_the_workers_are_told_on_s3_too(s3):
    drive(Fakes(), place("s3://bucket/runs/mine"))
    assert read_workers(place("s3://bucket/runs/mine")).keys() == {"tiny-sdar"}
    assert read_workers(place("s3://bucket/runs/other")) == {}


def test_a_store_that_does_not_take_the_word_on_the_workers_ends_nothing(folder, monkeypatch):
    def refuse(*_):
        raise OSError("no space left")

    monkeypatch.setattr(live, "write_workers", refuse)
    assert drive(Fakes(), folder).exit_code == 0
