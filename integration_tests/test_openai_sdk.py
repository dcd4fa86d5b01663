"""The official OpenAI SDK, sync and async, against a real server."""

import asyncio

import numpy as np
import openai
import pytest
from openai import AsyncOpenAI, OpenAI
from openai.types.chat import ChatCompletionMessage, ChatCompletionMessageParam

from live_server import LiveServer


def test_ids_of_the_ledger_are_what_usage_counts(shared_server: LiveServer) -> None:
    with shared_server.swarm() as swarm, swarm.episode(task="sdk", kind="eval") as episode:
        with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
            answer = client.chat.completions.create(
                model=episode.model,
                messages=[{"role": "system", "content": "You count."}, {"role": "user", "content": "1 2 3"}],
                max_tokens=9,
                logprobs=True,
                top_logprobs=3,
            )
        episode.reward(0.5)
    ((prompt, completion, logprobs, version),) = shared_server.rows(
        "SELECT prompt_ids, completion_ids, logprobs, weight_version FROM calls WHERE id = ?", answer.id
    )
    assert answer.usage is not None
    assert answer.usage.prompt_tokens == len(np.frombuffer(prompt, "<i4"))
    assert answer.usage.completion_tokens == len(np.frombuffer(completion, "<i4"))
    assert version == 0
    content = answer.choices[0].logprobs.content if answer.choices[0].logprobs else None
    assert content is not None
    np.testing.assert_allclose([item.logprob for item in content], np.frombuffer(logprobs, "<f4"), rtol=1e-6)
    assert all(len(item.top_logprobs) == 3 for item in content)
    assert all(item.top_logprobs[0].logprob >= item.logprob - 1e-6 for item in content)


def test_a_seed_repeats_a_completion(shared_server: LiveServer) -> None:
    with shared_server.swarm() as swarm, swarm.episode(task="seed", kind="eval") as episode:
        with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
            texts = [
                client.chat.completions.create(
                    model=episode.model, messages=[{"role": "user", "content": "again"}], max_tokens=12, seed=seed
                ).choices[0].message.content
                for seed in (7, 7, 8)
            ]  # fmt: skip
        episode.reward(0)
    assert texts[0] == texts[1]
    assert texts[0] != texts[2]


def test_many_async_calls_share_the_batch(shared_server: LiveServer) -> None:
    async def ask(client: AsyncOpenAI, model: str, number: int) -> int:
        answer = await client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": f"number {number}"}], max_tokens=6
        )
        assert answer.usage is not None
        return answer.usage.completion_tokens

    async def ask_all(base_url: str, key: str, model: str) -> list[int]:
        async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
            return await asyncio.gather(*(ask(client, model, number) for number in range(48)))

    with shared_server.swarm() as swarm, swarm.episode(task="async", kind="eval") as episode:
        counts = asyncio.run(ask_all(episode.base_url, episode.api_key, episode.model))
        episode.reward(1)
    assert len(counts) == 48
    assert all(1 <= count <= 6 for count in counts)
    (recorded,) = shared_server.rows("SELECT count(*) FROM calls WHERE episode_id = ?", episode.id)
    assert recorded[0] == 48


def test_a_conversation_goes_on_with_the_sdks_own_message(shared_server: LiveServer) -> None:
    with shared_server.swarm() as swarm, swarm.episode(task="two turns", kind="eval") as episode:
        with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
            messages: list[ChatCompletionMessageParam | ChatCompletionMessage] = [{"role": "user", "content": "one"}]
            first = client.chat.completions.create(
                model=episode.model,
                messages=messages,  # type: ignore[arg-type]
                max_tokens=5,
            )
            messages.append(first.choices[0].message)
            messages.append({"role": "user", "content": "two"})
            second = client.chat.completions.create(
                model=episode.model,
                messages=messages,  # type: ignore[arg-type]
                max_tokens=5,
            )
        episode.reward(0)
    assert first.usage is not None
    assert second.usage is not None
    details = second.usage.prompt_tokens_details
    assert details is not None
    # The second prompt begins with the first one, which the engine does not compute again.
    assert details.cached_tokens is not None
    assert details.cached_tokens >= first.usage.prompt_tokens - 1


def test_models_lists_the_served_model(shared_server: LiveServer) -> None:
    with shared_server.swarm() as swarm, swarm.episode(task="models", kind="eval") as episode:
        with OpenAI(base_url=episode.base_url, api_key=episode.api_key) as client:
            assert [model.id for model in client.models.list()] == [episode.model]
            assert client.models.retrieve(episode.model).id == episode.model
        episode.reward(0)


@pytest.mark.parametrize(
    ("extra", "field"),
    [
        ({"n": 100}, "n"),
        ({"presence_penalty": 0.5}, "presence_penalty"),
        ({"audio": {"voice": "alloy", "format": "mp3"}}, "audio"),
        ({"response_format": {"type": "json_object"}}, "response_format"),
        ({"extra_body": {"not_a_field": 1}}, "not_a_field"),
        ({"temperature": 0}, "temperature"),
        ({"top_p": 0.5}, "top_p"),
        ({"max_tokens": 10_000}, "max_tokens"),
    ],
)
def test_what_is_not_served_is_refused_by_name(shared_server: LiveServer, extra: dict[str, object], field: str) -> None:
    with shared_server.swarm() as swarm, swarm.episode(task=f"refused {field}") as episode:
        with (
            OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client,
            pytest.raises(openai.BadRequestError) as refusal,
        ):
            client.chat.completions.create(
                model=episode.model,
                messages=[{"role": "user", "content": "hi"}],
                **extra,  # type: ignore[arg-type]
            )
        assert refusal.value.param == field
        assert field in refusal.value.message
        episode.abort("only refusals were wanted")


def test_a_prompt_that_is_too_long_is_refused_with_its_length(shared_server: LiveServer) -> None:
    with shared_server.swarm() as swarm, swarm.episode(task="long", kind="eval") as episode:
        with (
            OpenAI(base_url=episode.base_url, api_key=episode.api_key, max_retries=0) as client,
            pytest.raises(openai.BadRequestError, match=r"the prompt has \d+ tokens.*context is 512") as refusal,
        ):
            client.chat.completions.create(
                model=episode.model, messages=[{"role": "user", "content": "long " * 2000}], max_tokens=4
            )
        assert refusal.value.code == "context_length_exceeded"
        episode.abort("only a refusal was wanted")
