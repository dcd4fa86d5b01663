import pytest
from pydantic import ValidationError

from ajet_core.episode import EpisodeKind
from ajet_core.events import EngineState, EpisodeFinished, StateChanged, UpdateProgress, parse_event


@pytest.mark.parametrize(
    "event",
    [
        StateChanged(id=3, at=1.5, state=EngineState.ROLLING, cause="c", step=1, weight_version=1),
        EpisodeFinished(episode_id="e", group_id="g", kind=EpisodeKind.TRAIN, reward=0.5, calls=2, completion_tokens=7),
        UpdateProgress(step=1, stage="update", done=1, total=2),
    ],
)
def test_an_event_survives_json(event: StateChanged | EpisodeFinished | UpdateProgress) -> None:
    assert parse_event(event.model_dump_json()) == event


def test_a_newer_server_may_say_more() -> None:
    event = parse_event('{"type": "update_progress", "step": 1, "stage": "x", "done": 0, "total": 1, "new": true}')
    assert isinstance(event, UpdateProgress)


@pytest.mark.parametrize("text", ["{}", '{"type": "unheard_of"}', "[]", "not json"])
def test_what_is_no_event_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        parse_event(text)
