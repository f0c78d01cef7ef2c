"""Whatever stderr is: writing a line neither waits nor raises."""

from __future__ import annotations

import contextlib
import faulthandler
import os
import pty
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.process.log_sink import DescriptorSink

ROOT = Path(__file__).parents[2]
LINES = 3000
LINE = "x" * 99


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """A write that waits would wait for ever: the alarm ends it with an exception."""

    def waited(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, waited)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def reading_end(kind: str, opened: contextlib.ExitStack) -> tuple[int, int]:
    """Two ends: ours, and what a server has as its stderr."""
    if kind == "socket":
        ours, theirs = (opened.enter_context(end) for end in socket.socketpair())
        return ours.fileno(), theirs.fileno()
    ends = pty.openpty() if kind == "terminal" else os.pipe()
    for end in ends:
        opened.callback(os.close, end)
    return ends


def sink_of(fd: int, opened: contextlib.ExitStack) -> DescriptorSink:
    sink = DescriptorSink(fd)
    opened.callback(sink.close)
    return sink


def drain(fd: int) -> bytes:
    os.set_blocking(fd, False)
    found = b""
    with contextlib.suppress(BlockingIOError):
        while piece := os.read(fd, 1 << 16):
            found += piece
    return found


def no_second_opening(*_: object) -> int:
    raise PermissionError


@pytest.mark.parametrize(
    ("kind", "again"), [("pipe", True), ("pipe", False), ("terminal", True), ("socket", True)]
)
def test_a_reader_that_does_not_read_costs_lines_and_no_time(
    kind: str, again: bool, opened: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = reading_end(kind, opened)
    if not again:
        monkeypatch.setattr(os, "open", no_second_opening)
    sink = sink_of(writer, opened)
    monkeypatch.undo()
    came = sum(sink.write(LINE) for _ in range(LINES))
    assert 10 <= came < LINES
    assert sink.dropped == LINES - came
    assert os.get_blocking(writer), "others share the description"
    drain(reader)
    assert sink.write("back")
    assert b"back" in drain(reader).splitlines()


def test_a_full_disk_costs_lines_and_nothing_else() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    sink = DescriptorSink(full)
    assert not any(sink.write(LINE) for _ in range(10))
    assert sink.dropped == 10
    os.close(full)


def test_after_a_line_that_was_cut_short_the_next_one_begins_on_its_own(
    opened: contextlib.ExitStack,
) -> None:
    reader, writer = reading_end("pipe", opened)
    sink = sink_of(writer, opened)
    assert not sink.write("long" * (1 << 16))
    assert sink.dropped == 1
    cut = drain(reader)
    assert sink.write("next")
    assert cut + drain(reader) == cut + b"\nnext\n"


def test_a_file_gets_every_line_whole(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as file:
        sink = DescriptorSink(file.fileno())
        assert all(sink.write(f"{number} \udc80") for number in range(100))
    assert (tmp_path / "log").read_text() == "".join(f"{number} \\udc80\n" for number in range(100))


def test_the_last_words_of_an_interpreter_wait_for_nobody(opened: contextlib.ExitStack) -> None:
    _, writer = reading_end("pipe", opened)
    sink = sink_of(writer, opened)
    while sink.write(LINE):
        pass
    faulthandler.dump_traceback(sink.fd)


def test_descriptors_that_are_closed_at_the_start_are_never_given_to_files() -> None:
    program = """
import os, sys
from topics.process import logs
logs.configure("supervisor")
opened = os.open("/proc/self/status", os.O_RDONLY)
import structlog
structlog.get_logger().info("nobody hears this")
print("nor this"); print("nor this", file=sys.stderr)
sys.stdout.flush()
os._exit(0 if opened > 2 and os.readlink("/proc/self/fd/2") == "/dev/null" else 1)
"""
    command = ["sh", "-c", 'exec "$0" -c "$1" <&- >&- 2>&-', sys.executable, program]
    assert (
        subprocess.run(
            command, env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=20, check=False
        ).returncode
        == 0
    )
