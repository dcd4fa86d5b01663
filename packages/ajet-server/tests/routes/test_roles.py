"""Several roles in one episode, over HTTP and through the official SDKs."""

from typing import Any

import anthropic
import openai
import pytest
from api_helpers import HELLO, Api, openais, ours

from ajet_core.ids import digest_secret, new_secret, new_union_id
from ajet_core.roles import MAX_ROLES


def played(api: Api, *roles: str | None, **fields: Any) -> dict[str, Any]:
    """An episode with a call of each role."""
    grant = api.open(**fields)
    for role in roles:
        answer = api.chat(key(grant, role))
        assert answer.status_code == 200, answer.text
    return grant


def key(grant: dict[str, Any], role: str | None) -> str:
    return grant["api_key"] if role is None else f"{grant['api_key']}.{role}"


def roles_of(api: Api, grant: dict[str, Any]) -> list[str | None]:
    query = "SELECT role FROM calls WHERE episode_id = ? ORDER BY seq"
    rows = api.server.ledger.read_now(lambda db: db.execute(query, (grant["episode_id"],)).fetchall())
    return [row["role"] for row in rows]


def test_the_sdks_name_roles_by_their_keys(api: Api) -> None:
    grant = api.open()
    base_url = grant["base_url"].replace("localhost", "127.0.0.1")
    with openai.OpenAI(base_url=base_url, api_key=key(grant, "white")) as client:
        client.chat.completions.create(**HELLO)
        client.responses.create(model="tiny", input="hello")
        assert [model.id for model in client.models.list()] == ["tiny"]
    with anthropic.Anthropic(base_url=base_url.removesuffix("/v1"), api_key=key(grant, "black-2")) as client:
        client.messages.create(**HELLO, max_tokens=8)
    assert roles_of(api, grant) == ["white", "white", "black-2"]
    answer = api.control(grant, "finish", json={"rewards": {"white": 1, "black-2": -0.5}})
    assert answer.status_code == 200, answer.text
    view = answer.json()
    assert (view["reward"], view["rewards"]) == (0.25, {"white": 1.0, "black-2": -0.5})
    again = api.control(grant, "finish", json={"rewards": {"black-2": -0.5, "white": 1}})
    assert again.json() == view, "a retry is harmless"
    other = api.control(grant, "finish", json={"rewards": {"black-2": 1, "white": -0.5}})
    assert (other.status_code, ours(other)["code"]) == (410, "episode_closed"), "other rewards, the same mean"


@pytest.mark.parametrize("name", ["", "a b", "a.b", "x" * 65, "a/b"])
def test_a_bad_name_is_refused_by_name(api: Api, name: str) -> None:
    grant = api.open()
    answer = api.chat(key(grant, name))
    assert answer.status_code == 400
    assert openais(answer)["param"] == "api_key"
    assert "no name of a role" in openais(answer)["message"]


def test_a_role_opens_no_door(api: Api) -> None:
    assert api.chat("sk-ajet-made-up.white").status_code == 401
    grant = played(api, "white")
    answer = api.control(grant, "finish", key=f"{grant['control_key']}.white", json={"rewards": {"white": 1}})
    assert answer.status_code == 401
    assert api.control(grant, "finish", json={"rewards": {"white": 1}}).status_code == 200
    assert api.chat(key(grant, "white")).status_code == 410


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"rewards": {"white": 1}}, "rewards.black"),
        ({"reward": 1}, "rewards.black"),
        ({"rewards": {"white": 1, "black": 0, "red": 0}}, "rewards.red"),
        ({"rewards": {"white": 1, "black": "x"}}, "rewards.black"),
        ({"rewards": {"white": 1, "black": None}}, "rewards.black"),
        ({"rewards": {"a b": 1}}, "rewards.a b.[key]"),
        ({"rewards": {}}, "reward"),
    ],
)
def test_rewards_are_for_the_roles_that_made_calls(api: Api, body: dict[str, Any], field: str) -> None:
    grant = played(api, "white", "black")
    answer = api.control(grant, "finish", json=body)
    assert answer.status_code in (400, 422)
    assert ours(answer)["field"] == field
    assert api.control(grant, "finish", json={"rewards": {"white": 1, "black": 0}}).status_code == 200


def test_an_episode_without_roles_refuses_rewards(api: Api) -> None:
    grant = played(api, None)
    answer = api.control(grant, "finish", json={"rewards": {"white": 1}})
    assert (answer.status_code, ours(answer)["field"]) == (400, "rewards.white")
    assert "its calls named no role" in ours(answer)["message"]
    assert api.finish(grant).json()["rewards"] == {}


@pytest.mark.parametrize(("first", "second"), [("white", None), (None, "white")])
def test_all_calls_name_a_role_or_none(api: Api, first: str | None, second: str | None) -> None:
    grant = played(api, first)
    answer = api.chat(key(grant, second))
    assert (answer.status_code, openais(answer)["param"]) == (400, "api_key")
    assert roles_of(api, grant) == [first]


def test_there_is_a_bound(api: Api) -> None:
    grant = played(api, *(f"r{number}" for number in range(MAX_ROLES)))
    answer = api.chat(key(grant, "one-more"))
    assert answer.status_code == 400
    assert f"{MAX_ROLES} roles" in openais(answer)["message"]
    rewards = {f"r{number}": 0 for number in range(MAX_ROLES)}
    assert api.control(grant, "finish", json={"rewards": rewards}).status_code == 200


def test_a_retry_is_that_of_its_role(api: Api) -> None:
    """Two roles may ask the very same: the retry of one is not answered with what the other was told."""
    grant = played(api, "white")
    retry = {"x-stainless-retry-count": "1"}
    for role, calls in (("black", 2), ("black", 2), ("white", 2)):
        headers = {"Authorization": f"Bearer {key(grant, role)}"} | retry
        assert api.http.post("/v1/chat/completions", json=HELLO, headers=headers).status_code == 200
        assert len(roles_of(api, grant)) == calls
    assert roles_of(api, grant) == ["white", "black"]


def test_a_union_carries_the_rewards_of_roles(api: Api) -> None:
    commit, abort, union_id = new_secret(), new_secret(), new_union_id()
    digests = {"commit_digest": digest_secret(commit), "abort_digest": digest_secret(abort)}
    parts = [{"commit_secret": commit, "abort_secret": abort}, {"decider": "http://a"} | digests]
    grants = [played(api, "white", "black") for _ in parts]
    rewards = {"white": 1.0, "black": 0.5}
    for grant, part in zip(grants, parts, strict=True):
        body = {"rewards": rewards, "union_id": union_id, "part": part}
        lacking = api.control(grant, "prepare", json=body | {"rewards": {"white": 1}})
        assert (lacking.status_code, ours(lacking)["field"]) == (400, "rewards.black")
        assert api.control(grant, "prepare", json=body).status_code == 200
        other = api.control(grant, "prepare", json=body | {"rewards": {"white": 0.5, "black": 1.0}})
        assert other.status_code == 409
    other = api.control(grants[0], "finish", json={"rewards": {"white": 0.5, "black": 1.0}})
    assert (other.status_code, ours(other)["field"]) == (409, "reward")
    assert api.control(grants[0], "finish", json={"rewards": rewards}).status_code == 200
    (view,) = api.http.post(f"/api/unions/{union_id}/decision", json={"secret": commit}).json()
    assert (view["status"], view["reward"], view["rewards"]) == ("finished", 0.75, rewards)
