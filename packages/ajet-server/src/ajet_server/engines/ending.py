"""Whether a call has ended, and why."""

from tokenizers import Tokenizer

from ajet_server.engines.base import Completion
from ajet_server.engines.calls import Call
from ajet_server.engines.stop import find_stop


class Ending:
    """Looks at each sampled token of a model.

    Args:
        tokenizer: of the model; reads stop strings.
        eos_ids: tokens that end a completion.
    """

    def __init__(self, tokenizer: Tokenizer, eos_ids: frozenset[int]) -> None:
        self._tokenizer = tokenizer
        self._eos_ids = eos_ids

    def of(self, call: Call, token: int) -> Completion | None:
        """Returns what a call sampled if its last token ended it.

        Raises:
            RequestError: its schema cannot be followed any further.
        """
        if token in self._eos_ids:
            return call.complete("stop", None)
        if call.constraint is not None:
            call.constraint.take(token)
            if call.constraint.complete:
                return call.complete("stop", None)
        stop = find_stop(self._tokenizer, call.sampling.stop, call.completion)
        if stop is not None:
            return call.complete("stop", stop)
        if call.known == len(call.tokens):
            return call.complete("length", None)
        return None
