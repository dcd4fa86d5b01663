"""Reads one completion: sampled ids in, text, thinking and tool calls out."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from itertools import accumulate, takewhile
from typing import Literal, cast

import msgspec

from ajet_server.gateway.output.parser import AnswerParser
from ajet_server.gateway.output.stops import StopFilter
from ajet_server.gateway.output.tokens import TextDecoder, TokenTexts
from ajet_server.gateway.request import FinishReason, ToolCall


class Piece(msgspec.Struct, frozen=True):
    """What a completion grew by. The pieces of a completion put together are its `Summary`.

    Attributes:
        text: more text.
        reasoning: more thinking.
        tool_calls: calls that are now complete.
        tokens: how many ids, from the first on, are settled by now: all their text has been handed out.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    tokens: int


class Summary(msgspec.Struct, frozen=True):
    """A finished completion.

    Attributes:
        text: without thinking, calls, special tokens and everything from the stop string on.
        reasoning: its thinking.
        tool_calls: in order.
        malformed_tool_calls: attempts at a call that could not be read; they are part of `text`, tags included.
        surplus_tool_calls: calls after the first, where only one was allowed; they are part of nothing.
        finish_reason: `length` if it was cut off, else `tool_calls` if there are any.
        reasoning_tokens: ids that are thinking, tags included.
    """

    text: str
    reasoning: str
    tool_calls: tuple[ToolCall, ...]
    malformed_tool_calls: int
    surplus_tool_calls: int
    finish_reason: FinishReason
    reasoning_tokens: int


class OutputReader:
    """How ids are cut into pushes changes nothing but the pieces.

    Args:
        texts: of the model's tokens.
        parser: of the text.
        opening: forced text that the prompt ended with; a call may begin there.
        stops: strings that end the text.
    """

    def __init__(self, texts: TokenTexts, parser: AnswerParser, *, opening: str, stops: Sequence[str]) -> None:
        self._texts = texts
        self._decoder = TextDecoder(texts, begins=not opening)
        self._stop = StopFilter(stops)
        self._has_stops = bool(stops)
        self._parser = parser
        self._parser.feed(opening)
        self._length = len(opening)
        self._begins: list[int] = []
        self._ends: list[int] = []
        self._settled = 0
        self._pieces: list[Piece] = []

    def push(self, ids: Sequence[int]) -> Piece:
        """Takes the ids sampled next; returns what they made certain."""
        self._parser.feed("".join(self._texts_of(ids)))
        self._settled = bisect_right(self._ends, self._parser.done, self._settled)
        return self._piece()

    def finish(self, reason: Literal["stop", "length"], stop: str | None) -> tuple[Piece, Summary]:
        """Returns what was held back, and the whole.

        Args:
            reason: why sampling ended.
            stop: the stop string that ended it; one of the reader's, which has found it by itself.
        """
        if stop is None:
            self._parser.feed(self._stop.push(self._decoder.finish()))
        self._parser.feed(self._stop.finish())
        self._parser.finish()
        self._settled = len(self._ends)
        last = self._piece()
        return last, self._summary(reason)

    def _texts_of(self, ids: Sequence[int]) -> list[str]:
        """Returns what these ids make certain. Those that are whole characters and nothing else are read at once."""
        read = [self._read(token_id) for token_id in ids[: self._decoder.begins]]
        if not (self._has_stops or self._decoder.pending):
            read += self._plain_texts(ids[len(read) :])
        return read + [self._read(token_id) for token_id in ids[len(read) :]]

    def _plain_texts(self, ids: Sequence[int]) -> list[str]:
        known = takewhile(lambda text: text is not None, map(self._texts.whole.get, ids))
        texts = cast("list[str]", list(known))
        ends = list(accumulate(map(len, texts), initial=self._length))
        self._begins += ends[:-1]
        self._ends += ends[1:]
        self._length = ends[-1]
        return texts

    def _read(self, token_id: int) -> str:
        """Returns the text that this id makes certain. Stop strings are looked for id by id, as the engine does."""
        self._begins.append(self._length)
        if token_id in self._texts.special and self._is_silent(token_id):
            text = self._stop.push(self._texts.raw(token_id).decode(errors="replace"), shown=False)
        else:
            whole = self._decoder.push(token_id)
            self._length += len(whole)
            text = self._stop.push(whole)
        self._ends.append(self._length + self._decoder.pending)
        return text

    def _is_silent(self, token_id: int) -> bool:
        """Whether a special token is no text."""
        return token_id in self._texts.eos_ids or self._texts.added(token_id) not in self._parser.tags

    def _piece(self) -> Piece:
        found = self._parser
        piece = Piece("".join(found.text), "".join(found.thought), tuple(found.calls), self._settled)
        found.text, found.thought, found.calls = [], [], []
        self._pieces.append(piece)
        return piece

    def _summary(self, reason: Literal["stop", "length"]) -> Summary:
        calls = tuple(call for piece in self._pieces for call in piece.tool_calls)
        end = self._parser.thinking_end
        return Summary(
            text="".join(piece.text for piece in self._pieces),
            reasoning="".join(piece.reasoning for piece in self._pieces),
            tool_calls=calls,
            malformed_tool_calls=self._parser.malformed,
            surplus_tool_calls=self._parser.surplus,
            finish_reason="length" if reason == "length" else "tool_calls" if calls else "stop",
            reasoning_tokens=len(self._begins) if end is None else bisect_left(self._begins, end),
        )
