"""Tasks: what is asked, and what counts as right (complaints.md section 8 for GSM8K's values)."""

import json

import pytest

from workers.tasks import Row, load_task
from workers.tasks.answers import final_number, same_number
from workers.tasks.arith import LARGEST, problem


@pytest.mark.parametrize(
    ("text", "gold"),
    [
        ("#### 1,000", "1000"),
        ("#### $18", "18"),
        ("so the total is $29.00.", "29"),
        ("72 clips, altogether.", "72"),
        ("#### 42\nQuestion: next\n#### 99", "42"),
        ("5 apples are left", "5"),
        ("#### 0.50", "0.5"),
        ("so \\boxed{9{,}500}", "9500"),
        ("#### **70000**", "70000"),
        ("\\boxed{2} no, \\boxed{3}", "3"),
        ("#### -7", "-7"),
        ("I add 3 and 4 and get \\boxed{7} apples for 2 people", "7"),
    ],
)
def test_the_final_number_of_a_text(text, gold):
    assert same_number(final_number(text), gold)


@pytest.mark.parametrize("text", ["", "no number here", "####", "..."])
def test_a_text_without_a_number_has_no_answer(text):
    assert final_number(text) is None


def test_numbers_are_compared_as_decimals_and_not_as_floats():
    assert not same_number("10000000000000000001", "10000000000000000002")
    assert same_number("1.50", "1.5")


def test_an_arith_problem_is_a_function_of_its_index_and_split():
    assert problem(7, "test") == problem(7, "test") != problem(8, "test")


def test_arith_answers_work_out_and_end_in_the_total():
    for index in range(300):
        steps = problem(index, "test").answer.splitlines()
        total = int(steps[0].split(" has ")[1].split()[0])
        for step in steps[1:-1]:
            left, right = step.split(", so ")[1].split(" = ")
            a, operator, b = left.split()
            assert int(a) == total
            total = {"+": total + int(b), "-": total - int(b), "*": total * int(b)}[operator]
            assert int(right.split()[0]) == total and 1 <= total <= LARGEST
        assert steps[-1] == f"#### {total}"


def test_train_and_test_problems_never_share_a_chain_of_numbers():
    def chain(split, index):
        words = problem(index, split).question.split()
        return tuple(w.strip(".") for w in words if w.strip(".").isdigit() or w in VERBS)

    verbs = {"buys": "+", "finds": "+", "wins": "+", "gets": "+", "sells": "-", "loses": "-", "eats": "-", "drops": "-"}
    VERBS = {*verbs, "multiplies"}

    def numbers(split, index):
        return tuple(verbs.get(word, word) for word in chain(split, index))

    train = {numbers("train", index) for index in range(3000)}
    assert not train & {numbers("test", index) for index in range(500)}


def test_every_reference_scores_as_correct_and_an_empty_text_as_wrong():
    task = load_task("arith", {"size": 50})
    assert all(task.score(row, row.reference).correct for row in task.rows)
    assert not any(task.score(row, "").correct for row in task.rows)


def test_a_revision_follows_the_rows():
    assert (
        load_task("arith", {}).revision == load_task("arith", {}).revision != load_task("arith", {"size": 9}).revision
    )


@pytest.fixture
def gsm8k_file(tmp_path):
    path = tmp_path / "test.jsonl"
    rows = [
        {"question": f"What is {n} and {n}?", "answer": f"{n}+{n}=<<{n}+{n}={2 * n}>>{2 * n}\n#### {2 * n}"}
        for n in (1, 500)
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_a_question_may_hold_any_line_end_that_json_allows_raw(tmp_path):
    path = tmp_path / "lines.jsonl"
    path.write_text(json.dumps({"question": "a\u2028b\x85c", "answer": "1"}, ensure_ascii=False) + "\n")
    assert load_task("gsm8k", {"path": str(path)}).rows[0].prompt.startswith("a\u2028b\x85c")


def test_gsm8k_rows_are_asked_as_sdar_asks_them(gsm8k_file):
    task = load_task("gsm8k", {"path": str(gsm8k_file)})
    assert [row.id for row in task.rows] == ["test-0", "test-1"]
    assert task.rows[0].prompt == (
        "What is 1 and 1?\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    assert task.score(task.rows[1], "1,000 it is").correct
    assert not task.score(task.rows[1], "#### 1,001").correct


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"question": "a", "answer": "#### 1"}\n{"question": "b"', r"line 2 is not JSON"),
        ('{"question": "a"}', r"line 1 has no question and answer"),
        ("[1]", r"line 1 has no question and answer"),
        ('{"question": 3, "answer": "4"}', r"line 1 has no question and answer"),
    ],
)
def test_a_broken_data_file_is_named_with_its_line(tmp_path, content, message):
    path = tmp_path / "broken.jsonl"
    path.write_text(content)
    with pytest.raises(ValueError, match=message):
        load_task("gsm8k", {"path": str(path)})


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "gsm9k"}, "no task 'gsm9k'; there are arith, gsm8k"),
        ({"pth": "x"}, "gsm8k has no such option"),
        ({"path": "nowhere.jsonl"}, "no file nowhere.jsonl"),
        ({"path": 3}, "path: 3 is the wrong type; str or null expected"),
        ({"task": "arith", "size": None}, "size: None is the wrong type; int expected"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(ValueError, match=message):
        load_task("gsm8k", options)


def test_a_currency_sign_is_no_part_of_an_answer():
    assert load_task("arith", {"size": 1}).score(Row("0", "q", "#### 18"), "#### $18").correct
