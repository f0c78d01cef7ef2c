"""Sealing check: verifies a log file's checksums before its records are copied (decision 0016).

    1. Check all frames in file order, up to the first damaged frame.
    2. Find the writes after a damaged frame through the index, and check them.
    3. Check each blob to which the frames refer.
    4. Find the copies that are read from a damaged blob.

The check changes nothing. It reports the damage, and the writes that must not be sealed.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from itertools import islice

from topics.actors.shard.sealing.sources import LogFile
from topics.engine.record_index import IndexEntry
from topics.engine.topic import Topic
from topics.formats.disk.blob import BadBlob, checking
from topics.formats.disk.copies import is_row
from topics.formats.disk.frames import FrameHeader, FrameKind, check_frame, scan_frames
from topics.formats.disk.records import RecordFlags
from topics.storage.disk import Damaged
from topics.storage.frame_reader import forward_at, frame_in, frame_lsn
from topics.storage.mapped_file import MappedFile
from topics.storage.wal.blobs import BlobStore
from topics.storage.wal.log_file import WalFile

# Upper bounds for one step, unless a frame is longer. A step takes less than a millisecond.
STEP_BYTES = 1 << 20
STEP_FRAMES = 512
_EXTERNAL = int(RecordFlags.EXTERNAL)


class SealingCheck:
    """Checks a log file up to the end of ``sealed``.

    Afterwards ``damage`` contains all damage, and ``writes`` the damaged writes.
    """

    def __init__(self, file: WalFile, sealed: LogFile, blobs: BlobStore) -> None:
        self._file, self._sealed, self._blobs = file, sealed, blobs
        # All frames before this LSN are intact. If nothing is damaged, the scan advances it to the
        # end of the sealed part.
        self._reached = file.base
        self._intact: dict[int, FrameHeader | None] = {}  # checked frames by LSN; None: damaged
        self._external: list[FrameHeader] = []  # frames whose records are in a blob
        self._forwards: list[FrameHeader] = []  # frames that may refer to a frame with a blob
        self._bad_blobs: set[int] = set()  # LSNs of the frames whose blob is damaged
        self.damage: list[Damaged] = []
        self.writes: list[tuple[Topic, IndexEntry]] = []

    def steps(self) -> Iterator[None]:
        """Run the check. Yields between two steps."""
        # The usual case: all frames are intact, and no write needs to be looked up.
        yield from self._scan()
        # If a frame is damaged, later frames cannot be found by a scan, but only by the index.
        if self._reached < self._sealed.end:
            offset = self._file.offset(self._reached)
            reason = "damaged frame in a log file that is being sealed"
            self.damage.append(Damaged(self._file.path, offset, reason))
            for span in self._sealed.spans.values():
                yield from self._check_writes(span.topic)
        # Frames may be intact while their blobs are not.
        for header in self._external:
            yield from self._check_blob(header)
        # Now all damaged blobs are known. Copies that are read from them are also lost.
        if self._bad_blobs:
            yield from map(self._check_forward, self._forwards)

    def _scan(self) -> Iterator[None]:
        """Find the LSN up to which all frames are intact."""
        file, count = self._file, 1
        readable = file.size
        # Find the first unreadable page, so that the scan does not touch it.
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
        while begin < self._sealed.end and (some := [*islice(frames, count)]):
            # Check a number of frames that takes about `STEP_BYTES`, estimated from the last
            # step.
            for header in some:
                self._note(header)
            end = some[-1].end
            count = min(max(STEP_BYTES * len(some) // (end - begin), 1), STEP_FRAMES)
            begin = self._reached = end
            yield

    def _note(self, header: FrameHeader) -> None:
        if header.kind == FrameKind.FORWARD:
            if self._external:  # a frame precedes the frames that refer to it
                self._forwards.append(header)
        elif header.flags & _EXTERNAL:
            self._external.append(header)

    # Writes after a damaged frame

    def _check_writes(self, topic: Topic) -> Iterator[None]:
        """Check the topic's writes after the damage, one at a time."""
        for count, entry in enumerate(self._sealed.writes(topic)):
            # Writes before the damage were checked by the scan.
            if entry.locator >= self._reached and not self._is_intact(entry.locator):
                self.writes.append((topic, entry))
            if not count % STEP_FRAMES:
                yield

    def _is_intact(self, locator: int) -> bool:
        """Return whether the frame of a write and all frames to which it refers are intact."""
        try:
            lsn = frame_lsn(self._file, locator)
        except Damaged:
            return False
        header = self._frame(lsn)
        if header is None or (header.kind == FrameKind.FORWARD) != is_row(locator):
            return False
        if header.kind != FrameKind.FORWARD:
            return True
        # The copies of a frame are readable only if each frame to which it refers is intact.
        named = {run.lsn for run in forward_at(self._file, lsn)[1].runs}
        return all(each < self._reached or self._frame(each) for each in named)

    def _frame(self, lsn: int) -> FrameHeader | None:
        """Return the frame at ``lsn``, if it is intact."""
        # Several writes may refer to the same frame, so each result is kept.
        if lsn not in self._intact:
            file = self._file
            found = None
            if lsn >= file.base:
                with contextlib.suppress(Damaged):
                    frame_in(file, lsn)  # raises if a part of it is unreadable
                    found = check_frame(file.view(), file.offset(lsn), lsn, file.seed)
            self._intact[lsn] = found if isinstance(found, FrameHeader) else None
            if isinstance(found, FrameHeader):
                self._note(found)
        return self._intact[lsn]

    # Blobs, and records that are read from them

    def _check_blob(self, header: FrameHeader) -> Iterator[None]:
        path = self._blobs.path(header.topic_id, header.first_seq)
        if not self._blobs.is_added(header.topic_id, header.first_seq):
            return  # the topic of the blob has been deleted, and no copy uses the blob
        try:
            mapped, names = MappedFile.of(path), (header.topic_id, header.first_seq)
            yield from checking(mapped.data, *names, STEP_BYTES, mapped.can_read)
        except FileNotFoundError:
            damage = Damaged(path, 0, "blob of the log is missing")
        except BadBlob as error:
            damage = Damaged(path, error.offset, f"blob {error}")
        else:
            return
        self.damage.append(damage)
        self._bad_blobs.add(header.lsn)
        self._mark_damaged(header.topic_id, header.first_seq, header.lsn)

    def _check_forward(self, header: FrameHeader) -> None:
        _, held = forward_at(self._file, header.lsn)
        # Do nothing if no copy of this frame is read from a damaged blob.
        if self._bad_blobs.isdisjoint(run.lsn for run in held.runs):
            return
        for row in held.rows:
            self._mark_damaged(row.topic_id, row.first_seq, header.lsn + row.back)

    def _mark_damaged(self, topic_id: int, first_seq: int, locator: int) -> None:
        """Add the write to ``writes`` as damaged if one of its records is live."""
        span = self._sealed.spans.get(topic_id)
        if span is None:
            return
        topic = span.topic
        index = topic.index.find(first_seq)
        entry = topic.index.full_entry(index) if index < len(topic.index) else None
        # The write may have been deleted or evicted since, or be in a segment already.
        if entry is not None and entry.size and entry.locator == locator:
            self.writes.append((topic, entry))
