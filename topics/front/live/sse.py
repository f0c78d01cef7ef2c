"""Event streams (§7.2, §7.5, §7.6): what the streams of watches and of work have in common.

head         `HEADERS`
at open      `RETRY`: how soon a client comes back
taken over   `NEVER_AGAIN`: not at all; two tabs would throw each other off for ever
data lines   one, or one for each line of a payload's white space
heartbeat    a comment
error        why the stream ends, that a topic cannot be read, or that topics are paced
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
NEVER_AGAIN = b"retry: 2147483647\n"  # 24 days; timers of browsers hold no more milliseconds
HEARTBEAT = b": hb\n\n"
PACED = "watch throttled under CPU pressure"
_LINE_END = re.compile(rb"\r\n|\r|\n")


def data_lines(json: bytes) -> bytes:
    """JSON as the ``data`` of an event, without its end."""
    return b"data: " + continued(json)


def continued(json: bytes) -> bytes:
    """JSON within a data line.

    Payloads are shown as they were sent: white space between their JSON tokens may hold line ends,
    which the client joins again.
    """
    if b"\n" in json or b"\r" in json:
        return _LINE_END.sub(b"\ndata: ", json)
    return json


def paced_event(retry_after_ms: int, topics: list[str]) -> bytes:
    """``event: error`` 429, which ends nothing: these topics are paced (§7.5)."""
    return error_event(429, PACED, retry_after_ms=retry_after_ms, topics=topics)


def error_event(code: int, error: str, **members: Any) -> bytes:
    """``event: error``, with the HTTP status that fits."""
    return b"event: error\ndata: %b\n\n" % json_bytes({"code": code, "error": error, **members})
