"""From token ids to text, special tokens included."""

import inspect
from collections.abc import Sequence
from functools import lru_cache
from typing import Any, Protocol

import numpy as np

from ajet_merge._arrays import IntArray

TEXT_OPTIONS = {"skip_special_tokens": False, "clean_up_tokenization_spaces": False}
"""Without these some tokenizers leave out the markers between messages, or change the spaces they stand in."""
INCOMPLETE = "\ufffd"
"""What tokenizers show for a token that holds a part of a character."""

REMEMBERED = 64
"""Texts kept; each at most as long as the tokens that are read at once."""


class Tokenizer(Protocol):
    """What `explain` needs of a tokenizer. Those of tokenizers, transformers and tiktoken have it."""

    def decode(self, token_ids: list[int], /) -> str:
        """The text of these tokens. If it takes `skip_special_tokens`, it is called with False."""
        ...


class Decoder:
    """A tokenizer with the options that make it show everything."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._decode = tokenizer.decode
        self._options: dict[str, Any] = {
            name: value for name, value in TEXT_OPTIONS.items() if name in _parameters(tokenizer)
        }
        self._of_bytes = lru_cache(REMEMBERED)(self._decode_bytes)

    def text(self, ids: IntArray | Sequence[int]) -> str:
        """The text of these tokens. Branches of one trunk ask for its text again and again."""
        return self._of_bytes(np.asarray(ids, np.int32).tobytes())

    def _decode_bytes(self, ids: bytes) -> str:
        return self._decode(np.frombuffer(ids, np.int32).tolist(), **self._options)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """The text that each token adds to the one before it."""
        return [self._piece(ids[at - 1] if at else None, token) for at, token in enumerate(ids)]

    def _piece(self, before: int | None, token: int) -> str:
        if before is None:
            return self.text([token])
        # Some tokenizers drop the space in front of the first token, so that no token is shown without another.
        first, both = self.text([before]), self.text([before, token])
        return both[len(first) :] if both.startswith(first) else self.text([token])


def _parameters(tokenizer: Tokenizer) -> set[str]:
    try:
        return set(inspect.signature(tokenizer.decode).parameters)
    except ValueError:  # compiled code that does not tell; it is called with the ids alone
        return set()
