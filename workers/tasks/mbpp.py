"""MBPP: SDAR's zero-shot prompt, or `shots` examples as the paper lays them out; pass@1 by running the tests.

`config` is "full" (500 test rows) or "sanitized" (257). ../shared/data/scoring_facts.md §1, §4, §6.
"""

from dataclasses import replace
from typing import Literal

from workers.tasks import Canary, Row, Score
from workers.tasks.data import MAYBE_TEXT, TEXT, TEXTS, WHOLE, Record, Source, check_shots, examples, load
from workers.tasks.programs import Sandbox, called, compiles, defines, extract, hoisted, judge

SCORER = "mbpp-2"
TASK = "You are an expert Python programmer, and here is your task:"
FORMAT = " You should submit your final solution in the following format: ```python\n\n```"
TESTS = (
    "a list of one Python test or more",
    lambda value: TEXTS[1](value) and bool(value) and all(test.strip() and compiles(test) for test in value),
)
COLUMNS = {
    "full": {"task_id": WHOLE, "text": TEXT, "code": TEXT, "test_list": TESTS, "test_setup_code": MAYBE_TEXT},
    "sanitized": {"task_id": WHOLE, "prompt": TEXT, "code": TEXT, "test_list": TESTS, "test_imports": TEXTS},
}
QUESTION = {"full": "text", "sanitized": "prompt"}
SPLITS = {"prompt": (1, 10), "test": (11, 510), "validation": (511, 600), "train": (601, 974)}  # ids, in both configs
TWICE = Row(
    "canary",
    "",
    "def twice(n):\n    return 2 * n",
    {"imports": "", "setup": "FOUR = twice(2)", "tests": "assert twice(FOUR) == 8", "entry": "twice"},
)
CANARIES = (
    Canary(TWICE, "[BEGIN]\ndef twice(n):\n    return n + n\n[DONE]", True),
    Canary(TWICE, "```python\ndef twice(n):\n    return n + 2\n```", False),
)


def rows(
    path: str | None = None,
    hub: str = "google-research-datasets/mbpp",
    config: Literal["full", "sanitized"] = "full",
    split: str = "test",
    revision: str = "main",
    shots: int = 0,
    shots_path: str | None = None,
) -> list[Row]:
    """The tasks of a split (or of several, `train+test`) in the data set's order, from the file `path` or the hub.

    MBPP's own files hold all splits: of a file, the rows whose ids are another split's are left out. Examples are the
    prompt split's from id 2 on, as in the paper.
    """
    check_shots(shots)
    names = split.split("+")
    if path and not SPLITS.keys() >= set(names):
        raise ValueError(f"split: {split!r}; {', '.join(SPLITS)}, or several as in 'train+test', expected")
    source = Source(path, hub, config, split, revision)
    records = _records(source)
    pool = _records(replace(source, path=shots_path, split="prompt", key="shots_path")) if shots else []
    shown = examples(shots, [r for r in pool if r["task_id"] != 1], records, QUESTION[config]) if shots else []
    return [_row(record, shown, config) for record in records]


def score(row: Row, text: str, sandbox: Sandbox = "bubblewrap") -> Score:
    """Whether the program passes its tests. `sandbox` says how it is shut in (workers/sandbox.py)."""
    code = extract(text, row.columns["entry"])
    return judge(code, program(row, code), tests(row), sandbox)


def program(row: Row, code: str) -> str:
    return hoisted(f"{row.columns['imports']}\n{code}\n")


def tests(row: Row) -> str:
    """The set-up comes after the model's code: it builds trees of the model's own class."""
    return f"{row.columns['setup']}\n{row.columns['tests']}\n"


def _records(source: Source) -> list[Record]:
    records = load(source, COLUMNS[source.config], unique="task_id")
    if source.path:
        others = [SPLITS[name] for name in SPLITS if name not in source.split.split("+")]
        records = [r for r in records if not any(low <= r["task_id"] <= high for low, high in others)]
    if not records:
        raise ValueError(f"{source.key}: {source.path} has no rows of the split {source.split!r}; those have other ids")
    return records


def _row(record: Record, shown: list[Record], config: str) -> Row:
    listed = record["test_list"]
    columns = {
        "imports": "\n".join(record.get("test_imports", ())),
        "setup": record.get("test_setup_code", ""),
        "tests": "\n".join(listed),
        "entry": next((name for name in sorted(called(listed)) if defines(record["code"], name)), ""),
    }
    return Row(str(record["task_id"]), _prompt(record, shown, QUESTION[config]), record["code"], columns)


def _prompt(record: Record, shown: list[Record], question: str) -> str:
    listed = "\n".join(record["test_list"])
    if not shown:
        return f"{TASK}\n{record[question]}\nYour code should pass these tests:\n\n{listed}\n{FORMAT}"
    solved = [f"{_asked(example, question)}\n[BEGIN]\n{example['code']}\n[DONE]" for example in shown]
    return "\n\n".join([*solved, f"{_asked(record, question)}\n[BEGIN]\n"])


def _asked(record: Record, question: str) -> str:
    return f"{TASK} {record[question]} Your code should pass these tests:\n\n" + "\n".join(record["test_list"])
