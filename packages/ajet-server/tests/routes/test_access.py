"""In which header an agent's key may come."""

import pytest
from starlette.requests import Request

from ajet_server.routes.access import agent_key


def request(**headers: str) -> Request:
    pairs = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    return Request({"type": "http", "headers": pairs})


@pytest.mark.parametrize(
    ("headers", "key"),
    [
        ({"authorization": "Bearer a"}, "a"),
        ({"x_api_key": "a"}, "a"),
        ({"x_api_key": " a "}, "a"),
        ({"authorization": "Bearer a", "x_api_key": "b"}, "a"),
        ({"authorization": "Basic a", "x_api_key": "b"}, "b"),
        ({"authorization": "Bearer ", "x_api_key": ""}, None),
        ({"anthropic_version": "2023-06-01"}, None),
        ({}, None),
    ],
)
def test_an_agents_key(headers: dict[str, str], key: str | None) -> None:
    assert agent_key(request(**headers).headers) == key
