"""Time and chance, in one object that a test can replace (`ajet_client.testing.FakeClock`)."""

import random
import threading
import time


class Clock:
    """The real clock."""

    def now(self) -> float:
        """Returns monotonic time, seconds."""
        return time.monotonic()

    def sleep(self, seconds: float, stop: threading.Event | None = None) -> None:
        """Blocks the thread for some seconds, or until `stop` is set."""
        if stop is None:
            time.sleep(seconds)
        else:
            stop.wait(seconds)

    async def async_sleep(self, seconds: float) -> None:
        """Suspends the task for some seconds."""
        import asyncio  # 30 ms that a user of the sync swarm need not pay

        await asyncio.sleep(seconds)

    def jitter(self) -> float:
        """Returns a random number in [0, 1)."""
        return random.random()
