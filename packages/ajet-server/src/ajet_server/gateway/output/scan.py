"""Finds where a tool call ends while it is being written."""

import re
from collections.abc import Sequence

from ajet_server.gateway.output.formats import ToolFormat
from ajet_server.gateway.output.stops import unfinished


class CallScan:
    """Goes through a call once, whatever the pieces it comes in.

    A call ends after its closing tag, before the opening tag of another, or, where there is no closing tag, after its
    JSON value. Inside of JSON strings none of these counts.

    Attributes:
        first_close: where the first closing tag inside a string ended, in characters from the call's beginning. If the
            string never ends, that tag was the call's end after all.
    """

    def __init__(self, syntax: ToolFormat) -> None:
        self._syntax = syntax
        self._literals = tuple(tag for tag in (syntax.close, syntax.open, *syntax.inert) if tag)
        self._outside = _any_of(self._literals, r'["{}\[\]]' if syntax.json else "")
        self._inside = _any_of((syntax.close,), r'["\\]')
        self._quoted = False
        self._depth = 0
        self._passed = 0
        self.first_close: int | None = None

    def feed(self, text: str, *, final: bool) -> tuple[int, bool]:
        """Returns how many characters of `text` are looked at, and whether the call ends there.

        Args:
            text: what follows the characters looked at before.
            final: nothing follows.
        """
        limit = len(text) - (0 if final else unfinished(text, self._literals))
        at = 0
        while found := (self._inside if self._quoted else self._outside).search(text, at, limit):
            at = found.end()
            if self._quoted and found[0] == "\\":
                if at == len(text) and not final:  # what it escapes is not here yet
                    return self._pass(found.start(), ended=False)
                at += 1
            elif self._quoted:
                self._in_string(found[0], self._passed + at)
            elif found[0] == self._syntax.open:
                return self._pass(found.start(), ended=True)
            elif self._ends(found[0]):
                return self._pass(at, ended=True)
        return self._pass(min(max(at, limit), len(text)), ended=False)

    def _pass(self, size: int, *, ended: bool) -> tuple[int, bool]:
        self._passed += size
        return size, ended

    def _in_string(self, sign: str, end: int) -> None:
        if sign == '"':
            self._quoted = False
        elif self.first_close is None:
            self.first_close = end

    def _ends(self, sign: str) -> bool:
        if sign == '"':
            self._quoted = True
        elif sign in "{[":
            self._depth += 1
        elif sign in "}]":
            self._depth -= 1
            return self._depth == 0 and not self._syntax.close
        return bool(sign) and sign == self._syntax.close


def _any_of(literals: Sequence[str], signs: str) -> re.Pattern[str]:
    """Tags before signs, since a tag may begin with one."""
    return re.compile("|".join(part for part in (*map(re.escape, literals), signs) if part))
