"""Logging to stderr: one JSON object per line, or a readable sentence per line on a terminal
(`topics.process.terminal`). ``NO_COLOR`` is respected.

Each process calls ``configure`` once, after the fork, and logs with ``structlog.get_logger()``.
Records from the modules ``logging`` and ``warnings``, which libraries such as Hypercorn use, are
written in the same way.

An event is a constant lower-case phrase of a subject and a past participle or a state: ``segment
sealed``, ``disk full``. All variables are fields. Their names end with the unit (``_s``, ``_ms``,
``_bytes``) and have the same meaning in every event:

    topic, shard, child     the name or number of the affected part
    path, offset            a file or folder, and a position in it
    error                   the text of an exception
    reason, effect          the cause and the consequence of the event, as phrases
    refused                 the operations that fail with an error from now on
    count                   the number of objects that the event concerns
    duration_s, retry_in_s  the duration of an operation, the time until the next attempt

A line never contains a token or a query string, not even a line that a library has logged. Logging
never raises or blocks. A line that cannot be written (EAGAIN, ENOSPC, EIO, EPIPE) is dropped and
counted, and the number of dropped lines is logged when writing succeeds again. A line that was only
partly written is also counted, and the next line starts on a new line.

Other programs may share stderr, so this module never sets its file description to non-blocking:

    pipe, terminal      opened a second time through /proc, as non-blocking
    another user's pipe cannot be opened; its free capacity is checked before each write
    socket (journal)    sent with MSG_DONTWAIT
    anything else       written directly; a write to a file does not wait for a reader (but another
                        user's terminal blocks while it is stopped with Ctrl-S)
    closed              replaced by /dev/null, so that no data file ever gets descriptor 2
"""

from __future__ import annotations

import array
import contextlib
import datetime
import errno
import fcntl
import json
import logging
import os
import re
import select
import socket
import stat
import sys
import termios
import threading
from collections.abc import Callable, Mapping
from functools import partial
from types import TracebackType
from typing import Any

import structlog
from structlog.typing import EventDict, WrappedLogger

from topics.process.terminal import LineRenderer
from topics.storage.folders import shown

Send = Callable[[bytes], int]

PIPE_BUF = select.PIPE_BUF
_NON_BLOCKING = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',]+")
_QUERY = re.compile(r"(/[^\s?\"'<>]*)\?[^\s\"'<>]*")
_SECRET_NAMES = frozenset({"authorization", "token", "api_key", "api_keys", "secret"})


_stderr: DescriptorSink | None = None  # shared with the processes that this process forks
_sink: DescriptorSink | None = None  # set by `configure`
_process = ""  # set by `configure`
_render: Callable[[EventDict], str] = json.dumps  # renders a line; set by `configure`
_reported_count = 0  # number of dropped lines that have been reported in the log


def configure(process: str, level: str = "info", sink: DescriptorSink | None = None) -> None:
    """Write all log lines of this process to ``sink``, by default stderr.

    Each line contains the name ``process``. Events below ``level`` are discarded.
    """
    global _process, _render, _sink, _reported_count
    _process = process
    _reported_count = 0
    _sink = sink = _stderr_sink() if sink is None else sink
    sink.dropped = 0  # The parent reports the lines that it dropped before the fork.
    _render = _renderer(sink)
    structlog.configure(
        processors=[_line_of],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=lambda *_names: _Lines(sink),
        # A forked child calls `configure` again. Cached loggers would keep the parent's settings.
        cache_logger_on_first_use=False,
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught
    sys.unraisablehook = _log_unraisable
    threading.excepthook = _log_uncaught_in_thread


def write_request(members: Mapping[str, Any]) -> None:
    """Write a line of the access log, at every log level. Like all lines, it may be dropped.

    The line bypasses the structlog pipeline, which takes four times as long.
    """
    sink = _sink
    if sink is None:
        return
    event = {
        name: _clean(value) if _may_contain_secret(value) else value
        for name, value in members.items()
    }
    if sink.write(_render(_framed({"event": "request", **event}, "info"))):
        report_dropped()


def _may_contain_secret(value: Any) -> bool:
    """Return whether the value may contain a token or a query string."""
    return isinstance(value, str) and ("?" in value or " " in value)


def report_dropped() -> None:
    """Log the number of dropped lines, if any. Called with each heartbeat."""
    global _reported_count
    sink = _sink
    if sink is not None and sink.dropped:
        count, sink.dropped = sink.dropped, 0
        structlog.get_logger().error("log lines dropped", count=count)
        # If the report itself was dropped, restore the count without the report.
        if sink.dropped:
            sink.dropped += count - 1
        else:
            _reported_count += count


def dropped_count() -> int:
    """Return the number of lines that this process has dropped since `configure`."""
    return _reported_count + (0 if _sink is None else _sink.dropped)


def crash_descriptor() -> int:
    """Return the descriptor for the traceback of a crashing interpreter, which is 2 before
    `configure`.
    """
    return 2 if _stderr is None else _stderr.fd


def _stderr_sink() -> DescriptorSink:
    global _stderr
    if _stderr is None:
        open_missing_descriptors()
        _stderr = DescriptorSink(2)
    return _stderr


def _line_of(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """Render an event as a line. If a field cannot be rendered, the line has no fields."""
    name = event.get("event")
    try:
        # Use plain tracebacks. Rich tracebacks show local variables, which may contain tokens.
        fields = structlog.processors.format_exc_info(logger, method, {"event": name, **event})
        return _render(_clean(_framed(fields, method)))
    except Exception as error:
        fields = {
            "event": name if isinstance(name, str) else "?",
            "not_shown": type(error).__name__,
        }
        return _render(_clean(_framed(fields, method)))


def _framed(event: EventDict, level: str) -> EventDict:
    now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    return {"process": _process, "pid": os.getpid(), **event, "level": level, "time": now}


def _renderer(sink: DescriptorSink) -> Callable[[EventDict], str]:
    if not sink.isatty():
        return json.dumps
    is_dumb = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return LineRenderer(is_colored=not is_dumb)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    structlog.get_logger().critical("process failed", exc_info=(kind, error, traceback))


def _log_unraisable(args: sys.UnraisableHookArgs) -> None:
    structlog.get_logger().error(
        "exception ignored",
        message=args.err_msg,
        where=args.object,
        exc_info=(args.exc_type, args.exc_value, args.exc_traceback),
    )


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread else "?"
    structlog.get_logger().critical(
        "thread failed", thread=name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback)
    )


def _clean(value: Any) -> Any:
    """Remove tokens and query strings from nested values, and show the real paths of files.

    Files are accessed through paths such as /proc/self/fd/N, which mean nothing to a reader.
    """
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return shown(_QUERY.sub(r"\1", _BEARER.sub(r"\1 [redacted]", value)))
    if isinstance(value, dict):
        return {
            name: "[redacted]" if str(name).lower() in _SECRET_NAMES else _clean(item)
            for name, item in value.items()
        }
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else _clean(str(value))


class _Lines:
    """The last stage of the pipeline. Writes each line with one call, so that the lines of several
    processes do not interleave.
    """

    def __init__(self, sink: DescriptorSink) -> None:
        self._sink = sink

    def msg(self, line: str) -> None:
        if self._sink.write(line):
            report_dropped()

    debug = info = warning = error = exception = critical = log = msg


class _Forward(logging.Handler):
    """Forwards the log records of libraries to structlog."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger().bind(logger=record.name)
        try:
            text = record.getMessage()
        except Exception:  # The arguments do not match the format string.
            text = str(record.msg)
        log.log(record.levelno, text, exc_info=record.exc_info)


# Writing lines to a descriptor


class DescriptorSink:
    """Writes lines to a descriptor, as the table in the module docstring describes."""

    def __init__(self, fd: int) -> None:
        self.dropped = 0  # number of dropped lines since the last report
        self.fd, self._send, self._close = _open(fd)
        self._is_line_incomplete = False  # The last line was only partly written.

    def write(self, line: str) -> bool:
        """Write ``line`` (no trailing newline) and return whether all of it was written.

        Never raises. Never blocks, except on the terminal of another user (see the table above).
        """
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        if self._is_line_incomplete:
            data = b"\n" + data
        try:
            sent = self._send(data)
        except OSError:
            sent = 0
        if sent:
            self._is_line_incomplete = sent < len(data)
        if sent < len(data):
            self.dropped += 1
        return sent == len(data)

    def isatty(self) -> bool:
        """Return whether the descriptor is a terminal."""
        return os.isatty(self.fd)

    def close(self) -> None:
        """Close the descriptor that this object opened. The original descriptor stays open."""
        self._close()


def open_missing_descriptors() -> None:
    """Open /dev/null for each of stdin, stdout and stderr that is closed.

    Otherwise the next opened file would get that descriptor, and log lines could be written to it.
    """
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError as error:
            if error.errno != errno.EBADF:
                raise
            found = os.open(os.devnull, os.O_RDWR)
            assert found == fd, "the lowest free descriptor is taken"
            os.set_inheritable(fd, True)
    for fd, name in ((1, "stdout"), (2, "stderr")):
        # Python sets the stream to None if its descriptor was closed at startup.
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(fd, "w", closefd=False))


def _open(fd: int) -> tuple[int, Send, Callable[[], None]]:
    """Return the descriptor to use for ``fd``, a function that writes and a function that closes.

    The writing function returns the number of written bytes, or raises OSError.
    """
    mode = os.fstat(fd).st_mode
    if stat.S_ISSOCK(mode):
        own = socket.socket(fileno=os.dup(fd))
        return (
            own.fileno(),
            lambda data: own.send(data, socket.MSG_DONTWAIT | socket.MSG_NOSIGNAL),
            own.close,
        )
    if stat.S_ISFIFO(mode) or os.isatty(fd):
        # This fails for another user's pipe or terminal, and for a FIFO that has no reader.
        with contextlib.suppress(OSError):
            own_fd = os.open(f"/proc/self/fd/{fd}", _NON_BLOCKING)
            return own_fd, partial(os.write, own_fd), partial(os.close, own_fd)
    return fd, partial(_write_what_fits if stat.S_ISFIFO(mode) else os.write, fd), _nothing


def _nothing() -> None: ...


def _write_what_fits(pipe: int, data: bytes) -> int:
    """Write as many bytes to a blocking pipe as fit without blocking. Return their number."""
    sent = 0
    while sent < len(data) and _has_space(pipe):
        sent += os.write(pipe, data[sent : sent + PIPE_BUF])
    return sent


def _has_space(pipe: int) -> bool:
    """Return whether the pipe has free capacity for PIPE_BUF bytes.

    Several processes may check and then write at the same time. So the pipe must be less than a
    quarter full, which leaves capacity for the writes of all of them.
    """
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    if not poll.poll(0):
        return False
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0] < fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 4
