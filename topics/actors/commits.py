"""Changes between decision and answer: they wait here until the log is far enough, and are committed in order."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator

from topics.engine.shard import Append, Change, Now, ShardEngine
from topics.formats.records import RecordsView
from topics.formats.wal import FrameKind
from topics.storage.wal import Progress, Wal
from topics.storage.wal_file import NoRoom

# Places of records that are kept in memory only have this bit; the log never grows to it.
RESIDENT = 1 << 63

Settle = Callable[[Progress | OSError], None]


class Waiting:
    """A change on its way; ``settle`` is called with the progress that made it durable, or with the error that lost it."""

    __slots__ = ("change", "end", "place", "serial", "settle")

    def __init__(self, change: Change, place: int, end: int, serial: int, settle: Settle | None) -> None:
        self.change, self.place, self.end, self.serial, self.settle = change, place, end, serial, settle


class Commits:
    """The only way from a decided `Change` into the log and back to the engine."""

    def __init__(self, engine: ShardEngine, wal: Wal, clock: Callable[[], Now]) -> None:
        self.engine, self.wal, self._clock = engine, wal, clock
        self._until_written: deque[Waiting] = deque()
        self._until_synced: deque[Waiting] = deque()
        self._serial = 0
        self._resident: dict[int, RecordsView] = {}
        self._sync_wanted = False
        self.on_commit: Callable[[Change], None] = lambda _: None

    def __len__(self) -> int:
        return len(self._until_written) + len(self._until_synced)

    def records(self, place: int) -> RecordsView:
        """Records at a place that was given to `ShardEngine.commit`."""
        return self._resident[place] if place & RESIDENT else self.wal.records(place)

    def submit(self, change: Change, settle: Settle | None) -> None:
        """Put the change's frames into the group under way. `flush` sends the group off."""
        place = 0
        for frame in change.frames:
            at = self.wal.append(frame)
            if frame.kind is FrameKind.APPEND:
                place = at
        self._serial += 1
        if isinstance(change, Append) and change.resident is not None:
            place = self._keep(change)
        waiting = Waiting(change, place, self.wal.position, self._serial, settle)
        if change.sync:
            self._sync_wanted = True
            self._until_synced.append(waiting)
        elif change.frames or change.topic.pending > 1:
            self._until_written.append(waiting)
        else:
            self._commit(waiting, Progress(0, 0, 0.0, 0.0))

    def _keep(self, change: Append) -> int:
        encoded = change.resident
        assert encoded is not None
        place = RESIDENT | self._serial
        body = memoryview(b"".join(encoded.parts))
        self._resident[place] = RecordsView(encoded.flags, encoded.record_count, len(encoded.ext), body)
        change.resident = None
        return place

    def drop_resident(self, places: Iterator[int]) -> None:
        """Forget records that were in memory only, when their topic goes."""
        for place in places:
            self._resident.pop(place, None)

    def flush(self) -> None:
        """Hand the group to the writer. Once for each batch of messages, so that they share a write and a sync."""
        self.wal.flush(sync=self._sync_wanted)
        self._sync_wanted = False

    def advance(self) -> OSError | None:
        """Commit and answer what the log has reached; the error that made it stop, if it did."""
        for progress in self.wal.take_progress():
            if progress.error is not None:
                self._lose(progress.error)
                if not isinstance(progress.error, NoRoom):
                    return progress.error
                self.wal.resume(progress.written)
                continue
            self._settle_up_to(self._until_written, progress.written, progress)
            self._settle_up_to(self._until_synced, progress.synced, progress)
        return None

    def _settle_up_to(self, queue: deque[Waiting], position: int, progress: Progress) -> None:
        while queue and queue[0].end <= position:
            self._commit(queue.popleft(), progress)

    def _commit(self, waiting: Waiting, progress: Progress) -> None:
        self.engine.commit(waiting.change, waiting.place, self._clock())
        if waiting.settle is not None:
            waiting.settle(progress)
        self.on_commit(waiting.change)

    def _lose(self, error: OSError) -> None:
        lost = sorted((*self._until_written, *self._until_synced), key=lambda waiting: waiting.serial, reverse=True)
        self._until_written.clear()
        self._until_synced.clear()
        for waiting in lost:
            self.engine.undo(waiting.change)
            if waiting.place & RESIDENT:
                self._resident.pop(waiting.place, None)
        for waiting in reversed(lost):
            if waiting.settle is not None:
                waiting.settle(error)
