from hypothesis import given
from hypothesis import strategies as st

from ajet_server.episodes.clients import Agreement, Clients

_acts = st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from(["open", "close", "ready", "unready"])), max_size=30)


@given(_acts)
def test_who_is_asked(acts: list[tuple[str, str]]) -> None:
    """Against the plain statement of it: one act a second, and 5 seconds of silence."""
    clients = Clients(quiet_s=5)
    opened, heard, ready = dict.fromkeys("abc", 0), dict[str, int](), set[str]()
    for now, (name, act) in enumerate(acts):
        if act == "close" and not opened[name]:
            continue
        if act in ("open", "close"):
            opened[name] += 1 if act == "open" else -1
            (clients.opened if act == "open" else clients.closed)(name, now)
        else:
            (ready.add if act == "ready" else ready.discard)(name)
            clients.say(name, act == "ready", now)
        heard[name] = now
        at_work = {other for other, at in heard.items() if opened[other] or now - at < 5}
        assert clients.agreement(now) == Agreement(tuple(sorted(ready)), tuple(sorted(at_work - ready)))
        assert sorted(clients.lapses()) == sorted(heard[other] + 5 for other in at_work if not opened[other])


def test_an_update_asks_everybody_again() -> None:
    clients = Clients(quiet_s=5)
    clients.say("a", True, 0)
    clients.begin_anew()
    assert clients.agreement(1) == Agreement((), ("a",))
