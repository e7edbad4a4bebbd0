"""MATH-500: SDAR's zero-shot prompt; the last box by math-verify, with our guards. A text without a box is wrong.

The data set has a test split alone, hence no few-shot examples. ../shared/data/scoring_facts.md §1-3, §6.
"""

from workers.tasks import Canary, Row, Score
from workers.tasks.answers import last_box
from workers.tasks.data import TEXT, Source, load
from workers.tasks.gsm8k import INSTRUCTION
from workers.tasks.maths import same

SCORER = "math500-2"
HALF = Row("canary", "What is 2 divided by 4?" + INSTRUCTION, "\\frac{1}{2}")
CANARIES = (Canary(HALF, "It is \\boxed{0.5}.", True), Canary(HALF, "It is \\boxed{\\frac{2}{1}}.", False))
COLUMNS = {"unique_id": TEXT, "problem": TEXT, "answer": TEXT}


def rows(
    path: str | None = None,
    hub: str = "HuggingFaceH4/MATH-500",
    config: str = "default",
    split: str = "test",
    revision: str = "main",
) -> list[Row]:
    """The problems in the data set's order, from the file `path` or the hub."""
    records = load(Source(path, hub, config, split, revision), COLUMNS, unique="unique_id")
    return [Row(record["unique_id"], record["problem"] + INSTRUCTION, record["answer"]) for record in records]


def score(row: Row, text: str) -> Score:
    answer = last_box(text)
    return Score(bool(answer) and same(row.reference, answer or ""), answer)
