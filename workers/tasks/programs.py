"""A Python program out of a model's text: fences, delimiters and special tokens off, a bare body into its function.

Which block counts: the last that defines the entry point, else the first, else the text (scoring_facts.md §6).
"""

import ast
import re
import warnings
from textwrap import dedent, indent
from typing import Literal

from workers.sandbox import check, run_program
from workers.tasks import Score

Sandbox = Literal["bubblewrap", "process"]

# Where a chat turn ends; whatever follows is the model talking to itself. Other special tokens are only taken out.
_END = re.compile(r"<\|(?:im_end|endoftext|end_of_text|eot_id|eot|end|endofassistant)\|>|</s>\s*\Z")
_SPECIAL = re.compile(r"<\|im_start\|>(?:assistant)?|<\|[^|<>\s]{1,40}\|>|\A\s*<s>")
_BODY = re.compile(r"(?:[ \t]*\n)*(?: {4}|\t)[ \t]*\S")
_BLOCK = re.compile(r"(?:```|~~~)[^\n`]*\n(.*?)(?:(?:^|\n)[ \t]*(?:```|~~~)|```[ \t]*(?=\n|\Z)|\Z)", re.DOTALL)


def extract(text: str, entry: str) -> str:
    """The code in `text`, which should define the function `entry` or be its body."""
    text = _undelimited(_plain(text))
    fence = _BLOCK.search(text)
    before = text[: fence.start()] if fence else text
    blocks = [match[1] for match in _BLOCK.finditer(text) if match[1].strip()]
    defining = [block for block in blocks if defines(block, entry)]
    if not blocks or (not defining and (defines(before, entry) or _BODY.match(before))):
        return _outdented(before, entry)  # all of it, or up to a fence that closes what none has opened
    return _outdented((defining or blocks[:1])[-1], entry)


def complete(prompt: str, code: str, entry: str) -> str:
    """`prompt`, which ends in the function `entry` without a body, and `code`: all of the function or its body."""
    if not code.strip() or defines(code, entry):
        return f"{prompt}\n{code}"
    first, _, rest = code.partition("\n")
    candidates = [
        f"{prompt}{code}\n",
        f"{prompt}    {first.lstrip()}\n{rest}\n",  # the first line's indent was lost
        f"{prompt}{indent(dedent(code), '    ')}\n",
    ]
    if not code.startswith((" ", "\t")):  # as it is it would stand outside the function
        del candidates[0]
    return next((program for program in candidates if compiles(program)), candidates[-1])


def judge(code: str, program: str, checks: str, sandbox: Sandbox) -> Score:
    """Whether `program`, made of the `code` that was found in a text, passes its `checks`."""
    if not code:
        return Score(False, None, notes={"sandbox": sandbox, "reason": "no code in the text"})
    check(sandbox)  # once a process; where it cannot work, what this raises says what to do
    verdict = run_program(program, checks, sandbox)
    return Score(verdict.passed, code, notes={"sandbox": sandbox, "reason": verdict.reason, "seconds": verdict.seconds})


def defines(code: str, entry: str) -> bool:
    """Whether `code` has a line that defines `entry`, as a function or by assignment."""
    if not entry:
        return False
    name = re.escape(entry)
    return bool(re.search(rf"^[ \t]*(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*[=:]", code, re.MULTILINE))


def called(tests: list[str]) -> set[str]:
    """The names that the tests call; none of a test that is not Python."""
    names = set()
    for test in tests:
        try:
            nodes = list(ast.walk(ast.parse(test)))
        except (SyntaxError, ValueError):
            continue
        names |= {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return names


def compiles(program: str) -> bool:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(program, "<program>", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError, MemoryError, OverflowError):
        return False
    return True


def _plain(text: str) -> str:
    text = text.replace("\r\n", "\n").replace("\r", "\n")
    if (end := _END.search(text)) and text[: end.start()].strip():
        text = text[: end.start()]
    return _SPECIAL.sub("", text)


def _undelimited(text: str) -> str:
    """What stands between MBPP's [BEGIN] and [DONE]; either may be missing."""
    begin, done = text.find("[BEGIN]"), text.find("[DONE]")
    if begin < 0 or 0 <= done < begin:  # the prompt ended in [BEGIN]; what follows [DONE] is a run-on
        return text[:done] if done >= 0 else text
    return text[begin + len("[BEGIN]") : done if done >= 0 else None]


def _outdented(code: str, entry: str) -> str:
    """A whole function from the margin on; a body keeps its indent."""
    code = re.sub(r"\A(?:[ \t]*\n)+", "", code).rstrip()
    if code.startswith((" ", "\t")) and (not entry or defines(code, entry)):
        code = dedent(code).lstrip()
    return code
