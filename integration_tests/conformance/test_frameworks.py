"""The same agent in every framework: each completes, ids are what usage counts, and the forests are equal."""

import numpy as np
import pytest

from ajet_merge import merge
from conformance.conftest import Ran, Runs
from conformance.frameworks import FRAMEWORKS, REFERENCE
from conformance.recorded import as_merged, changes, parents

pytestmark = pytest.mark.timeout(400)


@pytest.fixture
def reference(runs: Runs) -> Ran:
    return runs[REFERENCE].result()


@pytest.fixture(params=list(FRAMEWORKS))
def name(request: pytest.FixtureRequest) -> str:
    if not FRAMEWORKS[request.param].is_here:
        pytest.skip("not installed here; .ci/conformance installs it and runs this")
    return request.param


@pytest.fixture
def ran(name: str, runs: Runs) -> Ran:
    return runs[name].result()


def test_the_agent_completes(ran: Ran, reference: Ran) -> None:
    assert ran.seen["tool_calls"] == [["add", {"a": 12, "b": 30}], ["add", {"a": 27, "b": 14}]]
    assert [answer.strip() for answer in ran.seen["answers"]] == [
        answer.strip() for answer in reference.seen["answers"]
    ]


def test_usage_counts_the_recorded_ids(ran: Ran) -> None:
    recorded = [as_merged(call) for call in ran.calls]
    assert ran.seen["usage"] == [[call.prompt_ids.size, call.completion_ids.size] for call in recorded]


def test_the_forest_is_that_of_every_framework(ran: Ran, reference: Ran) -> None:
    mine, theirs = (merge([as_merged(call) for call in one.calls]) for one in (ran, reference))
    assert [call.prompt_ids.tolist() for call in mine.calls] == [call.prompt_ids.tolist() for call in theirs.calls]
    np.testing.assert_array_equal(mine.tokens, theirs.tokens)
    np.testing.assert_array_equal(mine.parent, theirs.parent)
    for field in ("call", "t", "token"):
        np.testing.assert_array_equal(getattr(mine.occurrences, field), getattr(theirs.occurrences, field))
    # Batches differ from run to run, and with them the order of additions.
    np.testing.assert_allclose(mine.occurrences.logprob, theirs.occurrences.logprob, atol=1e-3)


def test_every_call_goes_on_from_the_one_before(ran: Ran) -> None:
    assert parents(ran.calls) == [None, 0, 1, 2]


def test_messages_are_changed_only_as_is_known(name: str, ran: Ran, reference: Ran) -> None:
    assert changes(ran.calls, reference.calls) <= FRAMEWORKS[name].changes
