"""Text-level matching: opt-in, and lossy by nature. `merge` never does it.

An engine that was given messages writes and tokenizes the whole history again on each turn. Where that gives other
tokens than were sampled (another tokenization, stripped reasoning, tool calls written anew), the exact forest forks.
`match_texts` puts the sampled tokens back: calls then share more, in a context that the engine did not see. So each
such call is marked `context_exact = False`, and each token that was replaced is reported.
"""

from bisect import insort
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from itertools import takewhile
from typing import Any, Literal, NamedTuple

import numpy as np

from ._arguments import checked_calls, checked_contexts
from ._arrays import MAX_ID, IntArray
from ._forest_py import common_prefix
from .call import Call
from .context import MessageIndex, Turn, best_answer, scope_of
from .errors import MergeError
from .messages import Context

Reason = Literal["no_context", "extends_no_call", "no_message_ends", "unclear_end_of_turn"]


@dataclass(frozen=True, eq=False, slots=True)
class Drift:
    """One prompt in which tokens were replaced by an earlier call's.

    The new prompt is `old[:position] + inserted + old[position + len(replaced):]`. Where several messages drifted, what
    lies between them is in both arrays.

    Attributes:
        call: index of the call.
        earlier: index of the call that its messages extend, whose tokens as they are in the result were put in.
        position: position of the first different token.
        replaced: i32[], the tokens taken out.
        inserted: i32[], the tokens put in.
    """

    call: int
    earlier: int
    position: int
    replaced: IntArray
    inserted: IntArray


@dataclass(frozen=True, slots=True)
class Unmatched:
    """A call that was left alone because nothing could be put in.

    Attributes:
        call: index of the call.
        reason:
            no_context: it has no context;
            extends_no_call: its messages extend no earlier call, as those of the first call of a conversation do not;
            no_message_ends: they do, in other tokens, but its context does not say where messages end in its prompt;
            unclear_end_of_turn: they do, in other tokens, but one of `end_ids` comes right after the end of the
                response's message: `message_ends` must count it to the message.
    """

    call: int
    reason: Reason


@dataclass(frozen=True, eq=False, slots=True)
class TextMatch:
    """What `match_texts` made. A call in neither `drifts` nor `unmatched` begins with an earlier call's exact ids.

    Attributes:
        calls: ready for `merge`, in the order given. Those without a drift are the objects given. Of the others the
            prompt and `context_exact` are new; completions, logprobs, masks, advantages and weights never are.
        drifts: one for each changed prompt, by call.
        unmatched: calls that nothing was found for, by call.
    """

    calls: tuple[Call, ...]
    drifts: tuple[Drift, ...]
    unmatched: tuple[Unmatched, ...]


def match_texts(
    calls: Sequence[Call], contexts: Sequence[Context | None], *, end_ids: int | Iterable[int]
) -> TextMatch:
    """Replace what each prompt repeats of an earlier call by that call's exact ids, if role, text and tool calls agree.

    Takes the calls in order. For each it finds the earlier call of the same attempt, tools and `compat_key` whose
    request + response is the longest such prefix of its messages in canonical form (see `messages`). If the prompt
    begins with the ids of that call as they are in the result, or of another one with the same messages, nothing
    changes. Otherwise these ids replace the part that writes these messages, and the rest follows. Among several calls
    with the same messages the rules of `Tracker.extends` decide.

    Where a completion ends and the rest begins is told by `end_ids`. If the completion ends with one of them, the rest
    is what the prompt has after the last of them in the response's message. If it does not (stopped by length or by a
    stop string), the rest begins with that last one: the turn is ended once, by the model or by the template. If the
    template writes none there, the rest is what follows the message.

    Rollout logprobs of calls with `context_exact = False` are those of another context: recompute them, or leave those
    calls out, where a ratio is formed.

    Args:
        calls: the calls, with attempts. Not modified.
        contexts: one for each call, or None.
        end_ids: all token ids that end an assistant's turn, be it sampled (`eos_token_id` of the generation config) or
            written by the chat template. A single one may be given as it is.

    Raises:
        MergeError: the arguments do not fit together, or a message is malformed; names the call and the field.
    """
    calls = checked_calls(calls)
    contexts = checked_contexts(contexts, len(calls))
    matcher = _Matcher(_checked_ids(end_ids))
    for call, context in zip(calls, contexts, strict=True):
        matcher.add(call, context)
    return TextMatch(tuple(matcher.calls), tuple(matcher.drifts), tuple(matcher.unmatched))


class _Seam(NamedTuple):
    """An earlier call, and where the part of a prompt that its ids replace ends."""

    earlier: int
    end: int


class _Matcher:
    def __init__(self, end_ids: IntArray) -> None:
        self.calls: list[Call] = []
        self.drifts: list[Drift] = []
        self.unmatched: list[Unmatched] = []
        self._end_ids = end_ids
        self._index = MessageIndex()
        self._written = defaultdict[Turn, Beginnings](Beginnings)
        """The ids of the calls whose responses are a turn, as they are in the result."""

    def add(self, call: Call, context: Context | None) -> None:
        index = len(self.calls)
        place = None if context is None else self._index.place_call(call, context)
        seam = self._seam(call, context) if context else "no_context"
        if isinstance(seam, _Seam):
            call = self._replaced(call, seam)
        elif seam:
            self.unmatched.append(Unmatched(index, seam))
        self.calls.append(call)
        if place:
            self._index.record(index, place)
            if place.answer:
                self._written[place.answer].add(call.prompt_ids, call.completion_ids)

    def _seam(self, call: Call, context: Context) -> _Seam | Reason | None:
        """What to replace; or why that is not known; None if there is nothing to replace."""
        found = self._index.find(scope_of(call.attempt_id, call.compat_key, context.tools), context.messages)
        earlier = best_answer(found.answered, context.messages)
        if earlier is None:
            return "extends_no_call"
        if self._written[found.answered].of(call.prompt_ids):
            return None
        if context.message_ends is None:
            return "no_message_ends"
        start, end = [0, *context.message_ends.tolist()][found.answered.depth - 1 : found.answered.depth + 1]
        if self._ends_turn(call.prompt_ids[end : end + 1]):
            return "unclear_end_of_turn"
        ended = self._ends_turn(self.calls[earlier].completion_ids[-1:])
        return _Seam(earlier, self._over(call.prompt_ids, start, end, ended))

    def _over(self, prompt: IntArray, start: int, end: int, ended: bool) -> int:
        """Where a completion is over that a prompt writes in start..end: past the end of turn if it `ended` its own."""
        closing = np.flatnonzero(np.isin(prompt[start:end], self._end_ids))
        return start + int(closing[-1]) + ended if closing.size else end

    def _ends_turn(self, token: IntArray) -> bool:
        """Whether an array of one token, or none, is an end of turn."""
        return bool(np.isin(token, self._end_ids).any())

    def _replaced(self, call: Call, seam: _Seam) -> Call:
        ids, old = self._ids(seam.earlier), call.prompt_ids[: seam.end]
        position = common_prefix(old, ids)
        replaced, inserted = old[position:], ids[position:]
        same_end = common_prefix(replaced[::-1], inserted[::-1])
        replaced, inserted = replaced[: replaced.size - same_end], inserted[: inserted.size - same_end]
        self.drifts.append(Drift(len(self.calls), seam.earlier, position, replaced, inserted))
        prompt = np.concatenate([ids, call.prompt_ids[seam.end :]])
        return replace(call, prompt_ids=prompt, context_exact=False)

    def _ids(self, call: int) -> IntArray:
        return np.concatenate([self.calls[call].prompt_ids, self.calls[call].completion_ids])


class Beginnings:
    """Sequences of ids, to ask whether others begin with one of them. Costs one pass, however many they are."""

    def __init__(self) -> None:
        self._digests: dict[int, set[bytes]] = {}
        self._lengths: list[int] = []

    def add(self, *parts: IntArray) -> None:
        """Add one sequence, given in parts."""
        hasher, length = sha256(), sum(part.size for part in parts)
        for part in parts:
            hasher.update(part.data)
        if length not in self._digests:
            insort(self._lengths, length)
        self._digests.setdefault(length, set()).add(hasher.digest())

    def of(self, ids: IntArray) -> bool:
        """Whether `ids` begins with one of the sequences."""
        hasher, done = sha256(), 0
        for length in takewhile(lambda length: length <= ids.size, self._lengths):
            hasher.update(ids[done:length].data)
            done = length
            if hasher.digest() in self._digests[length]:
                return True
        return False


def _checked_ids(end_ids: object) -> IntArray:
    if isinstance(end_ids, np.ndarray):
        end_ids = end_ids.tolist()
    if not isinstance(end_ids, int | np.integer | Iterable):
        raise MergeError(f"end_ids = {end_ids!r}: must be a token id or token ids")
    tokens: list[Any] = list(end_ids) if isinstance(end_ids, Iterable) else [end_ids]
    for token in tokens:
        if not isinstance(token, int | np.integer) or isinstance(token, bool) or not 0 <= token <= MAX_ID:
            raise MergeError(f"end_ids holds {token!r}: token ids are integers in 0..{MAX_ID}")
    if not tokens:
        raise MergeError("end_ids is empty: name the token ids that end a turn, or its end cannot be found in a prompt")
    return np.array(tokens, np.int32)
