"""What the documentation says is so."""

from typing import Any

import pytest
from api_helpers import Api, bearer

PATHS = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
    "/v1/messages/count_tokens",
)


@pytest.fixture(scope="module")
def operations(api: Api) -> dict[str, Any]:
    paths = api.http.get("/api/openapi.json").json()["paths"]
    return {f"{method.upper()} {path}": found for path, item in paths.items() for method, found in item.items()}


def test_every_post_of_agents_has_a_body(operations: dict[str, Any]) -> None:
    posts = {name for name in operations if name.startswith("POST /v1")}
    assert posts == {f"POST {path}" for path in PATHS}
    assert all("requestBody" in operations[name] for name in posts)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("path", PATHS)
def test_the_example_is_accepted(api: Api, operations: dict[str, Any], path: str, stream: bool) -> None:
    content = operations[f"POST {path}"]["requestBody"]["content"]["application/json"]
    assert content["example"].keys() <= content["schema"]["properties"].keys()
    assert set(content["schema"]["required"]) <= content["example"].keys()
    body = (
        content["example"]
        | {"model": "tiny"}
        | ({"stream": True} if stream and "stream" in content["schema"]["properties"] else {})
    )
    answer = api.http.post(path, json=body, headers=bearer(api.open()["api_key"]))
    assert answer.status_code == 200, answer.text
    kind = answer.headers["content-type"].partition(";")[0]
    assert kind in operations[f"POST {path}"]["responses"]["200"]["content"]


def test_no_reference_leads_nowhere(api: Api) -> None:
    document = api.http.get("/api/openapi.json").json()

    def check(value: Any) -> None:
        if isinstance(value, dict) and isinstance(reference := value.get("$ref"), str):
            assert reference.removeprefix("#/components/schemas/") in document["components"]["schemas"]
        for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
            check(inner)

    check(document)


def test_errors_are_documented(operations: dict[str, Any]) -> None:
    for operation in operations.values():
        assert {"4XX", "5XX"} <= operation["responses"].keys()
        assert "422" not in operation["responses"], "a wrong body gets a 400 here"
