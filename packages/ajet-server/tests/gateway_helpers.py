"""What tests of the gateway say to a server over a fake worker."""

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

from server_helpers import Running, running

from ajet_core.events import EngineState
from ajet_server.capture.ledger import Ledger
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import Answer, Delta, Item, Message, Started
from ajet_server.gateway.runs import Run
from ajet_server.models.folder import open_model_folder

END = 1
"""The token that ends a turn of the fake's model."""

ADD = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
CALL = '<tool_call>\n{"name": "add", "arguments": {"x":  1}}\n</tool_call>'


def ids_of(model: Path, text: str) -> list[int]:
    """Text as the fake's model might sample it: the usual tokens."""
    return ChatRenderer(open_model_folder(str(model))).encode(text).tolist()


def user(content: str) -> Message:
    return {"role": "user", "content": content}


@asynccontextmanager
async def rolling(folder: Path, model: Path, **sections: Any) -> AsyncIterator[Running]:
    """A server that answers calls and never becomes busy with an update. The fake has room for 4096 tokens."""
    sections = {"batch": {"size": 4000}} | sections
    worker = folder / "worker"
    worker.mkdir(parents=True, exist_ok=True)
    (worker / "max_model_len").write_text("4096")
    async with running(folder, model, **sections) as live:
        await live.reach(EngineState.ROLLING)
        yield live


@contextmanager
def blocked(ledger: Ledger) -> Iterator[threading.Event]:
    """The disk takes its time, until the event is set or the block ends."""
    disk = threading.Event()
    stuck = asyncio.ensure_future(ledger.write(lambda _: disk.wait(20)))
    try:
        yield disk
    finally:
        disk.set()
        stuck.add_done_callback(lambda _: None)


async def items_of(run: Run) -> list[Item]:
    return [item async for item in run.items()]


def told(items: list[Item], index: int = 0) -> tuple[str, list[int], Answer]:
    """What a stream said of one choice: its text, its tokens, and the answer that it ended with."""
    first, *deltas, last = items
    assert isinstance(first, Started)
    assert isinstance(last, Answer)
    own = [delta for delta in deltas if isinstance(delta, Delta) and delta.index == index]
    return "".join(delta.text for delta in own), [token for delta in own for token in delta.tokens], last
