"""Logs: one JSON object a line on stderr, or readable lines on a terminal (``NO_COLOR`` is honoured).

``configure`` once per process, after the fork. Log with ``structlog.get_logger()``; what libraries send to ``logging``
and ``warnings`` takes the same way out. Tokens and query strings never leave here, whoever logged them.
"""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from types import TracebackType
from typing import Any, TextIO

import structlog
from structlog.typing import EventDict, Processor, WrappedLogger

_BEARER = re.compile(r"(?i)\b(bearer|basic)\s+[^\s\"',]+")
_QUERY = re.compile(r"(/[^\s?\"'<>]*)\?[^\s\"'<>]*")
_SECRET_NAMES = frozenset({"authorization", "token", "api_key", "api_keys", "secret"})


def configure(process: str, level: str = "info", stream: TextIO | None = None) -> None:
    """Send everything that this process logs to ``stream`` (stderr), each line with the process's name."""
    out = sys.stderr if stream is None else stream
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
            _naming(process),
            structlog.processors.StackInfoRenderer(),
            *_rendering(out),
        ],
        wrapper_class=structlog.make_filtering_bound_logger(logging.getLevelNamesMapping()[level.upper()]),
        logger_factory=lambda *_names: _Lines(out),
        cache_logger_on_first_use=False,  # a forked child configures anew; cached loggers would keep the parent's name
    )
    root = logging.getLogger()
    root.handlers[:] = [_Forward()]
    root.setLevel(level.upper())
    logging.captureWarnings(True)
    sys.excepthook = _log_uncaught


def redact(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
    """Take tokens and query strings out of every text of an event, tracebacks included."""
    return {name: "[redacted]" if name.lower() in _SECRET_NAMES else _clean(value) for name, value in event.items()}


def _log_uncaught(kind: type[BaseException], error: BaseException, traceback: TracebackType | None) -> None:
    structlog.get_logger().critical("process failed", exc_info=(kind, error, traceback))


def _clean(value: Any) -> Any:
    if isinstance(value, bytes):
        value = value.decode("utf-8", "backslashreplace")
    if isinstance(value, str):
        return _QUERY.sub(r"\1", _BEARER.sub(r"\1 [redacted]", value))
    if isinstance(value, dict):
        return {name: "[redacted]" if str(name).lower() in _SECRET_NAMES else _clean(item) for name, item in value.items()}
    if isinstance(value, list | tuple):
        return [_clean(item) for item in value]
    return value if value is None or isinstance(value, bool | int | float) else _clean(str(value))


def _naming(process: str) -> Processor:
    def name_process(_logger: WrappedLogger, _method: str, event: EventDict) -> EventDict:
        return {"process": process, "pid": os.getpid(), **event}

    return name_process


def _rendering(out: TextIO) -> list[Processor]:
    """Tracebacks are always plain: pretty ones show local variables, and with them tokens."""
    if out.isatty():
        colors = not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"
        console = structlog.dev.ConsoleRenderer(colors=colors, timestamp_key="time", exception_formatter=structlog.dev.plain_traceback)
        return [structlog.processors.format_exc_info, redact, console]
    return [structlog.processors.format_exc_info, redact, structlog.processors.JSONRenderer(serializer=json.dumps)]


class _Lines:
    """The end of the pipeline: one write for each line, so that lines of several processes do not mix."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def msg(self, line: str) -> None:
        try:
            self._out.write(line + "\n")
            self._out.flush()
        except BrokenPipeError:
            pass  # whoever read the logs is gone; that is no reason to stop serving, and there is nowhere to say so

    debug = info = warning = error = exception = critical = log = msg


class _Forward(logging.Handler):
    """What libraries log, into the one pipeline."""

    def emit(self, record: logging.LogRecord) -> None:
        log = structlog.get_logger().bind(logger=record.name)
        log.log(record.levelno, record.getMessage(), exc_info=record.exc_info)
