"""How bodies are checked, and how a mistake is told."""

from typing import Any

import pytest

from ajet_core.errors import PromptTooLongError, RequestError, UnavailableError
from ajet_server.gateway.dialects.fields import (
    Body,
    Json,
    Text,
    ToolName,
    as_object,
    drop_off,
    in_words_of,
    short,
    text_at,
    validate,
)

OFF: dict[str, tuple[Any, ...]] = {"n": (1,), "audio": ()}


class _Inner(Body):
    size: int


class _Whole(Body):
    name: Text
    inner: _Inner | None = None
    schema_: Json | None = None
    tool: ToolName | None = None


def test_null_asks_for_nothing() -> None:
    assert as_object({"a": None, "b": 0}) == {"b": 0}


@pytest.mark.parametrize("raw", [None, [], "a", 1])
def test_a_body_is_an_object(raw: object) -> None:
    with pytest.raises(RequestError, match="must be a JSON object"):
        as_object(raw)


def test_what_is_off_is_dropped() -> None:
    assert drop_off({"n": 1, "other": 2}, OFF) == {"other": 2}


@pytest.mark.parametrize(
    ("present", "advice"),
    [({"n": 2}, "leave it out or send 1"), ({"n": True}, "leave it out or send 1"), ({"audio": {}}, "leave it out")],
)
def test_what_is_on_is_refused(present: dict[str, Any], advice: str) -> None:
    with pytest.raises(RequestError, match=f"is not served; {advice}$") as caught:
        drop_off(present, OFF)
    assert caught.value.field in present


@pytest.mark.parametrize(
    ("raw", "field", "reason"),
    [
        ({}, "name", "required, but not given"),
        ({"name": "a", "other": 1}, "other", "unknown field"),
        ({"name": "\ud800"}, "name", "half of a surrogate pair is no character"),
        ({"name": "a", "inner": {"size": "x"}}, "inner.size", "got 'x'; .*integer"),
        ({"name": "a", "schema_": {"a": [{"b": "\ud800"}]}}, "schema_", "half of a surrogate pair"),
        ({"name": "a", "schema_": {"a": float("nan")}}, "schema_", "not JSON compliant"),
        ({"name": "a", "tool": "a b"}, "tool", "should match pattern"),
        ({"name": "a", "tool": ""}, "tool", "should match pattern"),
    ],
)
def test_mistakes_name_the_field(raw: dict[str, Any], field: str, reason: str) -> None:
    with pytest.raises(RequestError, match=reason) as caught:
        validate(_Whole, raw)
    assert caught.value.field == field
    assert caught.value.message.startswith(f"{field}: ")


def test_nesting_has_an_end() -> None:
    deep: dict[str, Any] = {}
    for _ in range(100_000):
        deep = {"a": deep}
    with pytest.raises(RequestError) as caught:
        validate(_Whole, {"name": "a", "schema_": deep})
    assert caught.value.field is not None
    assert caught.value.field.startswith("schema_")


@pytest.mark.parametrize("text", ["", "a", "é", "𝄞"])
def test_texts_by_hand(text: str) -> None:
    assert text_at(text, "a.b") == text


@pytest.mark.parametrize(("value", "reason"), [(5, "a string is needed"), ("\ud800", "half of a surrogate pair")])
def test_no_texts_by_hand(value: object, reason: str) -> None:
    with pytest.raises(RequestError, match=rf"^a\.b: got .*{reason}") as caught:
        text_at(value, "a.b")
    assert caught.value.field == "a.b"


def test_long_values_are_quoted_shortly() -> None:
    assert short("a") == "'a'"
    assert len(short("a" * 1000)) == 120


def test_an_error_names_the_field_as_the_dialect_does() -> None:
    error = in_words_of({"messages": "input"}, PromptTooLongError("messages: the prompt is long", field="messages"))
    assert isinstance(error, PromptTooLongError)
    assert (error.message, error.field) == ("input: the prompt is long", "input")


@pytest.mark.parametrize("error", [RequestError("top_p: is 2", field="top_p"), UnavailableError("no", retry_after_s=5)])
def test_other_errors_stay_as_they_are(error: Any) -> None:
    assert in_words_of({"messages": "input"}, error) is error
