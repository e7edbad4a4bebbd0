"""Answers in a text: the last box, the final number, and lm-eval's two readings of GSM8K's.

complaints.md §8 has the values by which lm-eval's rules and ours differ.
"""

import re
from fractions import Fraction

# Thousands as LaTeX sets them apart: 9{,}500, 10,\!080, 1\,000\,000.
_GAP = r"(?:\{,\}(?:\\!)?|,\\!\s?|\\[!,;: ]|~)"
_GROUPED = re.compile(rf"(?<![\d.,])\d{{1,3}}(?:{_GAP}\d{{3}})+(?!\d)")
# \frac{1}{2}, \frac12, 1\frac{1}{2}, -\frac{1}{2}. Its numbers are bounded: what is longer is no answer.
_FRACTION = re.compile(
    r"((?<![\w)\]}])-)?(?:(?<![\d.,/^_])(\d{1,9}) ?)?\\[dt]?frac ?(?:\{(-?\d{1,15})\}|(\d)) ?(?:\{(\d{1,15})\}|(\d))"
)
# A minus is one only where nothing stands before it to be subtracted from. Indian grouping (1,00,000) is a number too.
_NUMBER = re.compile(
    r"(?:(?<![\w)\]}])-)?\$?(?:(?:\d{1,3}(?:,\d{2,3}){0,9},\d{3}(?!\d)|\d+)(?:\.\d+|/\d+)?|\.\d+)",
)
_MARKED = re.compile(
    rf"####[ \t*$\\({{=`]*({_NUMBER.pattern})(?!\d|,\d|[.):][ \t]+[^\W\d])"
)  # no heading: `#### 1. First`
# Where there is a box too, the number ends its line, but for a unit: `#### 1 - Eggs` and `#### 2 people:` are headings.
_MARKED_LINE = re.compile(_MARKED.pattern + r"(?:[*$)}\]%`]{0,4}[ \t]+[^\W\d]\w*)?[^\w\n:]*$", re.MULTILINE)
_TOKENS = re.compile(r"\\[{}]|(?P<box>\\(?:boxed|fbox)\s*\{)|[{}]")


def last_box(text: str) -> str | None:
    """What the last `\\boxed{}` or `\\fbox{}` with balanced braces holds."""
    open_braces: list[int | None] = []
    last: tuple[int, int] | None = None
    for token in _TOKENS.finditer(text):
        if token["box"]:
            open_braces.append(token.end())
        elif token[0] == "{":
            open_braces.append(None)
        elif token[0] == "}" and open_braces:
            start = open_braces.pop()
            if start is not None and (last is None or start > last[0]):
                last = start, token.start()
    return text[slice(*last)].strip() if last else None


def final_number(text: str) -> str | None:
    """The answer a text gives: right after the first `####`, else in the last box, else its last number."""
    plain = _plain(text)
    box = last_box(plain)
    if marked := (_MARKED_LINE if box else _MARKED).search(plain):
        return _digits(marked[1])
    numbers = (_in_box(box) if box else []) or find_numbers(plain)
    return numbers[-1] if numbers else None


def find_numbers(text: str) -> list[str]:
    """The numbers in a text, without currency signs and thousands separators (also LaTeX's)."""
    return [_digits(match[0]) for match in _NUMBER.finditer(_plain(text))]


def _in_box(box: str) -> list[str]:
    """A box's numbers, those of a unit apart; of an equation the side that is one number, `18 = 9 \\cdot 2`."""
    box = re.sub(r"(?<=\d) (?=\d{3}(?!\d))", "", box)  # 1 000
    bare = re.sub(r"\\(?:text|mbox|mathrm)\{[^{}]*\}|\^\{?\d", " ", box)
    sides = [find_numbers(side) for side in reversed(bare.split("="))]
    return next((side for side in sides if len(side) == 1), []) or find_numbers(bare) or find_numbers(box)


def join_thousands(text: str) -> str:
    """`text` without the gaps that LaTeX puts between thousands."""
    return _GROUPED.sub(lambda match: re.sub(_GAP, "", match[0]), text)


def same_number(a: str, b: str) -> bool:
    """Whether two numbers, decimals or fractions, are equal exactly."""
    try:
        return Fraction(a) == Fraction(b)
    except (ValueError, ZeroDivisionError):  # no number, one of thousands of digits, or n/0
        return False


def lm_eval_answers(text: str) -> tuple[str | None, str | None]:
    """What lm-eval's gsm8k (3.0) reads, strictly and flexibly: with its faults, to be compared with its scores."""
    strict = re.search(r"#### (-?[0-9.,]+)", text)
    flexible = re.findall(r"-?[$0-9.,]{2,}|-?[0-9]+", text)
    return lm_eval_plain(strict[1]) if strict else None, lm_eval_plain(flexible[-1]) if flexible else None


def lm_eval_plain(answer: str) -> str:
    """An answer, or a reference, as lm-eval compares it: without commas, dollars, working and one final stop."""
    answer = answer.replace(",", "").replace("$", "").rpartition("#### ")[2]
    return answer.removesuffix(".").lower()


def _plain(text: str) -> str:
    text = text.replace("\\$", "$").replace("\N{MINUS SIGN}", "-").replace("\\text{-}", "-")
    return _FRACTION.sub(_fraction, join_thousands(text))


def _fraction(match: re.Match) -> str:
    bottom = match[5] or match[6]
    return f" {match[1] or ''}{int(match[2] or 0) * int(bottom) + int(match[3] or match[4])}/{bottom} "


def _digits(number: str) -> str:
    return number.replace(",", "").replace("$", "")
