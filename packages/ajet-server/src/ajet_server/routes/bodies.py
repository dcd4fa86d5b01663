"""Bodies of requests, each read from where it goes beyond the one before.

An agent sends its whole conversation with every call. Reading all of it each time would make every call dearer than the
one before it; but it mostly begins, byte for byte, as what the agent sent last, up to the end of the last message.
"""

import hashlib
import secrets
from collections import OrderedDict
from typing import Any, TypeAlias

import msgspec

LEAST_BYTES = 16_384
"""Shorter bodies are read whole, which is as quick."""
MOST_KEPT = 64_000_000
"""Bytes that all that is kept takes, about."""
_EACH = 64
"""Bytes that a value takes beside its characters."""

_MARK = secrets.token_hex(8)
"""Stands for the messages that are known. Random, so that nobody sends it."""
_decode = msgspec.json.decode


class _Messages(msgspec.Struct):
    conversation: msgspec.Raw = msgspec.field(name="messages")


class _Input(msgspec.Struct):
    conversation: msgspec.Raw = msgspec.field(name="input")


_SPLITTERS = {"messages": msgspec.json.Decoder(_Messages), "input": msgspec.json.Decoder(_Input)}
"""They find where a conversation stands, and look at nothing else."""


class _Known(msgspec.Struct, frozen=True):
    """What was read of a body up to the end of its last message.

    Attributes:
        beginning: that part of the body.
        before: the fields before the conversation.
        messages: the conversation.
        digest: of the salt and the beginning, so far.
        size: what all of this takes in memory.
    """

    beginning: bytes
    before: dict[str, Any]
    messages: list[Any]
    digest: Any
    size: int


_Read: TypeAlias = tuple[Any, bytes, _Known | None]
"""What a body says, its digest, and what the next one may go on from."""


class Bodies:
    """Reads bodies, and remembers the last one of each episode as long as there is room."""

    def __init__(self) -> None:
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()
        self._size = 0

    def read(self, episode_id: str, salt: str, field: str, body: bytes) -> tuple[Any, bytes]:
        """Returns what a body says, as `msgspec.json.decode` does, and the SHA-256 of `salt`, a zero and the body.

        Args:
            episode_id: of the episode that asks. Its messages are returned again when they are sent again, so that
                nobody may change them.
            salt: tells requests apart that differ in more than their bodies.
            field: which holds the conversation, `messages` or `input`.
            body: JSON.

        Raises:
            msgspec.DecodeError, RecursionError, UnicodeError: it is no JSON.
        """
        key = episode_id, salt
        known = self._known.get(key)
        read = _go_on(known, field, body) if known is not None and body.startswith(known.beginning) else None
        said, digest, now = read or _begin(salt, field, body)
        if now is not None:
            self._keep(key, now)
        return said, digest

    def _keep(self, key: tuple[str, str], known: _Known) -> None:
        replaced = self._known.pop(key, None)
        self._known[key] = known
        self._size += known.size - (replaced.size if replaced else 0)
        while self._size > MOST_KEPT:
            _, oldest = self._known.popitem(last=False)
            self._size -= oldest.size


def _begin(salt: str, field: str, body: bytes) -> _Read:
    said, digest = _decode(body), hashlib.sha256(b"%b\0" % salt.encode())
    known = _split(field, body, said, digest.copy()) if len(body) >= LEAST_BYTES else None
    if known is None:
        digest.update(body)
        return said, digest.digest(), None
    return said, _digest(known, body), known


def _split(field: str, body: bytes, said: Any, digest: Any) -> _Known | None:
    """Finds the end of the last message; None if there is none, or the conversation is not to be found."""
    if type(said) is not dict or type(said.get(field)) is not list or not said[field]:
        return None
    conversation = bytes(_SPLITTERS[field].decode(body).conversation)
    start = body.rfind(conversation)
    try:
        before = _decode(body[:start] + b"null}")
    except msgspec.DecodeError:  # the same text stands in another place too
        return None
    if field not in before or before[field] is not None:  # there it is the value of another field
        return None
    beginning = body[: start + len(conversation) - 1]
    digest.update(beginning)
    return _Known(beginning, before, said[field], digest, _size(beginning))


def _go_on(known: _Known, field: str, body: bytes) -> _Read | None:
    """Reads what follows the messages that are known, with a stand-in for these; None if that is no JSON."""
    start = b'{"%b":' % field.encode()
    stand_in = b'%b["%b"' % (start, _MARK.encode())
    text = stand_in + body[len(known.beginning) :]
    try:
        rest, conversation = _decode(text), bytes(_SPLITTERS[field].decode(text).conversation)
    except msgspec.DecodeError:
        return None
    if type(rest[field]) is not list or rest[field][:1] != [_MARK]:  # the field comes a second time, and that counts
        return None
    messages = known.messages + rest[field][1:]
    end = len(known.beginning) + len(start) + len(conversation) - 1 - len(stand_in)
    digest, new = known.digest.copy(), body[len(known.beginning) : end]
    digest.update(new)
    now = _Known(body[:end], known.before, messages, digest, known.size + _size(new))
    return known.before | rest | {field: messages}, _digest(now, body), now


def _digest(known: _Known, body: bytes) -> bytes:
    """Of the salt and the whole body, of which the beginning is not looked at again."""
    digest = known.digest.copy()
    digest.update(body[len(known.beginning) :])
    return digest.digest()


def _size(text: bytes) -> int:
    """What JSON takes in memory, as text and read; many small values take far more than their text."""
    return 2 * len(text) + _EACH * (text.count(b",") + text.count(b"[") + text.count(b"{"))
