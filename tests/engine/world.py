"""A complete shard without a disk: its log is a list and its segments are bytes in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import cbor2

from tests.engine.shard_support import body_of, header_of, view_of
from topics.engine.changes import append, forward
from topics.engine.changes import start as process_start
from topics.engine.changes.append import Append
from topics.engine.changes.change import Change
from topics.engine.changes.floor import FloorMoved
from topics.engine.changes.replay_dispatch import replay_frame
from topics.engine.changes.reservation import Reservation
from topics.engine.locators import Locator, in_extent, in_log, in_memory, is_extent, is_in_memory
from topics.engine.now import Now
from topics.engine.record_index import IndexEntry
from topics.engine.replacing import replace_entries
from topics.engine.replay import Replay
from topics.engine.shard import ShardEngine
from topics.engine.snapshot import restore_extent, restore_jobs, restore_shard, restore_topic
from topics.engine.topic import Topic
from topics.formats.buffers import Buffer
from topics.formats.disk.copies import decode_forward
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.frame_bodies import decode_runs
from topics.formats.disk.frames import Frame, FrameHeader, FrameKind
from topics.formats.disk.records import AbstractView, RecordsView
from topics.formats.disk.segment import (
    TRAILER_BYTES,
    SegmentHeader,
    decode_directory,
    decode_trailer,
)
from topics.formats.disk.segment_build import ExtentSource, build
from topics.formats.ranges import IndexRun, SeqRun

BOOT_FILE = 1 << 20  # Distance between the bases of two log files


@dataclass
class Logged:
    """A frame in the log, and its effect on the model."""

    header: FrameHeader
    body: bytes
    effect: Callable[[Any], None] | None


@dataclass
class Extent:
    topic_id: int
    entry: IndexEntry
    view: ExtentView
    flags: bytearray
    sealed_flags: bytes
    marked: list[tuple[int, Sequence[IndexRun]]] = field(
        default_factory=list
    )  # Each with the end of the log at that time

    def forget_marks(self, position: int) -> None:
        """Drop the delete flags that a power failure loses, because they were set after this end
        of the log.
        """
        self.flags[:] = self.sealed_flags
        self.marked = [mark for mark in self.marked if mark[0] <= position]
        for _, runs in self.marked:
            for start, stop in runs:
                self.flags[start:stop] = b"\1" * (stop - start)

    def take_back(self, runs: Iterable[SeqRun]) -> None:
        """Clear the delete flags of records that the replay deletes again."""
        for first, length in runs:
            start, stop = (
                max(first - self.entry.first_seq, 0),
                min(first + length - self.entry.first_seq, len(self.flags)),
            )
            if start < stop:
                self.flags[start:stop] = bytes(stop - start)


@dataclass
class Pending:
    change: Change
    locator: Locator
    end: int  # End of its frames in the log
    commit: Callable[[], None]


@dataclass
class World:
    """A shard and its storage.

    The part of ``log`` that is not cut and ``extents`` with their flags survive a restart.
    ``resident`` does not.
    """

    engine: ShardEngine = field(default_factory=ShardEngine)
    log: list[Logged] = field(default_factory=list)
    position: int = 0
    synced: int = 0
    base: int = 0  # Base of the current file
    bases: list[int] = field(default_factory=lambda: [0])
    sealed: int = 0  # Files below this base are sealed
    extents: dict[int, Extent] = field(default_factory=dict)
    resident: dict[int, AbstractView] = field(default_factory=dict)
    pending: list[Pending] = field(default_factory=list)
    released: set[int] = field(default_factory=set)
    serial: int = 0

    def __post_init__(self) -> None:
        self.engine.store = self

    # The store of the engine

    def records(self, locator: int) -> AbstractView:
        assert locator not in self.released, "the engine reads no released locator"
        if is_in_memory(locator):
            return self.resident[locator]
        if is_extent(locator):
            return self.extents[locator].view
        return self._view(next(logged for logged in self.log if logged.header.lsn == locator))

    def delete_flags(self, locator: int) -> Buffer | None:
        if is_extent(locator):
            flags = self.extents[locator].flags
            return memoryview(flags) if any(flags) else None
        return self.engine.delete_flags.get(locator)

    def flag_deleted(self, locator: int, count: int, runs: Sequence[IndexRun], _size: int) -> None:
        if is_extent(locator):
            extent = self.extents[locator]
            for start, stop in runs:
                extent.flags[start:stop] = b"\1" * (stop - start)
            extent.marked.append((self.position, runs))
        else:
            self.engine.delete_flags.flag(locator, count, runs)

    def release(self, locators: Sequence[int]) -> None:
        self.released.update(locators)
        self.engine.delete_flags.drop(locators)

    release_later = release

    @staticmethod
    def _view(logged: Logged) -> RecordsView:
        header = logged.header
        return RecordsView(
            header.flags, header.record_count, header.ext_len, memoryview(logged.body)
        )

    # The log

    def submit(
        self,
        change: Change,
        effects: dict[FrameKind, Callable[[Any], None]],
        commit: Callable[[], None],
    ) -> None:
        """Write the frames of a change to the log. ``effects`` are their effects on the model by
        kind, and ``commit`` updates the model at the commit.
        """
        locator = in_log(0)
        for frame in change.frames:
            at = self.write(frame, effects.get(frame.kind))
            if frame.kind is FrameKind.APPEND:
                locator = in_log(at)
        if isinstance(change, Append) and change.resident is not None:
            self.serial += 1
            locator = in_memory(self.serial)
            self.resident[locator] = view_of(change.resident)
        self.pending.append(Pending(change, locator, self.position, commit))

    def write(self, frame: Frame, effect: Callable[[Any], None] | None = None) -> int:
        header = header_of(frame, self.position)
        self.log.append(Logged(header, bytes(body_of(frame)), effect))
        self.position = header.end
        return header.lsn

    def commit_next(self, now: Now) -> Change:
        waiting = self.pending.pop(0)
        change = waiting.change
        if change.sync:
            self.synced = max(self.synced, waiting.end)
        self.engine.commit(change, waiting.locator, now, self.base_of(waiting.locator))
        waiting.commit()
        return change

    @property
    def written(self) -> int:
        """The end of the log without the frames of pending changes."""
        if not self.pending:
            return self.position
        first = self.pending[0]
        return first.end - sum(frame.length for frame in first.change.frames)

    def base_of(self, locator: int) -> int:
        return max((base for base in self.bases if base <= locator), default=0)

    def next_file(self) -> None:
        self.base = self.position = self.position + BOOT_FILE
        self.synced = self.base
        self.bases.append(self.base)

    def settled_position(self, topic: Topic) -> int:
        """Return the LSN below which every frame of the topic is committed, and from which on none
        is.
        """
        for pending in self.pending:
            change = pending.change
            if (
                change.topic is topic
                and change.frames
                and not isinstance(change, Reservation | FloorMoved)
            ):
                return pending.end - sum(frame.length for frame in change.frames)
        return self.position

    # Sealing

    def seal_next(self) -> None:
        """Turn the oldest full log file into a segment."""
        end = next(base for base in self.bases if base > self.sealed)
        topics = list(self.engine.by_id.values())
        stretches: list[tuple[Topic, list[IndexEntry]]] = []
        for topic in topics:
            for entry in topic.index.entries_between(self.sealed, end):
                last = stretches[-1] if stretches else None
                if last and last[0] is topic and last[1][-1].last_seq + 1 == entry.first_seq:
                    last[1].append(entry)
                else:
                    stretches.append((topic, [entry]))
        sources = [
            ExtentSource(topic.id, entries[0].first_seq, self._chunks(entries))
            for topic, entries in stretches
        ]
        flags = {
            (topic.id, entry.first_seq + index): 1
            for topic, entries in stretches
            for entry in entries
            for index, flag in enumerate(self.delete_flags(entry.locator) or b"")
            if flag
        }
        data = b"".join(
            build(
                SegmentHeader(0, len(self.extents), self.sealed, end),
                sources,
                lambda topic_id, first, count: bytes(
                    flags.get((topic_id, seq), 0) for seq in range(first, first + count)
                ),
                extent_records=5,
            )
        )
        made: dict[int, list[IndexEntry]] = {topic.id: [] for topic in topics}
        trailer = decode_trailer(data[-TRAILER_BYTES:], len(data))
        for extent in decode_directory(data[trailer.directory_at : len(data) - TRAILER_BYTES]):
            self.serial += 1
            locator = in_extent(0, self.serial)
            index_entry = IndexEntry(
                extent.first_seq, extent.record_count, locator, extent.blob_bytes, extent.first_ts
            )
            dead = bytearray(data[extent.flags_at : extent.flags_at + extent.record_count])
            self.extents[locator] = Extent(
                extent.topic_id,
                index_entry,
                ExtentView(extent, memoryview(data)),
                dead,
                bytes(dead),
            )
            made[extent.topic_id].append(index_entry)
        for topic in topics:
            topic.drop_tags(self.sealed)
            if extents := made[topic.id]:
                bounds = extents[0].first_seq, extents[-1].last_seq + 1
                self.released.update(replace_entries(topic, extents, *bounds, self))
        self.sealed = end

    def _chunks(self, entries: Iterable[IndexEntry]) -> Iterable[tuple[RecordsView, int, int]]:
        for entry in entries:
            view = self.records(entry.locator)
            assert isinstance(view, RecordsView)
            yield view, 0, view.count

    # Restart

    def cut(self, position: int) -> None:
        """Cut the log at this position."""
        self.log = [logged for logged in self.log if logged.header.end <= position]
        self.position = max([logged.header.end for logged in self.log], default=0)
        self.position = max(self.position, self.base)

    def restart(self, now: Now, checkpoint: dict[str, Any] | None, *, power: bool) -> list[Frame]:
        """Start a new engine and return the frames that it has to write.

        Without a ``checkpoint``, all frames are replayed and there are no segments.
        """
        self.engine = ShardEngine()
        self.engine.store = self
        replay = Replay(self.engine.table)
        self.pending, self.resident, self.released = [], {}, set()
        replay_from = position = 0
        if power:
            for extent in self.extents.values():
                extent.forget_marks(self.position)
        if checkpoint is not None:
            replay_from, position = checkpoint["replay_from"], checkpoint["position"]
            self.extents = {
                locator: extent
                for locator, extent in self.extents.items()
                if locator in checkpoint["extents"]
            }
            restore_shard(self.engine.table, checkpoint["engine"])
            ahead = self._deletes_ahead(
                {kept["id"]: kept["position"] for kept in checkpoint["topics"]}
            )
            for kept in checkpoint["topics"]:
                restore_topic(replay, cbor2.loads(cbor2.dumps(kept)))
            for topic_id, part in checkpoint["jobs"]:
                restore_jobs(replay, topic_id, cbor2.loads(cbor2.dumps(part)))
            for locator in sorted(
                checkpoint["extents"], key=lambda locator: self.extents[locator].entry.first_seq
            ):
                extent = self.extents[locator]
                extent.take_back(ahead.get(extent.topic_id, ()))
                dead = [index for index, flag in enumerate(extent.flags) if flag]
                dead_bytes = sum(extent.view.size(index, index + 1) for index in dead)
                restore_extent(replay, extent.topic_id, extent.entry, len(dead), dead_bytes)
        else:
            self.extents = {}
        self.sealed = replay_from
        for logged in self.log:
            if logged.header.lsn >= replay_from:
                self._replay(replay, logged, logged.header.lsn < position)
        return process_start.decide(replay, now, clean=False, tail_may_be_lost=power)

    def _deletes_ahead(self, noted: dict[int, int]) -> dict[int, list[SeqRun]]:
        """Return the deletes that were logged after the checkpoint stored their topic, as recovery
        does.
        """
        found: dict[int, list[SeqRun]] = {}
        for header, body in ((logged.header, logged.body) for logged in self.log):
            if header.kind == FrameKind.DELETE and header.lsn >= noted.get(
                header.topic_id, header.end
            ):
                found.setdefault(header.topic_id, []).extend(decode_runs(body))
        return found

    def _replay(self, replay: Replay, logged: Logged, checkpointed: bool) -> None:
        header, body = logged.header, logged.body
        if header.kind == FrameKind.APPEND:
            append.replay(replay, header, 0, self.base_of(header.lsn), checkpointed)
        elif header.kind == FrameKind.FORWARD:
            held = decode_forward(header, memoryview(body))
            forward.replay(replay, header, held, checkpointed, self.base_of(header.lsn))
        else:
            replay_frame(replay, header, body, checkpointed)
