"""What a person sees while a sweep runs, on a terminal and in a log file."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from orchestrator import progress
from orchestrator.progress import Progress

HALFWAY = Progress(
    cells_done=3, cells=20, samples_done=1000, samples=2000, failed=2, rate=2.5, seconds_left=400.0,
    workers={"busy": 3, "loading": 1}, nfe={"control": 64.0, "spot-4": 21.5},
)  # fmt: skip


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def plain(width=80):
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def at(samples_done):
    return Progress(cells_done=0, cells=1, samples_done=samples_done, samples=100, rate=1.0)


def test_a_log_file_gets_at_most_one_line_in_ten_seconds_and_always_the_last_state():
    console, clock = plain(), Clock()
    with progress.view(console, clock) as shown:
        for second in range(25):
            clock.now = float(second)
            shown.update(at(second))
    done = [line.split("/")[0] for line in console.file.getvalue().splitlines()]
    assert done == ["0", "10", "20", "24"]


def test_the_panel_has_the_causes_of_failures_within_80_columns():
    console = Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)
    console.print(progress.panel(replace(HALFWAY, causes={f"RuntimeError: {'far too long ' * 20}": 2})))
    lines = console.file.getvalue().splitlines()
    assert max(map(len, lines)) <= 80
    assert any("2 × RuntimeError: far too long" in line for line in lines)


def test_a_state_already_printed_is_not_printed_again_at_the_end():
    console = plain()
    with progress.view(console, Clock()) as shown:
        shown.update(at(5))
    assert len(console.file.getvalue().splitlines()) == 1


def test_a_line_tells_samples_cells_failures_pace_and_workers():
    assert progress.line(HALFWAY) == (
        "1000/2000 samples, 3/20 cells, 2 failed, 2.50 samples/s, 6 min 40 s left, workers: 3 busy 1 loading"
    )


def test_texts_that_are_decoded_and_not_scored_yet_are_told():
    scoring = replace(HALFWAY, to_score=12)
    assert ", 12 texts to score, workers: " in progress.line(scoring)
    console = plain(100)
    console.print(progress.panel(scoring))
    assert "12 texts to score" in console.file.getvalue()


def test_a_count_is_a_line_every_ten_seconds_in_a_log_file():
    console, clock = plain(), Clock()
    with progress.counter(console, "texts", clock) as show:
        for second in range(25):
            clock.now = float(second)
            show(second, 40)
    assert console.file.getvalue().splitlines() == ["10/40 texts", "20/40 texts"]


def test_an_unknown_time_is_called_unknown_and_a_finished_sweep_done():
    assert progress.line(at(1)).endswith("time left unknown")
    assert progress.line(at(100)).endswith("done")


@pytest.mark.parametrize("width", [80, 200])
def test_the_panel_shows_every_fact_whole_at_any_width(width):
    console = Console(file=io.StringIO(), width=width, force_terminal=True, color_system=None)
    console.print(progress.panel(HALFWAY))
    text = console.file.getvalue()
    facts = ("1000/2000 samples", "3/20 cells", "2 failed", "6 min 40 s left", "3 busy 1 loading", "spot-4", "21.5")
    assert all(fact in text for fact in facts)
    assert max(map(len, text.splitlines())) <= width


def test_many_methods_are_cut_to_a_screen():
    many = Progress(1, 2, 3, 4, nfe={f"m{i}": 1.0 for i in range(40)})
    console = Console(file=io.StringIO(), width=80, height=24)
    console.print(progress.panel(many))
    assert "and 28 more" in console.file.getvalue() and len(console.file.getvalue().splitlines()) < 24


def test_a_terminal_gets_a_live_panel():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with progress.view(console) as shown:
        shown.update(HALFWAY)
    assert "1000/2000 samples" in console.file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.4, "0 s"), (59.6, "1 min 00 s"), (423, "7 min 03 s"), (11220, "3 h 07 min")]
)
def test_durations_read_well(seconds, text):
    assert progress.duration(seconds) == text


def test_a_log_ends_with_the_last_state_even_if_the_sweep_does_not_end_well():
    console = Console(file=io.StringIO())
    with pytest.raises(KeyboardInterrupt), progress.view(console, clock=lambda: 0.0) as shown:
        for done in (1, 2):
            shown.update(progress.Progress(cells_done=0, cells=1, samples_done=done, samples=9))
        raise KeyboardInterrupt
    assert "2/9 samples" in console.file.getvalue()
