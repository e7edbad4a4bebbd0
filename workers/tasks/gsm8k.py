"""GSM8K, zero-shot with SDAR's instruction; normalised scoring (design.md §5, ../shared/data/scoring_facts.md)."""

import json
from pathlib import Path

from workers.tasks import Row, Score
from workers.tasks.answers import final_number, same_number

SCORER = "number-1"
INSTRUCTION = "\nPlease reason step by step, and put your final answer within \\boxed{}."


def rows(
    path: str | None = None,
    hub: str = "openai/gsm8k",
    config: str = "main",
    split: str = "test",
    revision: str = "main",
) -> list[Row]:
    """The questions in the data set's order, from a local JSON-lines file if `path` is given, else from the hub.

    Ids name the split, of a file the one it is said to be: a drafter may be trained on row 0 of one split only.
    """
    records = _read_lines(Path(path)) if path else _read_hub(hub, config, split, revision)
    return [Row(f"{split}-{i}", record["question"] + INSTRUCTION, record["answer"]) for i, record in enumerate(records)]


def score(row: Row, text: str) -> Score:
    answer, reference = final_number(text), final_number(row.reference)
    return Score(answer is not None and reference is not None and same_number(answer, reference), answer)


def _read_lines(path: Path) -> list[dict]:
    if not path.is_file():
        raise ValueError(f"path: no file {path}; a JSON-lines file with question and answer is wanted")
    records = []
    with path.open(encoding="utf-8") as file:  # not splitlines(): a JSON string may hold other line ends raw
        for number, line in enumerate(file, start=1):
            try:
                record = json.loads(line)
            except ValueError:
                raise ValueError(f"path: {path} line {number} is not JSON") from None
            if not isinstance(record, dict) or not all(isinstance(record.get(k), str) for k in ("question", "answer")):
                raise ValueError(f"path: {path} line {number} has no question and answer")
            records.append(record)
    return records


def _read_hub(hub: str, config: str, split: str, revision: str) -> list[dict]:
    from datasets import load_dataset

    try:
        return list(load_dataset(hub, config, split=split, revision=revision))
    except Exception as error:  # the hub, the network and the cache each raise their own
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise ValueError(f"hub: cannot load {hub} ({reason}); a local file goes in path=FILE") from None
