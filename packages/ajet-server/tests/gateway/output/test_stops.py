from hypothesis import given
from hypothesis import strategies as st

from ajet_server.gateway.output.stops import StopFilter, unfinished

words = st.text("ab", min_size=1, max_size=4)


@given(text=st.text("ab", max_size=8), literals=st.lists(words, max_size=3))
def test_what_may_become_a_literal(text: str, literals: list[str]) -> None:
    sizes = [
        size
        for size in range(len(text) + 1)
        if any(literal.startswith(text[len(text) - size :]) and len(literal) > size for literal in literals)
    ]
    assert unfinished(text, literals) == max(sizes, default=0)


@given(
    parts=st.lists(st.tuples(st.text("ab", max_size=3), st.booleans()), max_size=6), stops=st.lists(words, max_size=3)
)
def test_everything_before_the_first_stop_string_passes(parts: list[tuple[str, bool]], stops: list[str]) -> None:
    whole = "".join(text for text, _ in parts)
    grown = ("".join(text for text, _ in parts[:count]) for count in range(len(parts) + 1))
    ended = next((text for text in grown if any(stop in text for stop in stops)), whole)  # as the engine looks
    at = min((ended.find(stop) for stop in stops if stop in ended), default=len(whole))
    expected, length = "", 0
    for text, shown in parts:
        expected += text[: max(at - length, 0)] if shown else ""
        length += len(text)
    passing = StopFilter(stops)
    passed = "".join(passing.push(text, shown=shown) for text, shown in parts)
    assert expected.startswith(passed)
    assert passed + passing.finish() == expected
    assert passing.found == any(stop in whole for stop in stops)
