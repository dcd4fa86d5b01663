"""Shapes hold what a template can tell apart, and repeat where conversations do."""

import jinja2
import pytest
from hypothesis import given
from hypothesis import strategies as st
from template_helpers import result, said, source, user

from ajet_server.gateway.shapes import LONGEST_LOOP, Shaper, looked_for, messages_of, without_loops


def strings(template: str) -> set[str]:
    return looked_for(jinja2.Environment(autoescape=True).parse(template))


@pytest.mark.parametrize(
    ("template", "found"),
    [
        ("{{ 'a' if '</think>' in m.content }}", {"</think>"}),
        ("{{ m.content.split('</t>')[-1].startswith('<x>') }}", {"</t>", "<x>"}),
        ("{{ 1 if m.role == 'user' or 'tool_calls' in m }}", set[str]()),
        ("{{ m.content.split('\n') }} '<text>'", set[str]()),
    ],
)
def test_what_a_template_looks_for(template: str, found: set[str]) -> None:
    assert strings(template) == found


def test_qwen3_looks_for_thinking_and_tool_responses() -> None:
    assert strings(source("qwen3")) == {"</think>", "<think>", "<tool_response>", "</tool_response>"}


def test_shapes_keep_what_tells_messages_apart() -> None:
    shaper = Shaper(["<t>"])
    same = (
        [user("hello"), user("other")],
        [said("a", '{"x": 1}'), said("b", '{"y": [2]}')],
        [result("a"), result("b", 1)],
    )
    for one, other in same:
        assert shaper.shapes([one]) == shaper.shapes([other])
    different = [user("a"), user(""), user(" "), user("<t>a"), user("a<t>"), said("a"), said("a", "{}"), said("", "{}")]
    different += [said("a", '{"x": 1}'), said("a", "{}", "{}"), said("a", thinking="b"), result("a"), result("")]
    assert len(set(shaper.shapes(different))) == len(different)


@given(st.lists(st.sampled_from(["user", "assistant", "tool"]), max_size=8))
def test_shapes_are_messages_of_themselves(roles: list[str]) -> None:
    shaper = Shaper([])
    shapes = shaper.shapes([{"role": role, "content": "some text"} for role in roles])
    assert shaper.shapes(messages_of(shapes)) == shapes


_shapes = st.sampled_from("abc")


@given(st.lists(_shapes, max_size=4).map(tuple), st.lists(_shapes, min_size=1, max_size=LONGEST_LOOP).map(tuple))
def test_loops_do_not_grow(head: tuple[str, ...], loop: tuple[str, ...]) -> None:
    lengths = [len(without_loops(head + loop * times)) for times in range(3, 9)]
    assert max(lengths) <= len(head) + 3 * len(loop)
    assert without_loops(loop, without_loops(head + loop)) == without_loops(head + loop + loop)
