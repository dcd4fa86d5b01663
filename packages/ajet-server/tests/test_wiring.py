"""A server before it listens: what it refuses, and what it finds again."""

import asyncio
from pathlib import Path

import pytest
from folder_helpers import make_folder
from server_helpers import make_job, running

from ajet_core.errors import ConfigError, StorageError, UnavailableError
from ajet_core.events import EngineState
from ajet_core.wire import OpenEpisode
from ajet_server.capture.steps import set_meta
from ajet_server.settings import ServerSettings
from ajet_server.wiring import Server

pytestmark = pytest.mark.anyio


def settings(tmp_path: Path, **fields: object) -> ServerSettings:
    return ServerSettings("127.0.0.1", 0, tmp_path / "data", **fields)


async def test_two_servers_do_not_share_a_folder(tmp_path: Path) -> None:
    server = Server(settings(tmp_path))
    server.data_dir.announce("http://127.0.0.1:8000")
    with pytest.raises(StorageError, match=r"in use by another server \(process \d+, http://127\.0\.0\.1:8000\)"):
        Server(settings(tmp_path))
    await server.close()
    await Server(settings(tmp_path)).close()


async def test_the_job_is_found_again(tmp_path: Path, model: Path) -> None:
    await Server(settings(tmp_path, job=make_job(model, name="mine"))).close()
    server = Server(settings(tmp_path))
    assert server.status().name == "mine"
    await server.close()


async def test_a_stored_job_of_another_ajet(tmp_path: Path, model: Path) -> None:
    server = Server(settings(tmp_path))
    server.ledger.write_now(lambda db: set_meta(db, "job", '{"modle": 1}'))
    await server.close()
    with pytest.raises(StorageError, match="does not suit this ajet"):
        Server(settings(tmp_path))
    # Nothing of the refused server holds the folder.
    with pytest.raises(StorageError, match="does not suit this ajet"):
        Server(settings(tmp_path))


async def test_a_job_that_is_wrong_lets_go_of_the_folder(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not a folder"):
        Server(settings(tmp_path, job=make_job(tmp_path / "nothing")))
    await Server(settings(tmp_path)).close()


async def test_captured_tokens_are_not_given_to_another_model(tmp_path: Path, model: Path) -> None:
    other = make_folder(tmp_path / "other")
    await Server(settings(tmp_path, job=make_job(other))).close()
    async with running(tmp_path, model, batch={"size": 2}) as live:
        await live.reach(EngineState.ROLLING)
        await live.rollout()
        await live.server.stop("the test")
        with pytest.raises(ConfigError, match=r"^model\.path: this data folder was used with") as caught:
            await live.server.set_job(make_job(other))
        assert caught.value.field == "model.path"
        await live.server.set_job(make_job(model, method="full"))


async def test_an_episode_that_is_finished_as_the_job_changes_is_not_open_in_the_new_one(
    tmp_path: Path, model: Path
) -> None:
    async with running(tmp_path, model, batch={"size": 2}) as live:
        await live.reach(EngineState.ROLLING)
        record = await live.open()
        await live.chat(record)
        await live.server.stop("the test")
        finishing = asyncio.create_task(live.finish(record))
        await asyncio.sleep(0)  # as far as a request comes before the job is taken
        live.server._take(*live.server._check(make_job(model, batch={"size": 2})))
        await finishing
        runtime = live.server.runtime
        assert [row.episode_id for row in runtime.pool.rows] == [record.id]
        assert runtime.episodes.open_count == 0


@pytest.mark.parametrize("how", ["the server ends", "another job"])
async def test_who_waits_for_an_episode_is_answered_when_there_will_be_none(
    tmp_path: Path, model: Path, how: str
) -> None:
    async with running(tmp_path, model) as live:
        await live.reach(EngineState.ROLLING)
        await live.open()
        runtime = live.server.runtime
        body = OpenEpisode(request_id="waiting", task="another task")
        opening = runtime.episodes.open(body, lambda: 0, runtime.conductor.admit, 60.0)
        waiting = asyncio.create_task(opening)
        await asyncio.sleep(0)
        if how == "another job":
            await live.server.stop("the test")
            assert not waiting.done(), "the engine may be started again"
            await live.server.set_job(make_job(model))
        else:
            await live.server.quit("the server is shutting down")
        done, _ = await asyncio.wait({waiting}, timeout=10)
        assert done
        with pytest.raises(UnavailableError, match="the engine is offline"):
            await waiting
