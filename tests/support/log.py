"""A shard on a real directory, driven without a loop, and a disk that loses unsynced data."""

from __future__ import annotations

import os
import random
import select
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.limits import LIMITS
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.record_store import RecordStore
from topics.actors.shard.sealing.sealing import Sealing
from topics.engine.changes import append, delete_records, delete_topic, put_topic, reservation
from topics.engine.changes.append import Append, InFlightDuplicate, due_times
from topics.engine.changes.change import Change
from topics.engine.now import Now
from topics.engine.page import Page
from topics.engine.reading import read
from topics.formats.api.append_body import decode_append
from topics.formats.api.decoding import decode_config
from topics.formats.api.diff_body import Diff, decode_delete
from topics.formats.disk.rendering import Rendering
from topics.formats.json_text import json_bytes
from topics.storage.recovery.shard_recovery import RecoveredShard, recover
from topics.storage.wal.log_progress import LogProgress

FILE_BYTES = 64 << 10
SECTOR = 512
START = Now(ts=1_000_000, ms=5_000)
WAIT_MS = 10_000


class Client:
    """One run of a shard. Every call decides, submits and waits for the reply."""

    def __init__(
        self,
        path: Path,
        *,
        boot: str = "first",
        now: Now = START,
        file_bytes: int = FILE_BYTES,
        sync_ms: int = 200,
        shard: int = 0,
        shards: int = 1,
    ) -> None:
        self.now = now
        self.shard: RecoveredShard = recover(
            path, shard, shards, now, wal_file_bytes=file_bytes, wal_sync_ms=sync_ms, boot=boot
        )
        self.engine, self.wal = self.shard.engine, self.shard.wal
        store = RecordStore(self.engine, self.wal, self.shard.segments)
        self.commits = GroupCommit(self.engine, self.wal, store, lambda: self.now)

    def later(self, ms: int) -> None:
        self.now = Now(self.now.ts + ms, self.now.ms + ms)

    # Calls that do not wait

    def start(
        self, name: str, *datas: Any, key: str | None = None, **body: Any
    ) -> tuple[Any, list[LogProgress | OSError]]:
        """Decide and submit an append. The reply is added to the returned list when it arrives."""
        request = {"records": [{"data": data} for data in datas], "idempotency_key": key, **body}
        outcome = append.decide(
            self.engine.table, name, decode_append(json_bytes(request), None, LIMITS), self.now
        )
        if not isinstance(outcome, Append):
            return outcome, []
        answer = self.submit(outcome)
        reserved = reservation.decide(outcome.topic)
        if reserved is not None:
            self.commits.submit(reserved, None)
        return outcome, answer

    def submit(self, change: Change) -> list[LogProgress | OSError]:
        answer: list[LogProgress | OSError] = []
        self.commits.submit(change, answer.append)
        return answer

    def wait(self) -> OSError | None:
        """Flush and commit until nothing is pending. Return the error that stopped the log, or
        None.
        """
        self.commits.flush()
        while len(self.commits):
            assert self.poll(), "the writer reports every submitted group"
            error = self.commits.advance()
            if error is not None:
                return error
        return None

    def poll(self, ms: int = WAIT_MS) -> bool:
        """Return whether the writer reports progress within ``ms``."""
        poller = select.poll()
        poller.register(self.wal.progress_fd, select.POLLIN)
        return bool(poller.poll(ms))

    # Calls that wait

    def append(
        self, name: str, *datas: Any, key: str | None = None, **body: Any
    ) -> tuple[int, bool]:
        """Append and return ``(first_seq, deduped)``. The write must succeed."""
        outcome, answer = self.start(name, *datas, key=key, **body)
        assert self.wait() is None
        assert not isinstance(outcome, InFlightDuplicate)
        if isinstance(outcome, Append):
            assert len(answer) == 1
            assert isinstance(answer[0], LogProgress)
        return outcome.first_seq, not isinstance(outcome, Append)

    def put(self, name: str, **config: Any) -> None:
        answer = self.submit(
            put_topic.decide(self.engine.table, name, decode_config(json_bytes(config)), self.now)
        )
        assert self.wait() is None
        assert isinstance(answer[0], LogProgress)

    def delete(self, name: str) -> None:
        change = delete_topic.decide(self.engine.table, name, False, self.now)
        assert change is not None
        answer = self.submit(change)
        assert self.wait() is None
        assert isinstance(answer[0], LogProgress)

    def delete_records(self, name: str, **body: Any) -> int:
        """Delete records and return their number."""
        request = decode_delete(json_bytes(body))
        change = delete_records.decide(
            self.engine.table,
            delete_records.remaining_delete(
                self.engine.table, name, request.before_seq, request.match
            ),
            self.now,
        )
        answer = self.submit(change)
        assert self.wait() is None
        assert isinstance(answer[0], LogProgress)
        return change.deleted

    def expire(self, name: str) -> None:
        """Remove expired records, as before every response."""
        change = self.engine.expire(self.engine.topic(name), self.now)
        if change is not None:
            self.submit(change)
            assert self.wait() is None

    def read(self, name: str, from_seq: int = 0, limit: int = 1000) -> Page:
        return read(
            self.engine.topic(name), Diff(from_seq=from_seq, limit=limit), self.commits.store
        )

    def records(self, name: str) -> bytes:
        """Return all records of the topic, rendered and joined."""
        return b",".join(map(bytes, self.read(name).chunks))

    # Ends of the run

    def kill(self) -> None:
        """Simulate a SIGKILL: data that the kernel has received is kept, synced or not. The writer
        may finish its current groups.
        """
        self.wal.stop()
        self.shard.segments.maps.close()

    def stop(self) -> None:
        """Stop in order, as the process of the shard does."""
        self.wal.stop()
        Sealing(self.shard, self.commits).write_last()
        self.shard.segments.maps.close()


def append_streamed(client: Client, name: str, *datas: Any, **body_fields: Any) -> Path:
    """Write records by a streamed append and return the path of their blob."""
    request = {"records": [{"data": data} for data in datas], **body_fields}
    body = decode_append(json_bytes(request), None, LIMITS)
    topic = client.engine.topic(name)
    due = due_times(topic, body, client.now)
    rendering = Rendering(body, keep_key=False, due=due or None)
    ends = rendering.ends(topic.next_seq, client.now.ts)
    change = append.decide_streamed(
        client.engine.table, topic, body, rendering, ends[-1], client.now, due
    )
    head = [rendering.ext, ends.tobytes(), *rendering.tables]
    writer = client.wal.blobs.begin(topic.id, change.first_seq, sum(map(len, head)) + ends[-1])
    writer.write(head)
    writer.write(rendering.render(0, change.count, change.first_seq, change.ts))
    writer.finish()
    client.submit(change)
    assert client.wait() is None
    return client.wal.blobs.path(topic.id, change.first_seq)


def state(client: Client) -> dict[str, Any]:
    """Return everything about the topics that a reader or a writer can notice."""
    return {
        name: {
            "id": topic.id,
            "epoch": topic.epoch,
            "config": topic.config,
            "head": topic.head_seq,
            "next": topic.next_seq,
            "reserved": topic.reserved_seq,
            "count": topic.count,
            "bytes": topic.bytes,
            "earliest": topic.earliest_seq,
            "last_ts": topic.last_ts,
            "keys": sorted(row[:3] for row in topic.dedupe.rows(0, 1 << 62)),
            "records": client.records(name),
        }
        for name, topic in client.engine.topics.items()
    }


def failing(code: int) -> Callable[..., NoReturn]:
    """Return a function that always fails with this error."""

    def fail(*_: Any) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


def log_files(path: Path) -> list[Path]:
    return sorted((path / "wal" / "00").glob("*.wal"))


class LossyDisk:
    """Record for every file and folder the contents of its last sync, by the strictest reading of
    POSIX.

    ``power_loss`` builds the state that a disk may have after a power failure. It contains the
    synced bytes, and each other 512-byte sector if ``chosen`` returns true. A name exists only if
    its folder was synced.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._contents: dict[int, bytes] = {}
        self._names: dict[Path, dict[str, int]] = {}
        # Two threads may sync the same file. The later sync must be recorded last.
        self._lock = threading.Lock()
        for name in ("fsync", "fdatasync"):
            monkeypatch.setattr(os, name, self._recording(getattr(os, name)))

    def _recording(self, real: Callable[[int], None]) -> Callable[[int], None]:
        def sync(fd: int) -> None:
            with self._lock:
                real(fd)
                path = Path(f"/proc/self/fd/{fd}")
                if path.is_dir():
                    self._names[path.resolve()] = {
                        child.name: child.stat().st_ino for child in path.iterdir()
                    }
                else:
                    self._contents[os.fstat(fd).st_ino] = path.read_bytes()

        return sync

    def power_loss(
        self, source: Path, target: Path, chosen: Callable[[], bool] = lambda: False
    ) -> None:
        """Build in ``target`` the remains of ``source``, which are the contents of the disk from
        then on.
        """
        target.mkdir()
        for name, inode in self._names.get(source.resolve(), {}).items():
            child = source / name
            if child.is_dir():
                self.power_loss(child, target / name, chosen)
                continue
            synced = self._contents.get(inode, b"")
            now = child.read_bytes() if child.exists() and child.stat().st_ino == inode else synced
            left = _mixed(synced, now, chosen)
            (target / name).write_bytes(left)
            self._contents[(target / name).stat().st_ino] = left
        self._names[target.resolve()] = {
            child.name: child.stat().st_ino for child in target.iterdir()
        }


def _mixed(synced: bytes, now: bytes, chosen: Callable[[], bool]) -> bytes:
    if synced == now or len(synced) != len(now):
        return synced
    sectors = range(0, len(now), SECTOR)
    return b"".join(
        (now if now[at : at + SECTOR] != synced[at : at + SECTOR] and chosen() else synced)[
            at : at + SECTOR
        ]
        for at in sectors
    )


def chance(rng: random.Random, share: float) -> Callable[[], bool]:
    return lambda: rng.random() < share
