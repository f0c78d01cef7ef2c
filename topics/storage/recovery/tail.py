"""Where the log ends: a torn tail is cut, damage is refused.

The log ends where only zeros follow, or what a file held in an earlier life. Where it breaks off
(no whole frame follows, and not only zeros) there are two cases:

    torn tail  nothing says that the log was synced beyond the break: nothing was promised there,
               so everything that follows is cut
    damage     a whole frame after the break, a checkpoint or a next file says so: acknowledged
               data was hurt, and `Damaged` leaves the bytes as they are

A log that breaks off just at the end of its last synced write looks like a torn tail: no frame can
tell then.
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
from topics.storage.wal.file import WalFile

_ZEROS = bytes(1 << 16)


class HurtLog(Damaged):
    """Frames of the log from LSN ``first`` to ``end`` are missing or do not follow on what came
    before; ``end`` is None where that is not known.
    """

    def __init__(
        self, path: Path, offset: int, reason: str, first: int, end: int | None = None
    ) -> None:
        super().__init__(path, offset, reason)
        self.first, self.end = first, end


class LogEnd(NamedTuple):
    """Where the frames end, and how many bytes follow there up to the zeros."""

    lsn: int
    rest_bytes: int


def rest_behind(file: WalFile, lsn: int) -> int:
    """Bytes from ``lsn`` to the last one in the file that is not zero."""
    view, start = file.view(), file.offset(lsn)
    for stop in range(len(view), start, -len(_ZEROS)):
        begin = max(start, stop - len(_ZEROS))
        chunk = bytes(view[begin:stop])
        if chunk != _ZEROS[: len(chunk)]:
            return begin - start + len(chunk.rstrip(b"\0"))
    return 0


def check_nothing_promised(file: WalFile, lsn: int, promised_lsn: int, *, is_last: bool) -> None:
    """Raises `Damaged` when something says that the log was synced beyond ``lsn``.

    The frames of ``file`` break off there. A checkpoint says that the log was synced up to
    ``promised_lsn``.
    """
    if not is_last:  # the next file began after a sync of this one
        witness = "the next file"
    elif promised_lsn > lsn:
        witness = "the checkpoint"
    elif (offset := synced_beyond(file.view(), file.base, file.seed, lsn)) is not None:
        witness = f"the frame at offset {offset}"
    else:
        return
    reason = f"damaged frame; {witness} says that it had been synced"
    raise HurtLog(file.path, file.offset(lsn), reason, lsn)


def synced_beyond(data: memoryview, base: int, seed: int, lsn: int) -> int | None:
    """Offset of a whole frame behind ``lsn`` that knows the log to be synced beyond ``lsn``.

    ``data``: a whole log file.
    """
    rest_at = FILE_HEADER_BYTES + lsn - base
    for at in magics_from(data, rest_at):
        header = check_frame(data, rest_at + at, lsn + at, seed)
        if isinstance(header, FrameHeader) and header.durable_lsn > lsn:
            return rest_at + at
    return None


def has_frame_header(file: WalFile, lsn: int) -> bool:
    """Whether a frame header of this life of the file follows behind ``lsn``.

    What the file held in an earlier life has other LSNs.
    """
    view, start = file.view(), file.offset(lsn)
    return any(
        start + at + FRAME_HEADER_BYTES > len(view) or header_at(view, start + at).lsn == lsn + at
        for at in magics_from(view, start)
    )


def end_log(files: list[WalFile], end: LogEnd, durable_lsn: int, *, is_clean: bool) -> int:
    """Afterwards the disk holds all frames up to the end, and zeros behind them.

    The result counts the bytes of a torn tail. ``durable_lsn``: the log is known to be on the disk
    up to there. Raises OSError.
    """
    if not files:
        return 0
    file = files[-1]
    cut_bytes = end.rest_bytes if end.rest_bytes and has_frame_header(file, end.lsn) else 0
    # A failed sync may have marked pages clean, and a cut behind them may have reached pages alone.
    # Frames must reach the disk before a later frame says that they have.
    file.write_again(end.lsn if is_clean else max(durable_lsn, file.base), end.lsn)
    if end.rest_bytes > 0 or not is_clean:
        file.cut(end.lsn)
    file.sync()
    return cut_bytes
