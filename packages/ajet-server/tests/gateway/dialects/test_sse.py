"""Server-sent events, byte for byte."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_server.gateway.dialects.sse import event


@pytest.mark.parametrize(
    ("data", "name", "sent"),
    [
        ({"a": [1, None]}, None, b'data: {"a":[1,null]}\n\n'),
        ({"a": "\n\u2028é"}, "grown", b'event: grown\ndata: {"a":"\\n\\u2028\\u00e9"}\n\n'),
        (b"[DONE]", None, b"data: [DONE]\n\n"),
    ],
)
def test_events(data: Any, name: str | None, sent: bytes) -> None:
    assert event(data, name) == sent


@given(st.dictionaries(st.text(), st.text()))
def test_an_event_is_one_line_for_whoever_splits_lines(data: dict[str, str]) -> None:
    lines = event(data).decode("ascii").splitlines()
    assert len(lines) == 2
    assert json.loads(lines[0].removeprefix("data: ")) == data
    assert lines[1] == ""
