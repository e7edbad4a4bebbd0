"""GSM8K: SDAR's prompt and lm-eval's layout of examples; our reading of an answer, and lm-eval's (complaints.md §8)."""

import pytest

from tests.data_sets import own, real
from workers.tasks import Row, load_task
from workers.tasks.answers import final_number, last_box, lm_eval_answers, same_number

# text, gold, what lm-eval reads strictly and flexibly (None: nothing), its two verdicts
LM_EVAL = [
    ("#### 1,000", "1000", "1000", "1000", True, True),
    ("#### $18", "18", None, "18", False, True),
    ("so the total is $29.00.", "29", None, "29.00", False, False),
    ("72 clips, altogether.", "72", None, "72", False, True),
    ("#### 42\nQuestion: next\n#### 99", "42", "42", "99", True, False),
    ("5 apples ...", "5", None, "..", False, False),
    ("#### 0.50", "0.5", "0.50", "0.50", False, False),
    ("so \\boxed{9{,}500}", "9500", None, "500", False, False),
    ("#### **70000**", "70000", None, "70000", False, True),
]


@pytest.fixture(scope="module")
def task():
    return load_task("gsm8k", {"path": own("gsm8k")})


@pytest.mark.parametrize(("text", "gold", "strict", "flexible", "strict_ok", "flexible_ok"), LM_EVAL)
def test_both_scores_of_the_known_texts(task, text, gold, strict, flexible, strict_ok, flexible_ok):
    assert lm_eval_answers(text) == (strict, flexible)
    scored = task.score(Row("0", "q", f"working\n#### {gold}"), text)
    assert scored.correct
    assert scored.notes == {"strict": strict_ok, "flexible": flexible_ok}


def test_lm_eval_reads_nothing_in_the_boxed_answer_that_sdar_asks_for(task):
    scored = task.score(Row("0", "q", "#### 18"), "The answer is $\\boxed{18}$.")
    assert scored.correct and scored.notes == {"strict": False, "flexible": False}


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("\\boxed{2} no, \\boxed{3}", "3"),
        ("\\boxed{3} and then \\boxed{", "3"),
        ("#### -7", "-7"),
        ("#### 12 eggs\nso \\boxed{13}", "12"),
        ("#### 1. First step\n6 + 6 = 12, so \\boxed{12}", "12"),
        ("#### Step 1\n6 + 6 = \\boxed{12}", "12"),
        ("#### 18.\n\nQuestion: 5 more", "18"),
        ("I add 3 and 4 and get \\boxed{7} apples for 2 people", "7"),
        ("\\boxed{\\$1{,}050.00}", "1050"),
        ("\\boxed{10,\\!080}", "10080"),
        ("\\boxed{1\\,000\\,000}", "1000000"),
        ("\\boxed{18 \\text{ cm}^2}", "18"),
        ("\\boxed{18 \\text{ per 3 days}}", "18"),
        ("\\boxed{\\text{18 eggs}}", "18"),
        ("\\fbox{x = 18}", "18"),
        ("18 in all, put it in \\boxed{}", "18"),
        ("\\boxed{\\frac{36}{2}}", "18"),
        ("\\boxed{\\frac{36}{2}}", "18.0"),
        ("\\boxed{\\frac12}", "0.5"),
        ("\\boxed{\\dfrac{36}2}", "18"),
        ("\\boxed{1\\frac{1}{2}}", "1.5"),
        ("\\boxed{2 \\frac{1}{4}}", "2.25"),
        ("\\boxed{-\\frac{1}{2}}", "-0.5"),
        ("it is $-1\\frac12$.", "-1.5"),
        ("3-\\frac{1}{2}", "0.5"),
        ("#### -\\frac{1}{2}", "-0.5"),
        ("\\boxed{18 = 9 \\cdot 2}", "18"),
        ("\\boxed{9 \\cdot 2 = 18}", "18"),
        ("\\boxed{1 000}", "1000"),
        ("\\boxed{\\text{-}5}", "-5"),
        ("#### 1 - Eggs\n16 - 4 = 12, so \\boxed{12}", "12"),
        ("#### 1\\. Eggs\n16 - 4 = 12, so \\boxed{12}", "12"),
        ("#### 3 people:\n3 * 4 = \\boxed{12}", "12"),
        ("#### 2 eggs per day calculation\n6 * 2 = \\boxed{12}", "12"),
        ("#### 1 - Eggs\n#### 12\nQuestion: \\boxed{13}", "12"),
        ("#### **12**\nso \\boxed{13}", "12"),
        ("#### $12$ eggs.\nso \\boxed{13}", "12"),
        ("#### 12 eggs a day\nQuestion: next\n#### 13", "12"),
        ("the range is 5-10", "10"),
        ("it fell to \N{MINUS SIGN}4 degrees", "-4"),
        ("a loss of -$5", "-5"),
        ("1,00,000 rupees", "100000"),
        ("he buys 1, 2 and 3", "3"),
        ("half, .5", "0.5"),
    ],
)
def test_the_final_number_of_a_text(text, gold):
    assert same_number(final_number(text), gold)


@pytest.mark.parametrize("text", ["", "no number here", "####", "...", "\\boxed{}"])
def test_a_text_without_a_number_has_no_answer(text):
    assert final_number(text) is None


PIECES = [
    "#",
    "#### ",
    "####5*",
    "1",
    "1,11,",
    "1 ",
    "1~111",
    "\\frac{",
    "\\frac1",
    "\\text{",
    "\\boxed{",
    "{",
    "}",
    " ",
    "=",
    "a",
    "-$",
]


@pytest.mark.parametrize("piece", PIECES)
def test_a_very_long_text_is_read_in_time(piece):
    for text in (piece * (100_000 // len(piece)), f"\\boxed{{{piece * (100_000 // len(piece))} x: y}}"):
        final_number(text)
        lm_eval_answers(text)


def test_numbers_are_compared_exactly_and_not_as_floats():
    assert not same_number("10000000000000000001", "10000000000000000002")
    assert not same_number("1/3", "0.333333")
    assert same_number("1.50", "1.5") and same_number("3/2", "1.5")
    assert not same_number("1/0", "1/0")
    assert not same_number("9" * 9999, "9" * 9999 + ".5")


@pytest.mark.parametrize(
    ("text", "box"),
    [
        ("\\boxed{2}... \\boxed{\\frac{1}{3}}", "\\frac{1}{3}"),
        ("\\boxed{12}, so the answer is \\boxed{17}", "17"),
        ("\\fbox{17}", "17"),
        ("\\boxed {17 }", "17"),
        ("\\boxed{\\boxed{17}}", "17"),
        ("\\boxed{\\left\\{1, 2\\right\\}}", "\\left\\{1, 2\\right\\}"),
        ("\\boxed{3} and \\boxed{\\frac{1}{2}", "3"),
        ("{ \\boxed{3}", "3"),
        ("\\boxed{", None),
        ("17", None),
    ],
)
def test_the_last_box_with_balanced_braces(text, box):
    assert last_box(text) == box


def test_rows_are_asked_as_sdar_asks_them(task):
    assert [row.id for row in task.rows] == [f"test-{i}" for i in range(10)]
    assert task.rows[0].prompt == (
        "A baker bakes 12 loaves and sells 7. How many loaves are left?\n"
        "Please reason step by step, and put your final answer within \\boxed{}."
    )


def test_examples_come_first_in_lm_evals_layout(tmp_path):
    train = tmp_path / "train.jsonl"
    train.write_text('{"question": "One and one?", "answer": "1+1=<<1+1=2>>2\\n#### 2"}\n')
    task = load_task("gsm8k", {"path": own("gsm8k"), "shots": 1, "shots_path": str(train)})
    assert task.rows[0].prompt == (
        "Question: One and one?\nAnswer: 1+1=<<1+1=2>>2\n#### 2\n\n"
        "Question: A baker bakes 12 loaves and sells 7. How many loaves are left?\nAnswer:"
    )
    assert task.revision != load_task("gsm8k", {"path": own("gsm8k")}).revision


def test_our_own_rows_score_by_their_own_answers(task):
    assert all(task.score(row, row.reference).correct for row in task.rows)
    assert not any(task.score(row, "#### 123456").correct for row in task.rows)


def test_all_1319_solutions_are_correct_by_all_three_rules():
    task = load_task("gsm8k", {"path": real("gsm8k/test.jsonl")})
    scores = [task.score(row, row.reference) for row in task.rows]
    assert len(scores) == 1319
    assert all(score.correct and score.notes == {"strict": True, "flexible": True} for score in scores)


def test_all_1319_answers_are_correct_in_a_box():
    task = load_task("gsm8k", {"path": real("gsm8k/test.jsonl")})
    answers = [row.reference.rpartition("#### ")[2] for row in task.rows]
    assert all(
        task.score(row, f"so $\\boxed{{{answer}}}$.").correct for row, answer in zip(task.rows, answers, strict=True)
    )


def test_examples_of_the_train_split_are_none_of_the_test_split():
    files = {"path": real("gsm8k/test.jsonl"), "shots_path": real("gsm8k/train.jsonl.gz")}
    task = load_task("gsm8k", {**files, "shots": 8})
    assert task.rows[0].prompt.count("Question: ") == 9
