"""Copies by reference in a shard that is driven by hand, without routers."""

from __future__ import annotations

from typing import Any

import pytest

from tests.support.linked import ShardLog
from tests.support.log import LIMITS, Client
from topics.engine.changes import append
from topics.engine.changes.append import Append
from topics.engine.replay import Replay
from topics.formats.api.append_body import AppendBody, decode_append
from topics.formats.buffers import Buffer
from topics.formats.disk.copies import (
    CopiesBody,
    CopyRow,
    copies_frame,
    decode_copies,
    payload_frame,
    render_copies,
)
from topics.formats.disk.frames import FrameHeader, FrameKind
from topics.formats.disk.rendering import encode
from topics.formats.json_text import json_bytes
from topics.storage.recovery import replay as log_replay

RECORDS: list[dict[str, Any]] = [
    {"data": "x" * 50, "tag": "t", "meta": {"m": 1}},
    {"data": [1, 2], "node": "n"},
    {"data": None},
]


def body_of(records: list[dict[str, Any]]) -> AppendBody:
    """The records as a client sends them."""
    return decode_append(json_bytes({"records": records}), None, LIMITS)


def replays_copies(patch: pytest.MonkeyPatch) -> None:
    """Let a start take the copies of ROUTER frames into their topics."""

    def replay(
        replay: Replay, header: FrameHeader, body: Buffer, checkpointed: bool, generation: int
    ) -> None:
        if header.record_count:
            size = decode_copies(header, body).size
            append.replay(replay, header, size, generation, checkpointed)

    patch.setattr(log_replay, "replay_forward", replay)


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
    change = client.engine.append(name, body_of(records * len(payloads)), client.now)
    assert isinstance(change, Append)
    pieces = [(linked.payload(row.shard, row.lsn), row) for row in rows]
    encoded = render_copies(pieces, (), change.first_seq, change.ts)
    assert encoded.blob_bytes == change.size, "copies are what an append of the records is"
    body = CopiesBody(1, 0, 0, 1, change.size, 0, (), rows)
    frame = copies_frame(
        *(change.topic.id, change.first_seq, change.ts, change.count, encoded.flags), body
    )
    change.frames[:] = [frame if each.kind is FrameKind.APPEND else each for each in change.frames]
    client.submit(change)
    lsn = client.wal.next_lsn - frame.length
    linked.note(lsn, rows)
    assert client.wait() is None
    reservation = client.engine.reserve(change.topic)
    if reservation is not None:
        client.submit(reservation)
        client.wait()
    return lsn
