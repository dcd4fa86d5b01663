from collections.abc import Callable

import pytest

from ajet_core import ids


@pytest.mark.parametrize(
    ("make", "prefix"),
    [
        (ids.new_episode_id, "ep_"),
        (ids.new_attempt_id, "att_"),
        (ids.new_group_id, "grp_"),
        (ids.new_call_id, "call_"),
        (ids.new_batch_id, "batch_"),
        (ids.new_request_id, "req_"),
        (ids.new_client_id, "cli_"),
        (ids.new_union_id, "un_"),
    ],
)
def test_ids_say_what_they_name_and_do_not_repeat(make: Callable[[], str], prefix: str) -> None:
    made = {make() for _ in range(1000)}
    assert len(made) == 1000
    assert all(item.startswith(prefix) and len(item) == len(prefix) + 24 for item in made)


def test_a_secret_is_known_by_its_digest() -> None:
    secret, other = ids.new_secret(), ids.new_secret()
    assert len(secret) == len(ids.digest_secret(secret)) == 64
    assert ids.digest_secret(secret) == ids.digest_secret(secret) != ids.digest_secret(other)
    assert ids.digest_secret("abc").startswith("ba7816bf8f01cfea")
