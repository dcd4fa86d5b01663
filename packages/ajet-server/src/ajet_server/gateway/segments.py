"""Text -> ids, segment by segment: a segment begins with an anchor and ends before the next.

Episodes share most of their prompts: all of a job the system message and its tools, those of a group the task too. So
segments are kept, and such a prompt is tokenized once.
"""

import re
from collections.abc import Callable, Mapping

from ajet_core.errors import RequestError
from ajet_server.gateway.request import IntIds

MOST_KEPT = 16_000_000
"""Bytes that the kept segments take, about."""
EACH = 400
"""Bytes that one takes beside its characters and ids."""


class Segments:
    """Tokenizes texts for one model. Safe to use from several threads.

    Args:
        encode: texts to ids, i32[n] each, read-only.
        anchors: special tokens by their text, next to which text may be cut: the ids of what follows such a token do
            not depend on what is before it, nor the other way round.
    """

    def __init__(self, encode: Callable[[list[str]], list[IntIds]], anchors: Mapping[str, int]) -> None:
        self._encode = encode
        longest_first = sorted(anchors, key=len, reverse=True)
        self._anchor = re.compile("|".join(map(re.escape, longest_first))) if anchors else None
        self._kept = _Kept()

    def split(self, text: str) -> list[str]:
        """Returns the segments of a text; what is before the first anchor is one too, unless it is nothing."""
        begins = [found.start() for found in self._anchor.finditer(text)] if self._anchor else []
        if not begins or begins[0] > 0:
            begins.insert(0, 0)
        return [text[begin:end] for begin, end in zip(begins, [*begins[1:], len(text)], strict=True)]

    def ids(self, segments: list[str]) -> list[IntIds]:
        """Returns i32[n] for each segment. Text that spells a special token is that token.

        Raises:
            RequestError: a segment holds half a character.
        """
        found = [self._kept.get(segment) for segment in segments]
        missing = [segment for segment, ids in zip(segments, found, strict=True) if ids is None]
        if missing:
            new = iter(self._encoded(missing))
            found = [next(new) if ids is None else ids for ids in found]
        return [ids for ids in found if ids is not None]

    def _encoded(self, segments: list[str]) -> list[IntIds]:
        for segment in segments:
            _refuse_half_characters(segment)
        ids = self._encode(segments)
        for segment, its in zip(segments, ids, strict=True):
            self._kept.put(segment, its)
        return ids


class _Kept:
    """The segments that were asked for lately: those since the last change of guard, and those of the time before.

    Threads that meet here lose an entry at worst.
    """

    def __init__(self) -> None:
        self._young: dict[str, IntIds] = {}
        self._old: dict[str, IntIds] = {}
        self._size = 0

    def get(self, segment: str) -> IntIds | None:
        ids = self._young.get(segment)
        if ids is None:
            ids = self._old.get(segment)
            if ids is not None:
                self.put(segment, ids)
        return ids

    def put(self, segment: str, ids: IntIds) -> None:
        size = len(segment) + ids.nbytes + EACH
        self._size += size
        if self._size > MOST_KEPT // 2:
            self._young, self._old, self._size = {}, self._young, size
        self._young[segment] = ids


def _refuse_half_characters(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        half = text[error.start].encode("unicode_escape").decode()
        raise RequestError(
            f"messages: a text holds {half}, half of a character that JSON writes as two; send both, or none",
            field="messages",
        ) from error
