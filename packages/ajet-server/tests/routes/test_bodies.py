"""A body that is read from where it goes beyond the last one says what it says when it is read whole."""

import hashlib
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ajet_server.routes import bodies
from ajet_server.routes.bodies import Bodies


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "LEAST_BYTES", 1)


class Counted(Bodies):
    """Counts the bytes that are decoded."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        super().__init__()
        self.decoded = 0

        def decode(text: bytes) -> Any:
            self.decoded += len(text)
            return msgspec.json.decode(text)

        monkeypatch.setattr(bodies, "_decode", decode)


def same(reader: Bodies, body: bytes, field: str = "messages", salt: str = "chat") -> Any:
    """Checks the reader against reading the body whole; returns what the body says."""
    said, digest = reader.read("ep", salt, field, body)
    assert said == msgspec.json.decode(body)
    assert digest == hashlib.sha256(salt.encode() + b"\0" + body).digest()
    return said


texts = st.text(max_size=8) | st.sampled_from(['"', "\\", ']}, "messages": [', '{"messages":[null', "[null]"])
values = st.recursive(
    st.none() | st.booleans() | st.integers(0, 99) | texts,
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(texts, inner, max_size=2),
    max_leaves=4,
)
messages = st.dictionaries(st.sampled_from(["role", "content", "messages"]), values, min_size=1) | values
fields = st.dictionaries(st.sampled_from(["model", "tools", "input", "", "stream"]), values, max_size=3)
spaces = st.sampled_from([None, 1])
separators = st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])


@given(
    fields, st.lists(st.tuples(st.lists(messages, max_size=3), fields), max_size=5), st.booleans(), spaces, separators
)
def test_a_conversation_that_grows(
    before: dict[str, Any],
    turns: list[tuple[list[Any], dict[str, Any]]],
    ascii_: bool,
    indent: int | None,
    separators: tuple[str, str],
) -> None:
    reader, conversation = Bodies(), list[Any]()
    for more, after in turns:
        conversation = [*conversation, *more]
        body = {**before, "messages": conversation, **{key: value for key, value in after.items() if key not in before}}
        text = json.dumps(body, ensure_ascii=ascii_, indent=indent, separators=separators)
        same(reader, text.encode(errors="replace"))


bits = st.sampled_from(
    ['{"messages":[', '{"messages":', '"messages"', '"a"', '"x":1', "1", "12", "null", "[]", *"[]{},: "]
)


@given(st.lists(st.lists(bits, max_size=10).map("".join), min_size=2, max_size=4))
@example(['{"messages":[1]}', '{"messages":[12]}'])
@example(['{"messages":[1]}', '{"messages":[1,]}'])
@example(['{"messages":[1]}', '{"messages":[1],}'])
@example(['{"messages":[1]}', '{"messages":[1],"messages":[2]}'])
@example(['{"messages":[1]}', '{"messages":[1,2],"mess\\u0061ges":[null,2]}'])
@example(['{"messages":[1]}', '{"messages":[1,2],"messages":3}'])
@example(['{"messages":[[1]]}', '{"messages":[[1,2]]}'])
@example(['{"messages":[1],"messages":[2]}', '{"messages":[1],"messages":[2,3]}'])
@example(['{"a":[1],"messages":[1]}', '{"a":[1],"messages":[1,2]}'])
@example(['{"messages":[1],"a":[1]}', '{"messages":[1],"a":[1,2]}'])
@example(['{"messages":[1],"a":{"messages":[1]}}', '{"messages":[1,2],"a":{"messages":[1]}}'])
@example(['{"messages":[]}', '{"messages":[1]}'])
@example(['{"messages":[1]} ', '{"messages":[1]} x'])
@example(['{"messages":[]}', '{"messages":[,1]}'])
@example(['{"a":0,"messages":[1],"a":[1]}', '{"a":0,"messages":[1],"a":[1,2]}'])
def test_whatever_follows_is_read_or_refused_as_it_would_be_alone(sent: list[str]) -> None:
    reader = Bodies()
    for text in sent:
        problem = _problem(lambda body: reader.read("ep", "chat", "messages", body), text)
        assert problem == _problem(msgspec.json.decode, text)
        if problem is None:
            same(reader, text.encode())


def _problem(read: Callable[[bytes], object], text: str) -> str | None:
    try:
        read(text.encode())
    except msgspec.DecodeError as error:
        return str(error)
    return None


def _body(turns: int) -> bytes:
    said = [{"role": "user", "content": f"{turn} {'é' * 500}"} for turn in range(turns)]
    return json.dumps({"model": "m", "messages": said, "max_tokens": 1}).encode()


def test_what_was_sent_before_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    reader = Counted(monkeypatch)
    first = same(reader, _body(100))
    reader.decoded = 0
    second = same(reader, _body(101))
    assert reader.decoded < 4000 < len(_body(1)) * 2
    assert all(one is other for one, other in zip(first["messages"], second["messages"], strict=False))
    same(reader, _body(101))
    same(reader, _body(99))
    same(reader, _body(103))


def test_others_have_bodies_of_their_own() -> None:
    reader = Bodies()
    body = b'{"input":[1],"messages":[2]}'
    assert same(reader, body, "messages", "chat") == same(reader, body, "input", "responses")
    same(reader, b'{"input":[1,3],"messages":[2]}', "input", "responses")
    same(reader, b'{"input":[1],"messages":[2,3]}', "messages", "chat.player")


def test_what_is_kept_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bodies, "MOST_KEPT", 1_000_000)
    reader = Bodies()
    for turns in (1, 20, 40):
        for episode in range(20):
            reader.read(f"ep{episode}", "chat", "messages", _body(turns))
    assert 0 < sum(known.size for known in reader._known.values()) == reader._size <= 1_000_000
    reader.read("ep", "chat", "messages", _body(500))
    assert not reader._known
    assert reader._size == 0


@pytest.mark.parametrize("message", ["[],", "{},", "[[[[]]]],", "1.5,", '"ab",', '{"a":1000},', f'"{"x" * 999}",'])
def test_what_is_kept_is_what_it_takes(monkeypatch: pytest.MonkeyPatch, message: str) -> None:
    monkeypatch.setattr(bodies, "MOST_KEPT", 3_000_000)
    reader = Bodies()
    tracemalloc.start()
    try:
        for episode in range(40):
            body = '{"messages":[%s0]}' % (message * (50_000 // len(message)))
            reader.read(f"ep{episode}", "chat", "messages", body.encode())
        taken, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert reader._known
    assert taken < 1.5 * bodies.MOST_KEPT
