"""Episodes from the outside: opened, two streamed calls, a reward."""

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx2

_WAIT_S = 30.0
_PATIENCE_S = 300.0
"""Of a whole episode. Openings wait while a batch is trained."""


class EpisodeError(Exception):
    """What went wrong with an episode."""


class Agents:
    """So many at a time, each with an episode after the other.

    Args:
        url: of the server.
        at_once: how many.
        answer: what the model says every time.
        on_done: called after every episode.

    Attributes:
        done: episodes that ended, well or not.
        failures: how often what went wrong.
        most_open: episodes that were open at the same time.
    """

    def __init__(self, url: str, at_once: int, answer: str, on_done: Callable[[int], None]) -> None:
        self._url = url
        self._at_once = at_once
        self._answer = answer
        self._on_done = on_done
        self.done = 0
        self.failures: Counter[str] = Counter()
        self.most_open = 0
        self._open_now = 0

    async def run(self, episodes: int) -> None:
        """Runs so many episodes."""
        numbers = iter(range(episodes))
        # No keep-alive beyond the server's own: a request on a connection that the server just closed would fail.
        limits = httpx2.Limits(max_connections=self._at_once, keepalive_expiry=30.0)
        timeout = httpx2.Timeout(_PATIENCE_S, connect=60.0)
        http = httpx2.AsyncClient(base_url=self._url, limits=limits, timeout=timeout)
        async with http, asyncio.TaskGroup() as group:
            for _ in range(min(self._at_once, episodes)):
                group.create_task(self._agent(http, numbers))

    async def _agent(self, http: httpx2.AsyncClient, numbers: Any) -> None:
        for number in numbers:
            try:
                async with asyncio.timeout(_PATIENCE_S):
                    await self._episode(http, number)
            except (EpisodeError, httpx2.HTTPError, TimeoutError) as error:
                self.failures[f"{type(error).__name__}: {error}"[:200]] += 1
            self.done += 1
            self._on_done(self.done)

    async def _episode(self, http: httpx2.AsyncClient, number: int) -> None:
        grant = await self._open(http, number)
        self._open_now += 1
        self.most_open = max(self.most_open, self._open_now)
        try:
            await self._work_on(http, grant, number)
        finally:
            self._open_now -= 1

    async def _work_on(self, http: httpx2.AsyncClient, grant: dict[str, Any], number: int) -> None:
        messages = [{"role": "user", "content": f"episode {number}, first turn"}]
        for turn in ("second", "third"):
            await self._call(http, grant["api_key"], messages)
            messages += [{"role": "assistant", "content": self._answer}, {"role": "user", "content": f"{turn} turn"}]
        answer = await http.post(
            f"/api/episodes/{grant['episode_id']}/finish",
            json={"reward": number % 2},
            headers=_key(grant["control_key"]),
        )
        _expect(answer, 200, answer.text)

    async def _open(self, http: httpx2.AsyncClient, number: int) -> dict[str, Any]:
        body = {"request_id": uuid4().hex, "task": number % 100, "wait_s": _WAIT_S}
        while True:
            answer = await http.post("/api/episodes", json=body)
            if answer.status_code != 503:
                _expect(answer, 201, answer.text)
                grant: dict[str, Any] = answer.json()
                return grant
            await asyncio.sleep(float(answer.headers.get("retry-after", "1")))

    async def _call(self, http: httpx2.AsyncClient, key: str, messages: list[dict[str, str]]) -> None:
        body = {"model": "instant", "messages": messages, "stream": True, "max_tokens": 64}
        async with http.stream("POST", "/v1/chat/completions", json=body, headers=_key(key)) as answer:
            text = (await answer.aread()).decode()
            _expect(answer, 200, text)
        if not text.endswith("data: [DONE]\n\n"):
            raise EpisodeError(f"the stream ended with {text[-100:]!r}")


def _key(key: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {key}"}


def _expect(answer: httpx2.Response, status: int, text: str) -> None:
    if answer.status_code != status:
        raise EpisodeError(f"{answer.request.url.path} answered {answer.status_code}: {text[:150]}")
