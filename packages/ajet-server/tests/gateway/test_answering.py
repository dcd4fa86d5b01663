"""From a request to a durable answer: what is sampled is what is recorded, in whatever way it goes wrong."""

import asyncio
import json
import sqlite3
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from gateway_helpers import ADD, CALL, END, blocked, ids_of, items_of, rolling, told, user
from server_helpers import Running, answer_of, ask, until

from ajet_core.episode import EpisodeStatus
from ajet_core.errors import EpisodeClosedError, RequestError, StorageError, UnavailableError
from ajet_server.capture.calls import WholeCall, call_rows
from ajet_server.capture.records import EpisodeRecord
from ajet_server.gateway import answering
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import Answer, Conversation, Delta, IntIds, Item, Message, RawPrompt
from ajet_server.gateway.runs import Run

pytestmark = pytest.mark.anyio


@pytest.fixture
async def live(tmp_path: Path, model: Path) -> AsyncIterator[Running]:
    async with rolling(tmp_path, model) as made:
        yield made


def _ids(data: bytes) -> list[int]:
    return memoryview(data).cast("i").tolist()


async def _read(run: Run, seen: list[Item]) -> None:
    async for item in run.items():
        seen.append(item)  # noqa: PERF401 - one by one, so that a test sees how far it is


def _with_tools(messages: list[Message], **fields: Any) -> dict[str, Any]:
    return {"prompt": Conversation(messages, (ADD,), **fields), "max_tokens": None}


@pytest.mark.parametrize("stream", [False, True])
async def test_ids_are_what_was_sampled_whatever_was_read_in_them(live: Running, model: Path, stream: bool) -> None:
    # "hi" in two tokens that no tokenizer would give back, special tokens in the middle, thinking-like text, a call.
    odd = [*ids_of(model, "h"), *ids_of(model, "i"), 0, *ids_of(model, f"\n{CALL}"), END]
    live.worker.say({"tokens": odd})
    record = await live.open()
    run = await live.run(record, ask(**_with_tools([user("add")]), logprobs=True, return_token_ids=True), stream=stream)
    answer = told(items := await items_of(run))[2] if stream else await answer_of(run)
    (choice,), (call,) = answer.choices, live.calls(record)
    assert (choice.text.strip(), choice.finish_reason, len(choice.tool_calls)) == ("hi", "tool_calls", 1)
    assert choice.token_ids == _ids(call.record.completion_ids) == odd
    assert answer.completion_tokens == len(odd) == len(choice.logprobs) == len(call.record.logprobs) // 4
    assert answer.prompt_ids == _ids(call.prompt_ids) == live.worker.log("generate")[0]["prompt"]
    if stream:
        assert told(items)[:2] == (choice.text, odd)


async def test_the_answer_is_told_only_when_it_is_durable(live: Running) -> None:
    record = await live.open()
    with blocked(live.server.ledger) as disk:
        run = await live.run(record, ask(), stream=True)
        seen: list[Item] = []
        reading = asyncio.create_task(_read(run, seen))
        await until(lambda: sum(len(item.tokens) for item in seen if isinstance(item, Delta)) == 3)
        assert live.server.runtime.conductor.supervisor.in_worker == 0
        assert not any(isinstance(item, Answer) for item in seen)
        assert not live.calls(record)
        disk.set()
        await reading
    assert [call.record.id for call in live.calls(record)] == [told(seen)[2].id]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("n", [1, 2])
async def test_who_leaves_ends_the_call(live: Running, stream: bool, n: int) -> None:
    record = await live.open()
    live.worker.hold(after=1)
    run = await live.run(record, ask(n=n), stream=stream)
    waiting = asyncio.create_task(items_of(run))
    await until(lambda: len(live.worker.log("generate")) == n)
    waiting.cancel()
    await until(lambda: len(live.worker.log("cancel")) == n)
    state = live.state_of(record)
    await until(lambda: not state.in_flight)
    assert (state.reserved, state.recorded, live.calls(record)) == (0, 0, [])
    live.worker.release()
    assert await live.chat(record)


async def test_a_call_goes_on_for_the_retry_that_joined_it(live: Running) -> None:
    record = await live.open()
    live.worker.hold(after=1)
    waiting = asyncio.create_task(items_of(await live.run(record, ask(), stream=True)))
    await until(lambda: len(live.worker.log("generate")) == 1)
    joined = asyncio.create_task(items_of(await live.run(record, ask(), retry=True, stream=True)))
    await asyncio.sleep(0)
    waiting.cancel()
    await asyncio.wait({waiting})
    live.worker.release()
    text, tokens, answer = told(await joined)
    assert (text, tokens) == (answer.choices[0].text, [5, 6, 7])
    assert live.worker.log("cancel") == []
    assert len(live.calls(record)) == 1


async def test_choices_are_calls_of_their_own(live: Running) -> None:
    live.worker.say({"tokens": [5, 6]}, {"tokens": [7, END]}, {"tokens": [8]})
    record = await live.open()
    answer = await live.chat(record, n=3, seed=4)
    calls = live.calls(record)
    assert [choice.token_ids for choice in answer.choices] == [_ids(call.record.completion_ids) for call in calls]
    assert sorted(map(len, (choice.token_ids for choice in answer.choices))) == [1, 2, 2]
    assert [json.loads(call.record.sampling)["seed"] for call in calls] == [4, 5, 6]
    assert {call.record.answer_id for call in calls} == {answer.id}
    assert [(call.record.seq, call.record.choice) for call in calls] == [(0, 0), (1, 1), (2, 2)]


async def test_of_choices_all_are_recorded_or_none(live: Running, monkeypatch: pytest.MonkeyPatch) -> None:
    record = await live.open()
    names = iter(["call_a", "call_b", "call_a"])
    monkeypatch.setattr(answering, "new_call_id", lambda: next(names))
    before = await live.chat(record)
    with pytest.raises(sqlite3.IntegrityError):
        await live.chat(record, n=2)
    state = live.state_of(record)
    assert [call.record.id for call in live.calls(record)] == [before.id]
    assert (state.recorded, state.sampled, state.in_flight, state.reserved) == (1, 3, 0, 0)


@pytest.mark.parametrize("stream", [False, True])
async def test_a_disk_that_refuses_is_told_and_nothing_counts(live: Running, stream: bool) -> None:
    record = await live.open()
    await live.server.ledger.write(
        lambda db: (
            db.execute("CREATE TRIGGER full BEFORE INSERT ON calls BEGIN SELECT RAISE(ABORT, 'no room'); END") and None
        )
    )
    run = await live.run(record, ask(), stream=stream)
    with pytest.raises((StorageError, sqlite3.Error)):
        await answer_of(run)
    state = live.state_of(record)
    assert (state.recorded, state.sampled, state.in_flight, state.reserved) == (0, 0, 0, 0)
    await live.server.ledger.write(lambda db: db.execute("DROP TRIGGER full") and None)
    assert (await live.chat(record)).choices, "nothing of it is gone on from"


async def test_a_call_waits_while_weights_move(tmp_path: Path, model: Path) -> None:
    async with rolling(tmp_path, model, limits={"request_timeout_s": 1.0}) as live:
        record = await live.open()
        supervisor = live.server.runtime.conductor.supervisor
        await supervisor.close_gate(1)
        with pytest.raises(UnavailableError, match="waiting for the engine after") as refused:
            await live.chat(record)
        assert refused.value.retry_after_s
        assert live.state_of(record).in_flight == 0
        waiting = asyncio.create_task(live.chat(record))
        await until(lambda: supervisor.queued == 1)
        await supervisor.open_gate()
        assert (await waiting).completion_tokens == 3
        assert len(live.calls(record)) == 1


async def test_a_call_of_an_episode_that_closes_ends(live: Running) -> None:
    record = await live.open()
    live.worker.hold()
    waiting = asyncio.create_task(live.chat(record, n=2))
    await until(lambda: len(live.worker.log("generate")) == 2)
    state = live.state_of(record)
    await live.server.runtime.episodes.lose(record.id, EpisodeStatus.ABORTED, "the test")
    with pytest.raises(EpisodeClosedError):
        await waiting
    assert (live.calls(record), state.in_flight, state.reserved) == ([], 0, 0)


def _stored(calls: list[WholeCall]) -> list[int]:
    """What each call takes in the ledger, in bytes."""
    return [len(call.record.prompt_ids) + len(call.record.messages) for call in calls]


async def test_an_episode_takes_room_for_its_new_tokens_only(live: Running, model: Path) -> None:
    live.worker.say({"tokens": [*ids_of(model, "hello world"), END]})
    record, messages = await live.open(), [user("a")]
    for turn in range(32):
        answer = await live.chat(record, messages=messages)
        messages = [*messages, answer.choices[0].message(), user(f"turn {turn:02}")]
    calls = live.calls(record)
    assert len(set(_stored(calls)[1:])) == 1, "each turn takes as much as the one before"
    assert [call.record.parent_id for call in calls] == [None, *(call.record.id for call in calls[:-1])]
    assert [_ids(call.prompt_ids) for call in calls] == [entry["prompt"] for entry in live.worker.log("generate")]
    assert calls[-1].messages == messages[:-2]
    rows = live.server.ledger.read_now(lambda db: call_rows(db, record.id))
    assert [row.prompt_ids for row in rows] == [call.prompt_ids for call in calls]


async def test_a_call_costs_its_new_text_only(live: Running, model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    texts: list[str] = []
    encode = ChatRenderer.encode

    def counted(self: ChatRenderer, text: str) -> IntIds:
        texts.append(text)
        return encode(self, text)

    monkeypatch.setattr(ChatRenderer, "encode", counted)
    record, messages, costs = await live.open(), [user("a")], list[int]()
    for turn in range(24):
        texts.clear()
        answer = await live.chat(record, messages=messages)
        costs.append(sum(map(len, texts)))
        messages = [*messages, answer.choices[0].message(), user(f"turn {turn:02}")]
    assert len(set(costs[4:])) == 1, "characters that are tokenized in each turn"
    assert costs[-1] < 100


async def test_the_tree_of_calls(live: Running, model: Path) -> None:
    """Choices, a fork of either, sub-agents at once, another's system message, raw prompts in between."""
    live.worker.say({"tokens": [*ids_of(model, "hello"), END]}, {"tokens": [*ids_of(model, "world"), END]}, {})
    record = await live.open()
    start = [user("a")]
    two = await live.chat(record, messages=start, n=2)
    raw = await live.chat(record, prompt=RawPrompt("hello"))
    goes_on = [[*start, choice.message(), user("b")] for choice in two.choices]
    subs = await asyncio.gather(*(live.chat(record, messages=messages) for messages in goes_on))
    again = await live.chat(record, messages=goes_on[0])
    edited = await live.chat(record, messages=[*start, {"role": "assistant", "content": "no"}, user("b")])
    other = await live.chat(record, messages=[{"role": "system", "content": "s"}, *start])
    calls = {call.record.id: call for call in live.calls(record)}
    parents = {name: call.record.parent_id for name, call in calls.items()}
    one, second = (choice.call_id for choice in two.choices)
    assert parents == {
        one: None,
        second: None,
        raw.id: None,
        subs[0].id: one,
        subs[1].id: second,
        again.id: one,
        edited.id: None,
        other.id: None,
    }
    given = {entry["request_id"]: entry["prompt"] for entry in live.worker.log("generate")}
    assert {name: _ids(call.prompt_ids) for name, call in calls.items()} == given
    assert calls[raw.id].messages == []
    assert calls[subs[1].id].messages == goes_on[1]


async def _turn(live: Running, record: EpisodeRecord, messages: list[Message], result: str) -> list[Message]:
    """One call of a tool, and its result."""
    answer = await live.chat(record, **_with_tools(messages))
    (call,) = answer.choices[0].tool_calls
    tool = {"role": "tool", "content": result, "tool_call_id": call.id}
    return [*messages, answer.choices[0].message(), tool]


async def _talk(folder: Path, model: Path, lives: int) -> list[list[int]]:
    """The prompts of an episode of four turns with tools and a fork, in so many lives of the server."""
    odd = [*ids_of(model, "h"), *ids_of(model, "i"), *ids_of(model, CALL), END]
    record, messages = None, [user("a")]
    for life in range(lives):
        async with rolling(folder, model) as live:
            live.worker.say({"tokens": odd})
            record = record or await live.open()
            for turn in range(4 // lives):
                messages = await _turn(live, record, messages, f"{life * (4 // lives) + turn}")
            if life == lives - 1:
                await live.chat(record, **_with_tools([*messages[:2], user("again")]))
                return [_ids(call.prompt_ids) for call in live.calls(record)]
    raise AssertionError("it has no life")


async def test_a_restart_changes_no_token(tmp_path: Path, model: Path) -> None:
    without = await _talk(tmp_path / "one", model, 1)
    assert len(without) == 5
    assert await _talk(tmp_path / "four", model, 4) == without
    assert without[1][: len(without[0])] == without[0]


async def test_a_forced_call_is_recorded_with_its_opening(live: Running, model: Path) -> None:
    record = await live.open()
    request = ask(**_with_tools([user("a")], tool_choice="required"))
    live.worker.say({"tokens": [*ids_of(model, '{"name": "add", "arguments": {}}\n</tool_call>'), END]})
    answer = await answer_of(await live.run(record, request))
    (call,) = live.calls(record)
    assert [found.name for found in answer.choices[0].tool_calls] == ["add"]
    assert call.record.opening.startswith("<tool_call>")
    opening = ids_of(model, call.record.opening)
    assert _ids(call.prompt_ids)[-len(opening) :] == opening
    assert await answer_of(await live.run(record, request, retry=True)) == answer


async def test_calls_nested_too_deep_to_compare_are_told(live: Running, model: Path) -> None:
    deep = f'<tool_call>{{"name": "add", "arguments": {{"x": {"[" * 300}{"]" * 300}}}}}</tool_call>'
    live.worker.say({"tokens": [*ids_of(model, deep), END]})
    record = await live.open()
    answer = await live.chat(record, **_with_tools([user("a")]))
    assert len(live.calls(record)) == 1
    assert answer.choices[0].token_ids


async def test_a_prompt_that_cannot_be_made_leaves_nothing(live: Running) -> None:
    record = await live.open()
    with pytest.raises(RequestError):
        await live.chat(record, prompt=RawPrompt(""))
    assert (live.state_of(record).in_flight, live.state_of(record).next_seq) == (0, 0)
