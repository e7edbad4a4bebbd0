"""Numbers as answers: find one in a text, compare two as decimals."""

import re
from decimal import Decimal, InvalidOperation

_NUMBER = re.compile(r"-?\$?\d[\d,]*(?:\.\d+)?|-?\$?\.\d+")


def final_number(text: str) -> str | None:
    """The answer a text gives: after the first `####`, else in the last `\\boxed{}`, else its last number."""
    marked = re.search(r"####([^\n]*)", text)
    if marked and (numbers := find_numbers(marked.group(1))):
        return numbers[0]
    boxes = re.findall(r"\\boxed\{((?:[^{}]|\{[^{}]*\})*)\}", text)
    numbers = find_numbers(boxes[-1]) if boxes else find_numbers(text)
    return numbers[-1] if numbers else None


def find_numbers(text: str) -> list[str]:
    """The numbers in a text, without currency signs and thousands separators (also LaTeX's `{,}`)."""
    plain = text.replace("{,}", ",").replace("\\$", "$")
    return [match.replace(",", "").replace("$", "") for match in _NUMBER.findall(plain)]


def same_number(a: str, b: str) -> bool:
    try:
        return Decimal(a) == Decimal(b)
    except InvalidOperation:
        return False
