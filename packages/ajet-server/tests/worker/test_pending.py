"""What a caller has been handed stays true, however often its call begins again."""

import asyncio
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_core.errors import RequestError, UnavailableError
from ajet_server.worker.pending import PendingCall
from ajet_server.worker.protocol import Generate, Generated, Sampled, Sampling

MESSAGE = Generate("call", b"", Sampling(max_tokens=1), stream=True)


def pack(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}i", *tokens)


def sampled(tokens: list[int], start: int, stop: int) -> Sampled:
    part = tokens[start:stop]
    values = [-float(token) for token in part]
    return Sampled(
        "call", start, pack(part), struct.pack(f"<{len(part)}f", *values), [[(token, -1.0)] for token in part]
    )


def generated(tokens: list[int]) -> Generated:
    whole = sampled(tokens, 0, len(tokens))
    return Generated("call", whole.token_ids, whole.logprobs, "stop", None, 0, 0, whole.top_logprobs)


class Caller:
    """Puts together what it is handed."""

    def __init__(self) -> None:
        self.tokens: list[int] = []

    def __call__(self, part: Sampled) -> None:
        count = len(part.token_ids) // 4
        assert count
        assert part.start == len(self.tokens)
        new = list(struct.unpack(f"<{count}i", part.token_ids))
        assert list(struct.unpack(f"<{count}f", part.logprobs)) == [-token for token in new]
        assert part.top_logprobs == [[(token, -1.0)] for token in new]
        self.tokens += new


runs = st.lists(st.lists(st.integers(1, 4), max_size=6), max_size=4)  # per life of a worker, the sizes of its messages
ids = st.lists(st.integers(0, 3), min_size=1, max_size=12)


@given(ids, ids, runs, st.booleans())
def test_either_every_token_once_or_an_error(
    first: list[int], last: list[int], cuts: list[list[int]], same: bool
) -> None:
    """All lives but the last sample `first`; the last one samples `last`, or the same again."""

    async def play() -> None:
        caller = Caller()
        pending = PendingCall(MESSAGE, caller)
        for sizes in cuts:
            pending.sent = True
            at = 0
            for size in sizes:
                pending.stream(sampled(first, at, at + size)) if at < len(first) else None
                at += size
            pending.begin_again("it died")
        handed = list(caller.tokens)
        final = first if same else last
        assert handed == first[: len(handed)]
        pending.sent = True
        for at in range(len(final)):
            pending.stream(sampled(final, at, at + 1))
        pending.finish(generated(final))
        if final[: len(handed)] == handed:
            assert (await pending.answer).token_ids == pack(final)
            assert caller.tokens == final
        else:
            with pytest.raises(UnavailableError, match=r"begin again \(it died\)") as caught:
                await pending.answer
            assert caught.value.retry_after_s == 1.0
        before = list(caller.tokens)
        pending.stream(sampled(first, 0, len(first)))
        assert caller.tokens == before

    asyncio.run(play())


def test_without_a_stream_everything_is_handed_on_at_the_end() -> None:
    async def play() -> None:
        caller = Caller()
        pending = PendingCall(MESSAGE, caller)
        pending.finish(generated([3, 4]))
        assert caller.tokens == [3, 4]
        assert pending.answer.done()

    asyncio.run(play())


def test_what_the_callback_raises_ends_the_call() -> None:
    async def play() -> None:
        def broken(part: Sampled) -> None:
            raise ValueError("the reader broke")

        pending = PendingCall(MESSAGE, broken)
        pending.sent = True
        pending.stream(sampled([3, 4], 0, 1))
        assert pending.to_be_cancelled
        pending.finish(generated([3, 4]))
        with pytest.raises(ValueError, match="the reader broke"):
            await pending.answer

    asyncio.run(play())


def test_a_call_is_cancelled_unless_it_is_known_to_have_ended() -> None:
    async def play() -> None:
        pending = PendingCall(MESSAGE, None)
        assert not pending.to_be_cancelled
        pending.sent = True
        assert pending.to_be_cancelled
        pending.refuse(RequestError("no"))
        assert not pending.to_be_cancelled
        with pytest.raises(RequestError):
            await pending.answer
        again = PendingCall(MESSAGE, None)
        again.sent = True
        again.begin_again("new weights")
        again.sent = True
        again.finish(generated([3]))
        assert again.to_be_cancelled

    asyncio.run(play())
