"""Splits a text into thinking, tool calls and the rest while it is being written.

Thinking stands at the beginning, once; a tool tag inside of it is thinking. Line breaks next to a tag are markup. What
cannot be read as a call stays in the text, unchanged, and is counted.
"""

import re
from collections.abc import Callable, Sequence

from ajet_server.gateway.output.calls import RawCall
from ajet_server.gateway.output.formats import ReasoningFormat, ToolFormat
from ajet_server.gateway.output.scan import CallScan
from ajet_server.gateway.output.stops import unfinished
from ajet_server.gateway.request import Tool, ToolCall


class AnswerParser:
    """A machine whose states are methods that take what they can from the buffer.

    A state returns False when it needs more text or, with `final`, when all is done.

    Args:
        syntax: of tool calls.
        reasoning: how thinking is marked.
        thinking: the prompt ended inside of thinking.
        tools: whose schemas say what an argument is.
        parallel: False keeps the first call only.
        new_id: gives calls their ids.

    Attributes:
        text: what was found and not taken yet; so are `thought` and `calls`.
        malformed: attempts at a call that could not be read.
        surplus: calls that were left out, being more than one.
        thinking_end: where thinking ended, in characters; 0 without any, None while it lasts.
    """

    def __init__(
        self,
        syntax: ToolFormat,
        reasoning: ReasoningFormat,
        *,
        thinking: bool,
        tools: Sequence[Tool],
        parallel: bool,
        new_id: Callable[[], str],
    ) -> None:
        self._syntax = syntax
        self._reasoning = reasoning
        self._thinking = thinking
        self._tools = tools
        self._parallel = parallel
        self._new_id = new_id
        self._state = self._begin
        self._buffer = ""
        self._fed = 0
        self._gap = ""  # markup before a call, which is text after all if the call cannot be read
        self._tag = ""
        self._parts: list[str] = []  # of the call that is being written
        self._size = 0
        self._scan: CallScan  # of that call
        self._said = self._thought = self._called = False
        self.text: list[str] = []
        self.thought: list[str] = []
        self.calls: list[ToolCall] = []
        self.malformed = 0
        self.surplus = 0
        self.thinking_end: int | None = 0

    @property
    def tags(self) -> frozenset[str]:
        """All markup that is looked for; a special token that is none of it is no text."""
        return frozenset((*self._syntax.tags, self._reasoning.open, self._reasoning.close))

    @property
    def done(self) -> int:
        """How many characters are decided on, whatever may follow."""
        return self._fed - len(self._buffer) - len(self._gap) - len(self._tag) - self._size

    def feed(self, text: str) -> None:
        """Takes more text."""
        if not text:
            return
        self._buffer += text
        self._fed += len(text)
        while self._state(False):
            pass

    def finish(self) -> None:
        """Decides on everything that was held back: nothing follows."""
        while self._state(True):
            pass

    def _begin(self, final: bool) -> bool:
        """Before the first character that is not space: is there thinking?"""
        if not self._reasoning.open:
            self._state = self._talk
            return True
        ahead = self._buffer.lstrip()
        if not final and len(ahead) < len(self._reasoning.open) and self._reasoning.open.startswith(ahead):
            return False
        opened = ahead.startswith(self._reasoning.open)
        if opened:
            self._buffer = ahead[len(self._reasoning.open) :]
        self._state = self._think if opened or self._thinking else self._talk
        return True

    def _think(self, final: bool) -> bool:
        self.thinking_end = None
        close = self._reasoning.close
        at = self._buffer.find(close)
        if at < 0:
            self._think_aloud(len(self._buffer) if final else self._safe((close,)))
            return False
        self._think_aloud(len(self._buffer[:at].rstrip("\n")))
        self._buffer = self._buffer[self._buffer.find(close) + len(close) :]
        self.thinking_end = self.done
        self._state = self._answer
        return True

    def _think_aloud(self, size: int) -> None:
        new = self._take(size)
        if not self._thought:
            new = new.lstrip("\n")
        self._thought = self._thought or bool(new)
        self.thought.append(new)

    def _answer(self, final: bool) -> bool:
        """After thinking: line breaks are markup."""
        self._buffer = self._buffer.lstrip("\n")
        if not self._buffer and not final:
            return False
        self._state = self._talk
        return True

    def _talk(self, final: bool) -> bool:
        ahead = self._buffer.lstrip()
        if self._syntax.bare and not self._said and (ahead[:1] == "{" or not (ahead or final)):
            return self._begin_call(len(self._buffer) - len(ahead), "") if ahead else False
        marks = [mark for mark in (self._syntax.lead, self._syntax.open) if mark]
        places = [(self._buffer.find(mark), mark) for mark in marks if mark in self._buffer]
        if not places:
            self._say(self._take(len(self._buffer) if final else self._safe(marks)))
            return False
        at, mark = min(places)
        self._say(self._take(len(self._buffer[:at].rstrip("\n"))))
        before = self._buffer.find(mark)
        if mark == self._syntax.open:
            return self._begin_call(before, mark)
        self._gap = self._take(before + len(mark))
        self._state = self._between
        return True

    def _between(self, final: bool) -> bool:
        """After a call or a lead: does another call follow?"""
        filler = _filler(self._syntax, self._buffer)
        ahead = self._buffer[filler:]
        if ahead.startswith(self._syntax.open):
            return self._begin_call(filler, self._syntax.open)
        if self._syntax.bare and ahead[:1] == "{":
            return self._begin_call(filler, "")
        expected = (self._syntax.open, self._syntax.trail)
        if not final and any(mark.startswith(ahead) for mark in expected if mark):
            return False
        skipped = self._take(filler)
        if self._gap:
            self._say(self._gap + skipped)
        elif ahead:
            self._say((skipped.replace(self._syntax.trail, "") if self._syntax.trail else skipped).lstrip("\n"))
        self._gap = ""
        self._state = self._talk
        return True

    def _begin_call(self, gap: int, tag: str) -> bool:
        self._gap += self._take(gap)
        self._tag = self._take(len(tag))
        self._scan = CallScan(self._syntax)
        self._state = self._call
        return True

    def _call(self, final: bool) -> bool:
        size, ended = self._scan.feed(self._buffer, final=final)
        self._parts.append(self._take(size))
        self._size += size
        if not (ended or final):
            return False
        whole = "".join(self._parts)
        if not ended and self._scan.first_close is not None:  # the string around that tag never ended
            whole, self._buffer = whole[: self._scan.first_close], whole[self._scan.first_close :] + self._buffer
        self._end_call(whole)
        return True

    def _end_call(self, whole: str) -> None:
        meant = bool(self._tag) or _looks_like_a_call(whole)
        found = self._syntax.read(whole.removesuffix(self._syntax.close), self._tools) if meant else None
        gap, tag = self._gap, self._tag
        self._gap, self._tag, self._parts, self._size = "", "", [], 0
        if found is None:
            self.malformed += meant
            self._state = self._talk
            self._say(gap + tag + whole)
            return
        self._state = self._between
        for call in found:
            self._keep(call)

    def _keep(self, call: RawCall) -> None:
        if self._called and not self._parallel:
            self.surplus += 1
            return
        self._called = True
        self.calls.append(ToolCall(self._new_id(), call.name, call.arguments))

    def _say(self, text: str) -> None:
        self._said = self._said or bool(text.strip())
        self.text.append(text)

    def _take(self, size: int) -> str:
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken

    def _safe(self, tags: Sequence[str]) -> int:
        """How much of the buffer is neither the beginning of a tag nor line breaks that may stand before one."""
        size = len(self._buffer) - unfinished(self._buffer, tags)
        return len(self._buffer[:size].rstrip("\n"))


def _filler(syntax: ToolFormat, text: str) -> int:
    """How many characters at the beginning may stand between calls."""
    kinds = "|".join([r"\s", *(re.escape(part) for part in (syntax.trail, syntax.separator) if part)])
    found = re.match(rf"(?:{kinds})*", text)
    return found.end() if found else 0


def _looks_like_a_call(text: str) -> bool:
    """Without a tag, an answer in JSON is no attempt at a call unless it says so."""
    return '"name"' in text and ('"parameters"' in text or '"arguments"' in text)
