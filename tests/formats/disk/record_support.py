"""Writes as clients send them, and the records that readers must receive."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import strategies as st

from topics.config import Settings
from topics.formats.api.append_body import AppendBody, decode_append
from topics.formats.api.limits import limits_of
from topics.formats.disk.records import RecordsView
from topics.formats.disk.rendering import encode
from topics.formats.json_text import json_string

LIMITS = limits_of(Settings(max_record_bytes=1 << 24))

# (node, tag, data, meta): data and meta as they are sent.
Record = tuple[str | None, str | None, bytes, bytes | None]


PAYLOADS = st.sampled_from(
    [
        *(b"1", b"null", b'"x"', b'{"a": [1.10, "\\u00e9"]}', b'",\\"$tag\\":\\"t\\""'),
        *('"é😀"'.encode(), b'"' + b"y" * 300 + b'"'),
    ]
)
METAS = st.sampled_from([None, None, b"{}", b'{"m": 1}', b'{"meta":{"a":","}}'])
TEXTS = st.sampled_from(
    [None, None, "", "a", "ab", "b", 'q"\\', "é", ',"$ts":1', "n" * 60, "\n", "\x1f😀"]
)
RECORDS = st.lists(st.tuples(TEXTS, TEXTS, PAYLOADS, METAS), min_size=1, max_size=6)


def request(records: list[Record], node: str | None = None, key: str | None = None) -> AppendBody:
    rendered = []
    for record_node, tag, data, meta in records:
        members = [b'"data":' + data]
        members += [b'"node":' + json_string(record_node)] if record_node is not None else []
        members += [b'"tag":' + json_string(tag)] if tag is not None else []
        members += [b'"meta":' + meta] if meta is not None else []
        rendered.append(b"{%b}" % b",".join(members))
    top = [b'"records":[%b]' % b",".join(rendered)]
    top += [b'"node":' + json_string(node)] if node is not None else []
    return decode_append(b"{%b}" % b",".join(top), key, LIMITS)


def view_of(
    body: AppendBody,
    first_seq: int = 7,
    ts_ms: int = 1000,
    *,
    keep_key: bool = False,
    due: Sequence[int] | None = None,
) -> RecordsView:
    encoded = encode(body, first_seq, ts_ms, keep_key, due)
    assert encoded.record_count == len(body.records)
    assert encoded.blob_bytes == len(encoded.parts[-1])
    # Place it inside a larger buffer at an odd offset, as in a mapped file.
    buffer = memoryview(b"#" + b"".join(encoded.parts))
    return RecordsView(encoded.flags, encoded.record_count, len(encoded.ext), buffer[1:])


def expected_record(
    record: Record,
    seq: int,
    batch_node: str | None,
    *,
    tags: bool = True,
    meta: bool = True,
    with_data: bool = True,
    ts_ms: int = 1000,
) -> bytes:
    """Return the object that a reader receives, by a simple implementation."""
    node, tag, data, sent_meta = record
    node = node if node is not None else batch_node
    members = [b'"$seq":%d' % seq, b'"$ts":%d' % ts_ms]
    members += [b'"$node":' + json_string(node)] if node is not None else []
    members += [b'"$tag":' + json_string(tag)] if tag is not None and tags else []
    members += [b'"data":' + data] if with_data else []
    members += [b'"meta":' + sent_meta] if sent_meta is not None and meta and with_data else []
    return b"{%b}" % b",".join(members)
