"""Whether two LaTeX answers say the same: math-verify, with guards where its verdict is known to be wrong.

    python -c "from workers.tasks.maths import same; print(same('\\frac12', '0.5'))"

scoring_facts.md §2 and complaints.md §9 have the pairs. No time limit is set: math-verify's own needs the main
thread, and whoever scores has one from outside.
"""

import logging
import re
from itertools import accumulate

import sympy
from math_verify import parse, verify
from sympy.core.relational import Relational

from workers.tasks.answers import join_thousands

logging.getLogger("math_verify").setLevel(logging.ERROR)  # it warns whenever it runs without a limit

_TEXT = r"\\(?:text(?:bf|it|rm|normal)?|mbox|mathrm|mathbf|operatorname)"
_WRAPPED = re.compile(rf"{_TEXT}\s*\{{([^{{}}]*)\}}")
_ENVIRONMENT = re.compile(r"\\(?:begin|end)\{(?:align(?:ed)?|gather(?:ed)?|equation)\*?\}")
_BASE = re.compile(r"([\dA-Z]+)_\{*(\d+|[a-z]+)\}*")
_BASES = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_CHOICE = re.compile(r"[\s(]*([A-Za-z])[).:]")  # (A) 5, A. foo
_BRACKETED = re.compile(r"([({]*)([^(){}\[\],]*)([)}]*)")
_MIXED = re.compile(r"(?<![\d.])(\d{1,9}) {1,9}(\d{1,9})/(\d{1,9})(?!\d)")
_SPELLINGS = {
    "\\displaystyle": "",
    "\\left": "",
    "\\right": "",
    "^\\degree": "^\\circ",
    "^{\\degree}": "^\\circ",
    "\\degree": "^\\circ",
    "\\varnothing": "\\emptyset",
    "\\mathrm{i}": " i",
}
_UNIT = re.compile(r"(.*[\d)}])\s*?((?:\s*(?<![A-Za-z])[A-Za-z]{2,}\.?(?:\^\{?[23]\}?)?)+)")
_NO_UNIT = re.compile(
    r"\b(?:pi|sqrt|or|and|to|in|union|mod|sin|cos|tan|log|ln|exp|dozen|hundred|thousand|(?:m|b|tr)illion)\b"
)
LONGEST = 200  # characters; the longest reference has 53
DEEPEST = 8  # brackets in brackets; a fraction fourteen deep takes 3 s to parse, thirty deep for ever
# 9^{9^9}, (a+b+c)^{50}, x^{2000}: sympy would work them out.
_TOWER = re.compile(r"\d\^[-(]*\d+\^[-(]*\d|\^[-(]*\d{5}|[A-Za-z]\^[-(]*\d{3}|[)\]]\^[-(]*(?:[2-9]\d|\d{3})|\d{5}!|!!")


def same(gold: str, given: str) -> bool:
    """Whether the answer `given` is the reference answer `gold`. The order of the two matters."""
    gold, given = _clean(gold), _clean(given)
    if _compact(gold) == _compact(given):
        return True
    if _is_words(gold):
        return _words(gold) in (_words(given), _choice(given))
    if _is_heavy(gold) or _is_heavy(given):
        return False
    given = _without_unit(gold, given)
    there, here = _based(gold), _based(given)
    if here or (there and there[0] == _compact(given)):  # a number without a base is in that which the question names
        return not here or here == there
    if _order(gold) * _order(given) < 0:
        return False
    try:
        return verified(read(gold), read(given))
    except Exception:  # sympy has many kinds for what is no mathematics; the references are known to raise none
        return False


# ---- guards that read the text


def _clean(text: str) -> str:
    text = _ENVIRONMENT.sub("", text)
    for spelling, other in _SPELLINGS.items():
        text = text.replace(spelling, other)
    text = _MIXED.sub(r"\1\\frac{\2}{\3}", join_thousands(text).lstrip(" \n\t$&").rstrip(" \n\t$&.,;\\"))
    bracketed = _BRACKETED.fullmatch(text)
    return bracketed[2] if bracketed and len(bracketed[1]) == len(bracketed[3]) else text


def _compact(text: str) -> str:
    return re.sub(r"\s|\\[,!;: ]", "", text).replace("\\dfrac", "\\frac").replace("\\tfrac", "\\frac")


def _is_words(text: str) -> bool:
    """Whether an answer is a word or a sentence: all of it in \\text, and not a number with a unit."""
    wrapped = _WRAPPED.fullmatch(text)
    return bool(wrapped and re.match(r"[\s(]*[^\W\d]", wrapped[1]))


def _words(text: str) -> str:
    return re.sub(r"[\s().,'$\\]+", " ", _WRAPPED.sub(r"\1", text)).strip().casefold()


def _choice(text: str) -> str | None:
    """The letter that stands before a choice, and may be all of the reference."""
    found = _CHOICE.match(_WRAPPED.sub(r"\1", text))
    return found[1].casefold() if found else None


def _without_unit(gold: str, given: str) -> str:
    """`1234 dollars` is 1234 where the reference has no letters that `dollars` might multiply."""
    found = _UNIT.fullmatch(given)
    letters = re.search(r"[A-Za-z]", re.sub(r"\\[A-Za-z]+", "", _WRAPPED.sub("", gold)))
    return found[1] if found and not letters and not _NO_UNIT.search(found[2].lower()) else given


def _based(text: str) -> tuple[str, int] | None:
    """The digits and the base of a number with a subscript; math-verify drops those."""
    found = _BASE.fullmatch(_compact(_WRAPPED.sub(r"\1", text)))
    if not found or not (found[2].isdecimal() or found[2] in _BASES):
        return None
    return found[1], int(found[2]) if found[2].isdecimal() else _BASES.index(found[2])


def _is_heavy(text: str) -> bool:
    """Whether working an answer out, or only parsing it, would take more than seconds: then it is compared as text."""
    if len(text) > LONGEST:
        return True
    depth = max(accumulate((char in "([{") - (char in ")]}") for char in text), default=0)
    return depth > DEEPEST or bool(_TOWER.search(re.sub(r"[{}]", "", _compact(text))))


def _order(text: str) -> int:
    """1 for a pair, a tuple or an interval, -1 for a list or a set, whose order says nothing, else 0."""
    text = re.split(r"=|\\in(?![a-z])", text)[-1].strip() if text.count("=") < 2 else text
    depths = list(accumulate((char in "([{") - (char in ")]}") for char in text))
    commas = {depth for char, depth in zip(text, depths, strict=True) if char == ","}
    if 0 in commas:
        return -1
    if 1 not in commas or 0 in depths[text.startswith("\\") : -1]:  # no list, or no bracket around all of it
        return 0
    return -1 if text.startswith("\\{") else 1


# ---- guards that read what math-verify makes of it


def read(text: str) -> list:
    """math-verify's reading of an answer, decimals made exact: it would round them to six places."""
    return [_exact(part) for part in parse(f"\\boxed{{{text}}}", parsing_timeout=None)]


def _exact(part):
    if isinstance(part, sympy.Eq) and isinstance(part.rhs, sympy.Set):  # x \in [0, 1]
        part = part.rhs
    if isinstance(part, sympy.FiniteSet) and part.args and all(isinstance(arg, Relational) for arg in part.args):
        part = _union(part)
    if isinstance(part, sympy.Basic | sympy.MatrixBase):
        return part.xreplace({number: sympy.Rational(str(number)) for number in part.atoms(sympy.Float)})
    return part


def _union(relations):
    """`x \\le 2 or x \\ge 5` as the set that it describes; equations, and those of several unknowns, stay a list."""
    if any(isinstance(relation, sympy.Eq) for relation in relations.args) or len(relations.free_symbols) != 1:
        return relations
    return sympy.Union(*(relation.as_set() for relation in relations.args))


def verified(gold: list, given: list) -> bool:
    if not gold or not given or _is_right_side(gold[0], given[0]) or _differ(gold[0], given[0]):
        return False
    if _verify(gold, given):
        return True
    complex_gold, complex_given = _with_i(gold), _with_i(given)
    return (complex_gold, complex_given) != (gold, given) and _verify(complex_gold, complex_given)


def _verify(gold: list, given: list) -> bool:
    return bool(verify(gold, given, allow_set_relation_comp=True, timeout_seconds=None))


def _is_right_side(gold, given) -> bool:
    """An equation `5x + 2y = 0` is not its right side, as a value `x = 5` is, or `x + y = 7` where 7 is asked."""
    if isinstance(gold, sympy.Eq) and not isinstance(given, Relational):
        return isinstance(gold.lhs, sympy.Add) and bool(gold.lhs.free_symbols)
    if isinstance(given, sympy.Eq) and not isinstance(gold, Relational):
        return isinstance(given.lhs, sympy.Add) and bool(given.lhs.free_symbols) and given.rhs == 0
    return False


def _differ(gold, given) -> bool:
    """Whether two numbers are apart, however small they are: 1/2^99 and 1/2^98 are equal to fifteen decimals."""
    if not all(isinstance(value, sympy.Expr) and value.is_number for value in (gold, given)):
        return False
    a, b = (abs(value.evalf(30)) for value in (gold, given))
    if not (a.is_Float and b.is_Float):
        return False
    return bool(abs(a - b) > max(a, b) * sympy.Float("1e-20") + sympy.Float("1e-90"))  # what is left where all cancels


def _with_i(parts: list) -> list:
    """`i` as the imaginary unit: math-verify takes it for a variable, which \\sqrt{-1} is not."""
    return [
        part.xreplace({symbol: sympy.I for symbol in part.free_symbols if symbol.name == "i"})
        if isinstance(part, sympy.Basic | sympy.MatrixBase)
        else part
        for part in parts
    ]
