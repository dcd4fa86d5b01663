"""Streams and cancellations through supervisor, messages, worker and engine."""

import asyncio
import gc
import os
import random
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from loopback import Heard, generate, supervisor_over, take_over, turning
from msgspec import structs

from ajet_core.config import Job
from ajet_core.errors import EngineFailedError, RequestError, UnavailableError
from ajet_server.demo.micro import make_micro_model
from ajet_server.engines.calls import Call
from ajet_server.engines.prefix_cache import _Node
from ajet_server.engines.torch_engine import TorchEngine
from ajet_server.worker import protocol
from ajet_server.worker.process import WorkerLostError
from ajet_server.worker.supervisor import Supervisor

pytestmark = pytest.mark.anyio
PROMPT = list(range(20, 60))


@pytest.fixture(scope="module", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = make_micro_model(tmp_path_factory.mktemp("micro") / "model")
    engine = {"max_batch_size": 6, "prefill_chunk": 24, "prefix_cache_tokens": 300}
    return Job.model_validate({"model": {"path": str(folder), "device": "cpu"}, "engine": engine})


@pytest.fixture
def engine(job: Job) -> TorchEngine:
    return TorchEngine.load(job)


async def turns(count: int = 3) -> None:
    """Lets everybody else go on."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_a_streamed_call_hears_all_of_its_completion_first(engine: TorchEngine) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    heard = {name: Heard() for name in ("a", "b", "c")}
    async with turning(worker):
        calls = [
            supervisor.generate(generate(name, PROMPT, 7, stream=name != "c", top_logprobs=2), 60, heard[name])
            for name in heard
        ]
        for name, done in zip(heard, await asyncio.gather(*calls), strict=True):
            assert heard[name].token_ids == done.token_ids
            assert heard[name].logprobs == done.logprobs
            assert heard[name].tops == done.top_logprobs
    streamed = [message for message in worker.said if isinstance(message, protocol.Streamed)]
    # One message per step for both streams, and none for the call that is not streamed.
    assert [[part.request_id for part in message.calls] for message in streamed] == [["a", "b"]] * 7


async def test_choices_of_one_prompt_compute_it_once(engine: TorchEngine) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    ways = [{}, {"logit_bias": ((7, 5.0),)}, {"temperature": 0.0}, {"seed": 3}, {"top_p": 0.5}, {}]
    async with turning(worker):
        asked = [generate(str(at), PROMPT, 3, stream=at % 2 > 0, **way) for at, way in enumerate(ways)]
        done = await asyncio.gather(*(supervisor.generate(message, 60) for message in asked))
    assert [item.cached_tokens for item in done] == [0] + 5 * [len(PROMPT)]
    assert engine.computed_tokens == len(PROMPT) + sum(len(item.token_ids) // 4 - 1 for item in done)


async def test_a_refusal_names_its_field(engine: TorchEngine) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    async with turning(worker):
        with pytest.raises(RequestError, match="logit_bias: is 512") as caught:
            await supervisor.generate(generate("a", PROMPT, 3, stream=True, logit_bias=((512, 1.0),)), 60)
    assert caught.value.field == "logit_bias"


async def test_a_stream_whose_client_leaves_frees_its_slot_at_once(engine: TorchEngine) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    heard = Heard()
    call = asyncio.create_task(supervisor.generate(generate("a", PROMPT, 100, stream=True), 60, heard))
    while len(heard) < 3:
        await turns()
        worker.step()
    call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    heard.closed = True
    assert (engine.running, supervisor.in_worker) == (1, 0)
    worker.step()
    assert not engine.has_work
    assert len(heard) == 3


@pytest.mark.parametrize("how", ["dies", "is recalled"])
async def test_a_stream_goes_on_where_it_was_cut(job: Job, engine: TorchEngine, how: str) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    heard = Heard()
    call = asyncio.create_task(supervisor.generate(generate("a", PROMPT, 12, stream=True), 60, heard))
    while len(heard) < 5:
        await turns()
        worker.step()
    if how == "dies":
        worker.die()
        await supervisor.lost()
        worker = take_over(supervisor, TorchEngine.load(job))
    else:
        await supervisor.close_gate(0.0)
    async with turning(worker):
        await supervisor.open_gate()
        done = await call
    assert heard.token_ids == done.token_ids
    assert len(heard) == 12
    alone, other = supervisor_over(TorchEngine.load(job))
    await alone.open_gate()
    async with turning(other):
        assert (await alone.generate(generate("a", PROMPT, 12, stream=False), 60)).token_ids == done.token_ids


async def test_a_stream_that_contradicts_itself_fails_and_frees_its_slot(engine: TorchEngine) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    heard = Heard()
    call = asyncio.create_task(supervisor.generate(generate("a", PROMPT, 100, stream=True), 60, heard))
    while len(heard) < 5:
        await turns()
        worker.step()
    await supervisor.close_gate(0.0)
    worker.step()
    load_negated(engine)
    async with turning(worker):
        await supervisor.open_gate()
        with pytest.raises(UnavailableError, match=r"begin again \(the engine took new weights\).* 5 that") as caught:
            await call
        await turns()
        assert not engine.has_work
    assert caught.value.retry_after_s == 1.0
    assert len(heard) == 5


@pytest.mark.parametrize("dies", [False, True])
async def test_a_stream_goes_on_with_new_weights_but_not_if_its_worker_dies_after_that(
    job: Job, engine: TorchEngine, dies: bool
) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    heard = Heard()
    call = asyncio.create_task(supervisor.generate(generate("a", PROMPT, 12, stream=True), 60, heard))
    while len(heard) < 5:
        await turns()
        worker.step()
    before = heard.token_ids
    assert engine.pause() == 1
    load_negated(engine)
    while len(heard) < 8:
        worker.step()
    if not dies:
        async with turning(worker):
            done = await call
        assert (heard.token_ids, heard.logprobs, heard.token_ids[:20]) == (done.token_ids, done.logprobs, before)
        assert (done.weight_version, done.version_spans) == (0, ((0, 0), (5, 1)))
        return
    worker.die()
    await supervisor.lost()
    other = TorchEngine.load(job)
    load_negated(other)
    async with turning(take_over(supervisor, other)):
        await supervisor.open_gate()
        with pytest.raises(UnavailableError, match="sampled other tokens than the 8 that were streamed"):
            await call
    assert supervisor.recalled == 1


def load_negated(engine: TorchEngine) -> None:
    """Loads other weights as version 1."""
    weights = {name: -tensor for name, tensor in engine._model.state_dict().items() if "embed" in name}
    engine.load_weights({name: tuple(tensor.shape) for name, tensor in weights.items()}, weights.items(), 1)


async def test_a_callback_that_fails_ends_its_own_call_only(engine: TorchEngine) -> None:
    def broken(sampled: protocol.Sampled) -> None:
        raise ValueError("the reader broke")

    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    async with turning(worker):
        good = asyncio.create_task(supervisor.generate(generate("good", PROMPT, 9, stream=True), 60, Heard()))
        with pytest.raises(ValueError, match="the reader broke"):
            await supervisor.generate(generate("bad", PROMPT, 100, stream=True), 60, broken)
        await good
        await turns()
        assert not engine.has_work


def kept(engine: TorchEngine) -> int:
    """Tokens in the prefix cache, counted."""
    pending: list[_Node] = [engine._scheduler._cache._root]
    total = 0
    while pending:
        node = pending.pop()
        assert node.span == [] or node.span[0].shape[1] == len(node.ids)
        total += len(node.ids)
        pending += node.children.values()
    return total


@pytest.mark.parametrize("seed", range(2))
async def test_a_storm_of_cancellations_leaves_nothing_behind(engine: TorchEngine, seed: int) -> None:
    chance = random.Random(seed)
    supervisor, worker = supervisor_over(engine)
    before = asyncio.all_tasks()
    outcomes: list[str] = []

    async def one(at: int) -> None:
        own = [chance.randrange(2, 512) for _ in range(chance.choice([0, 1, 5, 30]))]
        prompt = PROMPT[: chance.choice([1, 20, 40])] + own
        heard, stream = Heard(), chance.random() < 0.5
        message = generate(str(at), prompt, chance.randint(1, 25), stream=stream)
        call = asyncio.create_task(supervisor.generate(message, 60, heard))
        await turns(chance.choice([0, 1, 2, 8, 30, 100, 1000]))
        call.cancel()
        (done,) = await asyncio.gather(call, return_exceptions=True)
        heard.closed = True
        if isinstance(done, protocol.Generated):
            assert heard.token_ids == done.token_ids
        outcomes.append(type(done).__name__)

    async def gate() -> None:
        while len(outcomes) < 200:
            await supervisor.open_gate()
            await turns(chance.randint(1, 60))
            await supervisor.close_gate(0.0)
            await turns(chance.randint(0, 2))
        await supervisor.open_gate()

    async with turning(worker), asyncio.TaskGroup() as group:
        group.create_task(gate())
        for at in range(200):
            group.create_task(one(at))
            await turns(chance.randint(0, 3))
    worker.step()
    assert set(outcomes) == {"Generated", "CancelledError"}
    assert (supervisor._pending, supervisor.in_worker, supervisor.queued) == ({}, 0, 0)
    assert asyncio.all_tasks() == before
    scheduler = engine._scheduler
    assert (engine.running, engine.waiting, scheduler._rows, scheduler._prefilling) == (0, 0, 0, [])
    assert kept(engine) == scheduler._cache.tokens <= 300
    gc.collect()
    assert not [
        item for item in gc.get_objects() if type(item) is Call
    ]  # isinstance would ask torch's deprecated objects too


async def test_a_worker_that_is_killed_is_replaced_in_the_middle_of_a_stream(
    job: Job, engine: TorchEngine, tmp_path: Path
) -> None:
    supervisor = Supervisor(60.0, lambda _: None)
    load = protocol.Load(job.model_dump_json().encode(), str(tmp_path))
    heard, enough = Heard(), asyncio.Event()

    def hear(sampled: protocol.Sampled) -> None:
        heard(sampled)
        if len(heard) == 5 and not enough.is_set():
            enough.set()
            assert supervisor.pid is not None
            os.kill(supervisor.pid, signal.SIGKILL)

    await supervisor.start(load, 100)
    await supervisor.open_gate()
    call = asyncio.create_task(supervisor.generate(generate("a", PROMPT, 400, stream=True), 100, hear))
    await enough.wait()
    assert isinstance(await supervisor.lost(), WorkerLostError)
    await supervisor.start(load, 100)
    await supervisor.open_gate()
    done = await call
    await supervisor.shut_down()
    assert heard.token_ids == done.token_ids
    assert len(heard) > 5
    alone, worker = supervisor_over(engine)
    await alone.open_gate()
    async with turning(worker):
        assert (await alone.generate(generate("a", PROMPT, 400, stream=False), 60)).token_ids == done.token_ids


async def test_calls_end_when_the_engine_does(engine: TorchEngine) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    call = asyncio.create_task(supervisor.generate(generate("a", PROMPT, 100, stream=True), 60, Heard()))
    await turns()
    worker.step()
    supervisor.refuse_all(EngineFailedError("gone"))
    with pytest.raises(EngineFailedError, match="gone"):
        await call
    worker.step()
    assert not engine.has_work


@pytest.mark.parametrize("evaluation", [False, True])
async def test_no_further_call_hides_that_the_worker_is_silent(engine: TorchEngine, evaluation: bool) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    messages = [structs.replace(generate(name, PROMPT, 3, stream=False), evaluation=evaluation) for name in "ab"]
    calls = [asyncio.create_task(supervisor.generate(messages[0], 60))]
    await turns()
    assert worker.heard_at > 0, "before its first call there was nothing to say"
    worker.heard_at = -1.0
    calls.append(asyncio.create_task(supervisor.generate(messages[1], 60)))
    await turns()
    assert (supervisor.in_worker, worker.heard_at) == (2, -1.0)
    async with turning(worker):
        await asyncio.gather(*calls)


async def test_an_update_waits_for_no_evaluation(job: Job, engine: TorchEngine) -> None:
    supervisor, worker = supervisor_over(engine)
    await supervisor.open_gate()
    worker._worker._hold = lambda version: engine.hold(version, lambda live: live)
    evaluations = [
        structs.replace(generate(f"e{at}", PROMPT, 30, stream=False), evaluation=True, weights=weights)
        for at, weights in enumerate([None, None, 0])
    ]
    calls = [asyncio.create_task(supervisor.generate(message, 60)) for message in evaluations]
    train = asyncio.create_task(supervisor.generate(generate("t", PROMPT, 3, stream=False), 60))
    await turns()
    closing = asyncio.create_task(supervisor.close_gate(60))
    async with turning(worker):
        await closing  # the train call may finish, the evaluations need not
        assert train.done()
        assert not any(call.done() for call in calls)
        assert (supervisor.in_worker, supervisor.queued) == (1, 2)
        await turns()
        assert [lane.busy for lane in engine._lanes.all] == [False, True], "a named version goes on"
        await supervisor.open_gate()
        assert [len((await call).token_ids) // 4 for call in calls] == [30, 30, 30]
