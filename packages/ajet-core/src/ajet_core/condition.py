"""Conditions of a batch policy (`batch.when`): what they may name, when they hold, what they lack.

A condition is a tree of frozen values; `ajet_core.condition_grammar.parse` makes one of a text, `str` the text of one.
It is a pure function of facts, a mapping from each name of `UNITS` to its value, and nothing in it is code.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from math import inf
from typing import TypeAlias

UNITS: Mapping[str, str] = {
    "episodes": "episodes",
    "groups": "groups",
    "informative_groups": "groups",
    "staleness": "versions",
    "waited": "time",
    "clients": "clients",
    "ready_clients": "clients",
    "any_client": "truth",
    "all_clients": "truth",
}
"""Every name that a condition may use, and its unit: names of one unit can be compared with each other."""
SECONDS: Mapping[str, int] = {"s": 1, "m": 60, "h": 3600}
"""Units of a duration."""

Facts: TypeAlias = Mapping[str, float]
"""A value for each name: counts, seconds, and booleans for truths."""
Range: TypeAlias = tuple[float, float]


@dataclass(frozen=True, slots=True)
class Number:
    """`32`, or with a unit of time `10m`."""

    value: float
    unit: str = ""

    @property
    def amount(self) -> float:
        """The value; a duration in seconds."""
        return self.value * SECONDS.get(self.unit, 1)

    def __str__(self) -> str:
        whole = self.value == int(self.value)
        return f"{int(self.value) if whole else format(Decimal(repr(self.value)), 'f')}{self.unit}"


@dataclass(frozen=True, slots=True)
class Name:
    """One of `UNITS`. By itself a condition if it is a truth."""

    name: str

    def __str__(self) -> str:
        return self.name


Operand: TypeAlias = Number | Name


@dataclass(frozen=True, slots=True)
class Comparison:
    """`left operator right`, with <, <=, > or >=."""

    left: Operand
    operator: str
    right: Operand

    def __str__(self) -> str:
        return f"{self.left} {self.operator} {self.right}"


@dataclass(frozen=True, slots=True)
class Not:
    """True when `part` is not."""

    part: "Condition"

    def __str__(self) -> str:
        return f"not {_inside(self.part)}"


@dataclass(frozen=True, slots=True)
class And:
    """True when every part is; two parts or more."""

    parts: tuple["Condition", ...]

    def __str__(self) -> str:
        return " and ".join(map(_inside, self.parts))


@dataclass(frozen=True, slots=True)
class Or:
    """True when one part is; two parts or more."""

    parts: tuple["Condition", ...]

    def __str__(self) -> str:
        return " or ".join(str(part) if isinstance(part, And) else _inside(part) for part in self.parts)


Condition: TypeAlias = Name | Comparison | Not | And | Or


def _inside(part: Condition) -> str:
    return f"({part})" if isinstance(part, And | Or) else str(part)


def holds(condition: Condition, facts: Facts) -> bool:
    """Returns whether the condition is true of the facts."""
    return verdict(condition, {name: (float(value), float(value)) for name, value in facts.items()}) is True


def verdict(condition: Condition, ranges: Mapping[str, Range]) -> bool | None:
    """Returns True if the condition always holds, False if it never does, None if that depends.

    Args:
        ranges: the least and the greatest value of each name, both included; a truth lies in (0, 1). The verdict takes
            names for independent of each other, so None may be said of a condition that is constant, but True and False
            are proofs.
    """
    match condition:
        case Name(name):
            low, high = ranges[name]
            return bool(low) if low == high else None
        case Comparison(left, operator, right):
            return _compare(_range(left, ranges), operator, _range(right, ranges))
        case Not(part):
            found = verdict(part, ranges)
            return None if found is None else not found
        case And(parts):
            return _fold([verdict(part, ranges) for part in parts], decisive=False)
        case Or(parts):
            return _fold([verdict(part, ranges) for part in parts], decisive=True)


def _fold(verdicts: list[bool | None], *, decisive: bool) -> bool | None:
    if decisive in verdicts:
        return decisive
    return None if None in verdicts else not decisive


def _range(operand: Operand, ranges: Mapping[str, Range]) -> Range:
    return ranges[operand.name] if isinstance(operand, Name) else (operand.amount, operand.amount)


def _compare(left: Range, operator: str, right: Range) -> bool | None:
    if operator in ("<", "<="):
        left, right = right, left
    strict = operator in ("<", ">")
    if left[0] > right[1] or (not strict and left[0] == right[1]):
        return True
    if left[1] < right[0] or (strict and left[1] == right[0]):
        return False
    return None


def leaves(condition: Condition) -> Iterator[Name | Comparison]:
    """Yields the truths and comparisons of a condition, from left to right."""
    match condition:
        case Name() | Comparison():
            yield condition
        case Not(part):
            yield from leaves(part)
        case And(parts) | Or(parts):
            for part in parts:
                yield from leaves(part)


def names(condition: Condition) -> set[str]:
    """Returns the names that a condition uses."""
    return {operand.name for operand in _operands(condition) if isinstance(operand, Name)}


def durations(condition: Condition) -> set[float]:
    """Returns the durations that a condition compares with, in seconds."""
    return {operand.amount for operand in _operands(condition) if isinstance(operand, Number) and operand.unit}


def _operands(condition: Condition) -> Iterator[Operand]:
    for leaf in leaves(condition):
        yield from (leaf,) if isinstance(leaf, Name) else (leaf.left, leaf.right)


def lacking(condition: Condition, facts: Facts) -> str:
    """Returns what would have to change for a condition that does not hold: its unmet parts with their values."""
    match condition:
        case And(parts):
            return " and ".join(lacking(part, facts) for part in parts if not holds(part, facts))
        case Or(parts):
            return ", or ".join(lacking(part, facts) for part in parts)
        case Not():
            return f"'{condition}' does not hold"
        case Name(name):
            return f"{name} is not true"
        case Comparison(left, operator, right):
            if isinstance(left, Name):
                return f"{_told(left, facts)}, not {operator} {_shown(right, facts)}"
            return (
                f"{_told(right, facts)}, not {_MIRRORED[operator]} {left}"
                if isinstance(right, Name)
                else str(condition)
            )


_MIRRORED = {"<": ">", "<=": ">=", ">": "<", ">=": "<="}


def _told(name: Name, facts: Facts) -> str:
    return f"{name} is {_value(name, facts)}"


def _shown(operand: Operand, facts: Facts) -> str:
    return f"{operand} ({_value(operand, facts)})" if isinstance(operand, Name) else str(operand)


def _value(name: Name, facts: Facts) -> str:
    return f"{facts[name.name]:.0f}{'s' if UNITS[name.name] == 'time' else ''}"


def never_or_always(condition: Condition, ranges: Mapping[str, Range]) -> str | None:
    """Returns why a condition is the same for all facts within the ranges; None if it is not provably so."""
    found = verdict(condition, ranges)
    if found is None:
        return None
    blamed = [leaf for leaf in leaves(condition) if verdict(leaf, ranges) is not None]
    reasons = dict.fromkeys(_bounds(operand, ranges) for leaf in blamed for operand in _operands(leaf))
    return f"is {'always' if found else 'never'} true: {', '.join(filter(None, reasons)) or 'it compares only numbers'}"


def _bounds(operand: Operand, ranges: Mapping[str, Range]) -> str:
    if isinstance(operand, Number):
        return ""
    low, high = ranges[operand.name]
    return f"{operand} is at least {low:g}" if high == inf else f"{operand} is from {low:g} to {high:g}"
