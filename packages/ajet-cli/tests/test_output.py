"""What is printed and logged, whoever wrote it."""

import logging

import pytest

from ajet_cli.output import OneLine, fail, show
from ajet_core.errors import RequestError


def test_nothing_of_others_moves_the_cursor(capsys: pytest.CaptureFixture[str]) -> None:
    """Escape sequences, bells, carriage returns and bidirectional overrides of agents, models and servers."""
    nasty = "a\x1b[31mb\rc\x07d\u202ee\x9bf\tg\nh"
    show({}, nasty, as_json=False)
    with pytest.raises(SystemExit):
        fail(RequestError(nasty), as_json=False)
    out, err = capsys.readouterr()
    assert out == "a�[31mb�c�d�e�f�g\nh\n"
    assert err == f"error: {out}"


def test_a_log_line_stays_one_line() -> None:
    record = logging.LogRecord("ajet", logging.INFO, "", 0, "GET %s", ("/a\n2026 ajet INFO forged\x1b[2J",), None)
    assert OneLine("%(message)s").format(record) == "GET /a\\n2026 ajet INFO forged\\x1b[2J"
