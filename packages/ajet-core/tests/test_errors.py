import pytest

from ajet_core import errors
from ajet_core.errors import AjetError, EpisodeClosedError, UnavailableError, from_wire, to_wire


def _all(kind: type[AjetError]) -> list[type[AjetError]]:
    """The tree of this package; others may hang subclasses of their own into it."""
    children = [child for child in kind.__subclasses__() if child.__module__ == errors.__name__]
    return [kind, *(found for child in children for found in _all(child))]


@pytest.mark.parametrize("kind", _all(AjetError))
def test_an_error_survives_the_wire(kind: type[AjetError]) -> None:
    error = kind("what is wrong", field="a.b", retry_after_s=2.5)
    back = from_wire(kind.status, to_wire(error))
    assert (type(back), back.message, back.field, back.retry_after_s) == (kind, "what is wrong", "a.b", 2.5)


def test_a_subclass_elsewhere_is_its_parent_on_the_wire() -> None:
    class LocalError(UnavailableError):
        pass

    assert type(from_wire(503, to_wire(LocalError("not now")))) is UnavailableError


def test_codes_are_unique() -> None:
    codes = [kind.code for kind in _all(AjetError)]
    assert len(codes) == len(set(codes))


def test_every_error_is_drawn_in_the_module_docstring() -> None:
    assert errors.__doc__ is not None
    for kind in _all(AjetError):
        assert kind.__name__ in errors.__doc__
        if kind is not AjetError:
            line = next(line for line in errors.__doc__.splitlines() if f" {kind.__name__} " in line)
            assert f" {kind.status} " in line


@pytest.mark.parametrize("body", ["text", None, [], {}, {"error": "x"}, {"error": {"message": 3}}])
def test_a_body_that_is_no_error_of_ours_is_quoted(body: object) -> None:
    error = from_wire(502, body)
    assert type(error) is AjetError
    assert "502" in error.message


def test_an_unknown_code_stays_readable() -> None:
    error = from_wire(
        418, {"error": {"code": "teapot", "message": "short and stout", "field": 3, "retry_after_s": "x"}}
    )
    assert (type(error), error.message, error.field, error.retry_after_s) == (AjetError, "short and stout", None, None)


def test_a_closed_episode_is_not_a_status_that_sdks_retry() -> None:
    assert EpisodeClosedError.status not in {408, 409, 429}
    assert UnavailableError.status == 503
