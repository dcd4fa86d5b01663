"""The names of a response and its items. All follow from the answer's id, so that they are the same whenever asked."""

import base64
import binascii
import re

_OURS = re.compile(r"(?:rs|msg|fc)_(call_[0-9a-f]{24})_\d+")
_SEALED = "ajet-thinking-1."


def response_id(answer_id: str) -> str:
    """Returns the id of the response."""
    return f"resp_{answer_id}"


def answer_id(response: str) -> str:
    """Returns the id of the answer behind a response; what is no response's id is returned as it is."""
    return response.removeprefix("resp_")


def item_id(kind: str, answer: str, index: int) -> str:
    """Returns the id of an item: the `index`-th of its kind (`rs`, `msg` or `fc`) in the answer.

    That of a tool call is not its `call_id`, which the tool's output names.
    """
    return f"{kind}_{answer}_{index}"


def turn_of(item: str | None) -> str | None:
    """Returns the id of the answer that an item was part of; None where the id is not one of ours."""
    found = _OURS.fullmatch(item) if item else None
    return found.group(1) if found else None


def seal(thinking: str) -> str:
    """Thinking as `encrypted_content`: opaque, for clients that send nothing else of it back. It is no secret."""
    return _SEALED + base64.urlsafe_b64encode(thinking.encode()).decode()


def unseal(content: str) -> str:
    """Undoes `seal`. Raises `ValueError` for the encrypted thinking of others."""
    if not content.startswith(_SEALED):
        raise ValueError("encrypted elsewhere, and cannot be read here; send the thinking's `content`, or leave it out")
    try:
        return base64.b64decode(content.removeprefix(_SEALED), altchars=b"-_", validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        raise ValueError("not as it was given out: it was changed or cut") from None
