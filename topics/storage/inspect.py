"""Inspection: describes the contents of a data directory's files in lines of text.

The field names are those in the byte tables of the modules in ``formats/disk``.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path

import cbor2

from topics.formats.disk import blob, segment, versions, wal
from topics.formats.disk.copies import BadCopies, decode_forward
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.frame_bodies import (
    decode_lease,
    decode_losses,
    decode_router,
    decode_router_ids,
    decode_runs,
    decode_start,
    decode_topic,
)
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameHeader, FrameKind
from topics.formats.disk.records import RecordFlags
from topics.formats.disk.segment import BadSegment, ExtentEntry
from topics.formats.disk.versions import HEAD, VERSION_AT, other_version
from topics.formats.disk.wal import FILE_HEADER_BYTES, BadHeader
from topics.storage import checkpoints, data_dir
from topics.storage.disk import Damaged
from topics.storage.mapped_file import MappedFile
from topics.storage.verify import frames, is_punched
from topics.storage.wal.log_file import RESERVE, SPARE

BODY_CHARS_MAX = 10_000  # maximum length of the description of a frame body
_KIND_NAMES = {kind.value: kind.name for kind in FrameKind}
# Kinds whose bodies are records. These bodies are not described.
_WITH_RECORDS = frozenset({FrameKind.APPEND})
# Decoders for the frame bodies that are described.
_BODIES: dict[int, Callable[[FrameHeader, memoryview], object]] = {
    FrameKind.DELETE: lambda _, body: [*decode_runs(body)],
    FrameKind.TOPIC: lambda _, body: decode_topic(body),
    FrameKind.LEASE: decode_lease,
    FrameKind.START: lambda _, body: decode_start(body),
    FrameKind.ROUTER_SET: lambda _, body: decode_router(body),
    FrameKind.ROUTERS_GONE: lambda _, body: decode_router_ids(body),
    FrameKind.LOST: decode_losses,
    FrameKind.FORWARD: lambda frame, body: decode_forward(frame, body)._replace(payload=None),
}


class ForeignFile(Exception):
    """The file does not begin like a data directory file."""


def describe(path: Path) -> Iterator[str]:
    """Yield lines that describe any file of a data directory. The file's first bytes determine its
    kind.

    Damage is also described in a line. Raise `ForeignFile` or OSError.
    """
    with path.open("rb") as file:
        head = file.read(HEAD.size)
    magic = head[:VERSION_AT]
    known = _KINDS.get(magic)
    # A spare file that no log has used has no header.
    if not any(magic) and path.suffix in (SPARE, RESERVE):
        yield f"{path.stat().st_size} unused bytes"
        return
    if known is None:
        raise ForeignFile(
            f"{path} is not a file of a data directory, or its first {VERSION_AT} bytes are damaged"
        )
    if reason := other_version(head):
        yield f"offset {VERSION_AT}: {reason}"
        return
    yield from known(path)


def describe_segment(path: Path) -> Iterator[str]:
    """Yield the header and a line for each extent."""
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
        yield f"extent {index} at {entry.offset}: {_extent(entry, data)}"


def _extent(entry: ExtentEntry, data: memoryview) -> str:
    """Return a line about an extent: seqs, deleted records, times, and sizes of its tables."""
    deleted = bytes(data[entry.flags_at : entry.flags_at + entry.record_count]).count(1)
    text = (
        f"topic {entry.topic_id},{_seqs(entry.first_seq, entry.record_count)} {deleted} deleted, "
        f"{entry.blob_bytes} bytes, {_time(entry.first_ts)} to {_time(entry.last_ts)}, "
        f"{_flags(entry.flags)}"
    )
    if is_punched(entry, data):
        return f"{text}; its space was freed"
    try:
        view = ExtentView(entry, data)
    except BadSegment as error:
        return f"{text}; offset {error.offset}: {error.reason}"
    keys = sum(1 for _ in view.idempotency_keys())
    return f"{text}; {len(view.nodes)} nodes, {len(view.tags)} tags, {keys} keys"


def describe_log(path: Path) -> Iterator[str]:
    """Yield the header, a line for each frame, and a line for each body that is not records."""
    data, _ = MappedFile.of(path).salvage()
    try:
        header = wal.decode_file_header(data[:FILE_HEADER_BYTES])
    except BadHeader as error:
        yield f"offset 0: {error}"
        return
    yield f"log of shard {header.shard} from {header.base:#x}, {len(data)} bytes"
    offset = FILE_HEADER_BYTES
    for frame in frames(data, header):
        about = f" topic {frame.topic_id}," if frame.topic_id else ""
        shape = f", {_flags(frame.flags)}"
        if frame.kind in _WITH_RECORDS:
            about += _seqs(frame.first_seq, frame.record_count)
        else:
            about += f" first_seq {frame.first_seq}," if frame.first_seq else ""
            about += f" record_count {frame.record_count}," if frame.record_count else ""
            shape = f", flags {frame.flags}" if frame.flags else ""
        when = f", {_time(frame.ts_ms)}" if frame.ts_ms else ""
        kind = _KIND_NAMES.get(frame.kind, f"kind {frame.kind}")
        yield f"offset {offset}: {kind},{about} {frame.body_len} bytes{when}{shape}"
        decode = _BODIES.get(frame.kind)
        if decode is not None and frame.body_len:
            try:
                text_line = repr(
                    decode(frame, data[offset + FRAME_HEADER_BYTES :][: frame.body_len])
                )
            except (BadCopies, ValueError, struct.error, cbor2.CBORError) as error:
                text_line = str(error)
            yield f"  {text_line[:BODY_CHARS_MAX]}"
        offset = FILE_HEADER_BYTES + frame.end - header.base
    # Nonzero bytes after the last frame are a torn tail, damage, or from an earlier use of the
    # file.
    left = len(bytes(data[offset:]).rstrip(b"\0"))
    yield f"offset {offset}: the end of the frames; " + (
        f"{left} unrelated bytes follow" if left else "zeros follow"
    )


def _seqs(first_seq: int, count: int) -> str:
    """Return a range of seqs as text."""
    return f" seqs {first_seq} to {first_seq + count - 1},"


def describe_checkpoint(path: Path) -> Iterator[str]:
    """Yield the LSNs of a checkpoint and its contents."""
    try:
        found = checkpoints.read(path)
    except Damaged as damage:
        yield f"offset {damage.offset}: {damage.reason}"
        return
    if found is None:
        yield "offset 0: is not a complete checkpoint"
        return
    end = ", from a clean shutdown" if found.clean else ""
    yield f"checkpoint at {found.lsn:#x}, replay from {found.replay_from:#x}{end}"
    yield from (f"{name}: {value!r}" for name, value in found.shard.items())
    yield f"topics: {sum(1 for _ in found.topics())}"
    yield from (f"  {item!r}" for item in found.items())


def describe_blob(path: Path) -> Iterator[str]:
    """Yield a line about the write that the blob contains."""
    yield f"blob for the write {path.stem}, {path.stat().st_size - blob.HEADER_BYTES} bytes"


def describe_meta(path: Path) -> Iterator[str]:
    """Yield a line with the shard count."""
    try:
        yield f"data directory with {data_dir.decode_meta(path.read_bytes()).shards} shards"
    except ValueError as error:
        yield str(error)


# The function that describes a file, by the first bytes of the file.
_KINDS: dict[bytes, Callable[[Path], Iterator[str]]] = {
    versions.SEGMENT: describe_segment,
    versions.LOG: describe_log,
    versions.CHECKPOINT: describe_checkpoint,
    versions.BLOB: describe_blob,
    versions.META: describe_meta,
}


def _flags(flags: int) -> str:
    """Return the names of record flags."""
    names = [flag.name.lower() for flag in RecordFlags if flags & flag and flag.name]
    return "+".join(names) or "plain"


def _time(ts_ms: int) -> str:
    """Return a time in UTC, or the number if it is out of range."""
    try:
        return datetime.fromtimestamp(ts_ms / 1000, UTC).isoformat(timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return f"ts {ts_ms}"
