"""Who may ask what: retries, limits and memory of an episode."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gateway_helpers import blocked, items_of, rolling, told, user
from server_helpers import Running, answer_of, ask, until

from ajet_core.errors import BudgetError, EpisodeClosedError, NotFoundError, UnavailableError
from ajet_core.ids import new_secret
from ajet_core.wire import Decides, PrepareEpisode
from ajet_server.gateway.request import Answer, ChatRequest, RawPrompt
from ajet_server.gateway.session import Origin

pytestmark = pytest.mark.anyio


@pytest.fixture
async def live(tmp_path: Path, model: Path) -> AsyncIterator[Running]:
    async with rolling(tmp_path, model) as made:
        yield made


def _generated(live: Running) -> int:
    return len(live.worker.log("generate"))


async def test_a_retry_joins_the_first_try_while_it_runs(live: Running) -> None:
    record = await live.open()
    live.worker.hold()
    first = await live.run(record, ask())
    waiting = asyncio.create_task(answer_of(first))
    await until(lambda: _generated(live) == 1)
    again = await live.run(record, ask(), retry=True)
    assert again is first
    live.worker.release()
    assert await waiting == await answer_of(again)
    assert (_generated(live), len(live.calls(record))) == (1, 1)


async def test_a_first_try_is_never_taken_for_a_retry(live: Running) -> None:
    record = await live.open()
    live.worker.hold()
    runs = [await live.run(record, ask()) for _ in range(3)]
    live.worker.release()
    assert len({(await answer_of(run)).id for run in runs}) == 3 == len(live.calls(record))


@pytest.mark.parametrize("fields", [{}, {"n": 3}, {"logprobs": True}, {"prompt": RawPrompt("hello")}])
@pytest.mark.parametrize("first_streams", [False, True])
@pytest.mark.parametrize("retry_streams", [False, True])
async def test_an_answer_that_did_not_arrive_is_given_again(
    live: Running, fields: dict[str, Any], first_streams: bool, retry_streams: bool
) -> None:
    record, request = await live.open(), ask(**fields)
    answer = await answer_of(await live.run(record, request, stream=first_streams))
    again = await live.run(record, request, retry=True, stream=retry_streams)
    if retry_streams:
        items = await items_of(again)
        assert items[-1] == answer
        for choice in answer.choices:
            assert told(items, choice.index)[:2] == (choice.text, choice.token_ids)
    else:
        assert await answer_of(again) == answer
    assert _generated(live) == request.n == len(live.calls(record))


async def test_another_request_is_another_call(live: Running) -> None:
    record = await live.open()
    first = await live.chat(record)
    for changed in ({"temperature": 0.5}, {"messages": [user("other")]}, {"n": 2}, {"seed": 1}):
        other = await answer_of(await live.run(record, ask(**changed), retry=True))
        assert other.id != first.id
    assert (await answer_of(await live.run(record, ask()))).id != first.id, "it says that it is no retry"
    assert len(live.calls(record)) == 7


async def test_the_retry_of_a_later_equal_request_is_not_given_the_earlier_answer(live: Running) -> None:
    record = await live.open()
    first = await live.chat(record)
    live.server.runtime.gateway.delivered(live.state_of(record), first)
    live.worker.hold()
    second = asyncio.create_task(answer_of(await live.run(record, ask())))
    await until(lambda: _generated(live) == 2)
    second.cancel()  # its first try fails; here, because the connection broke
    await asyncio.gather(second, return_exceptions=True)
    live.worker.release()
    answer = await answer_of(await live.run(record, ask(), retry=True))
    assert answer.id != first.id
    assert len(live.calls(record)) == 2


async def test_an_answer_that_was_sent_but_lost_on_its_way_is_given_again(live: Running) -> None:
    record = await live.open()
    first = await live.chat(record)
    live.server.runtime.gateway.delivered(live.state_of(record), first)
    assert await answer_of(await live.run(record, ask(), retry=True)) == first
    assert len(live.calls(record)) == 1


async def test_a_retry_after_a_restart_is_answered_from_the_ledger(tmp_path: Path, model: Path) -> None:
    async with rolling(tmp_path, model) as live:
        record = await live.open()
        answer = await live.chat(record, n=2)
    async with rolling(tmp_path, model) as live:
        before = _generated(live)
        assert await answer_of(await live.run(record, ask(n=2), retry=True)) == answer
        assert _generated(live) == before
        assert len(live.calls(record)) == 2


async def test_a_retry_waits_for_a_call_that_is_recorded_though_its_caller_left(live: Running) -> None:
    record = await live.open()
    with blocked(live.server.ledger) as disk:
        first = await live.run(record, ask(), stream=True)
        reading = asyncio.create_task(items_of(first))
        await until(lambda: _generated(live) == 1 and not live.server.runtime.conductor.supervisor.in_worker)
        reading.cancel()
        await asyncio.wait({reading})
        again = asyncio.create_task(live.run(record, ask(), retry=True))
        await asyncio.sleep(0)
        assert not again.done()
        disk.set()
        answer = await answer_of(await again)
    (call,) = live.calls(record)
    assert call.record.id == answer.id
    assert _generated(live) == 1
    assert live.state_of(record).in_flight == 0


async def test_a_retry_does_not_join_a_call_that_was_given_up(live: Running) -> None:
    record = await live.open()
    live.worker.hold()
    first = await live.run(record, ask())
    waiting = asyncio.create_task(answer_of(first))
    await until(lambda: _generated(live) == 1)
    waiting.cancel()
    while not first.given_up:
        await asyncio.sleep(0)
    again = await live.run(record, ask(), retry=True)
    assert again is not first
    live.worker.release()
    answer = await answer_of(again)
    assert [call.record.id for call in live.calls(record)] == [answer.id]


async def test_a_retry_samples_nothing_for_an_episode_that_was_prepared_meanwhile(
    live: Running, monkeypatch: pytest.MonkeyPatch
) -> None:
    record = await live.open()
    await live.chat(record)
    live.worker.hold()
    first = await live.run(record, ask(max_tokens=7))
    waiting, over = asyncio.create_task(answer_of(first)), first.over
    part = Decides(commit_secret=new_secret(), abort_secret=new_secret())

    async def over_and_prepared() -> None:
        await over()
        body = PrepareEpisode(reward=1.0, union_id="un_1", part=part)
        await live.server.runtime.episodes.prepare(record.id, body)

    monkeypatch.setattr(first, "over", over_and_prepared)
    await until(lambda: _generated(live) == 2)
    waiting.cancel()
    while not first.given_up:
        await asyncio.sleep(0)
    with pytest.raises(EpisodeClosedError):
        await live.run(record, ask(max_tokens=7), retry=True)
    assert _generated(live) == 2
    assert (await live.finish(record)).calls == 1


async def _outcomes(live: Running, requests: list[ChatRequest]) -> tuple[list[Answer], list[BaseException]]:
    """One fresh episode is asked all of it at once."""
    record = await live.open()

    async def one(request: ChatRequest) -> Answer:
        return await answer_of(await live.run(record, request))

    results = await asyncio.gather(*map(one, requests), return_exceptions=True)
    answers = [result for result in results if isinstance(result, Answer)]
    return answers, [result for result in results if isinstance(result, BaseException)]


@pytest.mark.parametrize(("calls", "n", "served"), [(8, 1, 5), (4, 2, 2), (2, 5, 1), (1, 6, 0)])
async def test_no_more_calls_than_allowed(tmp_path: Path, model: Path, calls: int, n: int, served: int) -> None:
    async with rolling(tmp_path, model, limits={"max_episode_calls": 5}) as live:
        long = [user("hello " * 3400)]  # prepared in a thread
        live.worker.hold()
        work = asyncio.create_task(_outcomes(live, [ask(messages=long, n=n)] * calls))
        await until(lambda: _generated(live) == served * n)
        live.worker.release()
        answers, errors = await work
        assert len(answers) == served
        assert all(isinstance(error, BudgetError) for error in errors)


async def test_a_call_is_counted_while_its_prompt_is_made(tmp_path: Path, model: Path) -> None:
    async with rolling(tmp_path, model, limits={"max_episode_calls": 1}) as live:
        record = await live.open()
        first = await live.run(record, ask())
        assert live.state_of(record).in_flight == 1
        with pytest.raises(BudgetError, match="max_episode_calls=1"):
            await live.run(record, ask())
        with pytest.raises(UnavailableError, match="still running"):
            await live.finish(record)
        await answer_of(first)
        with pytest.raises(BudgetError, match="max_episode_calls=1"):
            await live.run(record, ask())
        assert (await live.finish(record)).calls == 1


async def test_a_call_is_never_counted_twice(tmp_path: Path, model: Path) -> None:
    async with rolling(tmp_path, model, limits={"max_episode_tokens": 8}) as live:
        record = await live.open()
        state, run = live.state_of(record), await live.run(record, ask(n=2))
        while not run.task.done():
            assert state.recorded + state.in_flight == 2
            assert (state.sampled, state.reserved) in ((0, 0), (0, 8), (6, 0))
            await asyncio.sleep(0)
        assert (state.recorded, state.sampled) == (2, 6)


async def test_a_call_that_fails_is_not_counted(tmp_path: Path, model: Path) -> None:
    async with rolling(tmp_path, model, limits={"max_episode_calls": 2, "max_episode_tokens": 10}) as live:
        record = await live.open()
        for _ in range(3):
            live.worker.hold()
            before = _generated(live)
            waiting = asyncio.create_task(answer_of(await live.run(record, ask())))
            await until(lambda: _generated(live) > before)  # noqa: B023 - awaited here
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            live.worker.release()
            await until(lambda: not live.state_of(record).in_flight)
        assert live.state_of(record).reserved == 0
        assert len((await live.chat(record, n=2)).choices) == 2


async def test_no_more_tokens_than_allowed(tmp_path: Path, model: Path) -> None:
    async with rolling(tmp_path, model, limits={"max_episode_tokens": 14}) as live:
        live.worker.say({"tokens": list(range(5, 40))})
        record = await live.open()
        assert [len(choice.token_ids) for choice in (await live.chat(record, n=3, max_tokens=3)).choices] == [3, 3, 3]
        assert [len(choice.token_ids) for choice in (await live.chat(record, n=2)).choices] == [2, 2], "5 are left"
        (last,) = (await live.chat(record)).choices
        assert (len(last.token_ids), last.finish_reason) == (1, "length")
        with pytest.raises(BudgetError, match="max_episode_tokens"):
            await live.chat(record)
        assert sum(len(call.record.completion_ids) for call in live.calls(record)) == 4 * 14


async def test_tokens_that_running_calls_may_need_are_promised_to_nobody_else(tmp_path: Path, model: Path) -> None:
    async with rolling(tmp_path, model, limits={"max_episode_tokens": 12}) as live:
        record = await live.open()
        live.worker.hold()
        first = asyncio.create_task(live.chat(record))
        await until(lambda: _generated(live) == 1)
        second = asyncio.create_task(live.chat(record))
        await until(lambda: _generated(live) == 2)
        assert live.state_of(record).reserved == 12
        with pytest.raises(UnavailableError, match="may need the 12 tokens") as refused:
            await live.chat(record)
        assert refused.value.retry_after_s
        live.worker.release()
        await asyncio.gather(first, second)
        assert await live.chat(record), "they needed fewer"


async def test_what_is_closed_meanwhile_is_refused(live: Running) -> None:
    record = await live.open()
    answer = await live.chat(record)
    state = live.state_of(record)
    await live.finish(record)
    runtime = live.server.runtime
    for retry in (False, True):
        with pytest.raises(EpisodeClosedError):
            await runtime.gateway.run(state, ask(), Origin("chat", repr(ask()).encode(), retry))
    assert [call.record.id for call in live.calls(record)] == [answer.id]


async def test_a_conversation_is_recalled_by_its_answer(tmp_path: Path, model: Path) -> None:
    async with rolling(tmp_path, model) as live:
        record = await live.open()
        messages = [user("a")]
        answers: list[Answer] = []
        for text in "bcd":
            answers.append(await live.chat(record, messages=messages))
            messages = [*messages, answers[-1].choices[0].message(), user(text)]
    async with rolling(tmp_path, model) as live:
        gateway, state = live.server.runtime.gateway, live.state_of(record)
        for number, answer in enumerate(answers):
            assert gateway.recall(state, answer.id) == messages[: 2 * number + 2]
        other = await live.open()
        with pytest.raises(NotFoundError, match="no answer"):
            gateway.recall(live.state_of(other), answers[0].id)
