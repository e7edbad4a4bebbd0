"""GSM8K: SDAR's zero-shot prompt, or `shots` examples as lm-eval lays them out; scored by two rules.

`correct` is ours: the number after the first `####`, else in the last box, else the last one, compared exactly. The
notes `strict` and `flexible` are lm-eval's verdicts, faults included. ../shared/data/scoring_facts.md §1, §6.
"""

from dataclasses import replace

from workers.tasks import Row, Score
from workers.tasks.answers import final_number, lm_eval_answers, lm_eval_plain, same_number
from workers.tasks.data import TEXT, Source, check_shots, examples, load

SCORER = "gsm8k-3"
INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."
ANSWER = ("text with a number", lambda value: TEXT[1](value) and final_number(value) is not None)
COLUMNS = {"question": TEXT, "answer": ANSWER}


def rows(
    path: str | None = None,
    hub: str = "openai/gsm8k",
    config: str = "main",
    split: str = "test",
    revision: str = "main",
    shots: int = 0,
    shots_path: str | None = None,
) -> list[Row]:
    """The questions in the data set's order, from the file `path` or the hub.

    Ids name the split, of a file the one it is said to be: a drafter may be trained on row 0 of one split only.
    """
    check_shots(shots)
    source = Source(path, hub, config, split, revision)
    records = load(source, COLUMNS)
    train = replace(source, path=shots_path, split="train", key="shots_path")
    shown = examples(shots, load(train, COLUMNS), records, "question") if shots else []
    return [Row(f"{split}-{i}", prompt(r["question"], shown), r["answer"]) for i, r in enumerate(records)]


def prompt(question: str, shown: list[dict]) -> str:
    if not shown:
        return question + INSTRUCTION
    solved = [f"Question: {example['question']}\nAnswer: {example['answer']}" for example in shown]
    return "\n\n".join([*solved, f"Question: {question}\nAnswer:"])


def score(row: Row, text: str) -> Score:
    answer, reference = final_number(text), final_number(row.reference)
    correct = answer is not None and reference is not None and same_number(answer, reference)
    strict, flexible = (found == lm_eval_plain(row.reference) for found in lm_eval_answers(text))
    return Score(correct, answer, notes={"strict": strict, "flexible": flexible})
