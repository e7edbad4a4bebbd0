"""MATH-500: the last box by math-verify, and our guards where it is wrong (scoring_facts.md §2, complaints.md §9).

Measured with math-verify 0.9.0, latex2sympy2_extended 1.11.0 and antlr4 4.13.2, the versions in constraints.txt.
"""

import json
from threading import Thread

import pytest
from math_verify import parse, verify

from tests.data_sets import own, real
from workers.tasks import Row, load_task, math500, maths
from workers.tasks.maths import same

# reference, prediction, math-verify's verdict, the right one
PAIRS = [
    (r"\frac{1}{2}", "0.5", True, True),
    (r"\frac{14}{3}", r"4\frac{2}{3}", True, True),
    (r"90^\circ", "90", True, True),
    (r"11,\! 111,\! 111,\! 100", "11,111,111,100", True, True),
    ("1,-2", "x=1, x=-2", True, True),
    (r"1 \pm \sqrt{19}", r"1+\sqrt{19}, 1-\sqrt{19}", True, True),
    ("[2,5)", "[2,5]", False, False),
    (r"\text{Evelyn}", "Evelyn", True, True),
    (r"\frac{1}{3}", "0.333333", True, False),
    ("4210_5", "4210_6", True, False),
    ("1,-2", "(1,-2)", True, False),
    ("5x - 7y + 11z + 4 = 0", "0", False, False),
    ("1000000", r"1\,000\,000", False, True),
    ("i", r"\sqrt{-1}", False, True),
    (r"(-\infty, 2]\cup[5,\infty)", r"x\le 2 \text{ or } x\ge 5", False, True),
    (r"\text{June 20}", "June 20", False, True),
    ("1234", "1234 dollars", False, True),
    (r"10\%", "0.1", True, True),
    (r"10\%", "10", True, True),
    (r"\frac{1}{2}", r"\frac12", True, True),
    # its other known faults
    ("40", "40_9", True, False),
    ("(-2,1)", "-2,1", True, False),
    ("-2,1", "(-2,1)", True, False),
    ("0", "5x - 7y + 11z + 4 = 0", True, False),
    ("1/2^99", "1/2^98", True, False),
    (r"\frac{1}{2^{99}}", r"\frac{1}{2^{98}}", True, False),
    (r"\sqrt{5}", "2.2360679", True, False),
    (r"\frac{1}{3}", r"33.3333\%", True, False),
    ("[2,5]", r"2 \le x \le 5", False, True),
    ("17", r"\begin{aligned}17\end{aligned}", False, True),
    (r"15\mbox{ cm}^2", "15 cm^2", False, True),
    ("1+3i", r"1+\sqrt{-9}", False, True),
    ("12", "12.", False, True),
    (r"90^\circ", r"90\degree", False, True),
    ("5", r"5^{\degree}", True, True),
    ("1BA_{12}", "1BA", False, True),
    ("1BA_{12}", "1BB", False, False),
    ("1BA_{12}", "1BA_{13}", False, False),
    ("1011001_2", r"1011001_{\text{two}}", False, True),
    ("1011001_2", r"1011001_{\text{three}}", False, False),
    ("3+2i", r"3+2\mathrm{i}", False, True),
    (r"4\frac23", "4 2/3", False, True),
    (r"\frac{14}{3}", "4 2/3", False, True),
    (r"4\frac23", "8/3", False, False),
    (r"\text{(A)}", r"\textbf{(A)}\ 5", False, True),
    (r"\text{(A)}", r"\text{A. foo}", False, True),
    (r"\text{(A)}", r"\textbf{(B)}\ 5", False, False),
    (r"\text{(A)}", r"\text{A circle}", False, False),
    (r"\emptyset", r"\varnothing", False, True),
    ("17", "((17))", True, True),
    # what must stay as it is
    ("x=5", "5", True, True),
    ("5", "x=5", True, True),
    ("7", "x+y=7", True, True),
    ("7", "3+4=7", True, True),
    ("y = 2x + 3", "2x+3", True, True),
    ("y=-2x", "2x+y=0", True, True),
    (r"x \in [-2,7]", "[-2,7]", True, True),
    ("(1,2)", "(x,y)=(1,2)", True, True),
    (r"\{1\pm\sqrt{5},-2\}", r"-2,1+\sqrt5,1-\sqrt5", True, True),
    ("3, 5, 7", "7,5,3", True, True),
    ("3, 5, 7", "3,5", False, False),
    (r"(0,9) \cup (9,36)", r"(9,36) \cup (0,9)", True, True),
    (r"\text{(C)}", "C", True, True),
    (r"\text{even}", "even", True, True),
    (r"\text{even}", "odd", False, False),
    ("4210_5", "4210_{5}", True, True),
    ("40_9", "40", True, True),  # the question names the base
    ("58,500", "58500", True, True),
    ("58,500", r"\$58{,}500", True, True),
    (r"\frac{1}{23}", r"\frac{12}{3}", False, False),
    (r"\frac{2}{3}", "0.67", False, False),
    ("326.5", r"\frac{653}{2}", True, True),
    (r"\begin{pmatrix} 1/5 \\ -18/5 \end{pmatrix}", r"\begin{pmatrix} 0.2 \\ -3.6 \end{pmatrix}", True, True),
    (r"\cot x", r"\frac{\cos x}{\sin x}", True, True),
    ("1+2i", "2i+1", True, True),
    ("i", "-i", False, False),
    ("2k", "2m", False, False),
    ("5", "5x", False, False),
    (r"\pm 2021", "2021", False, False),
    ("5.4 \\text{ cents}", "5.4", True, True),
    ("(2,4)", "(2, 4)", True, True),
    ("0", r"\sqrt{8}-2\sqrt{2}", True, True),
    ("0", r"\frac{1}{2^{99}}", False, False),
    ("x>1, y<2", "x>1, y<2, z>3", False, False),
    ("5", "5 million", False, False),
]


@pytest.fixture(scope="module")
def task():
    return load_task("math500", {"path": own("math500")})


@pytest.mark.parametrize(("gold", "given", "theirs", "right"), PAIRS)
def test_the_verdict_on_known_pairs(gold, given, theirs, right):
    boxed = [parse(f"\\boxed{{{text}}}", parsing_timeout=None) for text in (gold, given)]
    assert verify(*boxed, timeout_seconds=None) == theirs, "math-verify has changed: measure its verdicts anew"
    assert same(gold, given) == right


HEAVY = [
    "9^{9^{9^9}}",
    "9^{9^{9}}",
    "10^{(10^{10})}",
    "99999999!",
    "2^{1000000000}",
    "\\frac{1}{" * 30 + "2" + "}" * 30,
    "(a+b+c+d+e+f)^{50}",
    "\\left[a+b+c+d+e+f\\right]^{130}",
    "\\frac{x^{2000}-1}{x-1}",
    "1+" * 50_000 + "1",
    "5" + " ab^2" * 20_000 + "!",
    "5" + " ab^2" * 20_000,
    "x_" * 50_000,
    "(" * 50_000 + "1" + ")" * 49_999,
    "1,\\!111" * 15_000,
    "\\text{1" * 15_000,
]


@pytest.mark.parametrize("given", HEAVY)
def test_an_answer_that_would_take_for_ever_is_compared_as_text(given):
    assert same(given, given.replace("1", " 1 "))
    assert not same("3", given)
    assert not same(given, "3")


def test_brackets_thirty_deep_around_one_number_are_taken_off():
    for left, right in ("()", "{}"):
        assert same("17", left * 30 + "17" + right * 30)
        assert not same("17", left * 30 + "18" + right * 30)


def test_the_last_box_counts_even_on_one_line(task):
    row = Row("0", "q", "17")
    assert task.score(row, "\\boxed{12}, so the answer is \\boxed{17}").correct
    assert not task.score(row, "\\boxed{17}, so the answer is \\boxed{12}").correct
    assert task.score(row, "so \\fbox{17}").correct
    assert task.score(Row("0", "q", "\\frac{1}{3}"), "\\boxed{2}... $\\boxed{\\frac{1}{3}}$.").answer == "\\frac{1}{3}"


@pytest.mark.parametrize("text", ["", "17", "the answer is $17$", "\\boxed{}", "\\boxed{17"])
def test_a_text_without_a_box_is_wrong(task, text):
    assert task.score(Row("0", "q", "17"), text).correct is False


@pytest.mark.parametrize(
    "text",
    ["\\boxed{\\frac{}", "\\boxed{\\frac{1}{0}}", "\\boxed{}}}", "\\boxed{" + "{" * 300 + "}" * 301, "\\boxed{\0}"],
)
def test_a_malformed_box_is_wrong_and_raises_nothing(task, text):
    assert task.score(Row("0", "q", "17"), text).correct is False


def test_it_scores_outside_the_main_thread(task):
    found = []
    thread = Thread(target=lambda: found.append(task.score(Row("0", "q", "\\frac12"), "\\boxed{0.5}").correct))
    thread.start()
    thread.join()
    assert found == [True]


def test_rows_are_asked_as_sdar_asks_them(task):
    assert task.rows[0].id == "ours/algebra/0.json"
    assert task.rows[0].prompt == (
        "Solve $3x + 4 = 19$ for $x$.\nPlease reason step by step, and put your final answer within \\boxed{}."
    )


def test_our_own_solutions_are_correct_and_another_rows_are_not(task):
    with open(own("math500"), encoding="utf-8") as file:
        solutions = [json.loads(line)["solution"] for line in file]
    assert all(task.score(row, text).correct for row, text in zip(task.rows, solutions, strict=True))
    others = solutions[1:] + solutions[:1]
    assert not any(task.score(row, text).correct for row, text in zip(task.rows, others, strict=True))


def test_all_500_answers_equal_themselves_and_all_500_solutions_are_correct():
    task = load_task("math500", {"path": real("math500/test.jsonl")})
    with open(real("math500/test.jsonl"), encoding="utf-8") as file:
        solutions = {record["unique_id"]: record["solution"] for record in map(json.loads, file)}
    assert len(task.rows) == 500
    assert all(task.score(row, f"\\boxed{{{row.reference}}}").correct for row in task.rows)
    assert all(task.score(row, solutions[row.id]).correct for row in task.rows)


def test_all_500_answers_equal_themselves_by_math_verify_too():
    """Words apart, which are compared as text; the guards must not have made of an answer what it cannot read."""
    task = load_task("math500", {"path": real("math500/test.jsonl")})
    readings = [maths.read(row.reference) for row in task.rows if "\\text{" not in row.reference]
    assert len(readings) == 490
    assert all(maths.verified(reading[:1], reading[:1]) for reading in readings)  # [1] is the text


def test_the_canaries_have_the_verdicts_that_they_say():
    assert {canary.correct for canary in math500.CANARIES} == {True, False}
    for canary in math500.CANARIES:
        assert math500.score(canary.row, canary.text).correct == canary.correct
