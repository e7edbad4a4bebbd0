"""Whatever a scorer does, its text has a score, the next text has the right one, and no process is left."""

import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from multiprocessing.connection import wait
from pathlib import Path

import pytest

from tests.workers import bad_scorers as bad
from workers.scoring import NICENESS, Judge
from workers.tasks import Row, Score
from workers.tasks.arith import problem, score

ROOT = Path(__file__).parents[2]
ROW = Row("r0", "2 + 2?", "4")


@pytest.fixture
def judge():
    judge = Judge(seconds=3.0)
    yield judge
    judge.close()
    assert children() == []


def children():
    """The processes started here that still run or were not reaped."""
    return [pid for task in Path("/proc/self/task").iterdir() for pid in (task / "children").read_text().split()]


def gone(pid):
    """Waits for another's process to end, ten seconds at most."""
    try:
        return bool(wait([os.pidfd_open(pid)], 10.0))
    except ProcessLookupError:
        return True


def test_a_verdict_comes_back_as_it_was_given(judge):
    row = Row("r0", problem(0, "test").question, problem(0, "test").answer)
    assert judge.score(score, row, row.reference) == score(row, row.reference)
    assert judge.score(partial(score), row, "nothing") == Score(False, None)


@pytest.mark.parametrize(
    ("scorer", "error"),
    [
        (bad.raises, "ValueError: no verdict"),
        (bad.exits, "the scorer ended its process (exit code 3)"),
        (bad.quits, "the scorer ended its process (exit code 0)"),
        (bad.segfaults, "the scorer died (SIGSEGV)"),
        (bad.takes_memory, "MemoryError: "),
        (bad.says_too_much, "ValueError: a verdict of 2097"),
        (bad.returns_another_thing, "TypeError: a scorer returns a Score, not True"),
        (lambda row, text: Score(True, text), "the scorer cannot be sent to another process: "),
    ],
)
def test_a_scorer_that_fails_costs_its_text_an_error_and_the_next_one_nothing(scorer, error, judge):
    failed = judge.score(scorer, ROW, "4")
    assert (failed.correct, failed.answer) == (None, None)
    assert failed.error.startswith(error)
    assert judge.score(bad.echo, ROW, "4").correct is True
    assert judge.score(bad.echo, ROW, "5").correct is False


def test_a_scorer_that_hangs_is_ended_with_all_that_it_started(judge, tmp_path):
    started = tmp_path / "started"
    assert judge.score(bad.leaves_a_process, ROW, str(started)).error == "no verdict within 3 s"
    assert all(gone(int(pid)) for pid in started.read_text().split())
    assert judge.score(bad.echo, ROW, "4").correct is True


def test_what_a_scorer_prints_goes_nowhere_and_holds_nothing_up(judge, capfd):
    assert judge.score(bad.floods, ROW, "4") == Score(True, "flooded")
    assert capfd.readouterr() == ("", "")


def test_an_answer_that_is_no_text_can_still_be_written_to_a_file(judge):
    assert judge.score(bad.answers_half_a_pair, ROW, "4").answer.encode() == b"?"


def test_a_scorer_stands_back_behind_decoding(judge):
    assert judge.score(bad.echo, ROW, "4").notes["niceness"] == min(19, os.nice(0) + NICENESS)


def test_a_child_that_is_gone_between_two_texts_is_replaced(judge):
    judge.score(bad.echo, ROW, "4")
    (child,) = children()
    os.kill(int(child), 9)
    os.waitid(os.P_PID, int(child), os.WEXITED | os.WNOWAIT)
    assert judge.score(bad.echo, ROW, "4").correct is True
    assert len(children()) == 1


def test_a_judge_is_closed_while_it_waits_for_a_verdict(tmp_path):
    judge, fifo = Judge(), tmp_path / "begun"
    os.mkfifo(fifo)
    with ThreadPoolExecutor() as threads:
        scored = threads.submit(judge.score, bad.leaves_a_process, ROW, str(fifo))
        begun = fifo.read_text()  # waits until the scorer is at work
        judge.close()
        assert scored.result().error == "the scorer died (SIGKILL)"
    assert all(gone(int(pid)) for pid in begun.split())
    assert judge.score(bad.echo, ROW, "4").error == "scoring was stopped"
    assert children() == []


def test_a_scoring_process_dies_with_its_parent_even_in_the_middle_of_a_text(tmp_path):
    program = (
        "import sys; from tests.workers import bad_scorers as bad; from workers.scoring import Judge\n"
        "from workers.tasks import Row\n"
        "Judge().score(bad.kills_its_parent, Row('r0', '', ''), sys.argv[1])\n"
    )
    child = tmp_path / "child"
    ended = subprocess.run([sys.executable, "-c", program, str(child)], cwd=ROOT, check=False)
    assert ended.returncode == -9
    assert gone(int(child.read_text()))
