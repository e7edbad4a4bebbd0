"""HumanEval and MBPP: prompts, code out of every dress that models put it in, and programs run in the sandbox.

A dress costs a comparison, not a run: every dress of a reference must come out as the same program (the same syntax
tree) as the reference alone, which is run once.
"""

import ast
import json
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from textwrap import dedent

import pytest

from tests.data_sets import own, real
from workers import sandbox
from workers.tasks import humaneval, load_task, mbpp, programs
from workers.tasks.programs import complete, extract

ALL = "train+test+validation+prompt"
# Row ids of reference programs that do not pass, with the reason. None: all 164 + 974 + 427 do.
EXCEPTIONS: dict[str, str] = {}

ANY_DRESS = {
    "as it is": "{}",
    "blank lines before": "\n \n{}\n",
    "a fence": "```python\n{}\n```",
    "a fence without a tag": "```\n{}\n```",
    "a fence with another tag": "~~~py3\n{}\n~~~",
    "a fence that is not closed": "```python\n{}",
    "a fence that closes what none has opened": "{}\n```\nThis does it.",
    "text around the fence": "Sure! Here you go:\n\n```python\n{}\n```\nIt uses `sorted`.",
    "white space before the fence": "    \n\n```python\n{}\n```",
    "a token at the end": "{}<|im_end|>",
    "another token at the end": "{}\n<|endoftext|>",
    "a closing tag at the end": "{}\n</s>",
    "a run-on after the token": "{}<|im_end|>\n<|im_start|>user\nAnother one, please.",
    "masks left over": "<|MASK|>{}<|MASK|><|MASK|>",
    "a token in the fence": "```python\n{}<|endoftext|>\n```<|im_end|>",
    "delimiters": "[BEGIN]\n{}\n[DONE]",
    "an end delimiter and a run-on": "{}\n[DONE]\n\nYou are an expert Python programmer.\n[BEGIN]\ndef other(): pass",
    "a fence in delimiters": "[BEGIN]\n```python\n{}\n```\n[DONE]",
}
WHOLE_DRESS = {
    **ANY_DRESS,
    "a block with an example first": "Like:\n```\nprint(1)\n```\nSo:\n```python\n{}\n```",
    "a block with an example last": "```python\n{}\n```\nUse it:\n```python\nprint(1)\n```",
    "prose before": "Here is the function:\n\n{}",
    "prose after": "{}\n\nThis function doesn't use a loop.\n\nNote: it is short.",
    "prose around": "Sure, here's one:\n{}\nThis function works.",
    "tags": "[PYTHON]\n{}\n[/PYTHON]",
    "prose in the fence": "```python\n{}\n\nThis does it.\n```",
    "a test block": "```python\n{}\n```\nTests:\n```python\nclass Test:\n    def ENTRY(self):\n        pass\n```",
    "a second try cut short": "```python\n{}\n```\nAgain:\n```python\ndef ENTRY(x:",
    "a first try": "```python\n{}\n```\nwait\n```python\n{}\n```",
}


def dressed(dress, code, entry=""):
    return {name: form.replace("ENTRY", entry).replace("{}", code) for name, form in dress.items()}


def windows(code):
    return code.replace("\r\n", "\n").replace("\n", "\r\n")


@lru_cache(8)
def tree(program):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in the references' patterns
        return ast.dump(ast.parse(program))


def whole_humaneval(row):
    return row.columns["prompt"] + row.reference


def humaneval_dresses(row):
    """(dress, what the model said, the program that it should become)."""
    prompt, body, whole = row.columns["prompt"], row.reference, whole_humaneval(row)
    bodies = {**dressed(ANY_DRESS, body.strip("\n")), "Windows line ends": windows(body), "a margin": body.strip()}
    bodies["prose after"] = f"{body.rstrip()}\n\nThis function doesn't use a loop."
    bodies["prose after, a margin"] = f"{body.strip()}\n\nThis function doesn't use a loop."
    bodies["no indent"] = dedent(body).strip("\n")
    wholes = {**dressed(WHOLE_DRESS, whole, row.columns["entry_point"]), "Windows line ends": windows(whole)}
    yield from ((f"body, {name}", text, prompt + body) for name, text in bodies.items())
    yield from ((f"function, {name}", text, f"{prompt}\n{whole}") for name, text in wholes.items())


def humaneval_program(row, text):
    entry = row.columns["entry_point"]
    return complete(row.columns["prompt"], extract(text, entry), entry)


def undressed_humaneval(rows):
    """Dresses that come out as another program."""
    return [
        (row.id, dress)
        for row in rows
        for dress, text, wanted in humaneval_dresses(row)
        if not programs.compiles(humaneval_program(row, text)) or tree(humaneval_program(row, text)) != tree(wanted)
    ]


def undressed_mbpp(rows):
    found = []
    for row in rows:
        texts = {
            **dressed(WHOLE_DRESS, row.reference, row.columns["entry"]),
            "Windows line ends": windows(row.reference),
        }
        for dress, text in texts.items():
            program = mbpp.program(row, extract(text, row.columns["entry"]))
            if not programs.compiles(program) or tree(program) != tree(mbpp.program(row, row.reference)):
                found.append((row.id, dress))
    return found


def failing(task, said, rows=None):
    """The ids of the `rows` for which what is `said` is not scored as correct, each run in the sandbox."""
    rows = task.rows if rows is None else rows
    with ThreadPoolExecutor(2) as pool:
        scores = pool.map(task.score, rows, map(said, rows))
        return {row.id for row, score in zip(rows, scores, strict=True) if not score.correct}


@pytest.fixture
def ran(monkeypatch):
    """What would be run, as (program, checks, mode); all of it passes."""
    calls = []

    def run_program(*arguments):
        calls.append(arguments)
        return sandbox.Verdict(True, "passed", 0.5, "")

    monkeypatch.setattr(programs, "run_program", run_program)
    monkeypatch.setattr(programs, "check", lambda mode: None)
    return calls


# ---- prompts


def test_humaneval_is_asked_as_sdar_asks_it():
    row = load_task("humaneval", {"path": own("humaneval")}).rows[3]
    assert row.id == "Ours/3"
    assert row.prompt == (
        "Read the following function signature and docstring, and fully implement the function described. "
        "Your response should only contain the code for this function.\n"
        'def is_leap(year: int) -> bool:\n    """ Whether a year of the Gregorian calendar has 366 days. """\n'
    )


@pytest.mark.parametrize(("config", "name"), [("full", "mbpp"), ("sanitized", "mbpp-sanitized")])
def test_mbpp_is_asked_as_sdar_asks_it(config, name):
    row = load_task("mbpp", {"path": own(name), "config": config}).rows[1]
    assert row.id == "12"
    assert row.prompt == (
        "You are an expert Python programmer, and here is your task:\n"
        "Write a function to swap the keys and values of a dictionary.\n"
        "Your code should pass these tests:\n\n"
        "assert swapped({'a': 1}) == {1: 'a'}\nassert swapped({}) == {}\nassert swapped({1: 2, 3: 4}) == {2: 1, 4: 3}\n"
        " You should submit your final solution in the following format: ```python\n\n```"
    )


def test_mbpp_examples_are_the_papers_and_stand_in_its_layout(tmp_path):
    prompts = tmp_path / "prompt.jsonl"
    example = {"test_setup_code": "", "challenge_test_list": []}
    examples = [
        {"task_id": i, "text": f"Task {i}.", "code": f"x = {i}", "test_list": [f"assert x == {i}"]} for i in range(1, 5)
    ]
    prompts.write_text("".join(json.dumps({**e, **example}) + "\n" for e in examples))
    options = {"path": own("mbpp"), "shots_path": str(prompts)}
    task = load_task("mbpp", {**options, "shots": 2})
    task_line = "You are an expert Python programmer, and here is your task:"
    assert task.rows[2].prompt == (
        f"{task_line} Task 2. Your code should pass these tests:\n\nassert x == 2\n[BEGIN]\nx = 2\n[DONE]\n\n"
        f"{task_line} Task 3. Your code should pass these tests:\n\nassert x == 3\n[BEGIN]\nx = 3\n[DONE]\n\n"
        f"{task_line} Write a python function to find the digit sum of a whole number. "
        "Your code should pass these tests:\n\n"
        "assert digit_sum(0) == 0\nassert digit_sum(1999) == 28\nassert digit_sum(-12) == 3\n[BEGIN]\n"
    )
    with pytest.raises(ValueError, match=r"^shots: 4; from 0 to 3, the examples that there are, expected"):
        load_task("mbpp", {**options, "shots": 4})


@pytest.mark.parametrize(
    ("config", "sizes"),
    [
        ("full", {"test": 500, "train": 374, "prompt": 10, ALL: 974}),
        ("sanitized", {"test": 257, "prompt": 7, ALL: 427}),
    ],
)
def test_a_file_of_all_of_mbpp_gives_the_rows_of_the_split_asked_for(config, sizes):
    options = {"path": real(f"mbpp/{config}.jsonl"), "config": config}
    for split, size in sizes.items():
        rows = load_task("mbpp", {**options, "split": split}).rows
        assert len(rows) == size
        assert all(row.columns["entry"] for row in rows)


# ---- code out of a text


def test_our_own_programs_come_out_of_every_dress_as_they_went_in():
    assert undressed_humaneval(load_task("humaneval", {"path": own("humaneval")}).rows) == []
    assert undressed_mbpp(load_task("mbpp", {"path": own("mbpp")}).rows) == []


def test_the_last_block_that_defines_the_function_counts_else_the_first():
    text = "```\ndef f(): return 1\n```\n```\ndef f(): return 2\n```\n```\nprint(f())\n```"
    assert extract(text, "f") == "def f(): return 2"
    assert extract(text, "g") == "def f(): return 1"
    assert extract("```\nf = lambda: 3\n```", "f") == "f = lambda: 3"


def test_a_function_in_an_indented_block_is_moved_to_the_margin():
    assert extract("1. Do:\n   ```python\n   def f():\n       return 1\n   ```", "f") == "def f():\n    return 1"
    assert extract(" def f():\n    return 1\n\nf()\n", "f") == "def f():\n    return 1\n\nf()"


def test_a_body_loses_no_indent_whichever_it_came_with():
    prompt = 'def f(n):\n    """Double of n."""\n'
    for body in (
        "    n = n + n\n    return n",
        "n = n + n\n    return n",
        "n = n + n\nreturn n",
        "\tn += n\n\treturn n",
    ):
        space: dict = {}
        exec(complete(prompt, body, "f"), space)
        assert space["f"](4) == 8


DOCUMENTED = """def f(n):
    '''Double of n.

    ```python
    f(2)
    ```
    '''
    return n + n"""


@pytest.mark.parametrize("form", ["{}", "```python\n{}\n```", "So:\n```\n{}\n```\nTry:\n```\nprint(f(1))\n```"])
def test_a_fence_in_a_docstring_does_not_end_the_program(form):
    assert extract(form.replace("{}", DOCUMENTED), "f") == DOCUMENTED
    body = DOCUMENTED.partition("\n")[2]
    if "f(1)" not in form:
        assert extract(form.replace("{}", body), "f") == body


@pytest.mark.parametrize("form", ["{}", "```python\n{}\n```", "{}\n\nThis doubles n."])
def test_a_body_with_a_helper_of_the_functions_own_name_is_a_body(form):
    body = "    def f(x):\n        return 2 * x\n    return f(n)"
    for said in (body, dedent(body)):
        space: dict = {}
        exec(complete("def f(n):\n    'Double of n.'\n", extract(form.replace("{}", said), "f"), "f"), space)
        assert space["f"](4) == 8


@pytest.mark.parametrize("future", ["annotations", "(annotations,\n    division)", "annotations; import sys"])
def test_imports_from_the_future_come_first(future):
    code = f'"""Of trees."""\nfrom __future__ import {future}\nimport ast\n\ndef f(n: Later):\n    return n + n'
    space: dict = {}
    exec(complete("import math\n\ndef f(n):\n    'Double of n.'\n", extract(code, "f"), "f"), space)
    assert space["f"](4) == 8
    row = load_task("mbpp", {"path": own("mbpp-sanitized"), "config": "sanitized"}).rows[4]
    assert programs.compiles(mbpp.program(row, code))


@pytest.mark.parametrize(
    "piece",
    [
        "~",
        "`",
        "~~~ ",
        "```",
        "```\n",
        "x ```py\n",
        "'\n",
        "def f(\n",
        "def f():\n",
        "    \n",
        " ",
        "(",
        "-",
        "</s> ",
        "<|",
        "try:\n x\n",
    ],
)
def test_a_very_long_text_is_read_in_time(piece):
    text = piece * (100_000 // len(piece))
    complete("def f(n):\n", extract(text, "f"), "f")
    extract(f"def f():\n    return 1\n{text}", "f")


def test_a_test_too_deep_for_python_calls_nothing():
    assert programs.called(["-" * 100_000 + "1", "assert f(1)", "f" + "(1)" * 50_000, "a" + ".a" * 50_000]) == {"f"}


def test_imports_and_helpers_that_the_model_wrote_are_kept():
    prompt = 'def f(n):\n    """Root of n."""\n'
    code = "import math\n\ndef helper(n):\n    return math.sqrt(n)\n\ndef f(n):\n    return helper(n)"
    space: dict = {}
    exec(complete(prompt, extract(f"```python\n{code}\n```", "f"), "f"), space)
    assert space["f"](9) == 3


@pytest.mark.parametrize("text", ["", "\n\n", "```python\n```", "<|im_end|>", "[BEGIN]\n[DONE]"])
@pytest.mark.parametrize("task", ["humaneval", "mbpp"])
def test_a_text_without_code_is_wrong_and_runs_nothing(task, text, ran):
    task = load_task(task, {"path": own(task)})
    score = task.score(task.rows[0], text)
    assert (score.correct, score.answer) == (False, None)
    assert score.notes == {"sandbox": "bubblewrap", "reason": "no code in the text"}
    assert ran == []


# ---- programs and verdicts


def test_a_humaneval_program_is_the_prompt_the_code_and_the_call_of_its_tests(ran):
    task = load_task("humaneval", {"path": own("humaneval"), "sandbox": "process"})
    row = task.rows[3]
    score = task.score(row, row.reference)
    assert ran == [(row.columns["prompt"] + row.reference, f"{row.columns['test']}\ncheck(is_leap)\n", "process")]
    assert (score.correct, score.answer) == (True, row.reference.rstrip())
    assert score.notes == {"sandbox": "process", "reason": "passed", "seconds": 0.5}


def test_an_mbpp_program_is_imports_code_setup_and_tests_in_this_order(ran):
    full, sanitized = (
        load_task("mbpp", {"path": own(name), "config": config})
        for name, config in (("mbpp", "full"), ("mbpp-sanitized", "sanitized"))
    )
    tree_row, circle_row = full.rows[3], sanitized.rows[4]
    full.score(tree_row, tree_row.reference)
    sanitized.score(circle_row, "def circle_area(r): return math.pi * r ** 2")
    (program, checks, _), (circle, _, _) = ran
    assert program == f"\n{tree_row.reference}\n"
    assert checks.startswith("tree = Node(Node(None, Node()), Node())\nassert depth(tree) == 3\n")
    assert circle == "import math\ndef circle_area(r): return math.pi * r ** 2\n"


@pytest.mark.parametrize("task", [humaneval, mbpp])
def test_the_canaries_have_the_verdicts_that_they_say(task, bubblewrap):
    assert {canary.correct for canary in task.CANARIES} == {True, False}
    for canary in task.CANARIES:
        assert task.score(canary.row, canary.text).correct == canary.correct


def test_our_own_references_pass_and_stubs_do_not(bubblewrap):
    for name, options in (
        ("humaneval", {}),
        ("mbpp", {}),
        ("mbpp", {"path": own("mbpp-sanitized"), "config": "sanitized"}),
    ):
        task = load_task(name, {"path": own(name), **options})
        assert failing(task, reference) <= EXCEPTIONS.keys()
        assert failing(task, stub) == {row.id for row in task.rows}


def reference(row):
    return row.reference


def stub(row):
    entry = row.columns.get("entry") or row.columns["entry_point"]
    return f"def {entry}(*args, **kwargs):\n    return None"


# ---- the real data sets


def test_all_164_humaneval_solutions_come_out_of_every_dress():
    rows = load_task("humaneval", {"path": real("humaneval/test.jsonl")}).rows
    assert len(rows) == 164
    assert undressed_humaneval(rows) == []


@pytest.mark.parametrize(("config", "size"), [("full", 974), ("sanitized", 427)])
def test_all_mbpp_references_come_out_of_every_dress(config, size):
    rows = load_task("mbpp", {"path": real(f"mbpp/{config}.jsonl"), "config": config, "split": ALL}).rows
    assert len(rows) == size
    assert undressed_mbpp(rows) == []


def test_all_164_humaneval_solutions_pass_as_bodies_and_as_functions(bubblewrap):
    task = load_task("humaneval", {"path": real("humaneval/test.jsonl")})
    assert failing(task, reference) <= EXCEPTIONS.keys()
    assert failing(task, whole_humaneval) <= EXCEPTIONS.keys()


@pytest.mark.parametrize("config", ["full", "sanitized"])
def test_all_mbpp_references_pass(config, bubblewrap):
    task = load_task("mbpp", {"path": real(f"mbpp/{config}.jsonl"), "config": config, "split": ALL})
    assert failing(task, reference) <= EXCEPTIONS.keys()


@pytest.mark.parametrize(("name", "path"), [("humaneval", "humaneval/test.jsonl"), ("mbpp", "mbpp/full-test.jsonl")])
def test_a_sample_of_references_passes_in_process_mode_too(name, path):
    try:
        sandbox.check("process")
    except ValueError as error:
        pytest.skip(str(error))
    task = load_task(name, {"path": real(path), "sandbox": "process"})
    assert failing(task, reference, task.rows[::12]) <= EXCEPTIONS.keys()


def test_stubs_that_return_none_pass_nothing(bubblewrap):
    """A sample without MBPP 77 and 221, whose tests want just that (scoring_facts.md §4)."""
    for name, path in (("humaneval", "humaneval/test.jsonl"), ("mbpp", "mbpp/full-test.jsonl")):
        task = load_task(name, {"path": real(path)})
        rows = task.rows[::8]
        assert not {"77", "221"} & {row.id for row in rows}
        assert failing(task, stub, rows) == {row.id for row in rows}
