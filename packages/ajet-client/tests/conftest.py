from collections.abc import Iterator

import pytest

from ajet_client import Swarm
from ajet_client.testing import FakeClock, FakeServer


@pytest.fixture
def clock() -> FakeClock:
    return FakeClock()


@pytest.fixture
def server() -> FakeServer:
    return FakeServer()


@pytest.fixture
def swarm(server: FakeServer, clock: FakeClock) -> Iterator[Swarm]:
    """A swarm without sockets and without waiting."""
    with Swarm(server.url, transport=server.transport(), clock=clock) as swarm:
        yield swarm
