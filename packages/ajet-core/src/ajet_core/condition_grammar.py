"""The grammar of conditions, by recursive descent. Nothing of the text is ever evaluated as code.

condition  = both { "or" both }
both       = negated { "and" negated }
negated    = "not" negated | "(" condition ")" | truth | operand ( "<" | "<=" | ">" | ">=" ) operand
operand    = count | duration | number [ "s" | "m" | "h" ]
truth      = "any_client" | "all_clients"
count      = "episodes" | "groups" | "informative_groups" | "staleness" | "clients" | "ready_clients"
duration   = "waited"
"""

import difflib
import re
from dataclasses import dataclass
from functools import lru_cache

from ajet_core.condition import SECONDS, UNITS, And, Comparison, Condition, Name, Not, Number, Operand, Or

MAX_LENGTH = 500
"""Characters of a condition."""
_MAX_DEPTH = 30
_MAX_NUMBER = 1e12
_OPERATORS = ("<", "<=", ">", ">=")
_WORDS = ("and", "or", "not")
_TOKEN = re.compile(
    r"\s*(?:(?P<number>[0-9]+(?:\.[0-9]+)?(?:[A-Za-z_][A-Za-z_0-9]*)?)|(?P<word>[A-Za-z_][A-Za-z_0-9]*)|(?P<sign><=|>=|[<>()]))"
)


class ConditionError(ValueError):
    """A text that is no condition. The message names the column, counted from 1, and what was expected there."""


@dataclass(frozen=True, slots=True)
class _Token:
    kind: str
    text: str
    column: int


@lru_cache(maxsize=64)
def parse(text: str) -> Condition:
    """Returns the condition that a text stands for. `parse(str(condition)) == condition`.

    Raises:
        ConditionError: the text is none, is longer than `MAX_LENGTH`, nests too deeply, or compares different units.
    """
    if len(text) > MAX_LENGTH:
        raise ConditionError(
            f"column {MAX_LENGTH + 1}: expected the end, a condition has at most {MAX_LENGTH} characters"
        )
    return _Parser(_tokens(text)).whole()


def _tokens(text: str) -> list[_Token]:
    found: list[_Token] = []
    at, end = 0, len(text.rstrip())
    while at < end:
        match = _TOKEN.match(text, at)
        if match is None or match.lastgroup is None:
            column = at + len(text[at:]) - len(text[at:].lstrip()) + 1
            raise ConditionError(
                f"column {column}: expected a name, a number, ( ) or {_signs()}, not {text[column - 1]!r}"
            )
        found.append(_Token(match.lastgroup, match[match.lastgroup], match.start(match.lastgroup) + 1))
        at = match.end()
    return [*found, _Token("end", "", end + 1)]


class _Parser:
    """Reads tokens from left to right."""

    def __init__(self, tokens: list[_Token]) -> None:
        self._tokens = tokens
        self._at = 0
        self._depth = 0

    def whole(self) -> Condition:
        found = self._either()
        if self._next.kind != "end":
            raise _wrong(self._next, "'and', 'or' or the end")
        return found

    @property
    def _next(self) -> _Token:
        return self._tokens[self._at]

    def _take(self, *texts: str) -> bool:
        """Goes on if the next token is one of these."""
        if self._next.text not in texts:
            return False
        self._at += 1
        return True

    def _either(self) -> Condition:
        parts = [self._both()]
        while self._take("or"):
            parts.append(self._both())
        return parts[0] if len(parts) == 1 else Or(tuple(parts))

    def _both(self) -> Condition:
        parts = [self._negated()]
        while self._take("and"):
            parts.append(self._negated())
        return parts[0] if len(parts) == 1 else And(tuple(parts))

    def _negated(self) -> Condition:
        self._depth += 1
        if self._depth > _MAX_DEPTH:
            raise _wrong(self._next, f"at most {_MAX_DEPTH} nested 'not' and parentheses")
        if self._take("not"):
            found: Condition = Not(self._negated())
        elif self._take("("):
            found = self._either()
            if not self._take(")"):
                raise _wrong(self._next, "'and', 'or' or ')'")
        else:
            found = self._simple()
        self._depth -= 1
        return found

    def _simple(self) -> Condition:
        left = self._operand("a name, a number, 'not' or '('")
        if isinstance(left, Name) and UNITS[left.name] == "truth":
            if self._next.text in _OPERATORS:
                raise _wrong(self._next, f"'and', 'or' or the end, since {left} is true or false")
            return left
        operator = self._next
        if not self._take(*_OPERATORS):
            raise _wrong(operator, f"{_signs()} after {str(left)!r}")
        column = self._next.column
        right = self._operand("a name or a number")
        _refuse_other_units(left, right, column)
        return Comparison(left, operator.text, right)

    def _operand(self, wanted: str) -> Operand:
        token = self._next
        if token.kind not in ("number", "word") or token.text in _WORDS:
            raise _wrong(token, wanted)
        self._at += 1
        return _number(token) if token.kind == "number" else _name(token)


def _number(token: _Token) -> Number:
    unit = token.text.lstrip("0123456789.")
    digits = token.text.removesuffix(unit)
    if unit and unit not in SECONDS:
        raise ConditionError(f"column {token.column + len(digits)}: expected the unit s, m or h, not {unit!r}")
    if float(digits) > _MAX_NUMBER:
        raise ConditionError(f"column {token.column}: expected a number up to {_MAX_NUMBER:.0f}, not {digits[:20]}")
    return Number(float(digits), unit)


def _name(token: _Token) -> Name:
    if token.text not in UNITS:
        close = difflib.get_close_matches(token.text, UNITS, n=1)
        known = f"did you mean {close[0]}?" if close else f"known are {', '.join(UNITS)}"
        raise ConditionError(f"column {token.column}: expected a name, not {token.text!r}; {known}")
    return Name(token.text)


def _unit(operand: Operand) -> str:
    if isinstance(operand, Name):
        return UNITS[operand.name]
    return "time" if operand.unit else "number"


def _refuse_other_units(left: Operand, right: Operand, column: int) -> None:
    one, other = _unit(left), _unit(right)
    free = "number" in (one, other) and not {one, other} & {"time", "truth"}
    if one != other and not free:
        wanted = {"time": "a duration such as 10m", "number": "a plain number"}.get(one, f"a number or a name of {one}")
        raise ConditionError(f"column {column}: expected {wanted} to compare with {str(left)!r}, not {str(right)!r}")


def _wrong(token: _Token, wanted: str) -> ConditionError:
    found = repr(token.text) if token.text else "the end"
    return ConditionError(f"column {token.column}: expected {wanted}, not {found}")


def _signs() -> str:
    return f"one of {' '.join(_OPERATORS)}"
