"""`arith`: multi-step word problems in GSM8K's form, made by a seeded generator.

A problem is a chain: a start and three to five operations with operands under ten. Train and test never share a
chain (a hash of the numbers decides the split), so a test answer cannot have been memorised.

    python -c "from workers.tasks.arith import problem; print(problem(0, 'test'))"
"""

import hashlib
import random
from dataclasses import dataclass

from workers.tasks import Row, Score
from workers.tasks.answers import final_number, same_number

SCORER = "number-3"
NAMES = ["Mia", "Tom", "Ana", "Leo", "Zoe", "Max", "Eva", "Sam", "Ida", "Ben", "Lea", "Jon"]
ITEMS = ["apples", "books", "coins", "cards", "shells", "stones", "pens", "cakes", "stamps", "balls", "eggs", "keys"]
VERBS = {
    "+": ["buys", "finds", "wins", "gets"],
    "-": ["sells", "loses", "eats", "drops"],
    "*": ["multiplies"],
}
LARGEST = 40
TEST_SHARE = 8  # one chain in eight is a test chain


@dataclass(frozen=True)
class Problem:
    """A question and its reference answer, GSM8K's two columns."""

    question: str
    answer: str


def rows(size: int = 500, split: str = "test") -> list[Row]:
    """The first `size` problems of a split."""
    problems = (problem(index, split) for index in range(size))
    return [Row(f"{split}-{index}", p.question, p.answer) for index, p in enumerate(problems)]


def score(row: Row, text: str) -> Score:
    """Correct when the text's final number is the reference's."""
    answer = final_number(text)
    return Score(answer is not None and same_number(answer, final_number(row.reference) or ""), answer)


def problem(index: int, split: str) -> Problem:
    """The `index`-th problem of `split` ("train" or "test"): a pure function of its two arguments."""
    if split not in ("train", "test"):
        raise ValueError(f"split {split!r}: arith has the splits 'train' and 'test'")
    rng = random.Random(f"arith/{split}/{index}")
    while True:
        start, operations = _chain(rng)
        if _is_test(start, operations) == (split == "test"):
            return _tell(rng, start, operations)


def _chain(rng: random.Random) -> tuple[int, list[tuple[str, int]]]:
    total = start = rng.randint(2, 9)
    operations = []
    for _ in range(rng.randint(3, 5)):
        choices = [("+", n) for n in range(2, 10) if total + n <= LARGEST]
        choices += [("-", n) for n in range(2, 10) if total - n >= 1]
        choices += [("*", n) for n in (2, 3, 4) if total * n <= LARGEST] * 2
        operator, operand = rng.choice(choices)
        operations.append((operator, operand))
        total = _apply(total, operator, operand)
    return start, operations


def _apply(total: int, operator: str, operand: int) -> int:
    return {"+": total + operand, "-": total - operand, "*": total * operand}[operator]


def _is_test(start: int, operations: list[tuple[str, int]]) -> bool:
    digest = hashlib.sha256(repr((start, operations)).encode()).digest()
    return digest[0] % TEST_SHARE == 0


def _tell(rng: random.Random, start: int, operations: list[tuple[str, int]]) -> Problem:
    name, item = rng.choice(NAMES), rng.choice(ITEMS)
    question, answer = [f"{name} has {start} {item}."], [f"Step 1: {name} has {start} {item}."]
    total = start
    for number, (operator, operand) in enumerate(operations, start=2):
        verb = rng.choice(VERBS[operator])
        tail = f"the {item} by {operand}" if operator == "*" else f"{operand} {item}"
        result = _apply(total, operator, operand)
        question.append(f"{name} {verb} {tail}.")
        answer.append(f"Step {number}: {name} {verb} {operand}, so {total} {operator} {operand} = {result} {item}.")
        total = result
    question.append(f"How many {item} does {name} have now?")
    return Problem(" ".join(question), "\n".join([*answer, f"#### {total}"]))
