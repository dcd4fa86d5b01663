"""One call that somebody waits for, and what has been handed on of it."""

import asyncio
from collections.abc import Callable

from ajet_core.errors import AjetError, UnavailableError
from ajet_server.worker.protocol import Generate, Generated, Sampled

OnSampled = Callable[[Sampled], None]


class PendingCall:
    """A call, which worker runs it, and how much of it its caller has been handed.

    A worker may have to begin a call again, and then samples the same tokens again, since its random numbers follow
    from the call's id. What the caller has already is compared as it comes; only the rest is handed on.

    Attributes:
        message: what the worker is sent.
        answer: the end of the call.
        sent: the present worker was sent it.
        settled: a worker has answered it.
        began_again: why the call had to leave a worker, if it had to.
    """

    def __init__(self, message: Generate, on_sampled: OnSampled | None) -> None:
        self.message = message
        self.answer: asyncio.Future[Generated] = asyncio.get_running_loop().create_future()
        self.sent = False
        self.settled = False
        self.began_again: str | None = None
        self._on_sampled = on_sampled
        self._handed = bytearray()

    @property
    def to_be_cancelled(self) -> bool:
        """Whether the worker may still run it. A call that began again may have been answered by its first run."""
        return self.sent and (not self.settled or self.began_again is not None)

    def begin_again(self, cause: str) -> None:
        """Notes that the worker does not run it any more."""
        if self.sent:
            self.sent, self.began_again = False, cause

    def stream(self, sampled: Sampled) -> None:
        """Hands on what is new. Tokens that contradict what was handed on end the call, and so does its callback."""
        if self.answer.done() or self._on_sampled is None:
            return
        before = bytes(self._handed[4 * sampled.start :])
        known = len(before) // 4
        if not sampled.token_ids.startswith(before[: len(sampled.token_ids)]):
            self.fail(self._contradiction())
        elif len(sampled.token_ids) > len(before):
            self._handed += sampled.token_ids[4 * known :]
            self._hand(self._on_sampled, _rest(sampled, known))

    def finish(self, generated: Generated) -> None:
        """Ends the call, after all that it sampled was handed on."""
        self.settled = True
        whole = Sampled(self.message.request_id, 0, generated.token_ids, generated.logprobs, generated.top_logprobs)
        self.stream(whole)
        if len(self._handed) > len(generated.token_ids):
            self.fail(self._contradiction())
        if not self.answer.done():
            self.answer.set_result(generated)

    def refuse(self, error: AjetError) -> None:
        """Ends the call with what the worker says is wrong with it."""
        self.settled = True
        self.fail(error)

    def time_out(self, after_s: float) -> None:
        """Ends the call because it took too long."""
        where = "running" if self.sent else "waiting for the engine"
        self.fail(
            UnavailableError(
                f"the call was still {where} after {after_s:g} s (limits.request_timeout_s)", retry_after_s=5.0
            )
        )

    def fail(self, error: Exception) -> None:
        """Ends the call with an error."""
        if not self.answer.done():
            self.answer.set_exception(error)

    def _hand(self, on_sampled: OnSampled, sampled: Sampled) -> None:
        try:
            on_sampled(sampled)
        except Exception as error:  # noqa: BLE001 - raised where the call is awaited; here it would end all calls
            self.fail(error)

    def _contradiction(self) -> UnavailableError:
        return UnavailableError(
            f"the call had to begin again ({self.began_again}) and sampled other tokens than the "
            f"{len(self._handed) // 4} that were streamed before; send it again",
            retry_after_s=1.0,
        )


def _rest(sampled: Sampled, known: int) -> Sampled:
    """Returns it without its first `known` tokens."""
    cut = 4 * known
    return Sampled(
        request_id=sampled.request_id,
        start=sampled.start + known,
        token_ids=sampled.token_ids[cut:],
        logprobs=sampled.logprobs[cut:],
        top_logprobs=sampled.top_logprobs[known:],
    )
