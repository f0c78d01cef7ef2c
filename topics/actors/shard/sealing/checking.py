"""Sealing check: compares a log file with its checksums before its bytes get new ones (decision
0016).

    all frames, in the order of the file --damaged frame--> the writes behind it, by the index
        -> each blob that the frames name

The check changes nothing. It reports the damage, and the writes that must not be sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping
from itertools import islice
from typing import NamedTuple

from topics.engine.record_index import IndexEntry
from topics.engine.topic import Topic
from topics.formats.disk.blob import BadBlob, checking
from topics.formats.disk.frames import FrameHeader, check_frame, scan_frames
from topics.formats.disk.records import RecordFlags
from topics.storage.disk import Damaged, mapped
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import WalFile

# A step checks so much at most, unless one frame is longer. It takes less than a millisecond.
STEP_BYTES = 1 << 20
STEP_FRAMES = 512
_EXTERNAL = int(RecordFlags.EXTERNAL)

Writes = Callable[[Topic], Iterator[IndexEntry]]
"""The topic's unsealed writes in the file."""


class DamagedWrite(NamedTuple):
    """A write that must not be sealed."""

    topic: Topic
    entry: IndexEntry


class SealingCheck:
    """Checks one log file up to ``end``. Afterwards ``damage`` has all damage, and ``writes`` the
    writes that it hit.
    """

    def __init__(
        self,
        file: WalFile,
        end: int,
        blobs: BlobStore,
        topics: Mapping[int, Topic],
        writes_of: Writes,
    ) -> None:
        self._file, self._end, self._blobs = file, end, blobs
        self._topics, self._writes_of = topics, writes_of
        self._external: list[FrameHeader] = []  # frames whose records stand in a blob
        self.damage: list[Damaged] = []
        self.writes: list[DamagedWrite] = []

    def steps(self) -> Iterator[None]:
        """Check; yields between two steps."""
        reached = yield from self._scan()
        if reached < self._end:
            offset = self._file.offset(reached)
            reason = "damaged frame in a log file that is sealed"
            self.damage.append(Damaged(self._file.path, offset, reason))
            for topic in tuple(self._topics.values()):
                yield from self._check_writes(topic, reached)
        for header in self._external:
            yield from self._check_blob(header)

    def _scan(self) -> Generator[None, None, int]:
        """The LSN up to which all frames are whole."""
        file, count = self._file, 1
        frames = scan_frames(file.view(), file.offset(file.base), file.base, file.seed)
        begin = file.base
        while begin < self._end and (some := [*islice(frames, count)]):
            self._external += [header for header in some if header.flags & _EXTERNAL]
            end = some[-1].end
            count = min(max(STEP_BYTES * len(some) // (end - begin), 1), STEP_FRAMES)
            begin = end
            yield
        return begin

    def _check_writes(self, topic: Topic, lsn: int) -> Iterator[None]:
        """Check the topic's writes from ``lsn`` on, one by one."""
        file = self._file
        for count, entry in enumerate(self._writes_of(topic)):
            if entry.locator < lsn:
                continue
            found = check_frame(file.view(), file.offset(entry.locator), entry.locator, file.seed)
            if not isinstance(found, FrameHeader):
                self.writes.append(DamagedWrite(topic, entry))
            elif found.flags & _EXTERNAL:
                self._external.append(found)
            if not count % STEP_FRAMES:
                yield

    def _check_blob(self, header: FrameHeader) -> Iterator[None]:
        topic = self._topics.get(header.topic_id)
        entry = _live_entry(topic, header) if topic is not None else None
        if topic is None or entry is None:
            return
        path = self._blobs.path(header.topic_id, header.first_seq)
        try:
            yield from checking(mapped(path), header.topic_id, header.first_seq, STEP_BYTES)
        except FileNotFoundError:
            damage = Damaged(path, 0, "blob named by the log is missing")
        except BadBlob as error:
            damage = Damaged(path, error.offset, f"blob {error}")
        else:
            return
        self.damage.append(damage)
        self.writes.append(DamagedWrite(topic, entry))


def _live_entry(topic: Topic, header: FrameHeader) -> IndexEntry | None:
    """The index entry of the frame's write, if one of its records lives."""
    index = topic.index.find(header.first_seq)
    entry = topic.index.whole_entry(index) if index < len(topic.index) else None
    if entry is None or not entry.size or entry.locator != header.lsn:
        return None
    return entry
