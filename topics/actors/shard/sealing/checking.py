"""Sealing check: compares a log file with its checksums before its bytes get new ones (decision
0016).

    all frames, in the order of the file --damaged frame--> the writes behind it, by the index
        -> each blob that the frames name
        -> each payload that copies are read from, in whatever log it stands

The check changes nothing. It reports the damage, and the writes that must not be sealed.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from itertools import chain, islice
from typing import NamedTuple

from topics.engine.record_index import IndexEntry
from topics.engine.topic import Topic
from topics.formats.disk.blob import BadBlob, checking
from topics.formats.disk.copies import BadCopies, rows_of_frame
from topics.formats.disk.frames import FrameHeader, FrameKind, check_frame, scan_frames
from topics.formats.disk.records import RecordFlags
from topics.storage.disk import Damaged
from topics.storage.linked_logs import LinkedLogs, Payload
from topics.storage.mapped_file import MappedFile
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.file import WalFile
from topics.storage.wal.log import frame_in

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
        linked: LinkedLogs,
        topics: Mapping[int, Topic],
        writes_of: Writes,
    ) -> None:
        self._file, self._end, self._blobs, self._linked = file, end, blobs, linked
        self._topics, self._writes_of = topics, writes_of
        self._external: list[FrameHeader] = []  # frames whose records stand in a blob
        self._copies: list[FrameHeader] = []  # frames whose records are copies
        self._checked: dict[Payload, bool] = {}  # whether the payload is whole
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
        yield from self._in_steps(chain.from_iterable(map(self._check_copies, self._copies)))

    def _scan(self) -> Generator[None, None, int]:
        """The LSN up to which all frames are whole."""
        file, count = self._file, 1
        readable = file.size
        for start in range(0, file.size, STEP_BYTES):
            stop = min(start + STEP_BYTES, file.size)
            at = file.mapped().first_unreadable(start, stop)
            yield
            if at is not None:
                readable = at
                break
        view = file.view()[:readable]
        frames = scan_frames(view, file.offset(file.base), file.base, file.seed)
        begin = file.base
        while begin < self._end and (some := [*islice(frames, count)]):
            for header in some:
                self._note(header)
            end = some[-1].end
            count = min(max(STEP_BYTES * len(some) // (end - begin), 1), STEP_FRAMES)
            begin = end
            yield
        return begin

    def _note(self, header: FrameHeader) -> None:
        if header.kind == FrameKind.ROUTER:
            self._copies.append(header)
        elif header.flags & _EXTERNAL:
            self._external.append(header)

    def _check_writes(self, topic: Topic, lsn: int) -> Iterator[None]:
        """Check the topic's writes from ``lsn`` on, one by one."""
        file = self._file
        for count, entry in enumerate(self._writes_of(topic)):
            if entry.locator < lsn:
                continue
            found = _checked(file, entry.locator)
            if found is None:
                self.writes.append(DamagedWrite(topic, entry))
            else:
                self._note(found)
            if not count % STEP_FRAMES:
                yield

    def _check_blob(self, header: FrameHeader) -> Iterator[None]:
        topic = self._topics.get(header.topic_id)
        entry = _live_entry(topic, header) if topic is not None else None
        if topic is None or entry is None:
            return
        path = self._blobs.path(header.topic_id, header.first_seq)
        try:
            mapped, names = MappedFile.of(path), (header.topic_id, header.first_seq)
            yield from checking(mapped.data, *names, STEP_BYTES, mapped.can_read)
        except FileNotFoundError:
            damage = Damaged(path, 0, "blob named by the log is missing")
        except BadBlob as error:
            damage = Damaged(path, error.offset, f"blob {error}")
        else:
            return
        self.damage.append(damage)
        self.writes.append(DamagedWrite(topic, entry))

    def _check_copies(self, header: FrameHeader) -> Iterator[int]:
        """Yields the bytes of each step."""
        topic = self._topics.get(header.topic_id)
        entry = _live_entry(topic, header) if topic is not None else None
        if topic is None or entry is None:
            return
        _, body = frame_in(self._file, header.lsn)
        try:
            rows = rows_of_frame(header, body)
        except BadCopies as error:
            path, offset = self._file.path, self._file.offset(header.lsn)
            self.damage.append(Damaged(path, offset, str(error)))
            self.writes.append(DamagedWrite(topic, entry))
            return
        payloads = {(row.shard, row.lsn) for row in rows}
        for payload in sorted(payloads - self._checked.keys()):
            yield from self._check_payload(payload)
        if not all(map(self._checked.__getitem__, payloads)):
            self.writes.append(DamagedWrite(topic, entry))

    def _check_payload(self, payload: Payload) -> Iterator[int]:
        try:
            yield from self._linked.checking(*payload, STEP_BYTES)
        except Damaged as damage:
            self.damage.append(damage)
            self._checked[payload] = False
        else:
            self._checked[payload] = True

    def _in_steps(self, sizes: Iterable[int]) -> Iterator[None]:
        """Yields between two steps, each of about so many bytes or frames."""
        checked = count = 0
        for size in sizes:
            checked, count = checked + size, count + 1
            if checked >= STEP_BYTES or count >= STEP_FRAMES:
                yield
                checked = count = 0


def _checked(file: WalFile, lsn: int) -> FrameHeader | None:
    """The frame at ``lsn`` if it is whole."""
    try:
        frame_in(file, lsn)
    except Damaged:
        return None
    found = check_frame(file.view(), file.offset(lsn), lsn, file.seed)
    return found if isinstance(found, FrameHeader) else None


def _live_entry(topic: Topic, header: FrameHeader) -> IndexEntry | None:
    """The index entry of the frame's write, if one of its records lives."""
    index = topic.index.find(header.first_seq)
    entry = topic.index.whole_entry(index) if index < len(topic.index) else None
    if entry is None or not entry.size or entry.locator != header.lsn:
        return None
    return entry
