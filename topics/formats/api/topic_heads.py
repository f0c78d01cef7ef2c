"""Topic heads: request heads whose target is a topic, and the same heads without its name.

    POST /v0/topics/NAME/diff?... HTTP/1.1 CRLF fields CRLF
                    ^^^^ cut

The name changes nothing of what the rest of a head means, so clients of many topics send few heads
that differ in more. Pure: no socket, no clock, no task.
"""

from __future__ import annotations

import re

from topics.formats.api.request_heads import HEAD_MAX_BYTES
from topics.formats.names import TOPIC_NAME

_START = re.compile(
    rb"[A-Z]{1,16} /v0/topics/(" + TOPIC_NAME.pattern.encode("ascii") + rb")(?=[ /?])"
)


def cut_topic_name(raw: bytes) -> tuple[bytes, str] | None:
    """A whole head without the name of its topic, and the name; None when the target is no topic,
    or the name is escaped or not valid.

    What is left has at least one byte behind the place of the name, which no name can hold: heads
    that are equal without their names differ in these alone.
    """
    found = _START.match(raw)
    if found is None or len(raw) > HEAD_MAX_BYTES:
        return None
    start, end = found.span(1)
    return raw[:start] + raw[end:], found[1].decode("ascii")
