"""Dead letters (§10.6): records that move between a queue and its dead-letter topic.

A record that is moved keeps its tag, and the bytes of its data and of its meta. On the way to the
dead-letter topic its meta is stamped with where it came from; on the way back the stamp goes.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec
from msgspec import Raw

from topics.formats.api.members import member, with_members, without_members
from topics.formats.json_text import json_string
from topics.formats.names import valid_topic_name

_STAMP = "$dead_letter_"
_SOURCE = "$dead_letter_from"
_NOTHING = Raw(b"")


class RecordParts(NamedTuple):
    """What a record keeps when it is moved: pieces of JSON as they were rendered. An absent tag or
    meta is empty.
    """

    tag: bytes
    data: bytes
    meta: bytes


class _Rendered(msgspec.Struct, gc=False):
    data: Raw
    tag: Raw = msgspec.field(default=_NOTHING, name="$tag")
    meta: Raw = _NOTHING


_rendered = msgspec.json.Decoder(_Rendered)


def stamped(meta: bytes, source: str, deliveries: int, seq: int) -> bytes:
    """The meta of a dead letter: job ``seq`` of queue ``source``, delivered so many times. A stamp
    that is there goes.
    """
    stamp = b'"$dead_letter_from":"%b","$dead_letter_deliveries":%d,"$dead_letter_src_seq":%d' % (
        source.encode(),
        deliveries,
        seq,
    )
    return with_members(unstamped(meta), stamp)


def unstamped(meta: bytes) -> bytes:
    """The meta without its stamp; b"" when nothing else was in it."""
    return without_members(meta, lambda key: key.startswith(_STAMP))


def source_of(meta: bytes) -> str | None:
    """The queue that a dead letter came from; None when its meta names no topic."""
    value = member(meta, _SOURCE)
    if value is None or value[:1] != b'"':
        return None
    name = msgspec.json.decode(value, type=str)
    return name if valid_topic_name(name) else None


def record_parts(record: bytes) -> RecordParts:
    """The parts of a rendered record."""
    try:
        found = _rendered.decode(record)
    except RecursionError:  # the decoder recurses: with less stack left than when it was appended
        parts = (member(record, name) for name in ("$tag", "data", "meta"))
        return RecordParts(*(part or b"" for part in parts))
    return RecordParts(bytes(found.tag), bytes(found.data), bytes(found.meta))


def append_request(parts: RecordParts, key: str, create: bool | None) -> bytes:
    """The body of an append (§2) of one record, with an idempotency key."""
    tag = b',"tag":' + parts.tag if parts.tag else b""
    meta = b',"meta":' + parts.meta if parts.meta else b""
    return b'{"records":[{"data":%b%b%b}],"idempotency_key":%b,"create":%b}' % (
        parts.data,
        tag,
        meta,
        json_string(key),
        b"null" if create is None else (b"false", b"true")[create],
    )
