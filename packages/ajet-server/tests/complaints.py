"""What a server's log says of mistakes."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager


class _Complaints(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        if record.name != "asyncio" or record.levelno > logging.WARNING:  # it warns of writes to callers that left
            self.found.append(self.format(record))


@contextmanager
def no_complaints() -> Iterator[None]:
    """Fails at the end if a server in this process has logged a warning, an error or a traceback."""
    handler = _Complaints()
    loggers = [logging.getLogger(name) for name in ("uvicorn.error", "asyncio", "ajet")]
    for logger in loggers:
        logger.addHandler(handler)
    try:
        yield
    finally:
        for logger in loggers:
            logger.removeHandler(handler)
    assert handler.found == []
