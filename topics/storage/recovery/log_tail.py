"""Tail of the log: finds where the frames end, removes a torn tail, and detects damage.

The log ends where only zeros or old bytes from the file's previous use follow. If other bytes
follow the last intact frame, there are two cases:

    torn tail  nothing shows that the log was synced beyond this point: these frames were not
               acknowledged as durable, so all following bytes are removed
    damage     a later intact frame, a checkpoint or a next file shows that the log was synced:
               acknowledged data is corrupt, so `Damaged` is raised and the bytes are unchanged

Damage at the very end of the last synced write cannot be distinguished from a torn tail, because no
later frame exists.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

from topics.formats.disk.frames import (
    FRAME_HEADER_BYTES,
    FrameHeader,
    check_frame,
    header_at,
    magics_from,
)
from topics.formats.disk.wal import FILE_HEADER_BYTES
from topics.storage.disk import Damaged
from topics.storage.wal.log_file import WalFile

_ZEROS = bytes(1 << 16)


class DamagedLog(Damaged):
    """The frames from LSN ``first`` to ``end`` are missing from the log or inconsistent.

    ``end`` is None if it is unknown.
    """

    def __init__(
        self, path: Path, offset: int, reason: str, first: int, end: int | None = None
    ) -> None:
        super().__init__(path, offset, reason)
        self.first, self.end = first, end


class LogEnd(NamedTuple):
    """The LSN after the last frame, and the number of bytes that follow it, up to the last nonzero
    byte.
    """

    lsn: int
    rest_bytes: int


def bytes_after(file: WalFile, lsn: int) -> int:
    """Return the number of bytes from ``lsn`` to the last nonzero byte of the file."""
    view, start = file.view(), file.offset(lsn)
    for stop in range(len(view), start, -len(_ZEROS)):
        begin = max(start, stop - len(_ZEROS))
        chunk = bytes(view[begin:stop])
        if chunk != _ZEROS[: len(chunk)]:
            return begin - start + len(chunk.rstrip(b"\0"))
    return 0


def check_not_synced_beyond(file: WalFile, lsn: int, promised_lsn: int, *, is_last: bool) -> None:
    """Raise `DamagedLog` if it is known that the log was synced beyond ``lsn``.

    The intact frames of ``file`` end at ``lsn``. ``promised_lsn`` is the LSN up to which the log
    was synced according to the checkpoint.
    """
    if not is_last:  # the next file began after a sync of this one
        witness = "the next file"
    elif promised_lsn > lsn:
        witness = "the checkpoint"
    elif (offset := synced_beyond(file.view(), file.base, file.seed, lsn)) is not None:
        witness = f"the frame at offset {offset}"
    else:
        return
    reason = f"damaged frame that was synced, according to {witness}"
    raise DamagedLog(file.path, file.offset(lsn), reason, lsn)


def synced_beyond(data: memoryview, base: int, seed: int, lsn: int) -> int | None:
    """Return the offset of an intact frame after ``lsn`` that shows a sync beyond ``lsn``, or None.

    ``data`` is a complete log file.
    """
    rest_at = FILE_HEADER_BYTES + lsn - base
    for at in magics_from(data, rest_at):
        header = check_frame(data, rest_at + at, lsn + at, seed)
        if isinstance(header, FrameHeader) and header.durable_lsn > lsn:
            return rest_at + at
    return None


def has_frame_header(file: WalFile, lsn: int) -> bool:
    """Return whether a frame header from the file's current use follows ``lsn``.

    Old headers from before the file was reused have other LSNs.
    """
    view, start = file.view(), file.offset(lsn)
    return any(
        start + at + FRAME_HEADER_BYTES > len(view) or header_at(view, start + at).lsn == lsn + at
        for at in magics_from(view, start)
    )


def end_log(files: list[WalFile], end: LogEnd, durable_lsn: int, *, is_clean: bool) -> int:
    """Make all frames up to the end durable, and overwrite the bytes after them with zeros.

    Return the length of a torn tail in bytes. ``durable_lsn`` is the LSN up to which the log is
    known to be on the disk. Raise OSError.
    """
    if not files:
        return 0
    file = files[-1]
    cut_bytes = end.rest_bytes if end.rest_bytes and has_frame_header(file, end.lsn) else 0
    # Write the frames again. A failed sync may have marked their pages as clean although they are
    # not on the disk, and an earlier cut may have changed only the page cache. The frames must be
    # on the disk before a later frame records that they are.
    file.rewrite(end.lsn if is_clean else max(durable_lsn, file.base), end.lsn)
    if end.rest_bytes > 0 or not is_clean:
        file.cut(end.lsn)
    file.sync()
    return cut_bytes
