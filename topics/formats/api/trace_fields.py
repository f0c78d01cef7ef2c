"""Trace fields: the two fields of a request head by which clients and proxies find it again.

    X-Request-Id    1 to 128 visible ASCII characters; anything else counts as absent
    traceparent     as W3C Trace Context, level 1, says; likewise

They differ from request to request where all other fields of a client stay the same, and they
change nothing of what a request means. `cut_trace_fields` takes them out of a head.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from topics.formats.api.request_heads import FIELDS_MAX, HEAD_MAX_BYTES, VALUE

_STARTS = frozenset({b"x-request-id", b"traceparent:"})  # the first 12 bytes of their lines
_NAMES = re.compile(rb"\r\n(?:x-request-id|traceparent):", re.IGNORECASE)
_VALUE = re.compile(VALUE)
_REQUEST_ID = re.compile(rb"[\x21-\x7e]{1,128}")
# Version, trace, parent, flags. Later versions may append members, of which nothing is known.
_IDS = rb"-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"
_LATER = rb"(?!00|ff)[0-9a-f]{2}" + _IDS + rb"(?:-[\x21-\x7e]{0,72})?"
_TRACEPARENT = re.compile(rb"00" + _IDS + rb"|" + _LATER)


class TraceFields(NamedTuple):
    """The valid values; None for an absent field, one that came twice and one that is not valid."""

    request_id: bytes | None
    traceparent: bytes | None


def cut_trace_fields(raw: bytes) -> tuple[bytes, TraceFields] | None:
    """A whole head without its trace fields, and these; None when it has neither.

    What is left is well-formed only if ``raw`` is: a cut takes whole lines, which are well-formed
    themselves. A head that breaks one of the bounds of heads is not cut.
    """
    if _NAMES.search(raw) is None:  # the usual case
        return None
    lines = raw.split(b"\r\n")
    if len(raw) > HEAD_MAX_BYTES or len(lines) > FIELDS_MAX + 3:  # request line and two empty ones
        return None
    found = [at for at, line in enumerate(lines) if line[:12].lower() in _STARTS and at]
    ids: list[bytes] = []
    parents: list[bytes] = []
    for at in reversed(found):
        name, colon, value = lines[at].partition(b":")
        values = {12: ids, 11: parents}.get(len(name))
        if values is not None and colon and _VALUE.fullmatch(value):
            values.append(value.strip(b" \t"))
            del lines[at]
    if not ids and not parents:
        return None
    return b"\r\n".join(lines), TraceFields(_only(ids, _REQUEST_ID), _only(parents, _TRACEPARENT))


def _only(values: list[bytes], form: re.Pattern[bytes]) -> bytes | None:
    return values[0] if len(values) == 1 and form.fullmatch(values[0]) else None
