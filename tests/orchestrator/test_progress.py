"""What a person sees while a sweep runs, on a terminal and in a log file."""

import io
from dataclasses import replace

import pytest
from rich.console import Console

from orchestrator import progress
from orchestrator.progress import Failed, Progress, Screen, Share

HALFWAY = Progress(
    cells_done=3, cells=20, rate=2.5, seconds_left=400.0, workers={"m": {"busy": 3, "loading": 1}},
    shares=(Share("m", "t", "control", 1000, 499, 1, passes=31936, paired=31936, control=31936),
            Share("m", "t", "spot b4", 1000, 499, 1, passes=10728, paired=10728, control=31936)),
)  # fmt: skip
MODELS = ("sdar-1.7b", "sdar-8b", "a-model-whose-name-is-longer-than-any-column", "llada2", "llada", "dream")
LONG = f"RuntimeError: {'far too long ' * 20}"
PAPER = Progress(
    cells_done=400, cells=2016, rate=0.03, seconds_left=300_000.0, to_score=1301, causes={LONG: 1900, "b": 2, "c": 1},
    workers={"sdar-8b": {"busy": 31, "loading": 2}, "llada2": {"busy": 8, "idle": 1}, "": {"waiting": 3}},
    shares=tuple(Share(model, task, method, 1050, 500 - 5 * i, 5 * i, 40_000 // (i + 1), 40_000 // (i + 1), 40_000)
                 for model in MODELS for task in ("gsm8k", "math500", "humaneval", "mbpp")
                 for i, method in enumerate(["control", *(f"method-{k} b20" for k in range(27))])),
    recent=(Failed("sdar-8b · mbpp · spot · b20 · T1 · s2", "test/17", LONG),),
)  # fmt: skip


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def plain(width=80):
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def at(samples_done):
    return Progress(cells_done=0, cells=1, shares=(Share("m", "t", "control", 100, samples_done),), rate=1.0)


def drawn(shown, width, height=24):
    """The lines of a terminal of this size."""
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True, color_system=None)
    console.print(Screen(shown, "paper-sdar"))
    return console.file.getvalue().splitlines()


# ---- what is derived


def test_nfe_is_the_mean_over_all_models_and_its_ratio_is_paired():
    shown = Progress(0, 2, shares=(
        Share("a", "t", "control", 9, ok=2, passes=200, paired=200, control=200),
        Share("a", "t", "spot b8", 9, ok=2, passes=50, paired=50, control=200),
        Share("b", "t", "spot b8", 9, ok=1, failed=1, passes=10, paired=0, control=0),  # its control is not known
    ))  # fmt: skip
    assert (shown.samples, shown.samples_done, shown.failed) == (27, 6, 1)
    assert shown.nfe == {"control": 100, "spot b8": 20}
    assert shown.nfe_ratio == {"control": 1, "spot b8": 4}


def test_a_method_that_has_seen_the_answer_is_not_the_best():
    shares = (
        Share("a", "t", "oracle b8", 9, ok=1, passes=10, paired=10, control=100, diagnostic=True),
        Share("a", "t", "spot b8", 9, ok=1, passes=20, paired=20, control=100),
        Share("a", "t", "control", 9, ok=1, passes=100, paired=100, control=100),
    )
    assert Progress(0, 3, shares=shares).best == "spot b8"
    assert Progress(0, 3, shares=shares[::2]).best is None


# ---- in a log file


def test_a_log_file_gets_at_most_one_line_in_ten_seconds_and_always_the_last_state():
    console, clock = plain(), Clock()
    with progress.view(console, clock=clock) as shown:
        for second in range(25):
            clock.now = float(second)
            shown.update(at(second))
    done = [line.split("/")[0] for line in console.file.getvalue().splitlines()]
    assert done == ["0", "10", "20", "24"]


def test_a_state_already_printed_is_not_printed_again_at_the_end():
    console = plain()
    with progress.view(console, clock=Clock()) as shown:
        shown.update(at(5))
    assert len(console.file.getvalue().splitlines()) == 1


def test_a_line_tells_samples_cells_failures_pace_passes_and_workers():
    assert progress.line(replace(HALFWAY, causes={"ValueError: no": 2})) == (
        "1000/2000 samples, 3/20 cells, 2 failed (ValueError: no), 2.50 samples/s, 6 min 40 s left, "
        "NFE 64.0, with spot b4 21.5 (2.98×), workers: 3 busy 1 loading"
    )


def test_a_line_tells_the_workers_of_each_of_several_models_and_cuts_an_error():
    line = progress.line(PAPER)
    assert line.endswith("workers: sdar-8b 31 busy 2 loading; llada2 8 busy 1 idle; 3 waiting")
    assert "1.80 samples/min, 3 d 11 h left" in line
    assert len(line) < 350


def test_texts_that_are_decoded_and_not_scored_yet_are_told():
    scoring = replace(HALFWAY, to_score=12)
    assert ", 12 texts to score, workers: " in progress.line(scoring)
    assert any("12 texts to score" in line for line in drawn(scoring, 80))


def test_a_count_is_a_line_every_ten_seconds_in_a_log_file():
    console, clock = plain(), Clock()
    with progress.counter(console, "texts", clock) as show:
        for second in range(25):
            clock.now = float(second)
            show(second, 40)
    assert console.file.getvalue().splitlines() == ["10/40 texts", "20/40 texts"]


def test_an_unknown_time_is_called_unknown_and_a_finished_sweep_done():
    assert "time left unknown" in progress.line(at(1))
    assert ", done, " in progress.line(at(100))


# ---- on a terminal


@pytest.mark.parametrize("width", [80, 200])
@pytest.mark.parametrize("shown", [HALFWAY, at(0), at(100), PAPER], ids=["halfway", "start", "end", "paper"])
def test_the_panel_fits_the_terminal(shown, width):
    lines = drawn(shown, width)
    assert max(map(len, lines)) <= width
    assert len(lines) <= 24


@pytest.mark.parametrize("width", [80, 200])
def test_the_panel_shows_every_fact_whole_at_any_width(width):
    text = "\n".join(drawn(HALFWAY, width))
    facts = ("paper-sdar", "1,000/2,000 samples", "3/20 cells", "2 failed", "6 min 40 s left", "3 busy 1 loading")
    assert all(fact in text for fact in (*facts, "spot b4", "21.5", "2.98×"))


def test_80_columns_show_every_model_with_its_workers_and_the_causes_of_failures():
    lines = drawn(PAPER, 80)
    assert sum("/117,600" in line for line in lines) == 6
    (sdar,) = [line for line in lines if "sdar-8b" in line]
    assert "56,000/117,600" in sdar and "31 busy 2 loading" in sdar
    assert any("1,900 × RuntimeError: far too long" in line for line in lines)
    assert any("and 24 more" in line for line in lines)


def test_200_columns_show_every_task_of_every_model_beside_the_methods_and_the_last_failures():
    lines = drawn(PAPER, 200, height=50)
    assert sum("/29,400" in line for line in lines) == 24
    (first,) = [line for line in lines if "llada2" in line]
    assert "gsm8k" in first and "8 busy 1 idle" in first
    assert sum("method-" in line for line in lines) == 27
    assert any("· T1 · s2, row test/17: RuntimeError" in line for line in lines)


def test_models_under_way_are_shown_where_there_is_no_room_for_all():
    done = tuple(Share(f"done-{i}", "t", "control", 9, ok=9, passes=9) for i in range(30))
    lines = drawn(Progress(0, 31, shares=(*done, Share("now", "t", "control", 9, ok=1, passes=9))), 80)
    assert any(" now " in line for line in lines)
    assert len(lines) <= 24


def test_a_terminal_gets_a_live_panel():
    console = Console(file=io.StringIO(), width=80, force_terminal=True)
    with progress.view(console, "mine") as shown:
        shown.update(HALFWAY)
    assert "1,000/2,000 samples" in console.file.getvalue()
    assert "mine" in console.file.getvalue()


@pytest.mark.parametrize(
    ("seconds", "text"),
    [(0.4, "0 s"), (59.6, "1 min 00 s"), (423, "7 min 03 s"), (11220, "3 h 07 min"), (3e5, "3 d 11 h")],
)
def test_durations_read_well(seconds, text):
    assert progress.duration(seconds) == text


def test_a_log_ends_with_the_last_state_even_if_the_sweep_does_not_end_well():
    console = Console(file=io.StringIO())
    with pytest.raises(KeyboardInterrupt), progress.view(console, clock=lambda: 0.0) as shown:
        for done in (1, 2):
            shown.update(at(done))
        raise KeyboardInterrupt
    assert "2/100 samples" in console.file.getvalue()
