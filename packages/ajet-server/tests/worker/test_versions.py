"""Runs of tokens of one version: kept, counted, and judged."""

from hypothesis import given
from hypothesis import strategies as st

from ajet_server.worker.versions import Spans, counted, flaw, newest, of_text, to_text, whole


@st.composite
def runs(draw: st.DrawFn) -> tuple[int, Spans, int]:
    """Oldest version, spans and tokens of a call that is in order."""
    versions = sorted(draw(st.sets(st.integers(0, 50), min_size=1, max_size=5)))
    sizes = draw(st.lists(st.integers(1, 9), min_size=len(versions), max_size=len(versions)))
    starts = [sum(sizes[:at]) for at in range(len(sizes))]
    spans = tuple(zip(starts, versions, strict=True))
    return versions[0], spans if len(spans) > 1 else (), sum(sizes)


@given(runs())
def test_what_is_in_order(call: tuple[int, Spans, int]) -> None:
    oldest, spans, tokens = call
    assert flaw(oldest, spans, tokens) is None
    assert of_text(to_text(spans)) == spans
    assert (to_text(spans) is None) == (not spans)
    found = list(counted(oldest, spans, tokens))
    assert sum(count for _, count in found) == tokens
    assert [version for version, _ in found] == [version for _, version in whole(oldest, spans)]
    assert min(found)[0] == oldest
    assert max(found)[0] == newest(oldest, spans)


@given(runs(), st.data())
def test_what_is_not(call: tuple[int, Spans, int], data: st.DataObject) -> None:
    oldest, spans, tokens = call
    if not spans:
        return
    at = data.draw(st.integers(0, len(spans) - 1))
    start, version = spans[at]
    wrong = data.draw(
        st.sampled_from(
            [
                (oldest + 1, spans, tokens),
                (oldest, spans, spans[-1][0]),
                (oldest, spans[:1], tokens),
                (oldest, (*spans[:at], (start, version), *spans[at:]), tokens),
                (oldest, (*spans, (tokens - 1, spans[-1][1] - 1)), tokens),
            ]
        )
    )
    assert flaw(*wrong) is not None
