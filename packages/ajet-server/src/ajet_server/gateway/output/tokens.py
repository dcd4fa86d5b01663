"""Sampled ids -> text, id by id, however characters are cut into tokens.

Tokens are turned into bytes, which do not depend on their neighbours, and the bytes into characters as they become
whole. So a token costs the same at the end of a completion as at its beginning.
"""

import codecs
import re
from collections.abc import Collection
from contextlib import suppress

from tokenizers import Tokenizer

_BYTE_TOKEN = re.compile(r"<0x([0-9A-Fa-f]{2})>")


def _byte_alphabet() -> dict[str, int]:
    """The character that byte-level BPE writes for each byte: itself if it is printable, else one from 256 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + at): byte for at, byte in enumerate(others)}


_BYTES = _byte_alphabet()


class TokenTexts:
    """The text of each token of one model, as bytes. Shared by all completions; what was asked for is kept.

    Args:
        tokenizer: the model's.
        eos_ids: end a completion, and are never text.

    Attributes:
        special: ids that are mostly no text.
        whole: what was asked for so far and is whole characters, as text; special ones are not among it.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        added = tokenizer.get_added_tokens_decoder()
        self._added = {token_id: token.content for token_id, token in added.items()}
        self.eos_ids = frozenset(eos_ids)
        self.special = frozenset(token_id for token_id, token in added.items() if token.special) | self.eos_ids
        state = tokenizer.decoder.__getstate__() if tokenizer.decoder else b""
        self._byte_level = b'"ByteLevel"' in state
        self._byte_fallback = b'"ByteFallback"' in state
        self._anchor = self._find_anchor()
        self._known: dict[int, bytes] = {}
        self.whole: dict[int, str] = {}

    def has(self, text: str) -> bool:
        """Whether this is one added token of the vocabulary."""
        return text in self._added.values()

    def added(self, token_id: int) -> str | None:
        """The text of an added token; None for all others."""
        return self._added.get(token_id)

    def raw(self, token_id: int) -> bytes:
        """The bytes of a token inside a text, special ones included; none for an id that is no token."""
        found = self._known.get(token_id)
        if found is None:
            found = self._known[token_id] = self._look_up(token_id)
            if token_id not in self.special:
                with suppress(UnicodeDecodeError):
                    self.whole[token_id] = found.decode()
        return found

    def first(self, token_id: int) -> bytes:
        """The bytes of a token that begins a text: sentencepiece puts a space there that is none."""
        if self._byte_level or token_id in self._added or _is_byte(self._token(token_id)):
            return self.raw(token_id)
        return self._tokenizer.decode([token_id]).encode()

    def _look_up(self, token_id: int) -> bytes:
        if token_id in self._added:
            return self._added[token_id].encode()
        token = self._token(token_id)
        if self._byte_level:
            known = all(character in _BYTES for character in token)
            return bytes(_BYTES[character] for character in token) if known else token.encode()
        if self._byte_fallback and _is_byte(token):
            return bytes.fromhex(token[3:5])
        # Beside another token, since a decoder may treat the first differently.
        before = self._tokenizer.decode([self._anchor])
        return self._tokenizer.decode([self._anchor, token_id])[len(before) :].encode()

    def _token(self, token_id: int) -> str:
        return self._tokenizer.id_to_token(token_id) or ""

    def _find_anchor(self) -> int:
        vocabulary = range(self._tokenizer.get_vocab_size())
        return next((item for item in vocabulary if item not in self._added and self._token(item).isalpha()), 0)


def _is_byte(token: str) -> bool:
    return _BYTE_TOKEN.fullmatch(token) is not None


class TextDecoder:
    """Text of one completion. Bytes that are no UTF-8 become U+FFFD once it is clear that they stay so.

    Args:
        texts: of the tokens.
        begins: whether the completion's first token begins a text, or continues a forced opening.

    Attributes:
        pending: whether a character has begun that is not whole.
        begins: whether the next token begins a text.
    """

    def __init__(self, texts: TokenTexts, *, begins: bool) -> None:
        self._texts = texts
        self.begins = begins
        self._utf8 = codecs.getincrementaldecoder("utf-8")("replace")
        self.pending = False

    def push(self, token_id: int) -> str:
        """Returns the characters that this token makes whole."""
        if not (self.pending or self.begins):
            whole = self._texts.whole.get(token_id)
            if whole is not None:
                return whole
        raw = self._texts.first(token_id) if self.begins else self._texts.raw(token_id)
        self.begins = False
        text = self._utf8.decode(raw)
        self.pending = self._utf8.getstate()[0] != b""
        return text

    def finish(self) -> str:
        """Returns what is left: U+FFFD for a character that was cut off."""
        return self._utf8.decode(b"", final=True)
