"""`Swarm`: one server, as a client sees it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Self

from ajet_client.clock import Clock
from ajet_core.errors import RequestError

if TYPE_CHECKING:
    from pathlib import Path

    import httpx2
    from pydantic import JsonValue

    from ajet_client.agents import Agent, AgentBase, Isolation
    from ajet_client.api import Api
    from ajet_client.episode import Episode
    from ajet_client.leases import HeartbeatThread
    from ajet_client.report import EpisodeRecord, RunReport
    from ajet_client.tasks import TaskLike
    from ajet_client.transport import Link, Stop
    from ajet_core.config import Job
    from ajet_core.events import Event
    from ajet_core.wire import EpisodeGrant, EpisodeView, JanitorView, OpenEpisode, PoolView, StatusView


class Swarm:
    """A swarm server.

    Each call retries what is transient (see `ajet_client.retry`) and raises an `ajet_core.errors.AjetError` otherwise.
    Any number of threads may share one swarm.

    Args:
        url: where the server is, `http://host:port` or `https://host:port`.
        token: of the data folder of a server that is not on loopback: the client token opens episodes and looks on, the
            admin token does everything.
        client_id: name of this client in the server's status. By default a random one.
        timeout: how long a call may take, retries included, seconds. Openings have their own `wait`.
        report_timeout: how long the report of a reward may take, seconds. Longer, because a restart of the server
            should not cost an episode.
        ca_file: PEM file of the authorities that may vouch for an HTTPS server. By default those of the system, and
            those of `SSL_CERT_FILE`.
        client_cert: PEM files of this client's certificate and key, for a server that asks for them.
        transport: replaces the network, for tests.
        clock: replaces time, for tests.

    Raises:
        RequestError: `url` is not an HTTP URL, or a file cannot be used.
    """

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        client_id: str | None = None,
        timeout: float = 60.0,
        report_timeout: float = 600.0,
        ca_file: str | Path | None = None,
        client_cert: tuple[str | Path, str | Path] | None = None,
        transport: httpx2.BaseTransport | None = None,
        clock: Clock | None = None,
    ) -> None:
        # Loaded here, so that importing the package stays cheap: pydantic's models and the HTTP client take 0.1 s.
        from ajet_client.api import Api
        from ajet_client.leases import HeartbeatThread, LeaseBook
        from ajet_client.transport import Link
        from ajet_client.trust import trust

        clock = clock or Clock()
        self.url = server_url(url)
        self._api = Api(token, client_id, timeout, report_timeout, clock)
        self._link = Link(self.url, transport, clock, trust(self.url, ca_file, client_cert))
        self._heartbeats = HeartbeatThread(LeaseBook(self._api), self._link.run)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<Swarm {self.url}>"

    @property
    def client_id(self) -> str:
        """Name of this client in the server's status."""
        return self._api.client_id

    @property
    def clock(self) -> Clock:
        """Tells the time."""
        return self._api.clock

    @property
    def inner(self) -> tuple[Api, Link, HeartbeatThread]:
        """What its episodes are made of, for `together`."""
        return self._api, self._link, self._heartbeats

    def close(self) -> None:
        """Closes the connections. Open episodes stay open until their lease ends."""
        self._heartbeats.close()
        self._link.close()

    def status(self) -> StatusView:
        """Returns one look at the server."""
        return self._link.run(self._api.status())

    def janitor(self) -> JanitorView:
        """Returns what the server expired, set aside and dropped by itself, when and why."""
        return self._link.run(self._api.janitor())

    def wait_until_serving(self, timeout: float = 600.0) -> StatusView:
        """Waits until the server hands out episodes (its state is `rolling`).

        Raises:
            UnavailableError: it does not after `timeout` seconds; the message has the state and its cause.
            EngineFailedError: its engine has failed.
        """
        return self._link.run(self._api.wait_until_serving(timeout))

    def start(self) -> None:
        """Starts the engine."""
        self._link.run(self._api.start())

    def stop(self) -> None:
        """Stops the engine."""
        self._link.run(self._api.stop())

    def shutdown(self, timeout: float = 60.0) -> None:
        """Ends the server process in order and returns once it is gone. Nothing that it acknowledged is lost.

        Raises:
            UnavailableError: it does not answer, or is not gone after `timeout` seconds.
        """
        self._link.run(self._api.shutdown(timeout))

    def job(self) -> Job:
        """Returns the job."""
        return self._link.run(self._api.job())

    def set_job(self, job: Job | Mapping[str, Any]) -> None:
        """Replaces the job. Raises `ConfigError` with the field that is wrong."""
        self._link.run(self._api.set_job(job))

    def ready(self, ready: bool = True) -> PoolView:
        """Tells the server that this client agrees to an update. It holds until the next update begins.

        For jobs that ask: with `batch.policy` `any_client` or `all_clients`, or a `batch.when` that names clients.

        Args:
            ready: False takes it back.

        Returns:
            What waits to be trained, and for whom the update waits.

        Raises:
            ConflictError: the job asks no client, so it would have no effect.
        """
        return self._link.run(self._api.ready(ready))

    def view(self, episode_id: str) -> EpisodeView:
        """Returns what the server knows of an episode."""
        return self._link.run(self._api.view(episode_id))

    def events(self, after: int = 0, *, timeout: float = 600.0) -> Iterator[Event]:
        """Yields the server's events as they happen, without end, and reconnects without missing one.

        Args:
            after: id of the last event that is known; 0 begins with the first.
            timeout: how long to try to reconnect after a break, seconds.

        Raises:
            UnavailableError: the server could not be reached for `timeout` seconds.
        """
        from ajet_client.feed import Feed
        from ajet_client.transport import ConnectionBrokenError

        feed = Feed(self._api, after, timeout)
        while True:
            try:
                for data in self._link.stream(feed.request(), feed.connected):
                    if (event := feed.take(data)) is not None:
                        yield event
            except ConnectionBrokenError as broken:
                self._link.run(feed.recover(broken.outcome))

    @contextmanager
    def episode(
        self,
        task: JsonValue = None,
        *,
        kind: str = "train",
        task_id: str | None = None,
        group_id: str | None = None,
        weights: int | None = None,
        source: str | None = None,
        wait: float = 600.0,
        stop: Stop | None = None,
    ) -> Generator[Episode]:
        """Opens an episode for a `with` block and closes it at the end.

        With a reward the episode is finished. Without one it is aborted, with a warning. If the block raises, the
        episode is aborted, and the exception goes on. Meanwhile its lease is renewed in the background.

        Args:
            task: what the agent is to do, any JSON value.
            kind: `train`, or `eval`: never trained on, any sampling parameters.
            task_id: name of the task. By default equal tasks are one task.
            group_id: the group to join. By default the server chooses.
            weights: only with `eval`: the weight version to evaluate, 0 for the model as loaded. By default every call
                gets the weights of its moment.
            source: where the task comes from ("math"). Needed for `train` where the job shares updates out by source
                (`batch.sources`).
            wait: how long to wait until the server hands out an episode, seconds.
            stop: gives the waiting up when it is set, with a `StoppedError`, and cuts the request; for runners.

        Raises:
            UnavailableError: no episode after `wait` seconds, or the reward could not be reported.
            NotFoundError: there is no such weight version any more; the message names those that are there.
            EngineFailedError: the server's engine has failed.
            EpisodeClosedError: the server closed the episode before its reward came.
        """
        from ajet_client.episode import Episode

        want = self._api.opening(
            task=task, kind=kind, task_id=task_id, group_id=group_id, weights=weights, source=source
        )
        episode = Episode(self._api, self._open(want, wait, stop), task, self._link)
        self._heartbeats.add(episode)
        try:
            yield episode
        except BaseException as error:
            self._link.run(episode.fail(error))
            raise
        else:
            self._link.run(episode.settle())
        finally:
            self._heartbeats.drop(episode)

    def _open(self, want: OpenEpisode, patience_s: float, stop: Stop | None) -> EpisodeGrant:
        from ajet_client.transport import StoppedError

        try:
            return self._link.run(self._api.open(want, patience_s), stop)
        except StoppedError as stopped:
            if stopped.cut:
                self._link.run(self._api.withdraw(want, str(stopped)))
            raise

    def run(
        self,
        agent: Agent | AgentBase | str,
        tasks: Iterable[TaskLike],
        *,
        group_size: int | None = None,
        concurrency: int = 16,
        kind: str = "train",
        weights: int | None = None,
        source: str | None = None,
        attempts: int = 3,
        wait: float = 600.0,
        isolation: Isolation = "thread",
        timeout: float | None = None,
        watch: bool = False,
        progress: bool = True,
        on_result: Callable[[EpisodeRecord], object] | None = None,
        keep_records: int | None = None,
    ) -> RunReport:
        """Runs an agent on tasks, `group_size` episodes each, in a bounded pool of threads.

        Args:
            agent: called with an `Episode`. Returns the reward, or sets it with `episode.reward(...)`. Or the name of
                such a function, "file.py:function"; or a `CommandAgent`.
            tasks: JSON values or `Task`s. Read only as far as there is room, so an endless generator will do.
            group_size: episodes per task. By default as many as the job compares: its `batch.group_size` for `train`
                (1 under its policy `episodes`), 1 for `eval`. More than one make a group of their own. With 1 the
                server makes the groups, of equal tasks: of use when the tasks repeat themselves, or when several
                clients bring the same ones.
            concurrency: episodes, and threads, at the same time.
            kind: `train` or `eval`.
            weights: only with `eval`: the weight version to evaluate, 0 for the model as loaded. By default every call
                gets the weights of its moment.
            source: where the task comes from ("math"). Needed for `train` where the job shares updates out by source
                (`batch.sources`).
            attempts: how often to try each episode, anew and in the same group, before it is reported as failed.
            wait: how long to wait for the job, and for each episode, seconds.
            isolation: `thread` calls the agent in threads of this process. `process` calls it in processes of their
                own, so that an episode that crashes or hangs harms no other; the agent is then a function at the top
                level of a module, or the name of one.
            timeout: seconds that an agent may take, with `isolation="process"`; then its process is ended, and the
                attempt failed.
            watch: load "file.py:function" anew when the file, or one that it imports from its folder, changed. While it
                cannot be loaded, no episode is opened.
            progress: show a progress bar.
            on_result: called with each record, one at a time, from the threads.
            keep_records: how many of the latest records the report keeps; None keeps all.

        Returns:
            Counts, means and records. A failed episode has an error and no reward, never a reward of 0. Its group is
            left short (`short_groups`), and an update waits until somebody fills it: after a lease in which nobody
            worked on the group, the server lets unnamed openings of the same task join it, as a run with `group_size=1`
            makes them.

        Raises:
            RequestError: an argument cannot be, or the job would never train groups of `group_size`, or no two tasks of
                a sequence are equal and `group_size` is 1; see its `field`.
            UnavailableError: the server could not be reached, or had no job, for `wait` seconds.
            EngineFailedError: its engine has failed.
            AjetError: an episode could not be opened. The open ones are aborted, as they are at a Ctrl-C.
        """
        from ajet_client.agents import as_agent
        from ajet_client.report import RunSettings
        from ajet_client.runner import Runner
        from ajet_client.sizing import sizing

        settings = RunSettings(concurrency, kind, attempts, wait, progress, on_result, keep_records, weights, source)
        prepared = as_agent(agent, isolation, timeout, watch)
        size = self._link.run(sizing(self._api, kind, group_size, tasks, wait))
        return Runner(self, prepared, size, settings).run(tasks)


def server_url(url: str) -> str:
    """Returns the URL without a slash at its end. Raises `RequestError` if it is not an HTTP URL."""
    if not url.startswith(("http://", "https://")):
        raise RequestError(f"url must begin with http:// or https://, got {url!r}", field="url")
    return url.rstrip("/")
