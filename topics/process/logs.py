"""Logs: one JSON object a line on stderr, or sentences on a terminal (`topics.process.terminal`;
``NO_COLOR`` is honoured).

Each process calls ``configure`` once, after the fork, and logs with ``structlog.get_logger()``.
What libraries send to ``logging`` and ``warnings`` takes the same way. An event is a lower-case
phrase; details are fields.

A line never holds a token or a query string, whoever logged it. Logging neither raises nor waits: a
line that cannot be written (EAGAIN, ENOSPC, EIO, EPIPE) is dropped and counted, and the number of
such lines is logged once there is room again. A line that is cut short counts, too, and the next
one begins on a line of its own.

Other programs may share stderr, so its own file description is never set to non-blocking:

    pipe, terminal      opened once more through /proc, non-blocking
    another user's pipe cannot be opened: the room is checked before each write
    socket (journal)    sent with MSG_DONTWAIT
    anything else       written: a file waits for no reader (another user's terminal does at Ctrl-S)
    closed              /dev/null from now on, so that no data file ever gets the number 2
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

from topics.process.terminal import Sentences
from topics.storage.folders import shown

Send = Callable[[bytes], int]

PIPE_BUF = select.PIPE_BUF
_NON_BLOCKING = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',]+")
_QUERY = re.compile(r"(/[^\s?\"'<>]*)\?[^\s\"'<>]*")
_SECRET_NAMES = frozenset({"authorization", "token", "api_key", "api_keys", "secret"})


_stderr: DescriptorSink | None = None  # of this process and of those that it forks
_sink: DescriptorSink | None = None  # that of `configure`
_process = ""  # likewise
_show: Callable[[EventDict], str] = json.dumps  # likewise
_told_count = 0  # dropped lines that the log itself has told of


def configure(process: str, level: str = "info", sink: DescriptorSink | None = None) -> None:
    """Send everything that this process logs to ``sink`` (stderr), each line with the process's
    name.
    """
    global _process, _show, _sink, _told_count
    _process = process
    _told_count = 0
    _sink = sink = _stderr_sink() if sink is None else sink
    sink.dropped = 0  # the parent reports its own
    _show = _shower(sink)
    structlog.configure(
        processors=[_line_of],
        wrapper_class=structlog.make_filtering_bound_logger(
            logging.getLevelNamesMapping()[level.upper()]
        ),
        logger_factory=lambda *_names: _Lines(sink),
        # A forked child configures anew; cached loggers would keep the parent's name.
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
    """Write a line of the access log, whatever the log level. As for all lines, it may be dropped.

    It does not go the way of other events, which takes four times as long.
    """
    sink = _sink
    if sink is None:
        return
    event = {
        name: _clean(value) if _is_suspect(value) else value for name, value in members.items()
    }
    if sink.write(_show(_framed({"event": "request", **event}, "info"))):
        tell_dropped()


def _is_suspect(value: Any) -> bool:
    """Whether a token or a query string may be in it."""
    return isinstance(value, str) and ("?" in value or " " in value)


def tell_dropped() -> None:
    """Log how many lines were dropped, if any. Called with every beat."""
    global _told_count
    sink = _sink
    if sink is not None and sink.dropped:
        count, sink.dropped = sink.dropped, 0
        structlog.get_logger().error("log lines dropped", count=count)
        if sink.dropped:  # this one, too; it is not counted
            sink.dropped += count - 1
        else:
            _told_count += count


def dropped_count() -> int:
    """How many lines this process has dropped since `configure`."""
    return _told_count + (0 if _sink is None else _sink.dropped)


def crash_descriptor() -> int:
    """Where a dying interpreter may write its last words; 2 before `configure`."""
    return 2 if _stderr is None else _stderr.fd


def _stderr_sink() -> DescriptorSink:
    global _stderr
    if _stderr is None:
        open_missing_descriptors()
        _stderr = DescriptorSink(2)
    return _stderr


def _line_of(logger: WrappedLogger, method: str, event: EventDict) -> str:
    """From an event to its line. A value that cannot be shown costs the line its fields only."""
    name = event.get("event")
    try:
        # Plain: pretty tracebacks show local variables, and with them tokens.
        told = structlog.processors.format_exc_info(logger, method, event)
        return _show(_clean(_framed(told, method)))
    except Exception as error:
        told = {"event": name if isinstance(name, str) else "?", "not_shown": type(error).__name__}
        return _show(_clean(_framed(told, method)))


def _framed(event: EventDict, level: str) -> EventDict:
    now = datetime.datetime.now(datetime.UTC).isoformat().replace("+00:00", "Z")
    return {"process": _process, "pid": os.getpid(), **event, "level": level, "time": now}


def _shower(sink: DescriptorSink) -> Callable[[EventDict], str]:
    if not sink.isatty():
        return json.dumps
    is_dumb = bool(os.environ.get("NO_COLOR")) or os.environ.get("TERM") == "dumb"
    return Sentences(is_colored=not is_dumb)


def _log_uncaught(
    kind: type[BaseException], error: BaseException, traceback: TracebackType | None
) -> None:
    structlog.get_logger().critical("process failed", exc_info=(kind, error, traceback))


def _log_unraisable(args: sys.UnraisableHookArgs) -> None:
    event = args.err_msg or "exception ignored"
    structlog.get_logger().error(
        event, where=args.object, exc_info=(args.exc_type, args.exc_value, args.exc_traceback)
    )


def _log_uncaught_in_thread(args: threading.ExceptHookArgs) -> None:
    name = args.thread.name if args.thread else "?"
    structlog.get_logger().critical(
        "thread failed", thread=name, exc_info=(args.exc_type, args.exc_value, args.exc_traceback)
    )


def _clean(value: Any) -> Any:
    """Remove tokens and query strings from nested values, and show the real paths of files."""
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
    """The end of the pipeline: one write for each line, so that lines of several processes do not
    mix.
    """

    def __init__(self, sink: DescriptorSink) -> None:
        self._sink = sink

    def msg(self, line: str) -> None:
        if self._sink.write(line):
            tell_dropped()

    debug = info = warning = error = exception = critical = log = msg


class _Forward(logging.Handler):
    """What libraries log, into the one pipeline."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger().bind(logger=record.name)
        try:
            text = record.getMessage()
        except Exception:  # the arguments do not fit the format
            text = str(record.msg)
        log.log(record.levelno, text, exc_info=record.exc_info)


# Where lines go


class DescriptorSink:
    """A descriptor that takes lines, as the table above says."""

    def __init__(self, fd: int) -> None:
        self.dropped = 0  # lines since the last report
        self.fd, self._send, self._close = _open(fd)
        self._is_torn = False

    def write(self, line: str) -> bool:
        """Write a line, without its end. False when it was dropped. Never waits, never raises."""
        data = line.encode("utf-8", "backslashreplace") + b"\n"
        if self._is_torn:
            data = b"\n" + data
        try:
            sent = self._send(data)
        except OSError:
            sent = 0
        if sent:
            self._is_torn = sent < len(data)
        if sent < len(data):
            self.dropped += 1
        return sent == len(data)

    def isatty(self) -> bool:
        """A person reads along."""
        return os.isatty(self.fd)

    def close(self) -> None:
        """Give back what was opened here; ``fd`` itself stays as it is."""
        self._close()


def open_missing_descriptors() -> None:
    """Put /dev/null where stdin, stdout or stderr is closed: the next file would get the number."""
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
        if getattr(sys, name) is None:  # so it is when its descriptor was closed at the start
            setattr(sys, name, os.fdopen(fd, "w", closefd=False))


def _open(fd: int) -> tuple[int, Send, Callable[[], None]]:
    """The descriptor to use for ``fd``, how to send there (bytes sent, or OSError), how to close
    it.
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
        with contextlib.suppress(OSError):  # another user's, or a FIFO without a reader
            own_fd = os.open(f"/proc/self/fd/{fd}", _NON_BLOCKING)
            return own_fd, partial(os.write, own_fd), partial(os.close, own_fd)
    return fd, partial(_write_what_fits if stat.S_ISFIFO(mode) else os.write, fd), _nothing


def _nothing() -> None: ...


def _write_what_fits(pipe: int, data: bytes) -> int:
    """Write to a blocking pipe as much as does not block."""
    sent = 0
    while sent < len(data) and _has_room(pipe):
        sent += os.write(pipe, data[sent : sent + PIPE_BUF])
    return sent


def _has_room(pipe: int) -> bool:
    """Room for PIPE_BUF bytes, also when each process that shares the pipe has just checked."""
    poll = select.poll()
    poll.register(pipe, select.POLLOUT)
    if not poll.poll(0):
        return False
    waiting = array.array("i", [0])
    fcntl.ioctl(pipe, termios.FIONREAD, waiting)
    return waiting[0] < fcntl.fcntl(pipe, fcntl.F_GETPIPE_SZ) // 4
