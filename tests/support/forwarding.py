"""Copies by reference in a shard that is driven by hand, without routers."""

from __future__ import annotations

from typing import Any

from tests.support.linked import ShardLog
from tests.support.log import LIMITS, Client
from topics.engine.changes.forward import copy_ts
from topics.engine.routing.derivations import Derivation
from topics.formats.api.append_body import AppendBody, decode_append
from topics.formats.disk.copies import CopyRow, payload_frame, render_copies
from topics.formats.disk.rendering import encode
from topics.formats.json_text import json_bytes

RECORDS: list[dict[str, Any]] = [
    {"data": "x" * 50, "tag": "t", "meta": {"m": 1}},
    {"data": [1, 2], "node": "n"},
    {"data": None},
]


def body_of(records: list[dict[str, Any]]) -> AppendBody:
    """The records as a client sends them."""
    return decode_append(json_bytes({"records": records}), None, LIMITS)


def write_payload(source: ShardLog, records: list[dict[str, Any]]) -> int:
    """LSN of a frame with the records, in the log of a shard that has no topics."""
    return source.write_frame(payload_frame(9, 1, 1_000, encode(body_of(records), 1, 1_000, False)))


def forward(
    client: Client,
    name: str,
    records: list[dict[str, Any]],
    *payloads: tuple[int, int],
) -> int:
    """Append copies of payload frames, each with these records, to a topic; LSN of the frame."""
    linked = client.wal.linked
    linked.link([payload for payload in payloads if not linked.is_linked(*payload)])
    rows = [CopyRow(lsn, 0, shard, 0, 0, 0, len(records)) for shard, lsn in payloads]
    pieces = [(linked.payload(row.shard, row.lsn), row) for row in rows]
    topic, engine = client.engine.topic(name), client.engine
    encoded = render_copies(pieces, (), topic.next_seq, copy_ts(topic, client.now))
    derivation = Derivation(topic.next_seq, topic.next_seq)
    change = engine.forward(topic, 1, derivation, encoded, rows, (), 1, client.now)
    lsn = client.wal.next_lsn
    client.submit(change)
    assert client.wait() is None
    reservation = engine.reserve(topic)
    if reservation is not None:
        client.submit(reservation)
        assert client.wait() is None
    return lsn
