"""Logs: one JSON object per line, without any secret."""

from __future__ import annotations

import contextlib
import errno
import faulthandler
import io
import json
import logging
import os
import pty
import signal
import socket
import subprocess
import sys
import threading
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
import structlog

from topics.process import logs
from topics.process.logs import DescriptorSink


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


class StreamSink(DescriptorSink):
    """A sink that writes lines to a text stream."""

    def __init__(self, stream: TextIO) -> None:
        self.dropped = 0
        self._stream = stream

    def write(self, line: str) -> bool:
        try:
            self._stream.write(line + "\n")
        except (OSError, ValueError):
            self.dropped += 1
            return False
        return True

    def isatty(self) -> bool:
        return self._stream.isatty()


@pytest.fixture(autouse=True)
def restore_logging() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    hooks = sys.excepthook, sys.unraisablehook, threading.excepthook
    yield
    logging.captureWarnings(False)
    root.handlers[:] = handlers
    sys.excepthook, sys.unraisablehook, threading.excepthook = hooks
    root.setLevel(level)
    structlog.reset_defaults()


@pytest.fixture
def out() -> io.StringIO:
    stream = io.StringIO()
    logs.configure("front 0", "info", StreamSink(stream))
    return stream


def lines(out: io.StringIO) -> list[dict[str, object]]:
    return [json.loads(line) for line in out.getvalue().splitlines()]


def test_a_log_line_is_one_json_object_with_time_level_and_process(out: io.StringIO) -> None:
    structlog.get_logger().info("two\nlines", count=3)
    (line,) = lines(out)
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "process": "front 0",
        "pid": os.getpid(),
        "level": "info",
        "event": "two\nlines",
        "count": 3,
    }


def test_lines_below_the_level_are_dropped(out: io.StringIO) -> None:
    structlog.get_logger().debug("quiet")
    logging.getLogger("hypercorn").debug("quiet")
    assert lines(out) == []


def test_libraries_and_warnings_use_the_same_log(out: io.StringIO) -> None:
    logging.getLogger("hypercorn.error").warning("slow %s", "client")
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        logging.captureWarnings(True)
        warnings.warn("old", stacklevel=1)
    assert [(line["logger"], line["level"]) for line in lines(out)] == [
        ("hypercorn.error", "warning"),
        ("py.warnings", "warning"),
    ]
    assert lines(out)[0]["event"] == "slow client"


def test_an_exception_is_logged_with_its_traceback(out: io.StringIO) -> None:
    try:
        {"here": 1}["gone"]
    except KeyError:
        structlog.get_logger().exception("failed")
        logging.getLogger("library").exception("failed")
    assert all("KeyError: 'gone'" in str(line["exception"]) for line in lines(out))
    assert len(lines(out)) == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"header": "Authorization: Bearer s3cret"},
        {"authorization": "s3cret"},
        {"token": b"s3cret"},
        {"headers": {"Authorization": "bearer s3cret", "x": 1}},
        {"headers": [(b"authorization", b"Bearer s3cret")]},
        {"path": "/v0/watch/w1?token=s3cret"},
        {"request": "GET /v0/watch/w1?token=s3cret HTTP/1.1"},
        {"url": "http://127.0.0.1:4000/?s3cret"},
        {"error": ValueError("bad Bearer s3cret")},
    ],
)
def test_tokens_and_query_strings_are_never_logged(
    out: io.StringIO, fields: dict[str, object]
) -> None:
    structlog.get_logger().info("event", **fields)
    assert "s3cret" not in out.getvalue()
    assert next(iter(fields)) in lines(out)[0]


def test_tokens_are_removed_from_messages_and_tracebacks(out: io.StringIO) -> None:
    logging.getLogger("hypercorn.access").info("GET /v0/work?token=s3cret 200")
    try:
        {"here": 1}["/v0/watch/w1?token=s3cret"]
    except KeyError:
        structlog.get_logger().exception("Bearer s3cret")
    assert "s3cret" not in out.getvalue()
    assert "GET /v0/work 200" in out.getvalue()


def test_plain_text_is_logged_unchanged(out: io.StringIO) -> None:
    structlog.get_logger().info("did you mean TOPICS_PORT?", url="http://127.0.0.1:4000")
    assert lines(out)[0]["event"] == "did you mean TOPICS_PORT?"
    assert lines(out)[0]["url"] == "http://127.0.0.1:4000"


@pytest.mark.parametrize("no_color", ["", "1"])
def test_a_terminal_gets_readable_lines_in_colour_unless_disabled(
    monkeypatch: pytest.MonkeyPatch, no_color: str
) -> None:
    monkeypatch.setenv("NO_COLOR", no_color)
    monkeypatch.setenv("TERM", "xterm")
    terminal = Terminal()
    logs.configure("supervisor", "info", StreamSink(terminal))
    structlog.get_logger().info("listening", url="http://127.0.0.1:4000", token="s3cret")
    assert "listening" in terminal.getvalue()
    assert "s3cret" not in terminal.getvalue()
    assert ("\x1b[" in terminal.getvalue()) == (not no_color)


class Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("no text")

    __repr__ = __str__


def test_a_value_that_cannot_be_shown_costs_only_its_field_and_raises_nothing(
    out: io.StringIO,
) -> None:
    structlog.get_logger().info("odd", value=Unprintable())
    logs._Forward().emit(logging.LogRecord("library", logging.INFO, "", 1, "%d of %d", (1,), None))
    assert [line["event"] for line in lines(out)] == ["odd", "%d of %d"]


def test_an_uncaught_exception_is_logged_like_any_other(out: io.StringIO) -> None:
    class FailingDestructor:
        def __del__(self) -> None:
            raise RuntimeError("in a destructor")

    error = RuntimeError("fatal error")
    sys.excepthook(RuntimeError, error, error.__traceback__)
    FailingDestructor()
    thread = threading.Thread(target=lambda: int("gone"), name="helper")
    thread.start()
    thread.join()
    uncaught, unraisable, in_thread = lines(out)
    assert (uncaught["level"], uncaught["event"]) == ("critical", "process failed")
    assert "fatal error" in str(uncaught["exception"])
    assert unraisable["level"] == "error"
    assert "in a destructor" in str(unraisable["exception"])
    assert (in_thread["level"], in_thread["thread"]) == ("critical", "helper")
    assert "ValueError" in str(in_thread["exception"])


class FullDisk(io.StringIO):
    full = True

    def write(self, text: str) -> int:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)


def test_lines_that_cannot_be_written_are_dropped_and_counted_later() -> None:
    disk = FullDisk()
    logs.configure("supervisor", "error", StreamSink(disk))
    for _ in range(3):
        structlog.get_logger().error("lost")
    logs.report_dropped()
    disk.full = False
    structlog.get_logger().error("back")
    structlog.get_logger().error("going on")
    assert [(line["event"], line.get("count")) for line in lines(disk)] == [
        ("back", None),
        ("log lines dropped", 3),
        ("going on", None),
    ]
    assert logs.dropped_count() == 3


def test_a_request_is_logged_at_any_log_level() -> None:
    out = io.StringIO()
    logs.configure("front 0", "error", StreamSink(out))
    logs.write_request({"route": "append", "status": 200, "ms": 0.5, "cut": True})
    (line,) = lines(out)
    assert str(line.pop("time")).endswith("Z")
    assert line == {
        "process": "front 0",
        "pid": os.getpid(),
        "event": "request",
        "route": "append",
        "status": 200,
        "ms": 0.5,
        "cut": True,
        "level": "info",
    }


def test_secrets_are_removed_from_a_request_id(out: io.StringIO) -> None:
    logs.write_request({"request_id": "/a?token=hunter2", "trace": "bearer hunter2"})
    (line,) = lines(out)
    assert "hunter2" not in str(line)
    assert line["request_id"] == "/a"


def test_a_terminal_shows_requests_as_text() -> None:
    terminal = Terminal()
    logs.configure("front 0", "info", StreamSink(terminal))
    logs.write_request({"route": "append", "status": 200})
    (line,) = terminal.getvalue().splitlines()
    assert "request" in line
    assert "append" in line
    assert not line.startswith("{")


# A write to stderr never blocks or raises, in any state of stderr


ROOT = Path(__file__).parents[2]
LINES = 3000
LINE = "x" * 99


@pytest.fixture(autouse=True)
def in_time() -> Iterator[None]:
    """End a blocking write by an alarm, which raises an exception."""

    def expire(*_: object) -> None:
        raise AssertionError("it waits")

    before = signal.signal(signal.SIGALRM, expire)
    signal.alarm(10)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.fixture
def opened() -> Iterator[contextlib.ExitStack]:
    with contextlib.ExitStack() as stack:
        yield stack


def reading_end(kind: str, opened: contextlib.ExitStack) -> tuple[int, int]:
    """Return the file descriptors of both ends: the test reads one, a server logs to the other."""
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
        while chunk := os.read(fd, 1 << 16):
            found += chunk
    return found


def refuse_open(*_: object) -> int:
    raise PermissionError


@pytest.mark.parametrize(
    ("kind", "again"), [("pipe", True), ("pipe", False), ("terminal", True), ("socket", True)]
)
def test_a_reader_that_does_not_read_costs_lines_but_no_time(
    kind: str, again: bool, opened: contextlib.ExitStack, monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = reading_end(kind, opened)
    if not again:
        monkeypatch.setattr(os, "open", refuse_open)
    sink = sink_of(writer, opened)
    monkeypatch.undo()
    accepted = sum(sink.write(LINE) for _ in range(LINES))
    assert 10 <= accepted < LINES
    assert sink.dropped == LINES - accepted
    assert os.get_blocking(writer), "other processes share the file description"
    drain(reader)
    assert sink.write("back")
    assert b"back" in drain(reader).splitlines()


def test_a_full_disk_costs_only_log_lines() -> None:
    full = os.open("/dev/full", os.O_WRONLY)
    sink = DescriptorSink(full)
    assert not any(sink.write(LINE) for _ in range(10))
    assert sink.dropped == 10
    os.close(full)


def test_the_line_after_a_truncated_one_begins_on_its_own(
    opened: contextlib.ExitStack,
) -> None:
    reader, writer = reading_end("pipe", opened)
    sink = sink_of(writer, opened)
    assert not sink.write("long" * (1 << 16))
    assert sink.dropped == 1
    cut = drain(reader)
    assert sink.write("next")
    assert cut + drain(reader) == cut + b"\nnext\n"


def test_a_file_receives_every_line_completely(tmp_path: Path) -> None:
    with (tmp_path / "log").open("ab") as file:
        sink = DescriptorSink(file.fileno())
        assert all(sink.write(f"{number} \udc80") for number in range(100))
    assert (tmp_path / "log").read_text() == "".join(f"{number} \\udc80\n" for number in range(100))


def test_a_traceback_dump_to_a_full_pipe_does_not_block(opened: contextlib.ExitStack) -> None:
    _, writer = reading_end("pipe", opened)
    sink = sink_of(writer, opened)
    while sink.write(LINE):
        pass
    faulthandler.dump_traceback(sink.fd)


def test_descriptors_closed_at_the_start_are_never_reused_for_files() -> None:
    program = """
import os, sys
from topics.process import logs
logs.configure("supervisor")
opened = os.open("/proc/self/status", os.O_RDONLY)
import structlog
structlog.get_logger().info("this line is lost")
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
