"""Tasks: how one is found and what its options are, and `arith`."""

import pytest

from tests.data_sets import own
from workers.tasks import Row, load_task
from workers.tasks.arith import LARGEST, problem


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


def test_a_currency_sign_is_no_part_of_an_answer():
    assert load_task("arith", {"size": 1}).score(Row("0", "q", "#### 18"), "#### $18").correct


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"task": "gsm9k"}, "no task 'gsm9k'; there are arith, gsm8k, humaneval, math500, mbpp$"),
        ({"pth": "x"}, "gsm8k has no such option"),
        ({"path": "nowhere.jsonl"}, "no file nowhere.jsonl"),
        ({"path": 3}, "path: 3 is the wrong type; str or null expected"),
        ({"task": "arith", "size": None}, "size: None is the wrong type; int expected"),
        ({"path": own("gsm8k"), "shots": -1, "shots_path": own("gsm8k")}, "^shots: -1; 0 or more expected"),
        ({"path": own("gsm8k"), "shots": 11, "shots_path": own("gsm8k")}, "^shots: 11; from 0 to 10, the examples"),
        ({"path": own("gsm8k"), "shots": 1, "shots_path": own("gsm8k")}, "^shots: the example 'A baker .* too; take"),
        ({"path": own("gsm8k"), "shots": 1, "shots_path": "nowhere.gz"}, "^shots_path: no file nowhere.gz"),
        ({"task": "humaneval", "shots": 1}, "^shots: humaneval has no such option; it has path, hub"),
        ({"task": "math500", "shots": 1}, "^shots: math500 has no such option; it has path, hub"),
        ({"task": "humaneval", "sandbox": "docker"}, "^sandbox: 'docker'; 'bubblewrap' or 'process' expected"),
        ({"task": "mbpp", "sandbox": None}, "^sandbox: None; 'bubblewrap' or 'process' expected"),
        ({"task": "mbpp", "config": "sanitised"}, "^config: 'sanitised'; 'full' or 'sanitized' expected"),
        (
            {"task": "mbpp", "path": own("mbpp"), "split": "tset"},
            r"^split: 'tset'; prompt, test, validation, train, or several as in 'train\+test', expected",
        ),
        ({"task": "mbpp", "path": own("mbpp"), "split": "test+tset"}, r"^split: 'test\+tset'; prompt, test, val"),
        (
            {"task": "mbpp", "path": own("mbpp"), "split": "train"},
            r"^path: .*mbpp.jsonl has no rows of the split 'train'",
        ),
        ({"task": "mbpp", "shots": -1}, "^shots: -1; 0 or more expected"),
        ({"shots": -1}, "^shots: -1; 0 or more expected"),  # and the hub was not asked for its rows
        ({"path": own("gsm8k"), "split": ""}, "^split: ''; a name such as 'test' expected"),
        ({"split": " "}, "^split: ' '; a name such as 'test' expected"),
        ({"path": "x" * 300}, "^path: x+ cannot be read: File name too long$"),
    ],
)
def test_wrong_options_are_one_line(options, message):
    with pytest.raises(ValueError, match=message) as raised:
        load_task("gsm8k", options)
    assert "\n" not in str(raised.value)
