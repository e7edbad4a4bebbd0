"""A Python program out of a model's text: fences, delimiters, special tokens and prose off, a body into its function.

Which block counts: the last that defines the entry point, else the first, else the text (scoring_facts.md §6); of
several readings, the first that compiles.
"""

import ast
import re
import warnings
from functools import lru_cache
from itertools import islice
from textwrap import dedent, indent
from typing import Literal

from workers.sandbox import check, run_program
from workers.tasks import Score

Sandbox = Literal["bubblewrap", "process"]

# Where a chat turn ends; whatever follows is the model talking to itself. Other special tokens are only taken out.
_END = re.compile(r"<\|(?:im_end|endoftext|end_of_text|eot_id|eot|end|endofassistant)\|>|</s>\s*\Z")
_SPECIAL = re.compile(r"<\|im_start\|>(?:assistant)?|<\|[^|<>\s]{1,40}\|>|\A\s*<s>")
_BODY = re.compile(r"(?:[ \t]*\n)*(?: {4}|\t)[ \t]*\S")
_OPEN = re.compile(r"(?:```|~~~)[^\n`~]*\n")
_CLOSE = re.compile(r"^[ \t]*(?:```|~~~)|```[ \t]*$|\Z", re.MULTILINE)
_START = re.compile(r"^(?:(?:(?:async[ \t]+)?def|class|import|from)[ \t]|@\w|[A-Za-z_]\w*[ \t]*=)", re.MULTILINE)
_FUTURE = re.compile(r"^from[ \t]+__future__[ \t]+import[ \t]*(?:\([^)]*\))?[^\n]*(?:\n|\Z)", re.MULTILINE)
_HEAD = "def _():\n    ''\n"
MOST = 8  # closes of a fence, and starts of a program in prose, that are tried
MOST_CUTS = 20  # of what follows a program


def extract(text: str, entry: str) -> str:
    """The code in `text`, which should define the function `entry` or be its body."""
    text = _undelimited(_plain(text))
    fence = _OPEN.search(text)
    before = text[: fence.start()] if fence else text
    blocks = _blocks(text, entry)
    found = [block for block in reversed(blocks) if defines(block, entry)] or blocks[:1]
    if not found or (not defines(found[0], entry) and (defines(before, entry) or _BODY.match(before))):
        found = [before, text]  # up to a fence that closes what none has opened; all of it, fences in a docstring too
    found = [_outdented(code, entry) for code in found]
    sound = next((code for code in found if _is_sound(code, entry)), "")
    return sound or next(filter(None, (_cut(code, entry) for code in found)), found[0])


def complete(prompt: str, code: str, entry: str) -> str:
    """`prompt`, which ends in the function `entry` without a body, and `code`: all of the function or its body."""
    first, _, rest = code.partition("\n")
    candidates = [
        f"{prompt}    {first.lstrip()}\n{rest}\n",  # the first line's indent was lost
        f"{prompt}{indent(dedent(code), '    ')}\n",
    ]
    if code.startswith((" ", "\t")):
        candidates.insert(0, f"{prompt}{code}\n")
    if not code.strip() or defines(code, entry):  # a body may define a helper of the same name
        candidates.insert(0, f"{prompt}\n{code}")
    candidates = [hoisted(program) for program in candidates]
    return next((program for program in candidates if compiles(program)), candidates[0])


def hoisted(program: str) -> str:
    """`program` with its imports from __future__ first, where Python wants them."""
    return "".join(_FUTURE.findall(program)) + _FUTURE.sub("", program)


def judge(code: str, program: str, checks: str, sandbox: Sandbox) -> Score:
    """Whether `program`, made of the `code` that was found in a text, passes its `checks`."""
    if not code:
        return Score(False, None, notes={"sandbox": sandbox, "reason": "no code in the text"})
    check(sandbox)  # once a process; where it cannot work, what this raises says what to do
    verdict = run_program(program, checks, sandbox)
    return Score(verdict.passed, code, notes={"sandbox": sandbox, "reason": verdict.reason, "seconds": verdict.seconds})


def defines(code: str, entry: str) -> bool:
    """Whether `code` has a line at its margin that defines `entry`, as a function or by assignment."""
    if not entry:
        return False
    name = re.escape(entry)
    definition = rf"(?:^|\A\s+)(?:(?:async[ \t]+)?def|class)[ \t]+{name}\b|^{name}[ \t]*(?::|=(?!=))"
    return bool(re.search(definition, dedent(code), re.MULTILINE))


def called(tests: list[str]) -> set[str]:
    """The names that the tests call; none of a test that is not Python."""
    names = set()
    for test in tests:
        try:
            nodes = list(ast.walk(ast.parse(test)))
        except (SyntaxError, ValueError, RecursionError, MemoryError):
            continue
        names |= {node.func.id for node in nodes if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)}
    return names


def compiles(program: str) -> bool:
    return _fault(program) is None


@lru_cache(32)  # readings of one text share programs
def _fault(program: str) -> int | None:
    """The line where Python finds a fault in `program`; None if it finds none."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compile(program, "<program>", "exec", dont_inherit=True)
    except SyntaxError as error:
        return error.lineno or 1
    except (ValueError, RecursionError, MemoryError, OverflowError):
        return 1
    return None


def _blocks(text: str, entry: str) -> list[str]:
    """The fenced blocks. One closes at the last fence up to which it is a program: a docstring may hold fences too."""
    blocks: list[str] = []
    at = 0
    while fence := _OPEN.search(text, at):
        closes = islice(_CLOSE.finditer(text, fence.end()), MOST if len(blocks) < 99 else 1)
        ends = [(close.start(), close.end()) for close in closes]
        sound = (end for end in reversed(ends) if _is_sound(text[fence.end() : end[0]], entry))
        end, at = next(sound, ends[0])
        blocks.append(text[fence.end() : end])
    return [block for block in blocks if block.strip()]


def _is_sound(code: str, entry: str) -> bool:
    """Whether `code` compiles, as a program or as a body."""
    return bool(code.strip()) and compiles(complete(_HEAD, _outdented(code, entry), entry))


def _cut(code: str, entry: str) -> str:
    """`code` without the prose around it: a program that defines `entry`, else a body, else nothing."""
    for start in islice(_START.finditer(code), MOST):
        run = _run(code[start.start() :])
        if defines(run, entry):
            return run
    first, _, rest = code.partition("\n")
    bodies = (f"    {first.lstrip()}\n{rest}", indent(dedent(code), "    "))
    return max((_run(body, _HEAD) for body in bodies), key=lambda run: run.count("\n"))


def _run(code: str, head: str = "") -> str:
    """The longest run of lines from the start of `code` that compiles after `head`, by where Python finds faults."""
    lines = code.split("\n")
    for _ in range(MOST_CUTS):
        fault = _fault(head + "\n".join(lines))
        if fault is None:
            return "\n".join(lines).rstrip()
        lines = lines[: max(0, min(fault - 1 - head.count("\n"), len(lines) - 1))]
    return ""


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
    flat = dedent(code).lstrip() if code.startswith((" ", "\t")) else code
    return flat if flat == code or not entry or (defines(flat, entry) and compiles(flat)) else code
