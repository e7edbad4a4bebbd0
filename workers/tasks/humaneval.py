"""HumanEval: SDAR's zero-shot prompt; pass@1 by running the prompt, the model's code and the data set's tests.

The data set has a test split alone, hence no few-shot examples. ../shared/data/scoring_facts.md §1, §4, §6.
"""

from workers.tasks import Canary, Row, Score
from workers.tasks.data import TEXT, Source, load
from workers.tasks.programs import Sandbox, complete, extract, judge

SCORER = "humaneval-2"
INSTRUCTION = (
    "Read the following function signature and docstring, and fully implement the function described. "
    "Your response should only contain the code for this function.\n"
)
COLUMNS = {"task_id": TEXT, "prompt": TEXT, "canonical_solution": TEXT, "test": TEXT, "entry_point": TEXT}
TWICE = Row(
    "canary",
    "",
    "    return 2 * n\n",
    {
        "prompt": 'def twice(n):\n    """Double of n."""\n',
        "test": "def check(candidate):\n    assert candidate(4) == 8\n",
        "entry_point": "twice",
    },
)
CANARIES = (
    Canary(TWICE, "```python\ndef twice(n):\n    return n + n\n```", True),
    Canary(TWICE, "    return n + 2\n", False),
)


def rows(
    path: str | None = None,
    hub: str = "openai/openai_humaneval",
    config: str = "openai_humaneval",
    split: str = "test",
    revision: str = "main",
) -> list[Row]:
    """The problems in the data set's order, from the file `path` or the hub."""
    records = load(Source(path, hub, config, split, revision), COLUMNS, unique="task_id")
    kept = ("prompt", "test", "entry_point")
    return [
        Row(r["task_id"], INSTRUCTION + r["prompt"], r["canonical_solution"], {key: r[key] for key in kept})
        for r in records
    ]


def score(row: Row, text: str, sandbox: Sandbox = "bubblewrap") -> Score:
    """Whether the function passes its tests. `sandbox` says how the program is shut in (workers/sandbox.py)."""
    entry = row.columns["entry_point"]
    code = extract(text, entry)
    return judge(code, complete(row.columns["prompt"], code, entry), tests(row), sandbox)


def tests(row: Row) -> str:
    return f"{row.columns['test']}\ncheck({row.columns['entry_point']})\n"
