"""The actor of a shard without processes: the test puts messages into its router and plays the
log's writer.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import trio

from tests.support.limits import LIMITS as DEFAULT_LIMITS
from tests.support.wire import Wire, encode_notification, encode_request
from topics.actors.link.board import Board
from topics.actors.shard.loop import ShardLoop
from topics.engine.shard import ShardEngine
from topics.formats.disk.blob import body_of
from topics.formats.disk.frames import Frame
from topics.formats.disk.records import RecordFlags, RecordsView
from topics.formats.json_text import json_bytes
from topics.formats.wire import calls
from topics.formats.wire.calls import AppendOutcome, outcome_in
from topics.formats.wire.contract import Call, Event, P, R
from topics.formats.wire.envelope import Failure, Success, decode
from topics.formats.wire.message import Message
from topics.storage.segments.segment_store import SegmentStore
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.log_file import NoSpace
from topics.storage.wal.log_progress import LogProgress

TS_MAX = 1 << 62  # Of records in memory
LIMITS = msgspec.structs.replace(
    DEFAULT_LIMITS, batch_records=20_000, routers=0, topics=0, total_bytes=0
)


class Log:
    """A replacement for `Wal`. Nothing is written before `write`, and nothing is synced before
    `sync`. ``groups`` has the submitted groups.

    With ``immediate`` it writes short groups in `flush`.
    """

    def __init__(self, folder: Path) -> None:
        (folder / "blob").mkdir(parents=True, exist_ok=True)
        self.blobs = BlobStore(folder / "blob")
        self.frames: dict[int, Frame] = {}
        self.groups: list[tuple[int, bool]] = []  # End, sync
        self.next_lsn = self.written = self.synced_lsn = 0
        self.failed: OSError | None = None
        self.folder, self.lacks_space = folder, False
        self.immediate = self.syncs_immediately = self.is_syncing = False
        self._start = 0
        self._done: list[LogProgress] = []

    # Called by the actor

    def keep_contiguous(self, length: int) -> None:
        """Do nothing, because there is one file."""

    def append(self, frame: Frame) -> int:
        lsn = self.next_lsn
        self.frames[lsn] = frame
        self.next_lsn += frame.length
        return lsn

    def check(self) -> None:
        """Do nothing, because the data directory is always at its path."""

    def watch_hangs(self, on_hang: Callable[[int], None]) -> None:
        self.on_hang = on_hang

    def flush(self, *, sync: bool, immediate: bool = True) -> LogProgress | None:
        if self.next_lsn == self._start and not (sync and self.synced_lsn < self.next_lsn):
            return None
        self.groups.append((self.next_lsn, sync))
        may = immediate and (self.syncs_immediately if sync else self.immediate)
        may = may and self.written == self._start
        self._start = self.next_lsn
        if not may:
            return None
        self.written = self.next_lsn
        if sync:
            self.synced_lsn = self.written
        return LogProgress(self.written, self.synced_lsn, 1.5, 2.5 if sync else 0.0)

    def take_progress(self) -> list[LogProgress]:
        taken, self._done = self._done, []
        for progress in taken:
            if progress.error is not None and not isinstance(progress.error, NoSpace):
                self.failed = progress.error
        return taken

    def resume(self, lsn: int) -> None:
        self.frames = {locator: frame for locator, frame in self.frames.items() if locator < lsn}
        self.next_lsn = self._start = lsn

    def base_of(self, locator: int) -> int:
        return 0

    def records(self, locator: int) -> RecordsView:
        assert locator < self.written, "only what was written is read"
        frame = self.frames[locator]
        body = memoryview(b"".join(frame.parts))
        if frame.flags & RecordFlags.EXTERNAL:
            body = body_of(self.blobs.file(frame.topic_id, frame.first_seq).data)
        return RecordsView(frame.flags, frame.record_count, frame.ext_len, body)

    def count(self, locator: int) -> int:
        return self.frames[locator].record_count

    def reset_checked(self) -> None:
        """Do nothing, because nothing is mapped."""

    # Called by the test

    def write(self) -> None:
        """Report everything submitted as written."""
        self.written = self._start
        self._done.append(LogProgress(self.written, self.synced_lsn, 1.5, 0.0))

    def sync(self) -> None:
        """Report everything submitted as synced."""
        self.written = self.synced_lsn = self._start
        self._done.append(LogProgress(self.written, self.synced_lsn, 1.5, 2.5))

    def fail(self, error: OSError) -> None:
        self._done.append(LogProgress(self.written, self.synced_lsn, 0.0, 0.0, error))


class ShardHarness:
    """A session of a front with the actor of a shard. A reply has the number of its request."""

    def __init__(
        self,
        folder: Path,
        nursery: trio.Nursery,
        log: Any = None,
        engine: ShardEngine | None = None,
        shard: Any = None,
    ) -> None:
        """Set up the actor. ``shard`` is a complete shard with its own log and disk."""
        self.log: Any = log or (shard.wal if shard else Log(folder))
        self.engine = engine or (shard.engine if shard else ShardEngine())
        board = Board(1)
        self.cells = board.shard(0)
        if shard is None:
            segments = SegmentStore(folder / "segment", 0)
            shard = SimpleNamespace(
                engine=self.engine,
                wal=self.log,
                segments=segments,
                kept=[],
                absorbed=[],
                unwritten_frames=[],
            )
            # Otherwise an append would wait for a reservation after a suspension of the test for a
            # second.
            table = self.engine.table
            table.reserved_ts = table.reserving_ts = TS_MAX
        self.loop = ShardLoop(shard, 0, board, LIMITS)
        self.loop.context.nursery = nursery
        self.time = trio.CancelScope()
        nursery.start_soon(self._follow_time)
        while self.loop.inbox.count:  # The shard sends itself messages about its routers
            self.loop.run_iteration()
        self.commits = self.loop.commits
        self.wire = Wire()
        self.session = self.loop.open_session("front-0", self.wire)
        while self.loop.inbox.count:  # Messages that the shard sends itself at its start
            self.loop.run_iteration()
        self._cid = 0
        self._calls: dict[int, Call[Any, Any]] = {}  # The call of each request

    # Requests. Each returns its number. Nothing is written to the log before `flush`.

    async def _follow_time(self) -> None:
        with self.time:
            await self.loop.follow_time()

    def append(self, topic: str, *datas: Any, key: str | None = None, **fields: Any) -> int:
        return self.append_raw(
            topic, json_bytes({"records": [{"data": data} for data in datas], **fields}), key=key
        )

    def append_raw(self, topic: str, body: bytes, *, key: str | None = None) -> int:
        params = calls.AppendParams(topic, key, True, None, time.monotonic_ns())
        return self.request(calls.APPEND, params, body)

    def append_many(
        self, topic: str, *bodies: dict[str, Any] | bytes, with_seqs: bool = True
    ) -> int:
        """Send several appends to one topic in one message, each as a document or as raw bytes."""
        raw = [body if isinstance(body, bytes) else json_bytes(body) for body in bodies]
        lengths = [len(body) for body in raw]
        params = calls.AppendParams(topic, None, with_seqs, None, time.monotonic_ns(), lengths)
        return self.request(calls.APPEND, params, b"".join(raw))

    def put(self, topic: str, **config: Any) -> int:
        params = calls.TopicPutParams(topic, None, time.monotonic_ns())
        return self.request(calls.TOPIC_PUT, params, json_bytes(config))

    def delete(self, topic: str, *, if_empty: bool = False) -> int:
        params = calls.TopicDeleteParams(topic, if_empty, None, time.monotonic_ns())
        return self.request(calls.TOPIC_DELETE, params)

    def delete_records(self, topic: str, **fields: Any) -> int:
        params = calls.TopicParams(topic, time.monotonic_ns())
        return self.request(calls.DELETE_RECORDS, params, json_bytes(fields))

    def diff(self, topic: str, **fields: Any) -> int:
        params = calls.TopicParams(topic, time.monotonic_ns())
        return self.request(calls.DIFF, params, json_bytes(fields))

    def cancel(self, cid: int) -> None:
        """Cancel a call, as when the front's client has disconnected."""
        self.notify(calls.CALL_CANCELLED, calls.CallCancelledParams(cid))

    def request(self, call: Call[P, R], params: P, body: bytes = b"") -> int:
        """Make a request of the front and return its number."""
        self._cid += 1
        self._calls[self._cid] = call
        payload = encode_request(self._cid, call.method, params)
        frame = Message(self._cid, 0, call.subject, payload, body)
        self.loop.handle(self.session, frame)
        self.loop.deadlines.wake()
        return self._cid

    def notify(self, event: Event[P], params: P) -> None:
        """Send an event of the front."""
        payload = encode_notification(event.method, params)
        frame = Message(9999, 0, event.subject, payload, b"")
        self.loop.handle(self.session, frame)

    # The log

    def flush(self) -> None:
        self.loop.services.job_calls.decide_gathered()
        self.commits.flush()

    def written(self) -> OSError | None:
        self.flush()
        self.log.write()
        return self.advance()

    def synced(self) -> OSError | None:
        self.flush()
        self.log.sync()
        return self.advance()

    def advance(self) -> OSError | None:
        """Commit what the log has reached. The iteration ends when the ready tasks have run."""
        error = self.commits.advance()
        self.loop.deadlines.wake()
        return error

    def failed(self, error: OSError) -> OSError | None:
        """Report an error of the writer, and do what the loop of the actor does then."""
        self.flush()
        self.log.fail(error)
        found = self.commits.advance()
        self.loop.context.disk_space.show(found)
        self.loop.services.retries.on_due()
        return found

    def make(self, topic: str, **config: Any) -> None:
        """Create a topic before the test begins."""
        self.put(topic, **config)
        self.synced()
        self.answers()

    # Replies

    def answers(self) -> list[tuple[int, int | str]]:
        """Return the replies since the last call: number and status, or number and error code."""
        return [
            (number, answer.get("code") or answer["status"]) for number, answer in self.bodies()
        ]

    def bodies(self) -> list[tuple[int, dict[str, Any]]]:
        """Return the replies since the last call with their bodies."""
        return [self._read(frame) for frame in self.wire.take()]

    def batches(self) -> list[tuple[int, list[dict[str, Any]]]]:
        """Return the replies to append messages: the number of each, and its results in order. A
        failed request has a ``code``.
        """
        return [_read_batch(frame) for frame in self.wire.take()]

    def _read(self, frame: Message) -> tuple[int, dict[str, Any]]:
        answer = decode(frame.payload)
        if isinstance(answer, Failure):
            return answer.cid, {"code": answer.data["code"] if answer.data else answer.code}
        assert isinstance(answer, Success)
        if self._calls[answer.cid] is calls.APPEND:
            _, (body,) = _read_batch(frame)
        else:
            body = msgspec.json.decode(bytes(frame.attachment))
        # The status that a front derives from it.
        return answer.cid, {"status": 201 if body.get("created") else 200} | body

    def seqs(self, topic: str) -> list[int]:
        """Return the seqs that a reader sees now."""
        self.diff(topic, limit=1000)
        ((_, page),) = self.bodies()
        return [record["$seq"] for record in page["records"]]


def _read_batch(frame: Message) -> tuple[int, list[dict[str, Any]]]:
    answer = decode(frame.payload)
    assert isinstance(answer, Success)
    outcomes, lengths, failures = calls.APPEND.result._make(answer.result)
    content, refusals = bytes(frame.attachment), iter(failures or ())
    found: list[dict[str, Any]] = []
    for outcome, length in zip(map(outcome_in, outcomes), lengths or [len(content)], strict=True):
        if outcome == AppendOutcome.FAILED:
            assert not length
            code, message, detail = next(refusals)
            found.append({"code": code, "message": message, "detail": detail})
        else:
            found.append(msgspec.json.decode(content[:length]))
            assert found[-1]["created"] == (outcome == AppendOutcome.CREATED)
            content = content[length:]
    assert not content
    assert not list(refusals)
    return answer.cid, found
