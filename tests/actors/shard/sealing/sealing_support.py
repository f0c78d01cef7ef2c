"""A shard that seals step by step, so that tests can act between any two steps."""

from __future__ import annotations

import contextlib
import shutil
import threading
import types
from collections import Counter
from collections.abc import Callable, Coroutine, Generator, Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
import trio

from tests.support.log import START, Client
from topics.actors.shard.group_commit import GroupCommit
from topics.actors.shard.sealing import (
    checkpointing,
    merging,
    reclaim,
    rewriting,
    sealing,
    sources,
)
from topics.actors.shard.sealing.sealing import Sealing
from topics.engine import replacing, selection
from topics.engine.changes import delete_records
from topics.engine.locators import is_extent
from topics.engine.now import Now
from topics.engine.page import Page
from topics.engine.reading import read
from topics.engine.store import Store
from topics.engine.topic import Topic
from topics.formats.api.diff_body import Diff, TagMatch
from topics.formats.disk import segment_build
from topics.storage.verify import Finding, verify_directory
from topics.storage.wal.log_file import NoSpace
from topics.storage.wal.log_progress import LogProgress

FILE_BYTES = 4096 + 1024  # a log file holds some ten small writes


@types.coroutine
def _step() -> Generator[None, None, None]:
    yield


async def _checkpoint(*_: object) -> None:
    await _step()


async def _run_sync(call: Callable[..., Any], *arguments: object) -> Any:
    """Run a call of a thread immediately, as a separate step."""
    await _step()
    result = call(*arguments)
    await _step()
    return result


def by_hand(patch: pytest.MonkeyPatch) -> None:
    """Let `Sealing` run without a loop, one step at a time."""
    stand_in = SimpleNamespace(
        to_thread=SimpleNamespace(run_sync=_run_sync),
        lowlevel=SimpleNamespace(checkpoint=_checkpoint),
        sleep=_checkpoint,
        CancelScope=trio.CancelScope,
        Event=trio.Event,
    )
    for module in (sealing, checkpointing, merging, reclaim, rewriting):
        patch.setattr(module, "trio", stand_in)
    patch.setattr(GroupCommit, "wait_progress", _checkpoint)


def eager_merges(patch: pytest.MonkeyPatch, segments: int = 2) -> None:
    """Lower the limits of merging, so that a few small segments are merged."""
    patch.setattr(merging, "RUN_MIN_SEGMENTS", segments)
    patch.setattr(merging, "EXTENT_COST_BYTES", 64)
    patch.setattr(sources, "GAP_BYTES", 200)
    patch.setattr(replacing, "STEP_EXTENTS", 1)


def small_extents(patch: pytest.MonkeyPatch, records: int) -> None:
    """Let a topic have several extents in each segment."""
    defaults = segment_build.build.__kwdefaults__
    assert defaults is not None, "`build` has keyword arguments with defaults"
    patch.setitem(defaults, "extent_records", records)


def run(task: Coroutine[Any, Any, None]) -> None:
    """Run all steps of a task in sequence."""
    with contextlib.suppress(StopIteration):
        while True:
            task.send(None)


class Sealer(Client):
    """A shard that seals only when a test calls `step` or `seal`."""

    def __init__(
        self,
        path: Path,
        *,
        file_bytes: int = FILE_BYTES,
        boot: str = "first",
        now: Now = START,
        sync_ms: int = 60_000,
    ) -> None:
        super().__init__(path, file_bytes=file_bytes, boot=boot, now=now, sync_ms=sync_ms)
        self.path = path
        self.filled: Counter[str] = Counter()  # writes of a test, by topic
        self.sealing = Sealing(self.shard, self.commits)
        self.in_flight: Coroutine[Any, Any, None] | None = None
        self._progress = LogProgress(self.wal.next_lsn, self.wal.synced_lsn, 0.0, 0.0)
        self._sync_to = 0
        self._progress_changed = threading.Condition()
        self._wal_enqueue, self._wal_flush = self.wal.writer.state.enqueue, self.wal.flush
        self.wal.writer.state.enqueue, self.wal.flush = self._enqueue, self._flush  # type: ignore[method-assign]

    # Each flush waits for the writer's thread, so that each step sees the same state in every run.

    def _enqueue(self, progress: LogProgress) -> None:
        with self._progress_changed:
            self._wal_enqueue(progress)
            self._progress = progress
            self._progress_changed.notify_all()

    def _flush(self, *, sync: bool, immediate: bool = True) -> LogProgress | None:
        progress = self._wal_flush(sync=sync, immediate=immediate)
        self._sync_to = self.wal._start if sync else self._sync_to
        with self._progress_changed:
            self._progress = progress or self._progress
            self._progress_changed.wait_for(self._is_idle)
        return progress

    def _is_idle(self) -> bool:
        progress = self._progress
        return progress.error is not None or (
            progress.written >= self.wal._start and progress.synced >= self._sync_to
        )

    def advance(self) -> None:
        """Commit the changes that the writer has written."""
        error = self._progress.error
        self.commits.advance()
        if isinstance(error, NoSpace):
            self._progress = replace(self._progress, error=None)
            self._sync_to = self.wal.synced_lsn

    def step(self) -> bool:
        """Run one step of a round, and commit the written changes for a round that waits for them.
        Return whether the round continues.
        """
        if self.in_flight is None:
            self.in_flight = self.sealing._round()
        try:
            self.in_flight.send(None)
        except StopIteration:
            self.in_flight = None
            return False
        except BaseException:
            self.in_flight = None
            raise
        self.advance()
        return True

    def seal(self) -> None:
        """Run the rest of the current round, or a complete round."""
        while self.step():
            pass

    def checkpoint(self) -> None:
        """Write a checkpoint, and free the files that the two newest checkpoints do not need."""
        self.seal()
        self.in_flight = self.sealing.checkpoint()
        while self.step():
            pass

    def cancel_round(self) -> None:
        """Cancel the current round, as a stop does."""
        if self.in_flight is not None:
            self.in_flight.close()
            self.in_flight = None

    def kill(self) -> None:
        self.cancel_round()
        super().kill()

    def stop(self) -> None:
        self.cancel_round()
        self.wal.stop()
        self.sealing.write_last()
        self.shard.segments.maps.close()

    def again(self, **options: Any) -> Sealer:
        """Start the shard again after a kill."""
        return Sealer(self.path, **{"now": self.now, "file_bytes": self.wal.file_bytes, **options})

    def page(self, name: str, from_seq: int = 0) -> Page:
        view = Diff(
            from_seq=from_seq,
            limit=100_000,
            include_tags=True,
            include_meta=True,
            max_batch_bytes=1 << 30,
        )
        topic = self.engine.topic(name)
        for seq in range(from_seq, topic.next_seq + 2, 1 + topic.next_seq // 16):
            self.commits.store.prefetch(topic, seq)  # of existing and of removed records
        return read(topic, view, self.commits.store)

    def shown(self, name: str) -> list[dict[str, Any]]:
        """Return all records with all members."""
        found: list[dict[str, Any]] = []
        seq = 0
        while True:
            page = self.page(name, seq)
            found += msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.chunks)))
            seq = page.next_from_seq
            if page.caught_up:
                return found


@contextlib.contextmanager
def ended(client: Sealer) -> Iterator[Sealer]:
    """Yield the client. Kill it afterwards, unless the test has stopped or killed it."""
    yield client
    client.cancel_round()
    if client.wal.writer._thread.is_alive():
        client.kill()
    # The test may have mapped segments since the kill, and a `Sealer` is in a reference cycle.
    client.shard.segments.maps.close()


def files(path: Path, kind: str) -> list[Path]:
    """Return all files except files that only reserve space."""
    return sorted(found for found in (path / kind / "00").iterdir() if found.suffix != ".reserve")


def finished(path: Path) -> list[Path]:
    """Return the complete checkpoints, oldest first."""
    return [found for found in files(path, "checkpoint") if found.suffix == ".ckpt"]


def findings(path: Path) -> list[Finding]:
    return [found for found in verify_directory(path, 1) if isinstance(found, Finding)]


def copy(source: Path, target: Path) -> Path:
    if target.exists():
        shutil.rmtree(target)
    return Path(shutil.copytree(source, target))


def damage_newest_checkpoint(path: Path) -> None:
    """Damage the newest checkpoint."""
    newest = finished(path)[-1]
    data = bytearray(newest.read_bytes())
    data[-1] ^= 1
    newest.write_bytes(data)


def no_syncs(patch: pytest.MonkeyPatch) -> None:
    """Disable syncs, for tests without power loss."""
    patch.setattr("os.fsync", lambda _: None)
    patch.setattr("os.fdatasync", lambda _: None)


Seen = dict[str, Any]


def seen(client: Sealer) -> Seen:
    """Return the state of all topics that readers and writers can observe."""
    return {name: _seen(client, name) for name in sorted(client.engine.topics)}


def _seen(client: Sealer, name: str) -> dict[str, Any]:
    topic = client.engine.topics[name]
    matches = (TagMatch("Eq", "even"), TagMatch("Glob", "o"))
    return {
        "id": topic.id,
        "config": topic.config,
        "head": topic.head_seq,
        "next": topic.next_seq,
        "count": topic.count,
        "bytes": topic.bytes,
        "earliest": topic.earliest_seq,
        "floors": (topic.cap_floor, topic.ttl_floor, topic.loss_floor),
        "keys": [row[:3] for row in topic.dedupe.rows(0, 1 << 62)],
        "records": client.shown(name),
        "tagged": [sorted(valid_topics(client, name, match)) for match in matches],
    }


def valid_topics(client: Sealer, name: str, match: TagMatch) -> set[int]:
    topic = client.engine.topics[name]
    return {*matching_seqs(topic, match, client.engine.store)} & {
        record["$seq"] for record in client.shown(name)
    }


def matching_seqs(topic: Topic, match: TagMatch, store: Store) -> list[int]:
    """Return the seqs of the matching live records in ascending order."""
    found, seqs = selection.select(topic, store, None, match), list[int]()
    while not found.is_exhausted:
        found.search()
        seqs += found.take()
    return seqs


def fill(client: Sealer, *names: str, rounds: int = 12, size: int = 60) -> None:
    for number in range(rounds):
        for name in names:
            tag = "odd" if number % 2 else "even"
            records = [
                {"data": [name, number], "tag": tag, "meta": {"m": "x" * size}},
                {"data": number, "node": "n", "tag": f"o{number}"},
            ]
            client.append(name, key=f"{name}{client.filled[name]}", records=records)
            client.filled[name] += 1


def sealed(client: Sealer, name: str) -> bool:
    locators = client.engine.topic(name).index.locators()
    return any(is_extent(locator) for locator in locators)


def check_kill_and_restart(client: Sealer, before: Seen) -> None:
    """Check that a kill and a start do not change the observable state."""
    client.kill()
    check_restart(client, before)


def check_restart(client: Sealer, before: Seen) -> None:
    """Check that a start of the stopped or killed shard restores the observable state."""
    again = client.again()
    assert seen(again) == before
    again.kill()


def delete(
    client: Sealer, name: str, before_seq: int | None = None, match: TagMatch | None = None
) -> None:
    client.submit(
        delete_records.decide(
            client.engine.table,
            delete_records.remaining_delete(client.engine.table, name, before_seq, match),
            client.now,
        )
    )
    client.wait()


def extents(client: Sealer) -> list[int]:
    """Return the locators of all extents in the indexes."""
    locators = [
        locator for topic in client.engine.by_id.values() for locator in topic.index.locators()
    ]
    return [locator for locator in locators if is_extent(locator)]


def free_all(client: Sealer) -> int:
    """Run rounds until there is nothing more to free. Return their number."""
    rounds = 0
    while rounds == 0 or client.sealing.reclaim.has_garbage:
        client.sealing.checkpoints.written_at = float("-inf")
        client.seal()
        rounds += 1
        assert rounds < 8, "freeing ends after a few rounds"
    return rounds
