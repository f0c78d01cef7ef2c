"""The rules of a shard without a disk. The test commits or undoes the decided changes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from tests.support.limits import LIMITS
from topics.engine.changes import (
    append,
    delete_records,
    delete_topic,
    forward,
    put_topic,
    reservation,
)
from topics.engine.changes.append import Append, InFlightDuplicate, due_times, keeps_key
from topics.engine.changes.change import Change
from topics.engine.changes.delete_records import DeleteRecords
from topics.engine.changes.forward import Advance, Forward
from topics.engine.changes.put_topic import PutTopic
from topics.engine.dedupe import DedupeEntry
from topics.engine.locators import FIRST_MEMORY, Locator, in_log, in_memory
from topics.engine.now import Now
from topics.engine.page import Page
from topics.engine.reading import read
from topics.engine.shard import ShardEngine
from topics.engine.topic import Topic
from topics.formats.api.append_body import AppendBody, decode_append
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import Diff, decode_delete
from topics.formats.buffers import Buffer
from topics.formats.disk.frames import Frame, FrameHeader, FrameKind, encode_frame, header_at
from topics.formats.disk.records import RecordsView
from topics.formats.disk.rendering import EncodedRecords, Rendering
from topics.formats.json_text import json_bytes
from topics.formats.ranges import IndexRun


def view_of(encoded: EncodedRecords) -> RecordsView:
    return RecordsView(
        encoded.flags, encoded.record_count, len(encoded.ext), memoryview(b"".join(encoded.parts))
    )


def body_of(frame: Frame) -> memoryview:
    """Return the bytes that follow the header in the log."""
    return memoryview(b"".join(map(bytes, frame.parts)))


def header_of(frame: Frame, lsn: int = 64) -> FrameHeader:
    """Return the header of the frame at ``lsn``."""
    return header_at(b"".join(map(bytes, encode_frame(frame, lsn, 0, 0))), 0)


def decide_long(engine: ShardEngine, topic: Topic, body: AppendBody, now: Now) -> Append:
    """Decide a streamed append. Its frame contains the records themselves instead of a blob."""
    due = due_times(topic, body, now)
    key = body.idempotency_key
    rendering = Rendering(body, keep_key=key is not None and keeps_key(topic, key), due=due or None)
    ends = rendering.ends(topic.next_seq, max(now.ts, topic.last_ts))
    change = append.decide_streamed(engine.table, topic, body, rendering, ends[-1], now, due)
    blob = b"".join(rendering.render(0, change.count, change.first_seq, change.ts))
    parts = (rendering.ext, ends.tobytes(), *rendering.tables, blob)
    if topic.config.durability == "ephemeral":
        change.resident = EncodedRecords(
            rendering.flags, change.count, rendering.ext, parts, len(blob)
        )
    else:
        (frame,) = change.frames
        change.frames = [frame._replace(flags=rendering.flags, parts=parts)]
    return change


def advance(topic: Topic, trimmed: int, now: Now) -> Advance:
    """Skip seqs of a router's dest and return the change with its frame."""
    found = forward.advance([forward.ForwardDest(topic, 1, 0, "r")], 0, trimmed, 1, now)
    (change,) = found.changes
    assert isinstance(change, Advance)
    change.frames.append(found.frame)
    return change


class EngineHarness:
    """A shard that decides immediately and keeps pending changes. Its log is a list."""

    def __init__(self, shard: int = 0, shards: int = 1) -> None:
        self.engine = ShardEngine(shard, shards)
        self.now = Now(ts=1_000_000, ms=5_000)
        self.pending: list[Change] = []
        self._views: list[RecordsView] = []
        # The copies of forwards as readers receive them
        self.copies: dict[Change, RecordsView] = {}
        self.engine.store = self

    def later(self, ms: int) -> None:
        self.now = Now(self.now.ts + ms, self.now.ms + ms)

    def records(self, locator: int) -> RecordsView:
        return self._views[locator & ~FIRST_MEMORY]

    def delete_flags(self, locator: int) -> Buffer | None:
        return self.engine.delete_flags.get(locator)

    def flag_deleted(self, locator: int, count: int, runs: Sequence[IndexRun], _size: int) -> None:
        self.engine.delete_flags.flag(locator, count, runs)

    def release(self, locators: Sequence[int]) -> None:
        self.engine.delete_flags.drop(locators)

    release_later = release

    def append(
        self, name: str, *datas: Any, key: str | None = None, **body: Any
    ) -> Append | InFlightDuplicate | DedupeEntry:
        request = {"records": [{"data": data} for data in datas], "idempotency_key": key, **body}
        outcome = append.decide(
            self.engine.table, name, decode_append(json_bytes(request), None, LIMITS), self.now
        )
        if isinstance(outcome, Append):
            self.pending.append(outcome)
            reserved = reservation.decide(outcome.topic)
            if reserved is not None:
                self.pending.append(reserved)
        return outcome

    def decide_long(self, name: str, *datas: Any) -> Append:
        """Decide a streamed append without adding it to the pending changes, as while its records
        are written.
        """
        body = decode_append(
            json_bytes({"records": [{"data": data} for data in datas]}), None, LIMITS
        )
        return decide_long(self.engine, self.engine.topic(name), body, self.now)

    def put(self, name: str, **config: Any) -> Change:
        change = put_topic.decide(
            self.engine.table, name, decode_config(json_bytes(config)), self.now
        )
        self.pending.append(change)
        return change

    def delete(self, name: str, *, if_empty: bool = False) -> Change | None:
        change = delete_topic.decide(self.engine.table, name, if_empty, self.now)
        if change is not None:
            self.pending.append(change)
        return change

    def delete_records(self, name: str, **body: Any) -> DeleteRecords:
        selector = decode_delete(json_bytes(body))
        change = delete_records.decide(
            self.engine.table,
            delete_records.remaining_delete(
                self.engine.table, name, selector.before_seq, selector.match
            ),
            self.now,
        )
        self.pending.append(change)
        return change

    def commit_next(self) -> Change:
        """Commit the oldest pending change."""
        change = self.pending.pop(0)
        self.engine.commit(change, self._locator(change), self.now)
        return change

    def commit(self) -> None:
        while self.pending:
            self.commit_next()

    def undo(self) -> None:
        """Undo all pending changes in reverse order, as after a failed write of the log."""
        while self.pending:
            self.engine.undo(self.pending.pop())

    def _locator(self, change: Change) -> Locator:
        number = len(self._views)
        if not isinstance(change, Append):
            return in_log(0)
        if change.resident is not None:
            view, locator = view_of(change.resident), in_memory(number)
        elif isinstance(change, Forward):
            view, locator = self.copies[change], in_log(number)
        else:
            (frame,) = (frame for frame in change.frames if frame.kind is FrameKind.APPEND)
            view = RecordsView(
                frame.flags, frame.record_count, frame.ext_len, memoryview(b"".join(frame.parts))
            )
            locator = in_log(number)
        self._views.append(view)
        return locator

    def read(self, name: str, from_seq: int = 0, limit: int = 1000, **options: Any) -> Page:
        return read(self.engine.topic(name), Diff(from_seq=from_seq, limit=limit, **options), self)


def fill(harness: EngineHarness, *writes: int, **config: Any) -> None:
    """Fill topic ``a`` with one write per argument, each with this number of records."""
    harness.put("a", **config)
    for count in writes:
        harness.append("a", *range(count))
    harness.commit()


def gap_of(page: Page) -> tuple[int, int, str] | None:
    stone = page.tombstone
    return None if stone is None else (stone.gap_from, stone.gap_to, stone.reason)


def expire(harness: EngineHarness) -> object:
    return harness.engine.expire(harness.engine.topic("a"), harness.now)


def records_of(page: Page) -> list[dict[str, Any]]:
    records: list[dict[str, Any]] = msgspec.json.decode(
        b"[%b]" % b",".join(map(bytes, page.chunks))
    )
    assert len(records) == page.count
    return records


def seqs_of(page: Page) -> list[int]:
    return [record["$seq"] for record in records_of(page)]


ONE = b'{"records":[{"data":1}]%b}'


def body(more: bytes = b"") -> AppendBody:
    return decode_append(ONE % more, None, LIMITS)


def kinds(change: object) -> list[FrameKind]:
    assert isinstance(change, Append | PutTopic)
    return [frame.kind for frame in change.frames]
