"""What is written in one turn of the loop is one write, in order, and nothing is lost at the end."""

import asyncio

import pytest

from ajet_server.joined_writes import JoinedWrites

pytestmark = pytest.mark.anyio


class Recorded(asyncio.Transport):
    """A transport that remembers."""

    def __init__(self) -> None:
        super().__init__({"peername": "somebody"})
        self.done: list[bytes | str] = []

    def write(self, data: bytes | bytearray | memoryview) -> None:
        self.done.append(bytes(data))

    def close(self) -> None:
        self.done.append("closed")


@pytest.fixture
async def pair() -> tuple[Recorded, JoinedWrites]:
    recorded = Recorded()
    return recorded, JoinedWrites(recorded, asyncio.get_running_loop())


async def test_one_write_for_each_turn(pair: tuple[Recorded, JoinedWrites]) -> None:
    recorded, joined = pair
    joined.write(b"head ")
    joined.write(b"body")
    assert recorded.done == []
    await asyncio.sleep(0)
    joined.write(b"more")
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert recorded.done == [b"head body", b"more"]


async def test_what_is_long_is_written_at_once(pair: tuple[Recorded, JoinedWrites]) -> None:
    recorded, joined = pair
    joined.write(b"head ")
    joined.write(b"x" * (1 << 16))
    assert recorded.done == [b"head " + b"x" * (1 << 16)]


async def test_closing_comes_after_what_was_written(pair: tuple[Recorded, JoinedWrites]) -> None:
    recorded, joined = pair
    joined.write(b"last words")
    joined.close()
    await asyncio.sleep(0)
    assert recorded.done == [b"last words", "closed"]


async def test_all_else_is_the_transports_own(pair: tuple[Recorded, JoinedWrites]) -> None:
    assert pair[1].get_extra_info("peername") == "somebody"
