import io
import re
import sys

import pytest

from ajet_client import RunReport, Swarm
from ajet_client.progress import expected_total, progress_bar


def test_a_bar_shows_what_is_done_what_failed_and_the_mean_reward(
    swarm: Swarm, capsys: pytest.CaptureFixture[str]
) -> None:
    def agent(episode: object) -> float:
        if getattr(episode, "task", None) == 2:
            raise ValueError("bad")
        return 0.5

    swarm.run(agent, range(4), attempts=1)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.search(r"3/4 done, 1 failed, mean reward 0\.5", captured.err)


def test_no_bar_prints_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress_bar(False, 3) as show:
        show(RunReport())
    assert capsys.readouterr() == ("", "")


def test_an_unknown_total(capsys: pytest.CaptureFixture[str]) -> None:
    assert expected_total(iter([1]), 2) is None
    assert expected_total([1, 2], 3) == 6
    with progress_bar(True, None) as show:
        show(RunReport())
    assert "0 done, 0 failed" in capsys.readouterr().err


def test_without_rich_the_last_state_goes_into_a_file(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "rich", None)
    with progress_bar(True, 3) as show:
        show(RunReport())
        show(RunReport(failed=1))
    assert capsys.readouterr().err == "0/3 done, 1 failed\n"
    with progress_bar(True, 3):
        pass
    assert capsys.readouterr().err == ""


def test_without_rich_one_line_of_a_terminal_is_rewritten(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    monkeypatch.setitem(sys.modules, "rich", None)
    monkeypatch.setattr(sys, "stderr", terminal := Terminal())
    with progress_bar(True, None) as show:
        show(RunReport())
        show(RunReport(failed=1))
    assert terminal.getvalue() == "\r\x1b[K0 done, 0 failed\r\x1b[K0 done, 1 failed\n"
