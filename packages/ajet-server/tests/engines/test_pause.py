"""Calls that are paused for new weights go on where they were, and say which weights sampled what."""

from collections.abc import Callable, Iterable
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_helpers import MakeEngine, drain, load, log_softmax, random_ids, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, PreTrainedModel

from ajet_core.errors import EngineFailedError
from ajet_server.engines.base import Completion, GenerationRequest
from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.worker.protocol import Sampled, Sampling

SCHEMA = '{"type":"object","properties":{"a":{"type":"string","maxLength":12}},"required":["a"]}'
WAYS: list[dict[str, object]] = [
    {"temperature": 1.0, "seed": 7},
    {"temperature": 0.7, "top_p": 0.9, "top_k": 40, "top_logprobs": 3},
    {"temperature": 1.0, "json_schema": SCHEMA},
    {"temperature": 1.0, "logit_bias": ((34, 8.0), (35, 8.0)), "stop": ("BBBB", "AAAA")},
    {"temperature": 0.0},
    {"temperature": 1.0},
]


def mixed(count: int = 6) -> list[GenerationRequest]:
    """Calls of every way to sample; two share a prompt, so that one computes it for both."""
    prompts = [random_ids(1, 40), random_ids(1, 40), *(random_ids(seed, 5 + 9 * seed) for seed in range(2, count))]
    return [
        GenerationRequest(str(at), prompt, Sampling(max_tokens=24, **WAYS[at % len(WAYS)]), stream=at % 2 == 0)
        for at, prompt in enumerate(prompts)
    ]


def run(
    engine: TorchEngine, asked: Iterable[GenerationRequest], pauses: Iterable[int], change: Callable[[], None]
) -> tuple[dict[str, Completion], list[Sampled]]:
    """Steps until nothing is left; before each step whose number is among `pauses`, pauses and calls `change`."""
    for item in asked:
        engine.submit(item)
    done: dict[str, Completion] = {}
    streamed: list[Sampled] = []
    at = 0
    while engine.has_work:
        if at in set(pauses):
            running = engine.running
            assert (engine.pause(), engine.running) == (running, 0)
            change()
        outcome = engine.step()
        assert not outcome.refusals
        streamed += outcome.sampled
        done |= {completion.request_id: completion for completion in outcome.completions}
        at += 1
    return done, streamed


def reload(engine: TorchEngine) -> Callable[[], None]:
    """Loads the weights that it has already, as the next version."""

    def change() -> None:
        weights = {name: tensor.clone() for name, tensor in engine._model.state_dict().items()}
        load(engine, weights, engine.weight_version + 1)

    return change


def assert_equal(one: Completion, other: Completion) -> None:
    assert one.token_ids.tolist() == other.token_ids.tolist()
    np.testing.assert_allclose(one.logprobs, other.logprobs, atol=1e-5)
    assert (one.finish_reason, one.stop) == (other.finish_reason, other.stop)
    assert [[token for token, _ in top] for top in one.top_logprobs] == [
        [token for token, _ in top] for top in other.top_logprobs
    ]


@pytest.fixture(scope="module")
def unpaused(gqa_folder: Path, make_engine: MakeEngine) -> dict[str, Completion]:
    return run(make_engine(gqa_folder), mixed(), (), lambda: None)[0]


@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    pauses=st.sets(st.integers(0, 30), min_size=1, max_size=4),
    slots=st.integers(1, 6),
    chunk=st.sampled_from([8, 30, 1024]),
    kept=st.sampled_from([0, 60, 1000]),
)
def test_a_pause_without_a_change_makes_no_difference(
    gqa_folder: Path,
    make_engine: MakeEngine,
    unpaused: dict[str, Completion],
    pauses: set[int],
    slots: int,
    chunk: int,
    kept: int,
) -> None:
    engine = make_engine(gqa_folder, max_batch_size=slots, prefill_chunk=chunk, prefix_cache_tokens=kept)
    done, streamed = run(engine, mixed(), pauses, reload(engine))
    assert done.keys() == unpaused.keys()
    for name, completion in done.items():
        assert_equal(completion, unpaused[name])
        mine = [part for part in streamed if part.request_id == name]
        if int(name) % 2 == 0:
            assert b"".join(part.token_ids for part in mine) == completion.token_ids.tobytes()
            assert [part.start for part in mine] == list(range(len(completion.token_ids)))
        if completion.version_spans:
            starts, versions = zip(*completion.version_spans, strict=True)
            assert starts[0] == 0
            assert versions[0] == completion.weight_version
            assert list(starts) == sorted(set(starts))
            assert list(versions) == sorted(set(versions))
            assert starts[-1] < len(completion.token_ids)
    assert (engine.running, engine.waiting) == (0, 0)


def test_the_schema_and_the_stop_string_did_matter(unpaused: dict[str, Completion]) -> None:
    assert unpaused["3"].stop in {"AAAA", "BBBB"}
    assert unpaused["2"].finish_reason == "stop" or len(unpaused["2"].token_ids) == 24


def test_new_weights_sample_the_rest_on_the_whole_prefix(
    folder: Path, make_engine: MakeEngine, plain_model: PreTrainedModel
) -> None:
    engine, old = make_engine(folder), make_engine(folder)
    weights = {name: tensor * 1.1 for name, tensor in engine._model.state_dict().items()}
    asked = [request(str(at), random_ids(at, 10 + 20 * at), 12, temperature=0.9, seed=at) for at in range(4)]
    done, _ = run(engine, asked, {5}, lambda: load(engine, weights, 3))
    before = drain(old, asked)
    changed = AutoModelForCausalLM.from_pretrained(folder, attn_implementation="eager").eval()
    changed.load_state_dict(weights)
    for item in asked:
        completion, reference = done[item.request_id], before[item.request_id]
        (first, at), (cut, later) = completion.version_spans
        assert (first, at, later, completion.weight_version) == (0, 0, 3, 0)
        assert completion.token_ids[:cut].tolist() == reference.token_ids[:cut].tolist()
        np.testing.assert_array_equal(completion.logprobs[:cut], reference.logprobs[:cut])
        ids = np.concatenate([item.prompt_ids, completion.token_ids])
        size = len(item.prompt_ids)
        for model, span in ((plain_model, slice(0, cut)), (changed, slice(cut, None))):
            logprobs_TV = log_softmax(model, ids, 0.9)[size - 1 : -1]
            picked = logprobs_TV.gather(1, torch.from_numpy(completion.token_ids).long()[:, None])[:, 0].numpy()
            np.testing.assert_allclose(completion.logprobs[span], picked[span], atol=1e-5)


def test_calls_that_wait_start_on_the_new_weights(folder: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(folder, max_batch_size=1)
    asked = [request("runs", random_ids(1, 9), 6), request("waits", random_ids(2, 9), 6)]
    done, _ = run(engine, asked, {3}, reload(engine))
    assert done["runs"].version_spans == ((0, 0), (3, 1))
    assert (done["waits"].version_spans, done["waits"].weight_version) == ((), 1)


def test_a_paused_call_can_be_cancelled_and_its_prompt_is_counted_once(folder: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(folder)
    warm = request("warm", random_ids(1, 30), 1)
    drain(engine, [warm])
    for name in ("a", "b"):
        engine.submit(request(name, random_ids(1, 30), 8))
    engine.step()
    engine.step()
    engine.pause()
    assert engine.cancel("b")
    reload(engine)()
    done = drain(engine)
    assert done["a"].cached_tokens == 29, "what was reused before the first token, not what was computed again"
    assert done.keys() == {"a"}


def test_old_keys_never_serve_new_weights(
    folder: Path, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(folder)
    drain(engine, [request("warm", random_ids(1, 30), 4)])
    engine.submit(request("a", random_ids(1, 30), 8))
    engine.step()
    engine.pause()
    monkeypatch.setattr(engine._scheduler, "forget", lambda: None)
    reload(engine)()
    with pytest.raises(EngineFailedError, match="keys of weight version 0, but version 1 is serving"):
        engine.step()
