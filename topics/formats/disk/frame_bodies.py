"""Frame bodies: the header fields and the body of each kind of WAL frame.

    number  kind           header fields that are set                           body
    1       APPEND         topic_id first_seq ts_ms record_count ext_len flags  records
    2       DELETE         topic_id first_seq ts_ms record_count flags          runs
    3       TOPIC          topic_id first_seq ts_ms ext_len                     map
    4       LEASE          topic_id ts_ms record_count ext_len flags            rows
    6       START          ts_ms ext_len                                        map
    7       TOPIC_DELETED  topic_id ts_ms                                       none
    8       SEQS_RESERVED  topic_id first_seq                                   none
    9       FLOOR          topic_id first_seq ext_len                           array
    10      TS_RESERVED    ts_ms                                                none
    12      ROUTER_SET     ts_ms ext_len                                        map
    13      ROUTERS_GONE   ts_ms ext_len                                        array
    14      LOST           topic_id first_seq record_count ext_len              rows, zeros
    15      FORWARD        ts_ms record_count ext_len flags                     rows, runs, records

All other header fields are 0. Only an APPEND frame may have the bit EXTERNAL of `RecordFlags`,
because the writers of the log test this bit in frames of all kinds. Integers are little-endian.
Maps and arrays are CBOR, and ``ext_len`` is their length. In a LOST frame it is the length of the
rows.

APPEND: the records of one write, with contiguous seqs from ``first_seq``, all with `$ts` ``ts_ms``.
The body is described in ``records.py``. With flag EXTERNAL, the body is only the ext map. The
complete body is then in a blob file (``blob.py``), which was synced before the frame was written.

DELETE: records deleted by a client, or jobs that have left their queue. If ``record_count`` is 0,
there is no body, and all records below ``first_seq`` are deleted. Otherwise ``first_seq`` is 0, and
the body has one row for each run of seqs, in ascending order. The number of rows is
``record_count``:

    offset  size  field   meaning
    0       8     first   first seq of the run
    8       8     length  seqs in the run

The flag DEAD_LETTERED means that the records were moved to a dead-letter topic and are counted as
dead-lettered.

TOPIC: a topic was created or configured. ``first_seq`` is the highest reserved seq. At that time,
no record in memory had a `$ts` above ``ts_ms + TS_AHEAD_MS``. Body:

    key        value   meaning
    name       text    name of the topic
    epoch      int     the incarnation of the topic
    config     map     `TopicConfig`, by its field names
    head       int     last assigned seq
    last_ts    int     last assigned `$ts`
    start      int     first seq that no cause has removed
    floors     array   as in the body of a FLOOR frame
    losses     array   (first, last) of each range of seqs lost at a restart
    damaged    array   (first, last) of each range of seqs lost to damage
    trimmed    array   (first, last) of each range of seqs skipped for a router
    keys_from  int     idempotency keys of earlier seqs are discarded

LEASE: a change of the state of ``record_count`` jobs of a queue (§10.1). ``flags`` is the op:

    op  name      keys of ext  change
    1   CLAIMED   n u          leased to node "n" until "u", or the lease was extended to "u"
    2   RELEASED  u e          can be claimed from "u"; "e" is the error in the nack, if any
    3   DYING     n            never delivered again; the move to the dead-letter topic "n" starts

"u" is in milliseconds since 1970. Body of a LEASE frame:

    part        size        present when  meaning
    ext         ext_len     ext_len > 0   CBOR map
    seqs        u64[count]  always        the jobs
    numbers     u64[count]  op 1          the numbers of their leases
    deliveries  u32[count]  always        number of deliveries of each job

START: a process has started to write the log. It replaces all earlier reservations of `$ts`: no
record in memory has a `$ts` above ``ts_ms + TS_AHEAD_MS``. Body:

    key   value  meaning
    boot  text   boot id of the machine; empty if unknown

TOPIC_DELETED: the topic was deleted, with its records and its name.

SEQS_RESERVED: no seq up to ``first_seq`` is assigned again after a restart.

FLOOR: records removed by cap or age. ``first_seq`` is the first seq that no cause has removed. The
body has a floor for each cause. Below this seq, the cause has removed records or skipped seqs:

    index  floor   meaning
    0      cap     the caps of the topic
    1      ttl     the age of records
    2      loss    records lost at restarts
    3      damage  damaged bytes
    4      trim    records that the source of a router has lost

TS_RESERVED: no record in memory has a `$ts` above ``ts_ms + TS_AHEAD_MS``.

ROUTER_SET: a router was created or configured, in the log of the shard that owns all routers. It
replaces an earlier router with the same name. Body:

    key        value  meaning
    name       text   name of the router
    id         int    id of the router, never reused; a recreated router has a new id
    config     map    `RouterConfig`, by its field names
    source_id  int    topic id of the source
    epoch      int    epoch of the source
    dest_id    int    topic id of the dest
    start      int    head of the source when the router was created
    total      int    number of records that routers with this name forwarded under earlier ids

ROUTERS_GONE: routers were removed. Body: an array of their ids.

FORWARD: copies that routers have appended to their dests, and the new cursor of the routers. The
body is described in ``copies.py``: a row for each dest, a run for each range of records, and the
records that no earlier frame of the log file contains. ``flags`` are the flags of the rendered
copies. ``record_count`` is the number of copies of each dest.

LOST: written by a repair in place of unreadable frames. ``record_count`` seqs of the topic,
starting at ``first_seq``, are lost. With ``topic_id`` 0, each topic may have lost up to
``record_count`` seqs after its head. The first ``ext_len`` bytes of the body are rows for further
losses, and zeros fill the rest:

    offset  size  field         meaning
    0       8     topic_id      as in the header
    8       8     first_seq
    16      4     record_count
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping, Sequence
from enum import IntEnum
from itertools import chain
from typing import Any, NamedTuple

import cbor2

from topics.formats.buffers import Buffer
from topics.formats.disk.frames import FRAME_HEADER_BYTES, Frame, FrameHeader, FrameKind
from topics.formats.disk.records import RecordFlags
from topics.formats.ranges import SeqRange, SeqRun, seq_ranges

TS_AHEAD_MS = 2000
RUN = struct.Struct("<QQ")
LOSS = struct.Struct("<QQI")


class DeleteFrameFlags(IntEnum):
    """Flags of a DELETE frame. Written to disk: never renumber, only add."""

    DEAD_LETTERED = 1


class LeaseOp(IntEnum):
    """The change that a LEASE frame records. Written to disk: never renumber, only add."""

    CLAIMED = 1
    RELEASED = 2
    DYING = 3


class LeaseRows(NamedTuple):
    """The content of a LEASE frame. Fields that the op does not use are empty or 0.

    With op DYING, ``node`` is the name of the dead-letter topic.
    """

    op: LeaseOp
    seqs: Sequence[int]
    deliveries: Sequence[int]
    node: str = ""
    until_ts: int = 0
    numbers: Sequence[int] = ()
    error: str | None = None


class Floors(NamedTuple):
    """For each cause of removals, the seq below which it has removed records."""

    cap: int
    ttl: int
    loss: int
    damage: int
    trim: int


class TopicBody(NamedTuple):
    """Body of a TOPIC frame. ``config``: a `TopicConfig` as a map."""

    name: str
    epoch: int
    config: Mapping[str, Any]
    head_seq: int
    last_ts: int
    start_seq: int
    floors: Floors
    losses: Sequence[SeqRange]
    damaged: Sequence[SeqRange]
    trimmed: Sequence[SeqRange]
    keys_from_seq: int


class RouterBody(NamedTuple):
    """Body of a ROUTER_SET frame. ``config``: a `RouterConfig` as a map."""

    name: str
    id: int
    config: Mapping[str, Any]
    source_id: int
    epoch: int
    dest_id: int
    start_seq: int
    base_total: int


def append_frame(
    topic_id: int,
    first_seq: int,
    ts_ms: int,
    record_count: int,
    flags: int,
    ext_len: int,
    parts: Sequence[Buffer],
) -> Frame:
    """Build an APPEND frame with its records, which `rendering.encode` has encoded."""
    return Frame(FrameKind.APPEND, topic_id, first_seq, ts_ms, record_count, flags, ext_len, parts)


def external_append_frame(
    topic_id: int, first_seq: int, ts_ms: int, record_count: int, flags: int, ext: bytes
) -> Frame:
    """Build an APPEND frame whose records are in a blob file. ``ext`` is its ext map."""
    flags |= RecordFlags.EXTERNAL
    return append_frame(topic_id, first_seq, ts_ms, record_count, flags, len(ext), (ext,))


def decode_idempotency_key(ext: Buffer) -> str | None:
    """Return the idempotency key in the ext map of an APPEND frame, or None."""
    return cbor2.loads(bytes(ext)).get("k")  # type: ignore[no-any-return]


def delete_below_frame(topic_id: int, first_seq: int, ts_ms: int) -> Frame:
    """Build a DELETE frame that deletes all records below ``first_seq``."""
    return Frame(FrameKind.DELETE, topic_id, first_seq, ts_ms)


def delete_runs_frame(
    topic_id: int, runs: Sequence[SeqRun], ts_ms: int, *, dead_lettered: bool = False
) -> Frame:
    """Build a DELETE frame that deletes the records of ``runs``, which are in ascending order."""
    body = struct.pack(f"<{2 * len(runs)}Q", *chain.from_iterable(runs))
    flags = DeleteFrameFlags.DEAD_LETTERED if dead_lettered else 0
    return Frame(FrameKind.DELETE, topic_id, 0, ts_ms, len(runs), flags, parts=(body,))


def decode_runs(body: Buffer) -> Iterator[SeqRun]:
    """Decode the runs of a DELETE frame."""
    return map(SeqRun._make, RUN.iter_unpack(body))


def lease_frame(topic_id: int, ts_ms: int, rows: LeaseRows) -> Frame:
    """Build a LEASE frame."""
    op, count, numbers = rows.op, len(rows.seqs), rows.numbers
    assert len(rows.deliveries) == count, "each job has its deliveries"
    assert len(numbers) == (count if op is LeaseOp.CLAIMED else 0), "each lease has its number"
    ext: dict[str, Any] = {"n": rows.node} if rows.node else {}
    if op is not LeaseOp.DYING:
        ext["u"] = rows.until_ts
    if rows.error is not None:
        ext["e"] = rows.error
    packed = cbor2.dumps(ext) if ext else b""
    layout = f"<{count + len(numbers)}Q{count}I"
    body = struct.pack(layout, *rows.seqs, *numbers, *rows.deliveries)
    return Frame(FrameKind.LEASE, topic_id, 0, ts_ms, count, op, len(packed), parts=(packed, body))


def decode_lease(header: FrameHeader, body: Buffer) -> LeaseRows:
    """Decode a LEASE frame."""
    op, count, start = LeaseOp(header.flags), header.record_count, header.ext_len
    ext: dict[str, Any] = cbor2.loads(bytes(body[:start])) if start else {}
    seqs = struct.unpack_from(f"<{count}Q", body, start)
    start += 8 * count
    numbers: tuple[int, ...] = ()
    if op is LeaseOp.CLAIMED:
        numbers = struct.unpack_from(f"<{count}Q", body, start)
        start += 8 * count
    deliveries = struct.unpack_from(f"<{count}I", body, start)
    return LeaseRows(op, seqs, deliveries, ext.get("n", ""), ext.get("u", 0), numbers, ext.get("e"))


def topic_frame(topic_id: int, reserved_seq: int, ts_ms: int, body: TopicBody) -> Frame:
    """Build a TOPIC frame. Seqs up to ``reserved_seq`` are reserved."""
    packed = cbor2.dumps(
        {
            "name": body.name,
            "epoch": body.epoch,
            "config": body.config,
            "head": body.head_seq,
            "last_ts": body.last_ts,
            "start": body.start_seq,
            "floors": tuple(body.floors),
            "losses": body.losses,
            "damaged": body.damaged,
            "trimmed": body.trimmed,
            "keys_from": body.keys_from_seq,
        }
    )
    return Frame(
        FrameKind.TOPIC, topic_id, reserved_seq, ts_ms, ext_len=len(packed), parts=(packed,)
    )


def decode_topic(body: Buffer) -> TopicBody:
    """Decode the body of a TOPIC frame."""
    held: dict[str, Any] = cbor2.loads(bytes(body))
    return TopicBody(
        name=held["name"],
        epoch=held["epoch"],
        config=held["config"],
        head_seq=held["head"],
        last_ts=held["last_ts"],
        start_seq=held["start"],
        floors=Floors(*held["floors"]),
        losses=seq_ranges(held["losses"]),
        damaged=seq_ranges(held["damaged"]),
        trimmed=seq_ranges(held["trimmed"]),
        keys_from_seq=held["keys_from"],
    )


def start_frame(boot: str, ts_ms: int) -> Frame:
    """Build a START frame. ``boot`` is the boot id of the machine."""
    packed = cbor2.dumps({"boot": boot})
    return Frame(FrameKind.START, ts_ms=ts_ms, ext_len=len(packed), parts=(packed,))


def decode_start(body: Buffer) -> str:
    """Return the boot id in a START frame."""
    return cbor2.loads(bytes(body))["boot"]  # type: ignore[no-any-return]


def topic_deleted_frame(topic_id: int, ts_ms: int) -> Frame:
    """Build a TOPIC_DELETED frame."""
    return Frame(FrameKind.TOPIC_DELETED, topic_id, ts_ms=ts_ms)


def seqs_reserved_frame(topic_id: int, reserved_seq: int) -> Frame:
    """Build a SEQS_RESERVED frame, which reserves all seqs up to ``reserved_seq``."""
    return Frame(FrameKind.SEQS_RESERVED, topic_id, reserved_seq)


def floor_frame(topic_id: int, start_seq: int, floors: Floors) -> Frame:
    """Build a FLOOR frame. ``start_seq`` is the first seq that no cause has removed."""
    packed = cbor2.dumps(tuple(floors))
    return Frame(FrameKind.FLOOR, topic_id, start_seq, ext_len=len(packed), parts=(packed,))


def decode_floors(body: Buffer) -> Floors:
    """Decode the body of a FLOOR frame."""
    return Floors(*cbor2.loads(bytes(body)))


def ts_reserved_frame(ts_ms: int) -> Frame:
    """Build a TS_RESERVED frame."""
    return Frame(FrameKind.TS_RESERVED, ts_ms=ts_ms)


def encode_router(body: RouterBody) -> bytes:
    """Encode the body of a ROUTER_SET frame. A checkpoint contains routers in the same form."""
    return cbor2.dumps(
        {
            "name": body.name,
            "id": body.id,
            "config": body.config,
            "source_id": body.source_id,
            "epoch": body.epoch,
            "dest_id": body.dest_id,
            "start": body.start_seq,
            "total": body.base_total,
        }
    )


def decode_router(body: Buffer) -> RouterBody:
    """Decode the result of `encode_router`."""
    held: dict[str, Any] = cbor2.loads(bytes(body))
    return RouterBody(
        name=held["name"],
        id=held["id"],
        config=held["config"],
        source_id=held["source_id"],
        epoch=held["epoch"],
        dest_id=held["dest_id"],
        start_seq=held["start"],
        base_total=held["total"],
    )


def router_set_frame(packed: bytes, ts_ms: int) -> Frame:
    """Build a ROUTER_SET frame. ``packed`` is the result of `encode_router`."""
    return Frame(FrameKind.ROUTER_SET, ts_ms=ts_ms, ext_len=len(packed), parts=(packed,))


def lost_frame(losses: Sequence[tuple[int, int, int]], length: int) -> Frame:
    """Build a LOST frame of ``length`` bytes.

    ``losses`` has at least one tuple of topic_id, first_seq and record_count.
    """
    (topic_id, first_seq, count), *more = losses
    rows = b"".join([LOSS.pack(*each) for each in more])
    body = rows.ljust(length - FRAME_HEADER_BYTES, b"\0")
    return Frame(
        *(FrameKind.LOST, topic_id, first_seq),
        record_count=count,
        ext_len=len(rows),
        parts=(body,),
    )


def lost_frame_bytes(losses: int) -> int:
    """Return the minimum size in bytes of a LOST frame with this number of losses."""
    return FRAME_HEADER_BYTES + LOSS.size * (losses - 1)


def decode_losses(header: FrameHeader, body: Buffer) -> list[tuple[int, int, int]]:
    """Return topic_id, first_seq and record_count of each loss in a LOST frame."""
    rows = memoryview(body)[: header.ext_len]
    first = header.topic_id, header.first_seq, header.record_count
    return [first, *LOSS.iter_unpack(rows)]


def routers_removed_frame(router_ids: Sequence[int], ts_ms: int) -> Frame:
    """Build a ROUTERS_GONE frame."""
    packed = cbor2.dumps([*router_ids])
    return Frame(FrameKind.ROUTERS_GONE, ts_ms=ts_ms, ext_len=len(packed), parts=(packed,))


def decode_router_ids(body: Buffer) -> Sequence[int]:
    """Return the router ids in a ROUTERS_GONE frame."""
    return cbor2.loads(bytes(body))  # type: ignore[no-any-return]
