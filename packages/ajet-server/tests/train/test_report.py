"""How old a batch's tokens are, told by the runs of their versions."""

from hypothesis import given
from hypothesis import strategies as st

from ajet_server.train.report import staleness_figures
from ajet_server.worker.protocol import CallRow, EpisodeRow

TRAINED = 9

# The version of each sampled token of a call, in order.
calls = st.lists(st.integers(6, TRAINED), max_size=12).map(sorted)


def call_row(name: str, versions: list[int]) -> CallRow:
    starts = [at for at, version in enumerate(versions) if at == 0 or versions[at - 1] != version]
    spans = tuple((at, versions[at]) for at in starts)
    oldest = versions[0] if versions else TRAINED
    data = b"\0" * 4 * len(versions)
    return CallRow(name, "e", b"", data, data, 1.0, oldest, version_spans=spans if len(spans) > 1 else ())


@given(st.lists(calls, min_size=1, max_size=4))
def test_it_is_what_counting_tokens_one_by_one_gives(versions: list[list[int]]) -> None:
    rows = [call_row(str(at), tokens) for at, tokens in enumerate(versions)]
    found = staleness_figures([EpisodeRow("e", "g", 0.0, [row]) for row in rows], TRAINED)
    ages = [TRAINED - version for tokens in versions for version in tokens]
    assert found["staleness_tokens"] == [ages.count(age) for age in range(max(ages, default=0) + 1)]
    assert found["staleness_max"] == max(ages, default=0)
    assert found["staleness_mean"] == sum(ages) / max(len(ages), 1)
    assert found["stale_fraction"] == sum(map(bool, ages)) / max(len(ages), 1)
    assert found["mixed_calls"] == sum(1 for tokens in versions if len(set(tokens)) > 1)
