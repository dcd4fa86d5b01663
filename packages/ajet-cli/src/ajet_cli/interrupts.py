"""Ctrl-C and SIGTERM during a run: the first one ends it in order, the second one at once."""

import os
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

from ajet_client.child import kill_all

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


class InterruptedRunError(KeyboardInterrupt):
    """The user ended the run.

    Attributes:
        status: the exit status of a program that ends so, 128 and the number of the signal.
    """

    def __init__(self, number: int) -> None:
        self.signal_name = signal.Signals(number).name
        super().__init__(self.signal_name)
        self.status = 128 + number


@contextmanager
def interruptible() -> Generator[None]:
    """Raises `InterruptedRunError` in the main thread at the first signal; at the next one the process is gone."""
    before = {number: signal.signal(number, _first) for number in _SIGNALS}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _first(number: int, frame: FrameType | None) -> None:
    for each in _SIGNALS:
        signal.signal(each, _second)
    raise InterruptedRunError(number)


def _second(number: int, frame: FrameType | None) -> None:
    kill_all()
    if sys.stderr.isatty():
        sys.stderr.write("\x1b[?25h\n")  # a progress bar hid the cursor
        sys.stderr.flush()
    os._exit(128 + number)
