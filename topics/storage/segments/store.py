"""Segment files of one shard (formats/disk/segment.py): written aside in one go, then mapped and
read in place.

Only delete flags change, in place, and never before the log has the delete for good: until then
they stand in memory.

A segment costs two bytes for each of its extents; maps are made when a reader comes and the least
recently used one is let go, so that a scan of everything leaves memory as it was. What a reader
still holds keeps its map.
"""

from __future__ import annotations

import ctypes
import errno
import os
import threading
from array import array
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Iterator, Sequence, Set
from pathlib import Path
from typing import NamedTuple

import crc32c

from topics.formats.buffers import Buffer
from topics.formats.disk.extent_view import ExtentView
from topics.formats.disk.segment import (
    ENTRY_BYTES,
    HEADER_BYTES,
    TRAILER_BYTES,
    BadSegment,
    ExtentEntry,
    SegmentHeader,
    Trailer,
    check_directory,
    decode_directory,
    decode_entry,
    decode_header,
    decode_trailer,
    padding,
)
from topics.storage.disk import (
    NOT_SUPPORTED,
    Damaged,
    check_room,
    make_directory,
    mapped,
    sync_directory,
    write_again,
    write_all,
    write_back,
)

SEGMENT_PLACE = 1 << 62
EXTENT_BITS = 24
_EXTENT_MASK = (1 << EXTENT_BITS) - 1
MAPPED_MAX = 4
VIEWS_MAX = 1024  # of one map; more are made again
MARK_BYTES = 4096  # flags are written by blocks of so many
FINDINGS_MAX = 100
SUFFIX = ".seg"
_PUNCH_HOLE, _KEEP_SIZE = 2, 1
_GONE = {
    errno.ENOENT,
    errno.EIO,
    errno.EBADMSG,
    errno.EUCLEAN,
}  # as opposed to what lies in the process


def place_of(number: int, extent: int) -> int:
    """Where an index finds this extent of this segment."""
    return SEGMENT_PLACE | number << EXTENT_BITS | extent


def split_locator(locator: int) -> tuple[int, int]:
    """``(segment's number, extent's number)``."""
    return (locator & ~SEGMENT_PLACE) >> EXTENT_BITS, locator & _EXTENT_MASK


def segment_path(folder: Path, number: int) -> Path:
    """File of a segment."""
    return folder / f"{number:010x}{SUFFIX}"


class SegmentWriter:
    """A segment on its way to the disk: `write` what `segment_build.build` gives, then `finish`.
    Use a thread.
    """

    def __init__(self, folder: Path, header: SegmentHeader) -> None:
        """Raises OSError."""
        self.header, self.path = header, segment_path(folder, header.number)
        self._aside = self.path.with_suffix(".tmp")
        self._offset = 0
        self._fd = os.open(self._aside, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)

    def write(self, pieces: Sequence[Buffer]) -> None:
        """Append to the file."""
        begin = self._offset
        self._offset += sum(map(len, pieces))
        check_room(self.path.parent, self._offset - begin)
        write_all(self._fd, pieces, begin)
        write_back(self._fd, begin, self._offset - begin)

    def finish(self) -> Segment:
        """Make the file durable under its name, and open it."""
        os.fdatasync(self._fd)
        self._close()
        self._aside.replace(self.path)
        sync_directory(self.path.parent)
        segment = Segment(self.path, self.header.shard, self.header.number)
        segment.check_tables()
        return segment

    def abandon(self) -> None:
        """Leave nothing behind."""
        self._close()
        self._aside.unlink(missing_ok=True)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


class Segment:
    """A whole segment file. Opening reads its header, directory and flags."""

    def __init__(self, path: Path, shard: int, number: int) -> None:
        """Raises `Damaged`."""
        self.path, self.number = path, number
        self.on_damage: Callable[[Damaged], None] = lambda _: None
        self.findings: list[str] = []  # flags that are neither 0 nor 1; their records are live
        try:
            with path.open("rb") as file:
                self.header, self.trailer, directory, flags = _read_ends(file.fileno())
        except FileNotFoundError as error:
            raise Damaged(path, 0, "the checkpoint speaks of it, and it is not there") from error
        except BadSegment as error:
            raise Damaged(path, error.offset, f"segment {error.reason}") from error
        if (self.header.shard, self.header.number) != (shard, number):
            raise Damaged(
                path, 0, f"belongs to shard {self.header.shard}, number {self.header.number}"
            )
        self.size = self.trailer.file_length
        self.has_dead = bytearray(self.trailer.entry_count)
        self.checked = bytearray(
            self.trailer.entry_count
        )  # extents whose tables were found whole: a delete looks into all of a topic
        if flags.count(0) != len(flags):
            self._note_flags(directory, flags)

    def _note_flags(self, directory: bytes, flags: bytes) -> None:
        at = self.trailer.flags_at
        for extent, entry in enumerate(decode_directory(directory)):
            start = entry.flags_at - at
            part = flags[start : start + entry.record_count]
            self.has_dead[extent] = 1 in part
            if part.translate(None, b"\0\1"):
                strange = [index for index, flag in enumerate(part) if flag > 1]
                self.findings += [
                    f"{self.path}, offset {entry.flags_at + index}: delete flag {part[index]}"
                    for index in strange
                ]
        del self.findings[FINDINGS_MAX:]

    def damaged(self, offset: int, reason: str) -> Exception:
        """What a reader is to raise."""
        damage = Damaged(self.path, offset, reason)
        self.on_damage(damage)
        return damage

    def check_tables(self) -> None:
        """Look at all tables now, so that the first delete of a tag need not. May run in a thread;
        what is wrong is found again.
        """
        with self.path.open("rb") as file:
            for extent, entry in enumerate(self.entries()):
                tables = os.pread(file.fileno(), entry.tables_len, entry.tables_at)
                self.checked[extent] = crc32c.crc32c(tables) == entry.tables_crc

    def entries(self) -> Iterator[ExtentEntry]:
        """All extents, read from the file."""
        with self.path.open("rb") as file:
            return decode_directory(
                os.pread(
                    file.fileno(), ENTRY_BYTES * self.trailer.entry_count, self.trailer.directory_at
                )
            )


def _read_ends(fd: int) -> tuple[SegmentHeader, Trailer, bytes, bytes]:
    size = os.fstat(fd).st_size
    header = decode_header(os.pread(fd, HEADER_BYTES, 0))
    trailer = decode_trailer(os.pread(fd, TRAILER_BYTES, max(size - TRAILER_BYTES, 0)), size)
    directory = os.pread(fd, ENTRY_BYTES * trailer.entry_count, trailer.directory_at)
    check_directory(directory, trailer)
    return header, trailer, directory, os.pread(fd, trailer.record_count, trailer.flags_at)


class _Mapped:
    """A segment in memory, with the views of it that were asked for."""

    def __init__(self, segment: Segment) -> None:
        """Raises `Damaged`, and OSError when it may be read another time."""
        self._segment = segment
        try:
            self.data = mapped(segment.path)
        except OSError as error:
            if error.errno not in _GONE:
                raise
            raise segment.damaged(0, error.strerror or "cannot be read") from error
        if len(self.data) != segment.size:
            raise segment.damaged(len(self.data), "the segment is cut")
        self.views: dict[int, ExtentView] = {}

    def entry(self, extent: int) -> ExtentEntry:
        return decode_entry(self.data, self._segment.trailer.directory_at + ENTRY_BYTES * extent)

    def view(self, extent: int) -> ExtentView:
        view = self.views.get(extent)
        if view is None:
            if len(self.views) >= VIEWS_MAX:
                self.views.clear()
            checked = self._segment.checked
            view = ExtentView(
                self.entry(extent), self.data, self._segment.damaged, checked=checked[extent] == 1
            )
            self.views[extent], checked[extent] = view, 1
        return view


class _Mark(NamedTuple):
    """Records of an extent that are deleted. Their flags are set in the file once the log is synced
    up to ``position``.
    """

    position: int
    locator: int
    indexes: Sequence[int]


class _Flags:
    """Flags of an extent as readers are to see them, while ``waiting`` marks of it are not in the
    file.
    """

    __slots__ = ("data", "waiting")

    def __init__(self, data: bytearray) -> None:
        self.data, self.waiting = data, 0


class SegmentStore:
    """All segments of a shard that count. One thread at a time may change files; `mark` may be
    called meanwhile.
    """

    def __init__(self, folder: Path, shard: int, *, mapped_max: int = MAPPED_MAX) -> None:
        self.folder, self.shard = folder, shard
        self.segments: dict[int, Segment] = {}
        self._mapped: OrderedDict[int, _Mapped] = OrderedDict()
        self._mapped_max = mapped_max
        self.damage: list[Damaged] = []  # found before somebody wanted to be told
        self.on_damage: Callable[[Damaged], None] = self._note
        self._dirty: set[int] = set()
        self._marks: deque[_Mark] = deque()  # that no file has yet, by position
        self._flags: dict[int, _Flags] = {}  # of their extents, by place
        self._lock = (
            threading.Lock()
        )  # of these two: `write_marks` takes some while `mark` adds others
        make_directory(folder)

    @classmethod
    def open(
        cls, folder: Path, shard: int, numbers: Iterable[int], *, kept: Set[int] = frozenset(), mapped_max: int = MAPPED_MAX,
        beat: Callable[[], None] = lambda: None,
    ) -> SegmentStore:  # fmt: skip
        """Exactly the segments with these numbers; files of other numbers than ``kept`` are
        removed. Raises `Damaged`.

        ``beat`` is called after each file.
        """
        store = cls(folder, shard, mapped_max=mapped_max)
        for number in sorted(numbers):
            segment = Segment(segment_path(folder, number), shard, number)
            store.add(segment)
            if (
                1 in segment.has_dead
            ):  # set by a process that was killed before it synced, for all we know
                store._dirty.add(number)
            beat()
        wanted = {segment_path(folder, number) for number in {*store.segments, *kept}}
        for path in folder.iterdir():
            beat()
            if path not in wanted:
                path.unlink()
        return store

    def begin(self, number: int, base: int, end: int) -> SegmentWriter:
        """A new segment for the positions ``base`` to ``end`` of the log. Raises OSError."""
        return SegmentWriter(self.folder, SegmentHeader(self.shard, number, base, end))

    def add(self, segment: Segment) -> None:
        """From now on it counts."""
        segment.on_damage = lambda damage: self.on_damage(damage)
        self.segments[segment.number] = segment

    def entries(self, number: int) -> Iterator[tuple[int, ExtentEntry]]:
        """``(place, entry)`` of each extent of a segment."""
        return (
            (place_of(number, extent), entry)
            for extent, entry in enumerate(self.segments[number].entries())
        )

    @property
    def findings(self) -> list[str]:
        """What was strange, and not bad enough to stop."""
        return [finding for segment in self.segments.values() for finding in segment.findings]

    @property
    def mapped_count(self) -> int:
        """How many segments are mapped."""
        return len(self._mapped)

    # Reading

    def records(self, locator: int) -> ExtentView:
        """The extent at ``place``. It, and whatever is read of it, raises `Damaged`. Valid as long
        as it is held.
        """
        number, extent = split_locator(locator)
        return self._map(number).view(extent)

    def entry(self, locator: int) -> ExtentEntry:
        """What the directory says of the extent at ``place``."""
        number, extent = split_locator(locator)
        return self._map(number).entry(extent)

    def dead(self, locator: int) -> memoryview | None:
        """Delete flags of the extent at ``place`` as they are now; None while none is set."""
        number, extent = split_locator(locator)
        if not self.segments[number].has_dead[extent]:
            return None
        if self._flags and (flags := self._flags.get(locator)) is not None:
            return memoryview(flags.data)
        return self._flags_in_file(number, extent)

    def _flags_in_file(self, number: int, extent: int) -> memoryview:
        held = self._map(number)
        entry = held.entry(extent)
        return held.data[entry.flags_at : entry.flags_at + entry.record_count]

    def all_dead(self, locator: int) -> bool:
        """Whether each record of the extent is deleted."""
        dead = self.dead(locator)
        return dead is not None and bytes(dead).count(1) == len(dead)

    def has_tables(self, locator: int) -> bool:
        """Whether the extent's tables are whole; they are gone once its room was given back."""
        number, extent = split_locator(locator)
        held = self._map(number)
        entry = held.entry(extent)
        tables = held.data[entry.tables_at : entry.tables_at + entry.tables_len]
        return bool(crc32c.crc32c(tables) == entry.tables_crc)

    def _map(self, number: int) -> _Mapped:
        held = self._mapped.get(number)
        if held is None:
            held = self._mapped[number] = _Mapped(self.segments[number])
            if len(self._mapped) > self._mapped_max:
                self._mapped.popitem(last=False)
        else:
            self._mapped.move_to_end(number)
        return held

    def _note(self, damage: Damaged) -> None:
        if len(self.damage) < FINDINGS_MAX:
            self.damage.append(damage)

    # Deleting

    def marks_due(self, position: int) -> bool:
        """Whether `write_marks` has something to do."""
        return bool(self._marks) and self._marks[0].position <= position

    def mark(self, locator: int, indexes: Iterable[int], position: int) -> None:
        """These records are deleted. Readers see it at once, the file when the log is synced up to
        ``position``, which never falls.

        A mark that was in its file earlier could outlive its delete in a power loss: records would
        be gone that nothing has taken.
        """
        marked = array("I", indexes)
        if not marked:
            return
        number, extent = split_locator(locator)
        with self._lock:
            flags = self._flags.get(locator)
            if flags is None:
                flags = self._flags[locator] = _Flags(
                    bytearray(self._flags_in_file(number, extent))
                )
            for index in marked:
                flags.data[index] = 1
            flags.waiting += 1
            self._marks.append(_Mark(position, locator, marked))
            self.segments[number].has_dead[extent] = 1

    def write_marks(self, position: int) -> None:
        """The log is synced up to here: give the marks that waited for that to their files. Takes
        its time: for a thread.

        Raises OSError: what is left is tried again the next time.
        """
        while self.marks_due(position):
            _, locator, indexes = self._marks[0]
            number, extent = split_locator(locator)
            if number in self.segments:
                _mark_in_file(self.segments[number], extent, indexes)
                self._dirty.add(number)
            with self._lock:
                self._marks.popleft()
                self._written(locator)

    def _written(self, locator: int) -> None:
        flags = self._flags.get(locator)
        if flags is not None:  # or the extent has been punched
            flags.waiting -= 1
            if not flags.waiting:
                del self._flags[locator]

    def sync(self, position: int) -> None:
        """Make the marks of all deletes before ``position`` durable; the log is synced up to there.
        For a thread. Raises OSError.
        """
        self.write_marks(position)
        while self._dirty:
            number = next(iter(self._dirty))
            if number in self.segments:
                self._sync(self.segments[number])
            self._dirty.discard(number)

    def _sync(self, segment: Segment) -> None:
        try:
            _sync(segment.path)
        except OSError:
            # The next sync would succeed, though what this one has not written is lost: have all of
            # it written again.
            with self._lock, segment.path.open("rb") as file:
                for extent in [extent for extent, dead in enumerate(segment.has_dead) if dead]:
                    self._write_again(file.fileno(), segment, extent)
            raise

    def write_flags_again(self) -> None:
        """After an end that was not clean: a sync may have failed, and the kernel takes flags for
        written that no disk has.
        """
        for number in self._dirty:
            segment = self.segments[number]
            fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
            try:
                for extent in [extent for extent, dead in enumerate(segment.has_dead) if dead]:
                    entry = _entry(fd, segment, extent)
                    write_again(fd, entry.flags_at, entry.record_count)
            finally:
                os.close(fd)

    def _write_again(self, fd: int, segment: Segment, extent: int) -> None:
        entry, locator = _entry(fd, segment, extent), place_of(segment.number, extent)
        data = os.pread(fd, entry.record_count, entry.flags_at)
        self._flags.setdefault(locator, _Flags(bytearray(data))).waiting += 1
        self._marks.appendleft(
            _Mark(0, locator, array("I", (index for index, flag in enumerate(data) if flag == 1)))
        )

    def punch(self, locators: Iterable[int]) -> None:
        """Give the room of these extents back; nobody may ask for their records again. May run in a
        thread.

        All their flags are set first, durably: an extent of zeros is damage only where a record is
        live.
        """
        by_segment: dict[int, list[int]] = {}
        for locator in locators:
            number, extent = split_locator(locator)
            by_segment.setdefault(number, []).append(extent)
        for number, extents in by_segment.items():
            self._punch(self.segments[number], extents)

    def _punch(self, segment: Segment, extents: list[int]) -> None:
        fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
        try:
            entries = [_entry(fd, segment, extent) for extent in extents]
            with self._lock:
                for extent in extents:
                    self._flags.pop(place_of(segment.number, extent), None)
            for extent, entry in zip(extents, entries, strict=True):
                write_all(fd, [b"\1" * entry.record_count], entry.flags_at)
                segment.has_dead[extent] = 1
                segment.checked[extent] = 0
            os.fdatasync(fd)
            for extent, entry in zip(extents, entries, strict=True):
                held = self._mapped.get(segment.number)
                if held:
                    held.views.pop(extent, None)
                _punch_hole(fd, entry.offset, entry.length + padding(entry.length))
        finally:
            os.close(fd)

    def spent(self, number: int, used: Set[int]) -> list[int]:
        """Places of the extents that are not ``used`` and still take up room."""
        segment = self.segments[number]
        if len(used) == segment.trailer.entry_count:
            return []
        with segment.path.open("rb") as file:
            unused = [
                (extent, entry)
                for extent, entry in enumerate(segment.entries())
                if extent not in used
            ]
            return [
                place_of(number, extent)
                for extent, entry in unused
                if not _is_hole(file.fileno(), entry.offset, entry.length)
            ]

    def unlink(self, number: int) -> None:
        """It counts no more, and its file goes. Raises OSError: then it is as it was.

        Durable once the folder is synced; what no checkpoint names goes at the next start.
        """
        segment_path(self.folder, number).unlink(missing_ok=True)
        self.segments.pop(number, None)
        self._mapped.pop(number, None)
        self._dirty.discard(number)

    def close(self) -> None:
        """Let go of all maps."""
        self._mapped.clear()


def _entry(fd: int, segment: Segment, extent: int) -> ExtentEntry:
    return decode_entry(
        os.pread(fd, ENTRY_BYTES, segment.trailer.directory_at + ENTRY_BYTES * extent)
    )


def _mark_in_file(segment: Segment, extent: int, marked: Sequence[int]) -> None:
    blocks: dict[int, list[int]] = {}
    fd = os.open(segment.path, os.O_RDWR | os.O_CLOEXEC)
    try:
        entry = _entry(fd, segment, extent)
        for index in marked:
            assert 0 <= index < entry.record_count, "a mark is one of the extent's records"
            blocks.setdefault(index // MARK_BYTES, []).append(index)
        for block, inside in blocks.items():
            _mark_block(fd, entry, block * MARK_BYTES, inside)
    finally:
        os.close(fd)


def _mark_block(fd: int, entry: ExtentEntry, start: int, marked: list[int]) -> None:
    # No other process writes here, and every byte but the marked ones stays what it was: a crash
    # leaves old or new ones.
    flags = bytearray(
        os.pread(fd, min(MARK_BYTES, entry.record_count - start), entry.flags_at + start)
    )
    for index in marked:
        flags[index - start] = 1
    low, high = min(marked) - start, max(marked) - start + 1
    write_all(fd, [flags[low:high]], entry.flags_at + start + low)


def _sync(path: Path) -> None:
    try:
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:  # unlinked meanwhile
        return
    try:
        os.fdatasync(fd)
    finally:
        os.close(fd)


def _is_hole(fd: int, offset: int, length: int) -> bool:
    try:
        return os.lseek(fd, offset, os.SEEK_DATA) >= offset + length
    except OSError as error:
        return error.errno == errno.ENXIO  # no data up to the end of the file


def _punch_hole(fd: int, offset: int, length: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    arguments = (
        ctypes.c_int(fd),
        ctypes.c_int(_PUNCH_HOLE | _KEEP_SIZE),
        ctypes.c_int64(offset),
        ctypes.c_int64(length),
    )
    if not hasattr(libc, "fallocate") or libc.fallocate(*arguments) == 0:
        return
    code = ctypes.get_errno()
    if code not in NOT_SUPPORTED:
        raise OSError(code, os.strerror(code))
