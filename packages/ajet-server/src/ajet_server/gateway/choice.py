"""One choice of an answer: from sampled ids to text, thinking, tool calls and log-probabilities."""

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from ajet_server.gateway.output import OutputReader
from ajet_server.gateway.request import Choice, Delta, TokenLogprob, ToolCall
from ajet_server.worker import protocol, versions


class TokenNames(Protocol):
    """Gives tokens their text."""

    def token(self, token_id: int) -> str:
        """The text of one token, special ones included."""
        ...


class ChoiceBuilder:
    """Reads a choice while it is sampled.

    Args:
        index: of the choice.
        call_id: under which it is recorded.
        reader: of its text.
        names: of tokens; None where no log-probabilities were asked for.
    """

    def __init__(self, index: int, call_id: str, reader: OutputReader, names: TokenNames | None) -> None:
        self._index = index
        self._call_id = call_id
        self._reader = reader
        self._names = names
        self._ids: list[int] = []
        self._logprobs: list[TokenLogprob] = []
        self._told = 0

    def push(self, sampled: protocol.Sampled) -> Delta:
        """Takes what the engine sampled next, and returns what the choice grew by."""
        ids = self._take(sampled.token_ids, sampled.logprobs, sampled.top_logprobs)
        piece = self._reader.push(ids)
        return self._delta(piece.text, piece.reasoning, piece.tool_calls, piece.tokens)

    def finish(self, generated: protocol.Generated) -> tuple[Delta, Choice]:
        """Takes the finished completion, of which `push` may have seen a part; returns the rest and the whole."""
        done = len(self._ids)
        rest = self._take(
            generated.token_ids[4 * done :], generated.logprobs[4 * done :], generated.top_logprobs[done:]
        )
        first = self._reader.push(rest)
        last, summary = self._reader.finish(generated.finish_reason, generated.stop)
        delta = self._delta(
            first.text + last.text,
            first.reasoning + last.reasoning,
            (*first.tool_calls, *last.tool_calls),
            len(self._ids),
        )
        choice = Choice(
            index=self._index,
            call_id=self._call_id,
            text=summary.text,
            reasoning=summary.reasoning,
            tool_calls=summary.tool_calls,
            malformed_tool_calls=summary.malformed_tool_calls,
            finish_reason=summary.finish_reason,
            stop=generated.stop,
            token_ids=self._ids,
            logprobs=tuple(self._logprobs),
            reasoning_tokens=summary.reasoning_tokens,
            versions=versions.whole(generated.weight_version, generated.version_spans),
        )
        return delta, choice

    def _take(self, ids: bytes, logprobs: bytes, tops: Sequence[Sequence[tuple[int, float]]]) -> list[int]:
        new: list[int] = np.frombuffer(ids, "<i4").tolist()
        self._ids += new
        if self._names is not None:
            values: list[float] = np.frombuffer(logprobs, "<f4").tolist()
            for at, (token, value) in enumerate(zip(new, values, strict=True)):
                top = tuple((self._names.token(other), likely) for other, likely in tops[at]) if tops else ()
                self._logprobs.append(TokenLogprob(token, self._names.token(token), value, top))
        return new

    def _delta(self, text: str, reasoning: str, tool_calls: tuple[ToolCall, ...], settled: int) -> Delta:
        tokens, logprobs = self._ids[self._told : settled], self._logprobs[self._told : settled]
        self._told = settled
        return Delta(self._index, text, reasoning, tool_calls, tuple(tokens), tuple(logprobs))
