import os
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from ajet_client.child import Child, Tail, kill_all

ENV = {"PATH": os.environ["PATH"]}


@contextmanager
def running(script: str, **options: object) -> Iterator[Child]:
    child = Child([sys.executable, "-c", textwrap.dedent(script)], env=ENV, **options)  # type: ignore[arg-type]
    try:
        yield child
    finally:
        child.end(0)


def wait(child: Child) -> int:
    while not child.has_ended:
        child.pump()
    return child.end()


def wait_for(child: Child, text: str) -> None:
    while text not in child.out.text:
        assert not child.has_ended, child.err.text
        child.pump()


def is_alive(pid: int) -> bool:
    """A zombie that nobody reaps yet is not alive."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def until_dead(pid: int) -> None:
    while is_alive(pid):
        os.sched_yield()


def test_input_output_errors_and_status() -> None:
    script = "import sys; print(sys.stdin.read()[::-1]); print('bad', file=sys.stderr); sys.exit(7)"
    with running(script, stdin=b"abc") as child:
        assert wait(child) == 7
        assert (child.out.text, child.err.text) == ("cba\n", "bad\n")


def test_large_input_and_output_pass_and_the_end_is_kept() -> None:
    script = "import sys; text = sys.stdin.read(); print(text); print(len(text))"
    with running(script, stdin=b"x" * 3_000_000) as child:
        assert wait(child) == 0
        assert child.out.text.endswith("x\n3000000\n")
        assert len(child.out.text) <= 65_536


def test_a_program_that_reads_nothing_is_no_trouble() -> None:
    with running("print(1)", stdin=b"x" * 3_000_000) as child:
        assert (wait(child), child.out.text) == (0, "1\n")


def test_a_program_that_closes_its_outputs_is_waited_for() -> None:
    with running("import os, time; os.close(1); os.close(2); time.sleep(0.3); os._exit(4)") as child:
        assert wait(child) == 4


def test_what_it_left_behind_ends_with_it() -> None:
    script = "import subprocess; print(subprocess.Popen(['sleep', '1000']).pid)"
    with running(script) as child:
        assert wait(child) == 0
        until_dead(int(child.out.text))


@pytest.mark.parametrize(("deaf", "expected"), [(False, -signal.SIGTERM), (True, -signal.SIGKILL)])
def test_it_is_asked_to_end_and_then_made_to(deaf: bool, expected: int) -> None:
    script = f"""
        import signal, subprocess, time
        if {deaf}: signal.signal(signal.SIGTERM, signal.SIG_IGN)
        print(subprocess.Popen(['sleep', '1000']).pid, flush=True)
        time.sleep(1000)
    """
    with running(script) as child:
        wait_for(child, "\n")
        assert child.end(0.2) == expected
        assert child.end() == expected  # again is harmless
        until_dead(int(child.out.text))


def test_a_program_that_cleans_up_has_time_to() -> None:
    script = """
        import os, signal, sys, time
        signal.signal(signal.SIGTERM, lambda *_: (os.write(1, b"cleaned up"), sys.exit(5)))
        print("ready", flush=True)
        time.sleep(1000)
    """
    with running(script) as child:
        wait_for(child, "ready")
        assert child.end(10) == 5
        assert "cleaned up" in child.out.text


def test_a_channel_carries_bytes_both_ways() -> None:
    ours, theirs = socket.socketpair()
    script = """
        import socket, sys
        with socket.socket(fileno=int(sys.argv[1])) as channel, channel.makefile("rwb") as lines:
            for line in lines:
                lines.write(line[::-1]); lines.flush()
    """
    command = [sys.executable, "-c", textwrap.dedent(script), str(theirs.fileno())]
    child = Child(command, env=ENV, channel=ours, inherited=[theirs.fileno()])
    theirs.close()
    child.send(b"x" * 1_000_000 + b"\n")
    while len(child.received) < 1_000_001:
        assert not child.has_ended, child.err.text
        child.pump()
    assert child.received == b"\n" + b"x" * 1_000_000
    child.end(0)


def test_all_children_can_be_killed_at_once() -> None:
    with running("import time; time.sleep(1000)") as first, running("import time; time.sleep(1000)") as second:
        kill_all()
        assert [wait(first), wait(second)] == [-signal.SIGKILL, -signal.SIGKILL]


def test_a_tail_keeps_the_last_bytes() -> None:
    tail = Tail(4)
    for data in (b"abc", b"defgh", b"\xff"):
        tail.add(data)
    assert tail.text == "fgh\ufffd"
    tail.clear()
    assert tail.text == ""


def test_a_program_that_is_missing_leaves_nothing_behind() -> None:
    with pytest.raises(FileNotFoundError):
        Child(["/no/such/program"], env=ENV)
    assert subprocess._active == []  # type: ignore[attr-defined]
