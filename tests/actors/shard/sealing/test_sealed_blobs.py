"""Tests of blobs: they count towards the size of their log file, and are sealed and reclaimed with
it.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.shard.sealing.damage_support import flip
from tests.actors.shard.sealing.sealing_support import (
    Sealer,
    check_restart,
    ended,
    files,
    findings,
    seen,
)
from tests.support.log import append_streamed
from topics.engine.page import Page
from topics.storage.disk import Damaged
from topics.storage.wal.log_file import NoSpace, WalFile

FILE_BYTES = 64 << 10


LONG = ["x" * 1000] * 30  # about 31,000 bytes: three of these fill a file


@pytest.fixture
def client(tmp_path: Path) -> Iterator[Sealer]:
    with ended(Sealer(tmp_path / "data", file_bytes=FILE_BYTES)) as client:
        client.put("a")
        client.put("b")
        yield client


def test_blobs_are_unlinked_after_a_segment_contains_their_records(client: Sealer) -> None:
    for _ in range(20):
        append_streamed(client, "a", *LONG)
        assert len(client.shown("a")) % len(LONG) == 0
        client.seal()
    client.checkpoint()
    client.checkpoint()
    assert len(files(client.path, "blob")) <= 3
    assert len([*client.wal.blobs.added()]) <= 3
    assert findings(client.path) == []
    before = seen(client)
    client.kill()
    check_restart(client, before)


def test_blobs_without_live_records_are_unlinked_without_a_segment(client: Sealer) -> None:
    client.put("a", cap_records=len(LONG))
    for _ in range(12):
        append_streamed(client, "a", *LONG)
        client.seal()
    client.checkpoint()
    client.checkpoint()
    assert len(files(client.path, "blob")) <= 3
    assert files(client.path, "segment") == []


def test_a_body_longer_than_a_log_file_fills_one_file(client: Sealer) -> None:
    for _ in range(4):
        append_streamed(client, "a", *LONG * 3)
    assert len(client.wal.full_files()) == 3
    before = seen(client)
    client.seal()
    client.checkpoint()
    client.checkpoint()
    assert len(files(client.path, "blob")) == 1
    assert seen(client) == before


@pytest.mark.parametrize("orderly", [True, False])
def test_a_restart_restores_the_bytes_of_blobs_that_count_towards_a_log_file(
    client: Sealer, orderly: bool
) -> None:
    append_streamed(client, "a", *LONG)
    append_streamed(client, "a", *LONG)
    (client.stop if orderly else client.kill)()
    again = client.again()
    append_streamed(again, "a", *LONG)
    assert again.wal.full_files() == []
    again.kill()
    third = again.again()
    assert third.wal.full_files() == [], "a start needs no space for another file"
    third.append("a", "next")
    assert len(third.wal.full_files()) == 1
    third.kill()


def test_without_space_for_another_log_file_small_writes_continue_in_the_full_one(
    client: Sealer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deletes must still be written, because they free space."""
    for _ in range(3):
        append_streamed(client, "a", *LONG)
    with monkeypatch.context() as patch:

        def full(file: WalFile, spare: Path | None = None) -> None:
            raise NoSpace(errno.ENOSPC, os.strerror(errno.ENOSPC))

        patch.setattr(WalFile, "create", full)
        _, answer = client.start("a", "refused")
        client.commits.flush()
        client.advance()
        assert isinstance(answer[0], NoSpace)
        client.append("a", "in the same file")
        assert client.wal.full_files() == []
    append_streamed(client, "a", *LONG)
    assert len(client.wal.full_files()) == 1
    before = seen(client)
    client.kill()
    check_restart(client, before)


@pytest.fixture
def damaged(client: Sealer) -> Iterator[Sealer]:
    """Return a shard with a blob that was damaged after an orderly stop and not read since."""
    client.put("a", ttl_ms=1000)
    client.append("a", "before")
    path = append_streamed(client, "a", *LONG)
    client.append("a", "after")
    client.stop()
    flip(path, -100)
    again = client.again()
    yield again
    again.kill()


def read(client: Sealer, from_seq: int) -> Page:
    return client.read("a", from_seq, limit=1)


def gap(page: Page) -> tuple[str, int, int]:
    assert page.tombstone is not None
    return page.tombstone.reason, page.tombstone.gap_from, page.tombstone.gap_to


def test_a_read_reports_a_damaged_blob_as_a_gap_and_continues(damaged: Sealer) -> None:
    assert read(damaged, 0).count == 1
    for _ in range(2):
        assert gap(read(damaged, 1)) == ("damaged", 2, 31)
    assert read(damaged, 31).count == 1
    with pytest.raises(Damaged, match=r"\.blob, offset 64"):
        damaged.wal.blobs.file(damaged.engine.topic("a").id, 2)


def test_sealing_reports_a_damaged_blob_permanently_and_keeps_its_file(damaged: Sealer) -> None:
    for _ in range(3):
        append_streamed(damaged, "b", *LONG)
    damaged.append("b", "next")
    damaged.seal()
    assert gap(read(damaged, 1)) == ("damaged", 2, 31)
    assert read(damaged, 31).count == 1
    assert len([*(damaged.path / "blob" / "00").glob("*.blob.damaged")]) == 1
