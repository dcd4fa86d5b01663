"""Beginnings that calls share are computed once, and it makes no difference to what they sample."""

import weakref
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_helpers import MakeEngine, drain, load, random_ids, request
from transformers import PreTrainedModel

from ajet_core.errors import EngineFailedError
from ajet_server.engines.torch_engine import TorchEngine


@pytest.fixture
def fresh(folder: Path, make_engine: MakeEngine) -> TorchEngine:
    """An engine that has seen nothing."""
    return make_engine(folder, prefill_chunk=32)


def test_a_group_computes_its_prompt_once(fresh: TorchEngine) -> None:
    prompt = random_ids(1, 100)
    done = drain(fresh, [request(str(at), prompt, 5, temperature=1.0, seed=at) for at in range(8)])
    # The last sampled token is never computed.
    assert fresh.computed_tokens == 100 + sum(len(item.token_ids) - 1 for item in done.values())
    assert sorted(item.cached_tokens for item in done.values()) == [0] + 7 * [100]
    assert len({tuple(item.token_ids) for item in done.values()}) == 8


def test_without_a_cache_a_group_still_computes_its_prompt_once(folder: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(folder, prefix_cache_tokens=0)
    prompt = random_ids(1, 100)
    drain(engine, [request(str(at), prompt, 5) for at in range(8)])
    assert engine.computed_tokens == 100 + 8 * 4
    drain(engine, [request("later", prompt, 1)])
    assert engine.computed_tokens == 100 + 8 * 4 + 100


def test_a_reused_beginning_changes_nothing(fresh: TorchEngine, folder: Path, make_engine: MakeEngine) -> None:
    uncached = make_engine(folder, prefix_cache_tokens=0)
    turn_1 = request("1", random_ids(2, 70), 6, temperature=0.8, seed=3)
    first = drain(fresh, [turn_1])["1"]
    prompt = np.concatenate([turn_1.prompt_ids, first.token_ids, random_ids(3, 20)])
    turn_2 = request("2", prompt, 10, temperature=0.8, seed=4, top_logprobs=2)
    reused, plain = drain(fresh, [turn_2])["2"], drain(uncached, [turn_2])["2"]
    assert (reused.cached_tokens, plain.cached_tokens) == (75, 0)
    assert reused.token_ids.tolist() == plain.token_ids.tolist()
    np.testing.assert_allclose(reused.logprobs, plain.logprobs, atol=1e-5)


def test_the_same_prompt_again_computes_its_last_token_only(fresh: TorchEngine) -> None:
    asked = request("a", random_ids(5, 40), 3)
    first = drain(fresh, [asked])["a"]
    before = fresh.computed_tokens
    again = drain(fresh, [asked])["a"]
    assert again.token_ids.tolist() == first.token_ids.tolist()
    assert (again.cached_tokens, fresh.computed_tokens - before) == (39, 3)


def test_calls_that_join_a_group_late_compute_one_token_of_the_prompt(fresh: TorchEngine) -> None:
    prompt = random_ids(1, 30)
    fresh.submit(request("0", prompt, 5))
    fresh.step()
    done = drain(fresh, [request("1", prompt, 5)])
    assert (fresh.computed_tokens, done["1"].cached_tokens) == (30 + 4 + 1 + 4, 29)
    assert done["0"].token_ids.tolist() == done["1"].token_ids.tolist()
    np.testing.assert_allclose(done["0"].logprobs, done["1"].logprobs, atol=1e-5)


def test_those_who_wait_for_a_cancelled_call_compute_the_prompt_themselves(fresh: TorchEngine) -> None:
    prompt = random_ids(6, 100)
    for at in range(3):
        fresh.submit(request(str(at), prompt, 2))
    fresh.step()
    fresh.cancel("0")
    done = drain(fresh)
    assert done["1"].token_ids.tolist() == done["2"].token_ids.tolist()
    # The first chunk of 32 that the cancelled call had computed is not computed again.
    assert fresh.computed_tokens == 100 + 2


def test_new_weights_change_what_is_sampled_and_forget_the_old_keys(
    folder: Path, make_engine: MakeEngine, fresh: TorchEngine
) -> None:
    asked = request("a", random_ids(7, 50), 6)
    old = drain(fresh, [asked])["a"]
    weights = {name: tensor * 1.1 for name, tensor in fresh._model.state_dict().items()}
    load(fresh, weights, 5)
    new = drain(fresh, [asked])["a"]
    other = make_engine(folder)
    load(other, weights, 5)
    expected = drain(other, [asked])["a"]
    assert (old.weight_version, new.weight_version, new.cached_tokens) == (0, 5, 0)
    assert new.token_ids.tolist() == expected.token_ids.tolist()
    np.testing.assert_allclose(new.logprobs, expected.logprobs, atol=1e-6)
    assert np.abs(new.logprobs - old.logprobs).max() > 1e-3


@pytest.mark.parametrize("wrong", ["name", "shape"])
def test_wrong_weights_are_refused_before_anything_changes(fresh: TorchEngine, wrong: str) -> None:
    probe = random_ids(8, 20)
    before = fresh.score(probe, 10)
    weights = {name: tensor + 1 for name, tensor in fresh._model.state_dict().items()}
    if wrong == "name":
        weights["model.layers.9.nothing"] = weights["lm_head.weight"]
    else:
        weights["lm_head.weight"] = weights["lm_head.weight"][1:]
    with pytest.raises(EngineFailedError, match="nothing was changed"):
        load(fresh, weights, 1)
    assert fresh.weight_version == 0
    np.testing.assert_allclose(fresh.score(probe, 10).logprobs, before.logprobs, atol=1e-5)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("another shape", "half loaded"),
        ("no tensor", "half loaded"),
        ("unannounced", "half loaded"),
        ("twice", "half loaded"),
        ("missing", "'model.norm.weight' was announced but did not come"),
    ],
)
def test_weights_that_are_not_as_announced_are_an_error(fresh: TorchEngine, wrong: str, message: str) -> None:
    weights: dict[str, object] = {name: tensor + 1 for name, tensor in fresh._model.state_dict().items()}
    shapes = {name: tuple(tensor.shape) for name, tensor in fresh._model.state_dict().items()}
    pairs = list(weights.items())
    name, tensor = next(pair for pair in pairs if pair[0] == "model.norm.weight")
    pairs.remove((name, tensor))
    pairs += {
        "another shape": [(name, torch.zeros(3))],
        "no tensor": [(name, [1.0])],
        "unannounced": [(name, tensor), ("nothing", tensor)],
        "twice": [(name, tensor), (name, tensor)],
        "missing": [],
    }[wrong]
    with pytest.raises(EngineFailedError, match=message):
        fresh.load_weights(shapes, pairs, 1)
    assert fresh.weight_version == 0


def test_one_new_weight_exists_at_a_time(fresh: TorchEngine) -> None:
    shapes = {name: tuple(tensor.shape) for name, tensor in fresh._model.state_dict().items()}
    alive: weakref.WeakSet[torch.Tensor] = weakref.WeakSet()

    def made(name: str) -> tuple[str, torch.Tensor]:
        assert not len(alive)
        tensor = torch.full(shapes[name], 0.5)
        alive.add(tensor)
        return name, tensor

    fresh.load_weights(shapes, map(made, shapes), 1)
    assert fresh.differing(map(made, shapes)) is None
    assert fresh.weight_version == 1


def test_what_the_engine_holds_is_compared_bit_by_bit(fresh: TorchEngine) -> None:
    weights = {name: tensor.clone() for name, tensor in fresh._model.state_dict().items()}
    weights["model.norm.weight"][:2] = torch.tensor([float("nan"), 0.0])
    load(fresh, weights, 1)
    assert fresh.differing(weights.items()) is None
    name = "model.layers.2.mlp.up_proj.weight"
    weights[name][3, 5] = torch.nextafter(weights[name][3, 5], torch.tensor(9.0))
    assert fresh.differing(weights.items()) == name
    weights[name] = fresh._model.state_dict()[name]
    weights["model.norm.weight"][1] = -0.0
    assert fresh.differing(weights.items()) == "model.norm.weight"
    assert fresh.differing([("nothing", torch.zeros(1))]) == "nothing"
    assert fresh.differing([(name, torch.zeros(1))]) == name


def test_keys_of_other_weights_are_an_error_and_no_hit(fresh: TorchEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = request("a", random_ids(7, 50), 6)
    drain(fresh, [asked])
    monkeypatch.setattr(fresh._scheduler, "forget", lambda: None)
    fresh.load_weights({}, [], 1)
    fresh.submit(asked)
    with pytest.raises(EngineFailedError, match="keys of weight version 0, but version 1 is serving"):
        fresh.step()


def test_weights_are_refused_while_calls_run(fresh: TorchEngine) -> None:
    fresh.submit(request("a", random_ids(9, 5), 4))
    fresh.step()
    with pytest.raises(EngineFailedError, match="1 calls were running"):
        fresh.load_weights({}, [], 1)
    drain(fresh)
    fresh.load_weights({}, [], 1)
    assert fresh.weight_version == 1


def test_the_engine_leaves_its_caller_s_weights_alone(fresh: TorchEngine, plain_model: PreTrainedModel) -> None:
    weights = dict(plain_model.state_dict())
    load(fresh, weights, 1)
    mine = fresh._model.state_dict()
    assert all(mine[name].data_ptr() != tensor.data_ptr() for name, tensor in weights.items())
