"""What the engine generates is what the model says, whoever else is running."""

from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from engine_helpers import MakeEngine, drain, greedy, ids, load, log_softmax, random_ids, request
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from msgspec import structs
from tokenizers import Tokenizer
from transformers import PreTrainedModel

from ajet_core.config import EngineConfig, Job, LimitsConfig, ModelConfig
from ajet_core.errors import ConfigError, EngineFailedError, PromptTooLongError, RequestError
from ajet_server.engines.base import IntIds
from ajet_server.engines.torch_engine import TorchEngine

LENGTHS = [1, 2, 5, 23, 24, 25, 40, 130]


def test_greedy_equals_transformers_for_calls_that_join_at_different_steps(
    engine: TorchEngine, plain_model: PreTrainedModel
) -> None:
    prompts = [random_ids(length, length) for length in LENGTHS]
    pending = [request(str(at), prompt, 3 + at) for at, prompt in enumerate(prompts)]
    done = {}
    while pending or engine.has_work:
        if pending:
            engine.submit(pending.pop(0))
        done |= {item.request_id: item for item in engine.step().completions}
    for at, prompt in enumerate(prompts):
        assert done[str(at)].token_ids.tolist() == greedy(plain_model, prompt, 3 + at), LENGTHS[at]


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_logprobs_equal_a_plain_forward(engine: TorchEngine, plain_model: PreTrainedModel, temperature: float) -> None:
    prompts = [random_ids(40 + at, 7 * at + 1) for at in range(5)]
    done = drain(
        engine,
        [
            request(str(at), prompt, 12, temperature=temperature, top_p=0.9, seed=at, top_logprobs=3)
            for at, prompt in enumerate(prompts)
        ],
    )
    for at, prompt in enumerate(prompts):
        completion = done[str(at)]
        expected = log_softmax(plain_model, np.concatenate([prompt, completion.token_ids]), temperature)
        expected = expected[len(prompt) - 1 : -1]
        chosen = expected[torch.arange(len(completion.token_ids)), torch.from_numpy(completion.token_ids).long()]
        np.testing.assert_allclose(completion.logprobs, chosen.numpy(), atol=1e-5)
        values, likeliest = expected.topk(3)
        assert [[token for token, _ in top] for top in completion.top_logprobs] == likeliest.tolist()
        np.testing.assert_allclose([[p for _, p in top] for top in completion.top_logprobs], values, atol=1e-5)


def test_greedy_logprobs_are_those_of_temperature_1(engine: TorchEngine, plain_model: PreTrainedModel) -> None:
    prompt = random_ids(3, 9)
    completion = drain(engine, [request("a", prompt, 4)])["a"]
    expected = log_softmax(plain_model, np.concatenate([prompt, completion.token_ids]))[len(prompt) - 1 : -1]
    np.testing.assert_allclose(completion.logprobs, expected.max(-1).values, atol=1e-5)


def test_score_equals_a_plain_forward(engine: TorchEngine, plain_model: PreTrainedModel) -> None:
    for length, start in ((2, 1), (3, 1), (40, 30), (70, 60), (70, 69)):  # a prompt of 60 is prefilled in 3 steps
        token_ids = random_ids(length, length)
        expected = log_softmax(plain_model, token_ids)[torch.arange(length - 1), torch.from_numpy(token_ids[1:]).long()]
        first, again = (engine.score(token_ids, start) for _ in range(2))
        np.testing.assert_allclose(first.logprobs, expected[start - 1 :], atol=1e-5)
        np.testing.assert_allclose(again.logprobs, expected[start - 1 :], atol=1e-5)
        assert again.cached_tokens == start - 1


def test_score_lets_calls_wait_and_is_refused_while_they_run(engine: TorchEngine, plain_model: PreTrainedModel) -> None:
    prompt = random_ids(8, 20)
    engine.submit(request("a", prompt, 6))
    computed = engine.computed_tokens
    engine.score(random_ids(9, 33), 16)
    assert (engine.running, engine.waiting, engine.computed_tokens) == (0, 1, computed)
    engine.step()
    with pytest.raises(EngineFailedError, match="1 calls are running"):
        engine.score(random_ids(9, 33), 16)
    assert drain(engine)["a"].token_ids.tolist() == greedy(plain_model, prompt, 6)


def test_a_seed_gives_the_same_tokens_whoever_else_runs(engine: TorchEngine) -> None:
    asked = request("a", random_ids(11, 30), 12, temperature=1.0, seed=7)
    alone = drain(engine, [asked])["a"]
    others = [request(f"o{at}", random_ids(at, 3 + 9 * at), 5 + at, temperature=1.3, seed=at) for at in range(7)]
    among = drain(engine, [*others[:3], asked, *others[3:]])["a"]
    assert among.token_ids.tolist() == alone.token_ids.tolist()
    assert drain(engine, [request("a", asked.prompt_ids, 12, temperature=1.0, seed=8)])["a"].token_ids.tolist() != (
        alone.token_ids.tolist()
    )


def test_calls_without_a_seed_differ_and_follow_from_the_engine_seed(gqa_folder: Path, make_engine: MakeEngine) -> None:
    def tokens(seed: int) -> list[list[int]]:
        calls = [request(str(at), random_ids(1, 5), 10, temperature=1.0) for at in range(3)]
        done = drain(make_engine(gqa_folder, seed=seed), calls)
        return [done[str(at)].token_ids.tolist() for at in range(3)]

    first = tokens(0)
    assert first == tokens(0) != tokens(1)
    assert first[0] != first[1] != first[2]


def test_a_stream_follows_from_the_request_id_and_begins_no_second_time_with_a_new_engine(
    gqa_folder: Path, make_engine: MakeEngine
) -> None:
    def tokens(*names: str) -> dict[str, tuple[int, ...]]:
        calls = [request(name, random_ids(1, 5), 10, temperature=1.0) for name in names]
        return {name: tuple(item.token_ids) for name, item in drain(make_engine(gqa_folder), calls).items()}

    before = tokens("call-1", "call-2", "call-3", "call-4")
    after = tokens("call-5", "call-6", "call-7", "call-8")
    assert len({*before.values(), *after.values()}) == 8
    assert tokens("call-7", "call-2") == {"call-7": after["call-7"], "call-2": before["call-2"]}


def test_a_model_that_cannot_choose_rows_of_logits_computes_them_all(
    gqa_folder: Path, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    from transformers import LlamaForCausalLM

    asked = [request(str(at), random_ids(at // 2, 40), 4) for at in range(4)]
    expected = drain(make_engine(gqa_folder, prefill_chunk=16), asked)
    whole = LlamaForCausalLM.forward

    def without(
        self: LlamaForCausalLM, input_ids: torch.Tensor, position_ids: torch.Tensor, **options: object
    ) -> object:
        assert "logits_to_keep" not in options
        return whole(self, input_ids=input_ids, position_ids=position_ids, **options)

    monkeypatch.setattr(LlamaForCausalLM, "forward", without)
    found = drain(make_engine(gqa_folder, prefill_chunk=16), asked)
    assert {name: item.token_ids.tolist() for name, item in found.items()} == {
        name: item.token_ids.tolist() for name, item in expected.items()
    }

    def ignoring(self: LlamaForCausalLM, logits_to_keep: object = 0, **options: object) -> object:
        return whole(self, **options)

    monkeypatch.setattr(LlamaForCausalLM, "forward", ignoring)
    with pytest.raises(ConfigError, match="gives 2 rows of logits where 1 were asked for"):
        make_engine(gqa_folder)


def test_a_completion_ends_at_the_end_token_and_keeps_it(
    gqa_folder: Path, make_engine: MakeEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = make_engine(gqa_folder)
    whole = drain(engine, [request("a", random_ids(5, 6), 8)])["a"]
    monkeypatch.setattr(engine._ending, "_eos_ids", frozenset({int(whole.token_ids[3])}))
    first = whole.token_ids.tolist().index(int(whole.token_ids[3]))
    ended = drain(engine, [request("a", random_ids(5, 6), 8)])["a"]
    assert ended.token_ids.tolist() == whole.token_ids.tolist()[: first + 1]
    assert (ended.finish_reason, ended.stop, whole.finish_reason) == ("stop", None, "length")


def test_a_stop_string_across_tokens_ends_a_completion(engine: TorchEngine, folder: Path) -> None:
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tried = 0
    for seed in range(6):
        asked = request("a", random_ids(seed, 12), 16, temperature=1.0, seed=seed)
        whole = drain(engine, [asked])["a"].token_ids.tolist()
        pieces = [tokenizer.decode([token]) for token in whole]
        for left, right in pairwise(piece for piece in pieces if piece.isascii() and piece):
            stop = left[-1] + right[0]
            ends = [end for end in range(1, len(whole) + 1) if stop in tokenizer.decode(whole[:end])]
            sampling = structs.replace(asked.sampling, stop=("no such thing", stop))
            ended = drain(engine, [replace(asked, sampling=sampling)])["a"]
            assert ended.token_ids.tolist() == whole[: ends[0] if ends else None]
            assert ended.stop == (stop if ends else None)
            tried += bool(ends)
    assert tried


def test_cancel_frees_the_slot_of_a_running_and_of_a_waiting_call(engine: TorchEngine) -> None:
    for at in range(8):
        engine.submit(request(str(at), random_ids(at, 10), 20))
    engine.step()
    assert (engine.running, engine.waiting) == (6, 2)
    assert engine.cancel("7")
    assert engine.cancel("0")
    assert not engine.cancel("0")
    assert (engine.running, engine.waiting) == (5, 1)
    assert set(drain(engine)) == {"1", "2", "3", "4", "5", "6"}


@pytest.mark.parametrize(
    ("asked", "kind", "field"),
    [
        (request("a", ids()), RequestError, "prompt_ids"),
        (request("a", ids(3, 512)), RequestError, "prompt_ids"),
        (request("a", ids(-1)), RequestError, "prompt_ids"),
        (request("a", ids(3), 0), RequestError, "max_tokens"),
        (request("a", ids(3), temperature=1e-9), RequestError, "temperature"),
        (request("a", ids(3), temperature=float("nan")), RequestError, "temperature"),
        (request("a", ids(3), top_p=0.0), RequestError, "top_p"),
        (request("a", ids(3), top_k=-1), RequestError, "top_k"),
        (request("a", ids(3), top_logprobs=513), RequestError, "top_logprobs"),
        (request("a", ids(3), stop=("",)), RequestError, "stop"),
        (request("a", ids(3), logit_bias=((3, 1.0), (512, 1.0))), RequestError, "logit_bias"),
        (request("a", ids(3), logit_bias=((-1, 1.0),)), RequestError, "logit_bias"),
        (request("a", ids(3), logit_bias=((3, 101.0),)), RequestError, "logit_bias"),
        (request("a", ids(3), logit_bias=((3, float("nan")),)), RequestError, "logit_bias"),
        (request("a", random_ids(0, 505), 8), PromptTooLongError, "prompt_ids"),
    ],
)
def test_requests_out_of_bounds_are_refused(
    shared_engine: TorchEngine, asked: object, kind: type[RequestError], field: str
) -> None:
    with pytest.raises(kind, match=field) as caught:
        shared_engine.submit(asked)
    assert caught.value.field == field
    assert not shared_engine.has_work


def test_an_id_in_use_is_refused(engine: TorchEngine) -> None:
    engine.submit(request("a", ids(5), 1))
    with pytest.raises(RequestError, match="'a' is already running"):
        engine.submit(request("a", ids(6), 1))
    drain(engine)


def test_a_call_may_fill_the_model_to_its_last_position(engine: TorchEngine, plain_model: PreTrainedModel) -> None:
    prompt = random_ids(77, 504)
    done = drain(engine, [request("a", prompt, 8)])
    assert done["a"].token_ids.tolist() == greedy(plain_model, prompt, 8)


def test_logits_that_are_not_finite_fail_and_name_the_call(gqa_folder: Path, make_engine: MakeEngine) -> None:
    engine = make_engine(gqa_folder)
    broken = {name: tensor.clone() for name, tensor in engine._model.state_dict().items()}
    broken["model.norm.weight"][0] = float("nan")
    load(engine, broken, 1)
    engine.submit(request("broken", ids(5, 6)))
    with pytest.raises(EngineFailedError, match="'broken' are not finite"):
        engine.step()


def test_a_job_s_model_is_loaded(gqa_folder: Path) -> None:
    job = Job(
        model=ModelConfig(path=str(gqa_folder), device="cpu"),
        engine=EngineConfig(max_model_len=64),
        limits=LimitsConfig(max_completion_tokens=8),
    )
    engine = TorchEngine.load(job)
    assert (engine.max_model_len, engine.vocab_size, engine.weight_version) == (64, 512, 0)
    assert len(drain(engine, [request("a", ids(5, 6), 3)])["a"].token_ids) == 3


def test_the_longest_sequence_is_what_the_model_knows(gqa_folder: Path, make_engine: MakeEngine) -> None:
    assert make_engine(gqa_folder).max_model_len == 512
    assert make_engine(gqa_folder, max_model_len=100).max_model_len == 100
    with pytest.raises(ConfigError, match="513 is more than the 512"):
        make_engine(gqa_folder, max_model_len=513)


arrivals = st.tuples(
    st.sampled_from([0, 5, 30, 60]),  # ids shared with others
    st.sampled_from([1, 2, 9, 20]),  # ids of its own, so few kinds that some prompts are the same
    st.integers(1, 9),  # max_tokens
    st.integers(0, 3),  # steps before the next arrival
    st.none() | st.integers(0, 13),  # which call is cancelled then
)


# Drawn as a whole before anything runs: an example that hypothesis gives up halfway would leave calls in the engine.
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(schedule=st.lists(arrivals, min_size=1, max_size=14), seed=st.integers(0, 3))
def test_any_schedule_of_joins_and_cancels_gives_every_call_its_solo_result(
    shared_engine: TorchEngine, plain_model: PreTrainedModel, schedule: list[tuple[int, ...]], seed: int
) -> None:
    trunk = random_ids(seed, 60)
    asked: dict[str, tuple[IntIds, int]] = {}
    cancelled: set[str] = set()
    done: dict[str, IntIds] = {}
    for shared, own, room, steps, victim in schedule:
        name, prompt = str(len(asked)), np.concatenate([trunk[:shared], random_ids(own, own)])
        asked[name] = (prompt, room)
        shared_engine.submit(request(name, prompt, room))
        for _ in range(steps):
            done |= {item.request_id: item.token_ids for item in shared_engine.step().completions}
        if shared_engine.cancel(str(victim)):
            cancelled.add(str(victim))
    done |= {name: item.token_ids for name, item in drain(shared_engine).items()}
    assert done.keys() == asked.keys() - cancelled
    for name, token_ids in done.items():
        assert token_ids.tolist() == greedy(plain_model, *asked[name])
