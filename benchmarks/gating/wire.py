"""As much HTTP/1.1 as both ends of the benchmark need: one message at a time from a buffer of bytes."""

import re

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
_CHUNKED = re.compile(rb"\r\ntransfer-encoding: *chunked", re.IGNORECASE)


def take_message(buffer: bytearray) -> tuple[bytes, bytes] | None:
    """Takes the first whole message off the buffer and returns its start line and its body; None if there is none yet.

    Raises:
        ValueError: its body comes in chunks, which nobody here is meant to send.
    """
    end = buffer.find(b"\r\n\r\n")
    if end < 0:
        return None
    head = bytes(buffer[:end])
    if _CHUNKED.search(head):
        raise ValueError("a body in chunks")
    length = _LENGTH.search(head)
    stop = end + 4 + (int(length[1]) if length else 0)
    if len(buffer) < stop:
        return None
    body = bytes(buffer[end + 4 : stop])
    del buffer[:stop]
    return head.partition(b"\r\n")[0], body
