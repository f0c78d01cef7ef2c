"""Integrity check before sealing: a log file is compared with its checksums before its bytes get
new ones.

All frames are checked in the order of the file, then each blob that they speak of. Only when a
frame is damaged is the index asked, which knows where the writes behind it stand. Nothing is
changed here.
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

# What a step checks at most, longer frames apart: it takes less than a millisecond.
STEP_BYTES = 1 << 20
STEP_FRAMES = 512
_EXTERNAL = int(RecordFlags.EXTERNAL)

Writes = Callable[[Topic], Iterator[IndexEntry]]
"""A topic's writes in the file."""


class DamagedWrite(NamedTuple):
    """A write that is not to be sealed."""

    topic: Topic
    entry: IndexEntry


class SealingCheck:
    """Checks one log file up to ``end``. Afterwards: all ``damage``, and the ``writes`` that it
    hit.
    """

    def __init__(
        self,
        file: WalFile,
        end: int,
        blobs: BlobStore,
        touched: Mapping[int, Topic],
        writes_of: Writes,
    ) -> None:
        self._file, self._end, self._blobs = file, end, blobs
        self._touched, self._writes_of = touched, writes_of
        self._external: list[FrameHeader] = []
        self.damage: list[Damaged] = []
        self.writes: list[DamagedWrite] = []

    def steps(self) -> Iterator[None]:
        """Check, with others between two steps."""
        reached = yield from self._scan()
        if reached < self._end:
            self.damage.append(
                Damaged(
                    self._file.path,
                    self._file.offset(reached),
                    "damaged frame in a log file that is sealed",
                )
            )
            for topic in tuple(self._touched.values()):
                yield from self._look_behind(topic, reached)
        for header in self._external:
            yield from self._check_blob(header)

    def _scan(self) -> Generator[None, None, int]:
        """Position up to which all frames are whole."""
        file, count = self._file, 1
        frames = scan_frames(file.view(), file.offset(file.base), file.base, file.seed)
        begin = file.base
        while begin < self._end and (some := [*islice(frames, count)]):
            self._external += [header for header in some if header[11] & _EXTERNAL]
            end = some[-1].end
            count = min(max(STEP_BYTES * len(some) // (end - begin), 1), STEP_FRAMES)
            begin = end
            yield
        return begin

    def _look_behind(self, topic: Topic, position: int) -> Iterator[None]:
        """Check the topic's writes from ``position`` on, one by one."""
        file = self._file
        for count, entry in enumerate(self._writes_of(topic)):
            if entry.locator < position:
                continue
            found = check_frame(file.view(), file.offset(entry.locator), entry.locator, file.seed)
            if not isinstance(found, FrameHeader):
                self.writes.append(DamagedWrite(topic, entry))
            elif found.flags & _EXTERNAL:
                self._external.append(found)
            if not count % STEP_FRAMES:
                yield

    def _check_blob(self, header: FrameHeader) -> Iterator[None]:
        topic = self._touched.get(header.topic_id)
        entry = _entry_at(topic, header) if topic is not None else None
        if topic is None or entry is None:
            return
        path = self._blobs.path(header.topic_id, header.first_seq)
        try:
            yield from checking(mapped(path), header.topic_id, header.first_seq, STEP_BYTES)
        except (BadBlob, FileNotFoundError) as error:
            reason = (
                "the log speaks of it, and it is not there"
                if isinstance(error, OSError)
                else f"blob {error}"
            )
            self.damage.append(Damaged(path, getattr(error, "offset", 0), reason))
            self.writes.append(DamagedWrite(topic, entry))


def _entry_at(topic: Topic, header: FrameHeader) -> IndexEntry | None:
    """The write that the frame holds, if something of it lives."""
    frames = topic.index
    index = frames.find(header.first_seq)
    entry = frames.whole_entry(index) if index < len(frames) else None
    return entry if entry is not None and entry.size and entry.locator == header.lsn else None
