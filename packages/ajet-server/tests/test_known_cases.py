"""What went wrong for others who capture and train on what agents do: each is a test here, or named here."""

import ast
import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gateway_helpers import END, ids_of, rolling, user
from server_helpers import Running
from template_helpers import make_family

from ajet_core.episode import EpisodeStatus
from ajet_core.errors import EpisodeClosedError, KeyRefusedError
from ajet_merge import Call, merge
from ajet_server.capture.calls import WholeCall
from ajet_server.gateway.render import ChatRenderer
from ajet_server.gateway.request import Message
from ajet_server.models.folder import open_model_folder

pytestmark = pytest.mark.anyio

_TESTS = Path(__file__).parent
ELSEWHERE = {
    "streaming and a tool parser drop no token": [
        "routes/test_agents_exact.py::test_captured_ids_are_the_sampled_ones_and_usage_counts_them",
        "gateway/test_answering.py::test_ids_are_what_was_sampled_whatever_was_read_in_them",
        "gateway/test_choice.py::test_deltas_add_up_to_the_choice_however_it_is_cut",
    ],
    "an SDK's retry is one call": [
        "routes/test_agents_exact.py::test_an_answer_that_the_sdk_lost_is_recorded_once",
        "routes/test_agents_exact.py::test_a_retry_gets_the_same_bytes",
        "gateway/test_service.py::test_a_retry_joins_the_first_try_while_it_runs",
        "gateway/test_service.py::test_a_retry_after_a_restart_is_answered_from_the_ledger",
    ],
    "cached keys of old weights are never used": [
        "engines/test_prefix_cache.py::test_a_hit_of_another_version_is_refused",
        "engines/test_reuse.py::test_new_weights_change_what_is_sampled_and_forget_the_old_keys",
        "engines/test_reuse.py::test_keys_of_other_weights_are_an_error_and_no_hit",
    ],
    "sampling that cannot be corrected is refused, and its mode recorded": [
        "gateway/test_sampling.py::test_what_cannot_be_trained",
        "gateway/test_recorder.py::test_choices_share_an_answer_and_have_seeds_of_their_own",
        "routes/test_agents.py::test_refusals",
    ],
    "keys outlive neither episode nor crash": [
        "episodes/test_lifecycle.py::test_keys",
        "routes/test_agents.py::test_a_late_result_is_fenced_off",
        "routes/test_agents_failures.py::test_calls_belong_to_the_episode_of_their_key",
        "gateway/test_service.py::test_what_is_closed_meanwhile_is_refused",
    ],
    "a thousand episodes have one writer": [
        "routes/test_agents_failures.py::test_a_thousand_calls_of_five_hundred_episodes_at_once",
        "capture/test_ledger.py::test_the_queue_is_bounded",
        "episodes/test_lifecycle.py::test_a_thousand_at_once",
    ],
    "a call costs its new tokens": [
        "gateway/test_answering.py::test_a_call_costs_its_new_text_only",
        "gateway/test_answering.py::test_an_episode_takes_room_for_its_new_tokens_only",
        "gateway/test_continuity.py::test_nothing_old_is_rendered_or_tokenized_again",
    ],
    "keys are opaque, and open nothing else": [
        "episodes/test_keys.py::test_a_key_names_one_attempt_and_one_purpose",
        "routes/test_agents.py::test_a_control_key_generates_nothing",
        "routes/test_agents.py::test_a_wrong_key",
    ],
    "every boundary is the template's own": ["gateway/test_continuity.py::test_every_prompt_is_the_whole_rendering"],
}


@pytest.mark.parametrize("name", [name for names in ELSEWHERE.values() for name in names])
def test_the_tests_that_are_named_exist(name: str) -> None:
    file, function = name.split("::")
    tree = ast.parse((_TESTS / file).read_text("utf-8"))
    found = {node.name for node in tree.body if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)}
    assert function in found


def _ids(data: bytes) -> list[int]:
    return memoryview(data).cast("i").tolist()


def _sampled_once(calls: list[WholeCall]) -> None:
    """Every sampled token is in the forest that is trained, once."""
    rows = [
        Call(_ids(call.prompt_ids), _ids(call.record.completion_ids), np.frombuffer(call.record.logprobs, "<f4"))
        for call in calls
    ]
    assert merge(rows).occurrences.token.size == sum(len(row.completion_ids) for row in rows)


async def test_a_history_that_the_agent_changes_forks_and_loses_nothing(tmp_path: Path, model: Path) -> None:
    """Others re-tokenized the prefix, found a difference, and left the whole episode out."""
    async with rolling(tmp_path, model) as live:
        odd = [*ids_of(model, "he"), *ids_of(model, "llo"), END]
        assert odd != [*ids_of(model, "hello"), END], "another tokenization of the same text"
        live.worker.say({"tokens": odd})
        record, start = await live.open(), [user("a")]
        first = await live.chat(record, messages=start)
        said = first.choices[0].message()
        await live.chat(record, messages=[*start, said, user("b")])
        await live.chat(record, messages=[*start, said | {"content": "edited"}, user("b")])
        one, goes_on, forked = live.calls(record)
        whole = _ids(one.prompt_ids) + odd
        assert _ids(goes_on.prompt_ids)[: len(whole)] == whole, "as it was sampled"
        assert (goes_on.record.parent_id, forked.record.parent_id) == (first.id, None)
        _sampled_once([one, goes_on, forked])


async def test_every_prompt_is_the_rendering_of_its_conversation(tmp_path: Path, model: Path) -> None:
    """Others lost a newline at every boundary."""
    renderer = ChatRenderer(open_model_folder(str(model)))
    async with rolling(tmp_path, model) as live:
        live.worker.say({"tokens": [*ids_of(model, "hello world"), END]})
        record, messages = await live.open(), [user("a")]
        for turn in range(6):
            answer = await live.chat(record, messages=messages)
            assert _ids(live.calls(record)[-1].prompt_ids) == renderer.encode(renderer.render(messages)).tolist()
            messages = [*messages, answer.choices[0].message(), user(f"turn {turn}")]


async def _thinking(folder: Path, history: str) -> tuple[list[WholeCall], Message]:
    """Two turns of a model whose template leaves earlier thinking out."""
    made = make_family("qwen3", folder / "model")
    said = ChatRenderer(made).encode("<think>\nhm\n</think>\n\nhello<|im_end|>").tolist()
    async with rolling(folder, folder / "model", gateway={"history": history}) as live:
        live.worker.say({"tokens": said})
        record, start = await live.open(), [user("a")]
        answer = await live.chat(record, messages=start)
        response = answer.choices[0].message()
        await live.chat(record, messages=[*start, response, user("b")])
        return live.calls(record), response


@pytest.mark.parametrize("history", ["template", "keep"])
async def test_thinking_that_the_template_strips(tmp_path: Path, history: str) -> None:
    """The job says which: a new branch as the template writes it, or the tokens that the model saw."""
    (first, second), response = await _thinking(tmp_path, history)
    assert response["reasoning_content"].strip() == "hm"
    whole = _ids(first.prompt_ids) + _ids(first.record.completion_ids)
    goes_on = _ids(second.prompt_ids)[: len(whole)] == whole
    assert goes_on == (history == "keep")
    assert second.record.parent_id == (first.record.id if history == "keep" else None)
    _sampled_once([first, second])


@pytest.mark.parametrize("status", [EpisodeStatus.ABORTED, EpisodeStatus.EXPIRED])
async def test_a_key_ends_with_its_attempt(tmp_path: Path, model: Path, status: EpisodeStatus) -> None:
    async with rolling(tmp_path, model) as live:
        record = await live.open()
        await live.chat(record)
        live.worker.hold()
        running = [asyncio.create_task(live.chat(record, seed=seed)) for seed in range(3)]
        await asyncio.sleep(0)
        await live.server.runtime.episodes.lose(record.id, status, "the test")
        live.worker.release()
        assert all(
            isinstance(one, EpisodeClosedError) for one in await asyncio.gather(*running, return_exceptions=True)
        )
        with pytest.raises(EpisodeClosedError, match=str(status)):
            live.state_of(record)
        assert len(live.calls(record)) == 1
    async with rolling(tmp_path, model) as live:
        with pytest.raises(EpisodeClosedError, match=str(status)):
            live.state_of(record)
        again: Any = await live.open()
        assert again.api_key_hash != record.api_key_hash
        _refused(live)


def _refused(live: Running) -> None:
    with pytest.raises(KeyRefusedError):
        live.server.runtime.episodes.agent("sk-ajet-static")
