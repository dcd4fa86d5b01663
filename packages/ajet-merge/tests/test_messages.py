"""Canonical forms of messages: what counts, what does not, and what is refused."""

import base64
import copy
import json
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ajet_merge._json import MAX_DEPTH
from ajet_merge.errors import MergeError
from ajet_merge.messages import (
    Context,
    canonical_fields,
    canonical_message,
    canonical_tools,
    check_ends,
    plain_message,
    reasoning,
)

USER = {"role": "user", "content": "hello"}
PIXELS = base64.b64encode(b"pixels").decode()


def assistant(**more: Any) -> dict[str, Any]:
    return {"role": "assistant", "content": "hello", **more}


def calling(arguments: Any, **more: Any) -> dict[str, Any]:
    function = {"name": "look", "arguments": arguments}
    return {"role": "assistant", "tool_calls": [{"id": "a", "type": "function", "function": function, **more}]}


def image(url: Any) -> dict[str, Any]:
    return {"role": "user", "content": [{"type": "text", "text": "see"}, {"type": "image_url", "image_url": url}]}


def nested(depth: int) -> Any:
    value: Any = "x"
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"role": "assistant", "content": None}, {"role": "assistant"}),
        ({"role": "assistant", "content": ""}, {"role": "assistant", "content": []}),
        (USER, {"role": "user", "content": [{"type": "text", "text": "hello"}]}),
        (USER, {"role": "user", "content": [{"type": "text", "text": "hello", "cache_control": {"type": "x"}}]}),
        (USER, MappingProxyType(USER)),
        (assistant(), assistant(reasoning_content="hm", reasoning="hm", thinking=None, id="m1", refusal=None)),
        (assistant(), assistant(content=[{"type": "thinking", "thinking": "hm"}, {"type": "text", "text": "hello"}])),
        (assistant(), assistant(content="<think>\nhm\n</think>\n\nhello")),
        (assistant(), assistant(content=" hm\n</think>\n\nhello")),
        (assistant(), assistant(content=[{"type": "text", "text": "<think></think>hello"}])),
        (assistant(content=None), assistant(content="<think>hm</think>\n")),
        (assistant(), assistant(tool_calls=[], function_call=None, annotations=[], audio=None)),
        (calling('{"b": 1, "a": [2.0, null]}'), calling({"a": [2.0, None], "b": 1}, id="b", index=0)),
        (calling("{}"), {"role": "assistant", "tool_calls": [{"name": "look", "arguments": {}}]}),
        (calling(None), calling("")),
        ({"role": "tool", "content": "1", "tool_call_id": "a"}, {"role": "tool", "content": "1", "tool_call_id": "b"}),
        (image(f"data:image/png;base64,{PIXELS}"), image({"url": f"data:image/webp;base64,{PIXELS}"})),
    ],
)
def test_equal_in_canonical_form(one: Any, other: Any) -> None:
    assert canonical_message(one) == canonical_message(other)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (USER, {"role": "system", "content": "hello"}),
        (USER, {"role": "user", "content": "hello "}),
        (USER, {**USER, "name": "ann"}),
        (USER, {**USER, "content": "<think>hm</think>hello"}),
        (assistant(), assistant(content="<think>hm hello")),
        (assistant(), assistant(content="well, <think>hm</think>hello")),
        (assistant(), assistant(content="<think>hm</think>hello</think>")),
        (USER, {"role": "user", "content": [{"type": "text", "text": "hel"}, {"type": "text", "text": "lo"}]}),
        (USER, {"role": "user", "content": [{"type": "text", "text": "hello", "style": "bold"}]}),
        (assistant(), assistant(refusal="no")),
        (assistant(), assistant(audio={"id": "x"})),
        (assistant(), assistant(prefix=False)),
        (assistant(x=1), assistant(x=True)),
        (calling('{"a": 1}'), calling('{"a": true}')),
        (calling('"a"'), calling("a")),
        (calling("{}"), calling("")),
        (calling("{}"), calling("{} ", extra={"x": 1})),
        (calling("{}"), {"role": "assistant", "tool_calls": [{"type": "custom", "custom": {"name": "look"}}]}),
        ({"role": "tool", "content": "1", "name": "f"}, {"role": "tool", "content": "1", "name": "g"}),
        (image(f"data:image/png;base64,{PIXELS}"), image("data:image/png;base64,AAAA")),
        (image("http://a.invalid/1.png"), image("http://a.invalid/2.png")),
        (image("data:,a"), image("data:,b")),
        (image("data:image/png;base64,?"), image("data:image/png;base64,!")),
        (USER, {"role": "user", "content": f"data:image/png;base64,{PIXELS}"}),
    ],
)
def test_different_in_canonical_form(one: Any, other: Any) -> None:
    assert canonical_message(one) != canonical_message(other)


def test_fields_are_the_ones_that_count() -> None:
    message = {**calling('{"b":1,"a":2}', extra=3), "reasoning": "hm", "content": [{"type": "text", "text": "ok"}]}
    assert canonical_fields(message) == {
        "role": "assistant",
        "content": "ok",
        "tool_calls": [["look", '{"a":2,"b":1}', {}, {"extra": 3}]],
    }
    assert json.loads(canonical_message(message)) == canonical_fields(message)


@pytest.mark.parametrize(
    "text", ["[" * 100_000, "{", "NaN", '{"a": 1e999}', "9" * 5000, "\ud800", json.dumps(nested(MAX_DEPTH + 1))]
)
def test_any_text_may_stand_for_arguments(text: str) -> None:
    assert canonical_message(calling(text)) == canonical_message(calling(text, id="other"))
    assert canonical_message(calling(text)) != canonical_message(calling(text + "1"))


@pytest.mark.parametrize(
    ("message", "named"),
    [
        ("hello", r"m = 'hello': a message must be a mapping"),
        ({"content": "x"}, r"m\.role = None: must be a non-empty string"),
        ({"role": 3}, r"m\.role = 3"),
        ({"role": "user", "content": 3}, r"m\.content = 3: must be a string, a list of parts or None"),
        ({"role": "user", "content": {"type": "text", "text": "x"}}, r"m\.content = .*list of parts"),
        ({"role": "user", "content": ["x"]}, r"m\.content\[0\] = 'x': a part"),
        ({"role": "user", "content": [{"type": "text"}]}, r"m\.content\[0\]\.text = None: must be a string"),
        ({"role": "user", "content": [{"text": "x"}]}, r"m\.content\[0\] = .*with a type"),
        ({"role": "assistant", "tool_calls": "x"}, r"m\.tool_calls = 'x': must be a list"),
        ({"role": "assistant", "tool_calls": [3]}, r"m\.tool_calls\[0\] = 3: must be a mapping"),
        ({"role": "assistant", "tool_calls": [{"id": "a"}]}, r"m\.tool_calls\[0\]\.function = .*with a name"),
        ({"role": "assistant", "tool_calls": [{"function": "f"}]}, r"m\.tool_calls\[0\]\.function = 'f'"),
        ({"role": "user", "x": object()}, r"m\.x = <object .*JSON"),
        ({"role": "user", "reasoning": np.ones(2)}, r"m\.reasoning = array.*JSON"),
        ({"role": "user", "x": 10**5000}, r"m\.x = '0x.*JSON"),
        ({"role": "user", "x": {1: 2}}, r"m\.x = 1: keys must be strings"),
        ({"role": "user", 1: 2}, r"m = 1: keys must be strings"),
        ({"role": "user", "x": nested(5000)}, rf"m\.x\[0\].* nested more than {MAX_DEPTH} deep"),
    ],
)
def test_what_is_no_message_is_refused_by_name(message: Any, named: str) -> None:
    with pytest.raises(MergeError, match=named):
        canonical_message(message, "m")


def test_long_values_are_cut_in_errors() -> None:
    with pytest.raises(MergeError) as caught:
        canonical_message({"role": ["x" * 1000]}, "m")  # type: ignore[dict-item]
    assert len(str(caught.value)) < 200


def test_tools_are_compared_as_json_in_their_order() -> None:
    one, other = {"type": "function", "function": {"name": "f", "strict": True}}, {"name": "g"}
    assert canonical_tools([one, other]) == canonical_tools(
        ({"function": {"strict": True, "name": "f"}, "type": "function"}, other)
    )
    assert canonical_tools([one, other]) != canonical_tools([other, one])
    assert canonical_tools([one]) != canonical_tools([{"type": "function", "function": {"name": "f", "strict": 1}}])
    assert canonical_tools([]) == canonical_tools(()) == ""
    for bad, named in ("x", "tools = 'x'"), ([3], r"tools\[0\] = 3"), ([{"a": {3}}], r"tools\[0\]\.a"):
        with pytest.raises(MergeError, match=named):
            canonical_tools(bad)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=8,
)


@given(st.dictionaries(st.sampled_from(["name", "refusal", "x", "reasoning", "id"]), JSON))
def test_the_form_does_not_depend_on_the_order_of_keys_and_leaves_the_message_alone(extra: dict[str, Any]) -> None:
    message = {"role": "user", "content": "x", **extra}
    before = copy.deepcopy(message)
    turned = dict(reversed(message.items()))
    assert canonical_message(message) == canonical_message(turned)
    assert message == before
    plain = plain_message(message)
    assert plain == message
    assert all(plain[key] is not value for key, value in message.items() if isinstance(value, list | dict))


@given(JSON)
def test_arguments_mean_the_same_as_text_and_as_values(arguments: Any) -> None:
    as_text = calling(json.dumps(arguments))
    if arguments is None:  # as a value it means that there are none
        assert canonical_message(calling(arguments)) != canonical_message(as_text)
    elif not isinstance(arguments, str):
        assert canonical_message(calling(arguments)) == canonical_message(as_text)


def test_reasoning_is_found() -> None:
    part = {"type": "thinking", "thinking": "hm"}
    message = assistant(reasoning="a", thinking="", content=[part, {"type": "text", "text": "x"}])
    assert reasoning(message) == {"reasoning": "a", "content": [part]}
    assert reasoning(USER) == {}
    assert reasoning(assistant(content="<think>hm</think>\nhello", thinking="a")) == {
        "thinking": "a",
        "content": "<think>hm</think>",
    }


def test_a_context_holds_tuples_and_int32() -> None:
    context = Context([USER, assistant()], assistant(), [{"name": "f"}], [3, 7])  # type: ignore[arg-type]
    assert context.messages == (USER, assistant())
    assert context.tools == ({"name": "f"},)
    assert context.message_ends is not None
    assert context.message_ends.dtype == np.int32
    assert not context.message_ends.flags.writeable
    assert Context((), None, (), np.empty(0, np.int64)).message_ends is not None


@pytest.mark.parametrize(
    ("fields", "named"),
    [
        ({"messages": "x"}, "messages = 'x': must be a list"),
        ({"messages": [USER, {}]}, r"messages\[1\]\.role = None"),
        ({"messages": [3]}, r"messages\[0\] = 3"),
        ({"messages": [], "response": {}}, r"response\.role = None"),
        ({"messages": [], "tools": {}}, r"tools = \{\}: must be a list"),
        ({"messages": [USER], "message_ends": [1, 2]}, "one integer for each of the 1 messages"),
        ({"messages": [USER], "message_ends": [1.5]}, r"message_ends = \[1.5\]: must be one integer"),
        ({"messages": [USER], "message_ends": [-1]}, "message_ends = .*numbers of prompt tokens"),
        ({"messages": [USER], "message_ends": [2**31]}, "message_ends = .*numbers of prompt tokens"),
        ({"messages": [USER, USER], "message_ends": [2, 1]}, "message_ends = .*at least the one before"),
        ({"messages": [USER, USER], "message_ends": [[1], [2, 3]]}, "message_ends = .*flat sequence"),
    ],
)
def test_what_does_not_fit_a_context_is_refused_by_name(fields: dict[str, Any], named: str) -> None:
    with pytest.raises(MergeError, match=named):
        Context(**fields)


def test_ends_of_messages_must_lie_in_the_prompt() -> None:
    for ends in None, [2, 5]:
        check_ends(Context((USER, USER), message_ends=ends), 5, "call 'c1'")  # type: ignore[arg-type]
    check_ends(Context((), message_ends=[]), 0, "call 'c1'")  # type: ignore[arg-type]
    with pytest.raises(MergeError, match=r"call 'c1': message_ends\[1\] = 6: must be at most .*prompt tokens, 5"):
        check_ends(Context((USER, USER), message_ends=[2, 6]), 5, "call 'c1'")  # type: ignore[arg-type]
