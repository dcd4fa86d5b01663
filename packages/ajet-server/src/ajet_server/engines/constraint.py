"""Holds a completion to a JSON schema: says which ids may come next, and when the text is complete.

llguidance follows the schema byte by byte; only ids whose bytes fit are allowed, whatever way the tokenizer cuts them.
"""

from collections.abc import Collection
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from ajet_core.errors import RequestError
from ajet_server.worker.json_schema import grammar, schema_error

if TYPE_CHECKING:
    from llguidance import LLMatcher, LLTokenizer


class Constraint:
    """One completion on its way through a schema.

    Attributes:
        allowed: bool[V], the ids that may come next: at least one, end tokens only where the text may end.
        complete: the text satisfies the schema and nothing can be added to it.
    """

    def __init__(self, matcher: "LLMatcher", vocab_size: int) -> None:
        self._matcher = matcher
        self._vocab_size = vocab_size
        self.complete = False
        self.allowed = self._look()

    def take(self, token: int) -> None:
        """Goes on past a sampled token, one of `allowed` and no end token.

        Raises:
            RequestError: the schema has become more than the library follows.
        """
        self._matcher.consume_token(token)
        self._check()
        self.complete = self._matcher.is_stopped()
        if not self.complete:
            self.allowed = self._look()

    def _look(self) -> npt.NDArray[np.bool_]:
        bits = np.frombuffer(self._matcher.compute_bitmask(), np.uint8)
        self._check()
        return np.unpackbits(bits, count=self._vocab_size, bitorder="little").view(np.bool_)

    def _check(self) -> None:
        if self._matcher.is_error():
            raise schema_error(self._matcher.get_error())


class Constraints:
    """Makes the constraints of one model. The library and its view of the tokenizer are loaded by the first.

    Args:
        vocab_size: V, ids that the model has logits for; the tokenizer may know fewer.
        eos_ids: ids that end a completion.
    """

    def __init__(self, tokenizer: Tokenizer, vocab_size: int, eos_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._vocab_size = vocab_size
        self._eos_ids = sorted(eos_ids)
        self._bridge: LLTokenizer | None = None

    def start(self, json_schema: str) -> Constraint:
        """Begins a completion that is held to `Sampling.json_schema`.

        Raises:
            RequestError: completions cannot be held to the schema, or those of this model to none.
        """
        from llguidance import LLMatcher

        self._bridge = self._bridge or self._load()
        return Constraint(LLMatcher(self._bridge, grammar(json_schema), log_level=0), self._vocab_size)

    def _load(self) -> "LLTokenizer":
        from llguidance import LLTokenizer

        size = max(self._vocab_size, self._tokenizer.get_vocab_size())
        known = [token for token in self._eos_ids if self._tokenizer.id_to_token(token) is not None]
        try:
            return LLTokenizer(self._tokenizer.to_str(), n_vocab=size, eos_token=known)
        except ValueError as error:
            raise RequestError(
                f"response_format: this model's tokenizer cannot be held to a schema: {error}; leave it out",
                field="response_format",
            ) from error
