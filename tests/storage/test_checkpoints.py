"""Checkpoints: their bytes, and the room that is kept for the next one on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.tables import table
from tests.support.wal import leave_room
from topics.storage import checkpoints


def items() -> list[bytes]:
    return [checkpoints.encode_item({"segments": [], "boot": "b"})]


def test_a_checkpoint_is_written_into_the_room_that_was_kept_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoints.keep_room(tmp_path)
    inode = (tmp_path / checkpoints.RESERVE_NAME).stat().st_ino
    real, left = os.pwritev, [1]

    def full_once(fd: int, pieces: list[bytes], offset: int) -> int:
        if left:
            left.pop()
            raise OSError(errno.ENOSPC, "full")
        return real(fd, pieces, offset)

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwritev", full_once)
        leave_room(patch, 0)
        checkpoints.write(tmp_path, 8, 0, items())
    (path,) = tmp_path.glob("*.ckpt")
    assert path.stat().st_ino == inode
    assert [found.lsn for found in checkpoints.whole(tmp_path)] == [8]
    checkpoints.write(tmp_path, 16, 0, items())
    assert (tmp_path / checkpoints.RESERVE_NAME).stat().st_size == checkpoints.RESERVE_MIN_BYTES
    assert [found.lsn for found in checkpoints.whole(tmp_path)] == [16, 8]


def test_the_room_for_a_checkpoint_is_twice_the_last_one(tmp_path: Path) -> None:
    large = checkpoints.encode_item({"id": 1, "keys": [["k" * 700_000, 1, 1, 1]]})
    checkpoints.write(tmp_path, 8, 0, [*items(), large])
    reserve = tmp_path / checkpoints.RESERVE_NAME
    assert reserve.stat().st_size == 2 * next(tmp_path.glob("*.ckpt")).stat().st_size
    assert reserve.stat().st_blocks * 512 >= reserve.stat().st_size


def test_the_table_of_a_checkpoint_is_its_structs() -> None:
    doc = checkpoints.__doc__ or ""
    rows = table(doc, "Integers little-endian:")
    sizes = [int(row["size"]) for row in rows[:-1]]
    assert [int(row["offset"]) for row in rows] == [sum(sizes[:at]) for at in range(len(rows))]
    assert int(rows[-1]["offset"]) == checkpoints.HEADER_BYTES
    head, *_ = checkpoints.encode(8, 4, items(), clean=True)
    fields = {row["field"]: bytes(head)[int(row["offset"]) :] for row in rows}
    assert fields["magic"].startswith(checkpoints.MAGIC)
    assert (fields["lsn"][0], fields["replay_from"][0], fields["clean"][0]) == (8, 4, 1)
    assert fields["body_len"][0] == len(items()[0])
