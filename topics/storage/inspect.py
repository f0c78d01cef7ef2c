"""Inspection: what a file of a data directory holds, in lines for people."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

from topics.formats.disk import blob, checkpoint, linked_copies, segment, wal
from topics.formats.disk.copies import BadCopies, decode_forward
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.frame_bodies import (
    LOSS,
    DeleteFlags,
    LeaseOp,
    decode_lease,
    decode_router,
    decode_router_ids,
)
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameHeader, FrameKind
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.segment import BadSegment, ExtentEntry, SegmentHeader
from topics.formats.disk.wal import FILE_HEADER_BYTES, BadHeader
from topics.storage import checkpoints, data_dir
from topics.storage.mapped_file import MappedFile
from topics.storage.verify import frames, is_punched
from topics.storage.wal.file import RESERVE, SPARE

MAGIC_BYTES = 8
_KIND_NAMES = {kind.value: kind.name for kind in FrameKind}
_WITH_RECORDS = frozenset({FrameKind.APPEND, FrameKind.PAYLOAD, FrameKind.ROUTER})
_LEASE_OPS = frozenset(LeaseOp)


class ForeignFile(Exception):
    """A file that does not begin like one of a data directory."""


def describe(path: Path) -> Iterator[str]:
    """Lines about any file of a data directory, known by its first bytes. Damage has a line, too.

    Raises ForeignFile or OSError.
    """
    with path.open("rb") as file:
        magic = file.read(MAGIC_BYTES)
    known = _KINDS.get(magic)
    if not any(magic) and path.suffix in (SPARE, RESERVE):
        yield f"{path.stat().st_size} bytes of room, not in use"
        return
    if known is None:
        raise ForeignFile(
            f"{path} is no file of a data directory, or its first {MAGIC_BYTES} bytes are damaged"
        )
    yield from known(path)


def describe_segment(path: Path) -> Iterator[str]:
    """Its header, then a line for each extent."""
    data, _ = MappedFile.of(path).salvage()
    try:
        header = segment.decode_header(data[: segment.HEADER_BYTES])
        log = f"log {header.base:#x} to {header.end:#x}"
        yield f"segment {header.number} of shard {header.shard}, {log}, {len(data)} bytes"
        _, trailer, directory = segment.decode_ends(
            lambda offset, length: data[offset : offset + length], len(data)
        )
    except BadSegment as error:
        yield f"offset {error.offset}: {error.reason}"
        return
    yield f"{trailer.entry_count} extents, {trailer.record_count} records"
    for index, entry in enumerate(segment.decode_directory(directory)):
        yield f"extent {index} at {entry.offset}: {_extent(header, entry, data)}"


def _extent(header: SegmentHeader, entry: ExtentEntry, data: memoryview) -> str:
    deleted = bytes(data[entry.flags_at : entry.flags_at + entry.record_count]).count(1)
    last_seq = entry.first_seq + entry.record_count - 1
    text = (
        f"topic {entry.topic_id}, seqs {entry.first_seq} to {last_seq}, {deleted} deleted, "
        f"{entry.blob_bytes} bytes, {_time(entry.first_ts)} to {_time(entry.last_ts)}, "
        f"{_flags(entry.flags)}"
    )
    if is_punched(header, entry, data):
        return f"{text}; its room was given back"
    try:
        view = ExtentView(entry, data)
    except BadSegment as error:
        return f"{text}; offset {error.offset}: {error.reason}"
    keys = sum(1 for _ in view.idempotency_keys())
    return f"{text}; {len(view.nodes)} nodes, {len(view.tags)} tags, {keys} keys"


def describe_log(path: Path) -> Iterator[str]:
    """Its header, then a line for each frame."""
    data, _ = MappedFile.of(path).salvage()
    try:
        header = wal.decode_file_header(data[:FILE_HEADER_BYTES])
    except BadHeader as error:
        yield f"offset 0: {error}"
        return
    yield f"log of shard {header.shard} from {header.base:#x}, {len(data)} bytes"
    offset = FILE_HEADER_BYTES
    for frame in frames(data, header):
        kind = _KIND_NAMES.get(frame.kind, f"kind {frame.kind}")
        about = f" topic {frame.topic_id}," if frame.topic_id else ""
        shape = f", {_flags(frame.flags)}" if frame.kind in _WITH_RECORDS else ""
        body = data[offset + FRAME_HEADER_BYTES :][: frame.body_len]
        said = f"{_seqs(frame)}{_lease(frame, body)}{_router(frame, body)}"
        when = f", {_time(frame.ts_ms)}" if frame.ts_ms else ""
        yield f"offset {offset}: {kind},{about}{said} {frame.body_len} bytes{when}{shape}"
        yield from _rows(frame, body)
        offset = FILE_HEADER_BYTES + frame.end - header.base
    left = len(bytes(data[offset:]).rstrip(b"\0"))
    yield f"offset {offset}: the end of the frames; " + (
        f"{left} bytes of something else follow" if left else "zeros follow"
    )


def _seqs(frame: FrameHeader) -> str:
    if frame.kind in _WITH_RECORDS and frame.record_count:
        return f" seqs {frame.first_seq} to {frame.first_seq + frame.record_count - 1},"
    if frame.kind == FrameKind.DELETE:
        how = " dead-lettered," if frame.flags & DeleteFlags.DEAD_LETTERED else ""
        return (
            f" {frame.record_count} runs of seqs,{how}"
            if frame.record_count
            else f" seqs below {frame.first_seq},"
        )
    if frame.kind == FrameKind.LOST:
        which = f"from {frame.first_seq} on" if frame.topic_id else "of any topic at most"
        more = f" and {frame.ext_len // LOSS.size} more," if frame.ext_len else ""
        return f" {frame.record_count} seqs {which},{more}"
    if frame.kind == FrameKind.SEQS_RESERVED:
        return f" seqs up to {frame.first_seq},"
    return ""


def _lease(frame: FrameHeader, body: memoryview) -> str:
    if frame.kind != FrameKind.LEASE:
        return ""
    if frame.flags not in _LEASE_OPS:
        return f" op {frame.flags}, {frame.record_count} jobs,"
    rows = decode_lease(frame, body)
    node = f" node {rows.node!r}," if rows.op is LeaseOp.CLAIMED else ""
    word = "from" if rows.op is LeaseOp.RELEASED else "until"
    when = f" {word} {_time(rows.until_ts)}," if rows.op is not LeaseOp.DYING else ""
    return f" {rows.op.name}, {len(rows.seqs)} jobs,{node}{when}"


def _router(frame: FrameHeader, body: memoryview) -> str:
    """What a frame says of routers."""
    if frame.kind == FrameKind.ROUTER_SET:
        router = decode_router(body)
        ends = f"{router.config.get('source')!r} to {router.config.get('dest')!r}"
        return f" router {router.id} {router.name!r}, {ends},"
    if frame.kind == FrameKind.ROUTERS_GONE:
        return f" routers {', '.join(map(str, decode_router_ids(body)))},"
    try:
        if frame.kind == FrameKind.FORWARD:
            held = decode_forward(frame, body)
            burnt = f" {held.burnt} seqs burnt," if held.burnt else ""
            return f" {frame.record_count} copies,{burnt} cursor {held.cursor}, hop {held.hop},"
        if frame.kind == FrameKind.ROUTER:
            copies = linked_copies.decode(frame, body)
            return f" router {copies.router}, cursor {copies.cursor}, hop {copies.hop},"
    except BadCopies as error:
        return f" {error},"
    return ""


def _rows(frame: FrameHeader, body: memoryview) -> Iterator[str]:
    """A line for each dest of a FORWARD frame, and for each run of records."""
    if frame.kind != FrameKind.FORWARD:
        return
    with contextlib.suppress(BadCopies):
        held = decode_forward(frame, body)
        for row in held.rows:
            what = f"topic {row.topic_id} from seq {row.first_seq}" if row.first_seq else "cursor"
            yield f"  router {row.router}: {what}"
        for run in held.runs:
            where = f"the frame at {run.lsn:#x}" if run.lsn else "this frame"
            yield f"  records {run.start} to {run.stop - 1} of {where}"


def describe_checkpoint(path: Path) -> Iterator[str]:
    """Its LSN, then its members."""
    try:
        found = checkpoints.read(path)
    except checkpoints.UnreadableVersion as error:
        yield f"offset 8: {error}"
        return
    if found is None:
        yield "offset 0: is not a whole checkpoint"
        return
    end = ", of an orderly stop" if found.clean else ""
    yield f"checkpoint at {found.lsn:#x}, replay from {found.replay_from:#x}{end}"
    yield from (f"{name}: {value!r}" for name, value in found.shard.items())
    yield f"topics: {sum(1 for _ in found.topics())}"
    yield from (f"  {item!r}" for item in found.items())


def describe_blob(path: Path) -> Iterator[str]:
    """The write that it belongs to."""
    yield f"blob of the write {path.stem}, {path.stat().st_size - blob.HEADER_BYTES} bytes"


def describe_meta(path: Path) -> Iterator[str]:
    """The shard count."""
    try:
        yield f"data directory of {data_dir.decode_meta(path.read_bytes())} shards"
    except ValueError as error:
        yield str(error)


_KINDS: dict[bytes, Callable[[Path], Iterator[str]]] = {
    segment.MAGIC: describe_segment,
    wal.FILE_MAGIC: describe_log,
    checkpoint.MAGIC: describe_checkpoint,
    blob.MAGIC: describe_blob,
    data_dir.MAGIC: describe_meta,
}


def _flags(flags: int) -> str:
    names = [flag.name.lower() for flag in RecordFlags if flags & flag and flag.name]
    return "+".join(names) or "plain"


def _time(ts_ms: int) -> str:
    try:
        return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"ts {ts_ms}"
