"""Harness for the loop of a shard with a session that opens feeds."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import msgspec
import trio
from trio.testing import wait_all_tasks_blocked

from tests.actors.shard.sealing.sealing_support import FILE_BYTES
from tests.support.shard import ShardHarness
from tests.support.wire import BY_SUBJECT
from topics.engine.now import Now
from topics.formats.wire.calls import (
    FEED_CLOSE,
    FEED_OPEN,
    FEED_PAGE,
    FEED_READ,
    FEED_TAKEN,
    FeedOpenParams,
    FeedParams,
    FeedReadParams,
    FeedView,
)
from topics.formats.wire.envelope import Notification, Success, decode
from topics.formats.wire.message import Message
from topics.storage.recovery.shard_recovery import recover
from topics.storage.wal.log_file import NoSpace

VIEW = FeedView([], tags=False, meta=True, data=True, limit=256, bytes=1 << 20, strong=False)


BROKEN = OSError(errno.EIO, os.strerror(errno.EIO))


FULL = NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))


class Front(ShardHarness):
    """A front with feeds. ``take`` sorts the messages of the shard. No pages are made before
    `end_iteration`, `written` or `synced`.
    """

    def open(self, topic: str, feed: int = 1, **view: Any) -> int:
        return self.request(FEED_OPEN, FeedOpenParams(feed, topic, VIEW._replace(**view)))

    def make(self, topic: str, **config: Any) -> None:
        self.wire.take()
        super().make(topic, **config)

    def feed_read(
        self,
        topic: str,
        from_seq: int = 0,
        until_seq: int | None = None,
        epoch: int | None = None,
        **view: Any,
    ) -> int:
        params = FeedReadParams(topic, VIEW._replace(**view), from_seq, until_seq, epoch)
        return self.request(FEED_READ, params)

    def close(self, feed: int = 1) -> None:
        self.notify(FEED_CLOSE, FeedParams(feed))

    def taken(self, feed: int = 1) -> None:
        self.notify(FEED_TAKEN, FeedParams(feed))

    def end_iteration(self) -> None:
        """Finish the iteration, as the actor does after each batch of messages."""
        self.loop.context.now = self.commits.now()
        self.loop.end_iteration()

    def written(self) -> OSError | None:
        error = super().written()
        self.end_iteration()
        return error

    def synced(self) -> OSError | None:
        error = super().synced()
        self.end_iteration()
        return error

    def events(self) -> list[dict[str, Any]]:
        """Return pages (with decoded records) and ends since the last call. Replies are dropped."""
        return [found for found in map(_decoded, self.wire.take()) if "answer" not in found]

    def answer(self) -> dict[str, Any]:
        """Return the only reply since the last call."""
        (found,) = (found for found in map(_decoded, self.wire.take()) if "answer" in found)
        return found

    def pages(self, feed: int = 1) -> list[list[int]]:
        """Return the seqs of each page of a feed."""
        return [seqs(event) for event in self.events() if event["feed"] == feed]

    def everything(self, feed: int = 1) -> list[dict[str, Any]]:
        """Return all pages of a feed up to its head, and acknowledge each immediately."""
        found: list[dict[str, Any]] = []
        while events := self.events():
            for event in events:
                found.append(event)
                self.taken(feed)
            self.end_iteration()
        return found


def _decoded(frame: Message) -> dict[str, Any]:
    envelope, row = decode(frame.payload), BY_SUBJECT[frame.subject]
    records = {"records": msgspec.json.decode(b"[%b]" % bytes(frame.attachment))}
    if isinstance(envelope, Notification):
        event_fields = {"event": envelope.method, **_fields(row.params._make(envelope.params))}
        return event_fields | (records if row is FEED_PAGE else {})
    if isinstance(envelope, Success):
        return {"answer": envelope.cid, **_fields(row.result._make(envelope.result)), **records}
    return {"answer": 0, "code": envelope.data["code"]}


def _fields(params: Any) -> dict[str, Any]:
    """Return the params under the names of the API, without an empty error."""
    fields: dict[str, Any] = params._asdict()
    if "record_count" in fields:
        fields["count"] = fields.pop("record_count")
    return {name: value for name, value in fields.items() if name != "error" or value}


def seqs(page: dict[str, Any]) -> list[int]:
    found = [record["$seq"] for record in page["records"]]
    assert page["count"] == len(found)
    return found


def gap_of(page: dict[str, Any]) -> tuple[str, int, int] | None:
    """Return reason and ends of the tombstone."""
    gap = page["tombstone"]
    return gap and (gap["reason"], gap["gap_from"], gap["gap_to"])


def contiguous(pages: list[dict[str, Any]], start: int) -> int:
    """Check that the pages have no hole and return their end."""
    for page in pages:
        assert page["from_seq"] == start < page["to_seq"] <= page["head_seq"]
        assert all(start < seq <= page["to_seq"] for seq in seqs(page))
        start = page["to_seq"]
    return start


START = Now(10**12, 10**6)


class OnDisk(Front):
    """A shard on a real directory whose log is followed as the actor does it."""

    def __init__(
        self, path: Path, nursery: trio.Nursery, boot: str = "first", now: Now = START
    ) -> None:
        shard = recover(path, 0, 1, now, wal_file_bytes=FILE_BYTES, wal_sync_ms=20, boot=boot)
        super().__init__(path, nursery, shard=shard)
        self._following = trio.CancelScope()
        nursery.start_soon(self._follow)

    async def _follow(self) -> None:
        with self._following:
            await self.loop.follow_log()

    async def settled(self) -> None:
        """Wait until everything is committed."""
        self.end_iteration()
        with trio.fail_after(20):
            while len(self.commits):
                await trio.lowlevel.checkpoint()

    async def end(self) -> None:
        self._following.cancel()
        await wait_all_tasks_blocked()
        self.log.stop()
