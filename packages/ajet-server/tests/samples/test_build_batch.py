import msgspec
import numpy as np
import pytest

from ajet_core.config import AlgorithmConfig
from ajet_core.errors import RequestError
from ajet_server.samples.merge import build_batch
from ajet_server.worker.protocol import CallRow, EpisodeRow

VOCAB = 100


def row(name: str = "c", episode: str = "e", completion: int = 3, **changes: object) -> CallRow:
    fields = {
        "call_id": name,
        "episode_id": episode,
        "prompt_ids": np.array([5, 6], np.int32).tobytes(),
        "completion_ids": np.arange(completion, dtype=np.int32).tobytes(),
        "logprobs": np.full(completion, -1, np.float32).tobytes(),
        "temperature": 1.0,
        "weight_version": 0,
    }
    return CallRow(**(fields | changes))  # pyright: ignore[reportArgumentType]


def test_weights_and_advantages_reach_every_token() -> None:
    episodes = [
        EpisodeRow("e1", "g", 1.0, [row("c1", "e1", 3), row("c2", "e1", 1, temperature=0.5)]),
        EpisodeRow("e2", "g", 0.0, [row("c3", "e2", 2)]),
        EpisodeRow("e3", "g", 0.0, []),
    ]
    batch = build_batch(episodes, AlgorithmConfig(advantage_scale="none"), VOCAB)
    assert [call.call_id for call in batch.calls] == ["c1", "c2", "c3"]
    assert batch.temperatures.tolist() == [1.0, 0.5, 1.0]
    assert [call.advantage[0] for call in batch.calls] == pytest.approx([2 / 3, 2 / 3, -1 / 3])
    assert [call.weight.tolist() for call in batch.calls] == [pytest.approx([1 / 8] * 3), [1 / 8], [1 / 4] * 2]
    by_token = build_batch(episodes, AlgorithmConfig(loss_weight="token_mean"), VOCAB)
    assert np.concatenate([call.weight for call in by_token.calls]) == pytest.approx(1 / 6)
    assert batch.groups == 1


@pytest.mark.parametrize("loss_weight", ["episode_mean", "token_mean"])
def test_weights_do_not_depend_on_how_an_episode_is_cut_into_calls(loss_weight: str) -> None:
    algorithm = AlgorithmConfig.model_validate({"loss_weight": loss_weight})
    whole = [EpisodeRow("e1", "g", 1.0, [row("a", "e1", 4)]), EpisodeRow("e2", "g", 0.0, [row("b", "e2", 2)])]
    cut = [EpisodeRow("e1", "g", 1.0, [row("a", "e1", 1), row("a2", "e1", 3)]), whole[1]]
    weights = [np.concatenate([c.weight for c in build_batch(e, algorithm, VOCAB).calls]) for e in (whole, cut)]
    assert weights[0].tolist() == weights[1].tolist()


nan = np.array([-1, np.nan, -1], np.float32).tobytes()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"logprobs": nan}, "logprobs"),
        ({"logprobs": np.array([-1, 0.5, -1], np.float32).tobytes()}, "logprobs"),
        ({"logprobs": np.full(2, -1, np.float32).tobytes()}, "logprobs"),
        ({"logprobs": b""}, "logprobs"),
        ({"logprobs": b"abc"}, "logprobs"),
        ({"completion_ids": np.array([1, -1, 2], np.int32).tobytes()}, "completion_ids"),
        ({"completion_ids": np.array([1, VOCAB, 2], np.int32).tobytes()}, "completion_ids"),
        ({"prompt_ids": b""}, "prompt_ids"),
        ({"prompt_ids": b"12345"}, "prompt_ids"),
        ({"temperature": 0.0}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"temperature": float("inf")}, "temperature"),
        ({"episode_id": "other"}, "episode_id"),
    ],
)
def test_a_bad_call_is_named(changes: dict[str, object], field: str) -> None:
    bad = msgspec.structs.replace(row("bad-call"), **changes)
    episodes = [EpisodeRow("e", "g", 1.0, [row("good"), bad])]
    with pytest.raises(RequestError, match="bad-call") as caught:
        build_batch(episodes, AlgorithmConfig(), VOCAB)
    assert caught.value.field == field


@pytest.mark.parametrize(
    ("episodes", "words"),
    [
        ([], "no episode"),
        ([EpisodeRow("e", "g", float("nan"), [])], "'e'.*nan"),
        ([EpisodeRow("e", "g", 0.0, []), EpisodeRow("e", "g", 0.0, [])], "'e'.*more than once"),
        ([EpisodeRow("e", "g", 0.0, [row(), row()])], "'c'.*more than once"),
    ],
)
def test_a_bad_batch_is_named(episodes: list[EpisodeRow], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        build_batch(episodes, AlgorithmConfig(), VOCAB)
