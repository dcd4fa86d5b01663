"""For all tests: Ctrl-C works, also where they were started in the background of a shell, which ignores it there."""

import os
import signal
from collections.abc import Iterator

import pytest

if "PYTEST_XDIST_WORKER" in os.environ:
    # Before torch is loaded, here and in the servers under test: other test processes want the other cores.
    os.environ.setdefault("OMP_NUM_THREADS", "1")


@pytest.fixture(scope="session", autouse=True)
def _ctrl_c_interrupts() -> Iterator[None]:  # pyright: ignore[reportUnusedFunction]
    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
