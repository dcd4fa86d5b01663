"""Named weight versions beside the live one: each says what its own weights say, and none holds training up."""

import copy
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_helpers import MakeEngine, drain, greedy, load, log_softmax, random_ids, request
from transformers import PreTrainedModel

from ajet_core.errors import UnavailableError
from ajet_server.engines.base import GenerationRequest
from ajet_server.engines.torch_engine import TorchEngine


def named(name: str, weights: int | None, seed: int = 1, length: int = 40, max_tokens: int = 8) -> GenerationRequest:
    """A greedy evaluation."""
    plain = request(name, random_ids(seed, length), max_tokens)
    return GenerationRequest(name, plain.prompt_ids, plain.sampling, weights=weights, evaluation=True)


def scaled(model: PreTrainedModel, factor: float) -> PreTrainedModel:
    """Another version of a model."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.mul_(factor)
    return other


@pytest.fixture
def fresh(folder: Path, make_engine: MakeEngine) -> TorchEngine:
    return make_engine(folder, prefill_chunk=32, max_batch_size=4, eval_versions=2)


def test_each_version_says_what_its_weights_say(fresh: TorchEngine, plain_model: PreTrainedModel) -> None:
    versions = {0: plain_model, 7: scaled(plain_model, 1.1)}
    for version, model in versions.items():
        fresh.hold(version, lambda _, model=model: copy.deepcopy(model))
    live = scaled(plain_model, 0.9)
    load(fresh, live.state_dict(), 9)
    asked = [named(f"{version} {seed}", version, seed) for seed in range(3) for version in (0, 7, None)]
    first, again = drain(fresh, asked), drain(fresh, asked)
    for call in asked:
        model = versions.get(call.weights, live)
        expected = greedy(model, call.prompt_ids, 8)
        for done in (first[call.request_id], again[call.request_id]):
            assert done.token_ids.tolist() == expected
            assert done.weight_version == (9 if call.weights is None else call.weights)
            whole = log_softmax(model, np.concatenate([call.prompt_ids, done.token_ids]))[len(call.prompt_ids) - 1 : -1]
            np.testing.assert_allclose(done.logprobs, whole.max(-1).values, atol=1e-5)
    assert len({float(first[f"{version} 0"].logprobs[0]) for version in (0, 7, None)}) == 3


def test_a_version_reads_no_keys_of_another(fresh: TorchEngine, plain_model: PreTrainedModel) -> None:
    fresh.hold(3, lambda _: scaled(plain_model, 1.1))
    drain(fresh, [request("live", random_ids(1, 40))])
    first = drain(fresh, [named("a", 3)])["a"]
    assert (first.cached_tokens, drain(fresh, [named("b", 3)])["b"].cached_tokens) == (0, 39)


def test_new_live_weights_do_not_touch_a_version_in_mid_call(fresh: TorchEngine, plain_model: PreTrainedModel) -> None:
    fresh.hold(3, lambda _: scaled(plain_model, 1.1))
    fresh.submit(named("a", 3, max_tokens=12))
    for _ in range(5):
        fresh.step()
    load(fresh, scaled(plain_model, 0.5).state_dict(), 1)
    fresh.score(random_ids(3, 20), 10)
    done = drain(fresh)["a"]
    assert done.token_ids.tolist() == greedy(scaled(plain_model, 1.1), random_ids(1, 40), 12)
    assert (done.weight_version, fresh.weight_version) == (3, 1)


def test_what_was_not_used_for_longest_goes_first_and_no_version_goes_while_it_runs(
    fresh: TorchEngine, plain_model: PreTrainedModel
) -> None:
    made: list[int] = []

    def hold(version: int) -> None:
        def make(_: PreTrainedModel) -> PreTrainedModel:
            made.append(version)
            return copy.deepcopy(plain_model)

        fresh.hold(version, make)

    for version in (1, 2, 1, 3):
        hold(version)
    assert (made, fresh.named_versions) == ([1, 2, 3], [1, 3])
    fresh.submit(named("a", 1))
    hold(2)
    assert fresh.named_versions == [1, 2]
    fresh.submit(named("b", 2))
    with pytest.raises(UnavailableError, match="no room for version 3 while calls run on version 1, 2") as caught:
        hold(3)
    assert caught.value.retry_after_s == 1
    assert set(drain(fresh)) == {"a", "b"}
    hold(3)


def test_a_call_of_any_version_is_found_by_its_id(fresh: TorchEngine, plain_model: PreTrainedModel) -> None:
    fresh.hold(3, lambda _: copy.deepcopy(plain_model))
    fresh.submit(named("a", 3))
    with pytest.raises(Exception, match="'a' is already running"):
        fresh.submit(request("a", random_ids(1, 5)))
    fresh.step()
    assert (fresh.running, fresh.waiting) == (1, 0)
    assert fresh.cancel("a")
    assert not fresh.has_work


def test_training_has_three_steps_of_four(fresh: TorchEngine, plain_model: PreTrainedModel) -> None:
    fresh.hold(3, lambda _: copy.deepcopy(plain_model))
    for at in range(2):
        fresh.submit(named(f"e{at}", 3, max_tokens=200, length=5))
    train = request("t", random_ids(2, 5), 61)
    fresh.submit(train)
    steps = 0
    while "t" not in {item.request_id for item in fresh.step().completions}:
        steps += 1
    assert steps + 1 == 61 + 20  # the first samples already, so 61 steps of its own, and 20 that are not


def test_evaluations_hold_half_of_the_slots_and_training_goes_first(fresh: TorchEngine) -> None:
    for at in range(30):
        fresh.submit(named(f"e{at}", None, at, max_tokens=40))
    fresh.step()
    assert (fresh.running, fresh.waiting) == (2, 28)
    for at in range(3):
        fresh.submit(request(f"t{at}", random_ids(100 + at, 10), 4))
    fresh.step()
    assert fresh.running == 4
    order: list[str] = []
    while fresh.has_work:
        order += [item.request_id for item in fresh.step().completions]
    assert order[:3] == ["t0", "t1", "t2"]
    assert len(order) == 33


def test_one_slot_serves_evaluations_too(folder: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(folder, max_batch_size=1)
    done = drain(engine, [named("e0", None), named("e1", None), request("t", random_ids(5, 9))])
    assert list(done) == ["t", "e0", "e1"]
