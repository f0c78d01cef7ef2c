"""Linked payloads: a directory of version 0.1 (``tests/contract/data``), read as it is."""

from __future__ import annotations

import os
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from topics.formats.disk import linked_copies
from topics.formats.disk.frames import FRAME_HEADER_BYTES, FrameKind, scan_frames
from topics.storage.disk import Damaged
from topics.storage.folders import Folders
from topics.storage.linked import LinkedPayloads
from topics.storage.wal.file import WalFile, log_paths

OLD = Path(__file__).parents[1] / "contract" / "data" / "linked-0.1.tar.xz"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    with tarfile.open(OLD) as old:
        old.extraction_filter = lambda member, _: member  # asked for by newer Pythons
        old.extractall(tmp_path)
    return tmp_path / "data"


def named(data: Path, shard: int) -> Iterator[tuple[int, int, int]]:
    """Shard and LSN of each payload that the log of a shard names, and how many records."""
    for path in log_paths(data / "wal" / f"{shard:02d}", shard):
        file = WalFile.open(path, shard, writable=False)
        view = file.view()
        for header in scan_frames(view, file.offset(file.base), file.base, file.seed):
            if header.kind == FrameKind.ROUTER:
                body = view[file.offset(header.lsn) + FRAME_HEADER_BYTES :][: header.body_len]
                for shard_of, run in linked_copies.decode(header, body).rows:
                    yield shard_of, run.lsn, run.stop
        file.close()


@pytest.mark.parametrize("shard", [0, 1])
def test_each_payload_that_a_log_names_is_found(data: Path, shard: int) -> None:
    linked = LinkedPayloads(Folders.under(data, shard))
    assert linked.is_there
    found = [*named(data, shard)]
    assert found
    for shard_of, lsn, stop in found:
        assert linked.payload(shard_of, lsn).count >= stop


@pytest.mark.parametrize("hurt", ["damaged", "cut", "missing"])
def test_a_payload_that_is_not_as_it_was_is_damage(data: Path, hurt: str) -> None:
    (shard, lsn, _), *_ = named(data, 1)
    for path in (data / "linked" / "01").glob("*.wal"):
        if hurt == "missing":
            path.unlink()
        elif hurt == "cut":
            os.truncate(path, 4096)
        else:
            content = bytearray(path.read_bytes())
            content[4096 : len(content)] = bytes(each ^ 1 for each in content[4096:])
            path.write_bytes(content)
    with pytest.raises(Damaged):
        LinkedPayloads(Folders.under(data, 1)).payload(shard, lsn)


def test_links_are_removed(data: Path) -> None:
    linked = LinkedPayloads(Folders.under(data, 0))
    linked.remove()
    linked.remove()
    assert not linked.is_there
    assert LinkedPayloads(Folders.under(data, 1)).is_there
