"""Event streams (§7.3 to §7.6): what the streams of watches and of work have in common.

head         `HEADERS`
at open      `RETRY`: how soon a client comes back
data lines   one, or one for each line of a payload's white space
heartbeat    a comment
error        why the stream ends, or that a topic cannot be read
"""

from __future__ import annotations

import re
from typing import Any

from topics.formats.json_text import json_bytes

HEADERS = (
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store, no-transform"),
    (b"connection", b"keep-alive"),
    (b"x-accel-buffering", b"no"),
)
RETRY = b"retry: 2000\n\n"
HEARTBEAT = b": hb\n\n"
_LINE_END = re.compile(rb"\r\n|\r|\n")


def data_lines(json: bytes) -> bytes:
    """JSON as the ``data`` of an event, without its end.

    Payloads are shown as they were sent: white space between their JSON tokens may hold line ends,
    which the client joins again.
    """
    if b"\n" in json or b"\r" in json:
        json = _LINE_END.sub(b"\ndata: ", json)
    return b"data: " + json


def error_event(code: int, error: str, **members: Any) -> bytes:
    """``event: error``, with the HTTP status that fits."""
    return b"event: error\ndata: %b\n\n" % json_bytes({"code": code, "error": error, **members})
