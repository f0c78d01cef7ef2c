"""Server-sent events (§7.2, §7.5, §7.6): the common parts of watch streams and work streams.

head         `HEADERS`
at open      `RETRY`: the delay after which a client reconnects
taken over   `NEVER_AGAIN`: no reconnect; otherwise two tabs would displace each other forever
data lines   one, and another one after each line end in the white space of a payload
heartbeat    a comment
error        reports that the stream ends, that a topic cannot be read, or that topics are paced
"""

from __future__ import annotations

import re
from typing import Any

from topics.formats.json_text import json_bytes

EVENT_STREAM = b"text/event-stream; charset=utf-8"
HEADERS = (
    (b"content-type", EVENT_STREAM),
    (b"cache-control", b"no-store, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
)
RETRY = b"retry: 2000\n\n"
NEVER_AGAIN = b"retry: 2147483647\n"  # 24 days; timers in browsers accept no larger value
HEARTBEAT = b": hb\n\n"
PACED = "watch throttled under CPU pressure"
_LINE_END = re.compile(rb"\r\n|\r|\n")


def data_lines(json: bytes) -> bytes:
    """Return JSON as the ``data`` lines of an event, excluding the last line end."""
    return b"data: " + continued(json)


def continued(json: bytes) -> bytes:
    """Return JSON in the form in which it can follow the beginning of a data line.

    Payloads are sent unchanged. The white space between their JSON tokens may contain line ends,
    which start a new data line. The client joins the lines again.
    """
    if b"\n" in json or b"\r" in json:
        return _LINE_END.sub(b"\ndata: ", json)
    return json


def paced_event(retry_after_ms: int, topics: list[str]) -> bytes:
    """Return an ``event: error`` 429, which reports that these topics are paced (§7.5).

    The stream continues.
    """
    return error_event(429, PACED, retry_after_ms=retry_after_ms, topics=topics)


def error_event(code: int, error: str, **members: Any) -> bytes:
    """Return an ``event: error`` with the HTTP status that corresponds to the error."""
    return b"event: error\ndata: %b\n\n" % json_bytes({"code": code, "error": error, **members})
