"""Disks that are full, that fail or hang, and read-only disks."""

from __future__ import annotations

import errno
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaigns.mounts import (
    Lossy,
    freezable_disk,
    needs_lossy,
    needs_root,
    remount,
    small_disk,
)
from tests.crash.reading import data_of
from tests.support.api import Api, ok, refused
from tests.support.server import Server, ShortTimeoutServer
from topics.storage.wal.writer import LOOP_WRITE_MAX_BYTES

pytestmark = pytest.mark.slow

MIB = 1 << 20


@needs_root
def test_a_read_only_data_directory_refuses_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        with (
            Server(disk / "data", shards=1, wal_file_bytes=1 * MIB) as server,
            Api(server.address) as api,
        ):
            ok(api.append("t", 1), 201)
        remount(disk, "ro")
        server = Server(disk / "data", shards=1, wal_file_bytes=1 * MIB)
        server.spawn()
        try:
            assert server.wait_exit(30) not in (0, -9)
        finally:
            server.kill()
        assert str(disk / "data") in server.logged
        assert "Traceback" not in server.logged
        remount(disk, "rw")
        with (
            Server(disk / "data", shards=1, wal_file_bytes=1 * MIB) as server,
            Api(server.address) as api,
        ):
            assert data_of(api, "t") == [1]


# --- a disk that fails


@pytest.fixture
def lossy(tmp_path: Path) -> Iterator[Lossy]:
    with Lossy(tmp_path / "lossy") as lossy:
        yield lossy


@needs_lossy
@pytest.mark.parametrize(
    ("operation", "durability"), [("fsync", "fsync"), ("fsync", "disk"), ("write", "disk")]
)
def test_a_failed_write_is_never_visible_and_ends_the_writes_of_the_shard(
    lossy: Lossy, operation: str, durability: str
) -> None:
    with Server(lossy.path / "data", shards=1, wal_file_bytes=1 * MIB) as server:
        with Api(server.address) as api:
            ok(api.put("t", {"durability": durability}), 201)
            acknowledged: list[object] = []
            for number in range(5):
                ok(api.append("t", number))
                acknowledged.append(number)
            lossy.ctl("fault", op=operation, err=errno.EIO, count=0)
            refusal = None
            deadline = time.monotonic() + 10
            while refusal is None:
                assert time.monotonic() < deadline, "writes go on onto a disk that fails"
                answer = api.append("t", f"in doubt {len(acknowledged)}")
                if answer.status == 200:
                    assert (operation, durability) == ("fsync", "disk"), (
                        "acknowledged without the disk"
                    )
                    acknowledged.append(f"in doubt {len(acknowledged)}")
                else:
                    refusal = answer
            refused(refusal, 503, "not_ready")
            assert data_of(api, "t") == acknowledged, "reads go on, without the write that failed"
            lossy.ctl("faults", clear=True)
            if operation == "fsync":
                # The disk is not trusted again until a restart.
                refused(api.append("t", "after"), 503, "not_ready")
            assert data_of(api, "t")[: len(acknowledged)] == acknowledged
        with server.again("kill") as api:
            found = data_of(api, "t")
            assert found[: len(acknowledged)] == acknowledged
            assert len(found) <= len(acknowledged) + 1
            assert ok(api.append("t", "goes on"))["seqs"][0] > len(acknowledged)


# --- a disk that hangs


@needs_root
@pytest.mark.parametrize(
    ("durability", "length"), [("fsync", 1), ("disk", 1), ("fsync", LOOP_WRITE_MAX_BYTES)]
)
def test_a_hanging_disk_ends_the_writes_and_is_reported(
    tmp_path: Path, durability: str, length: int
) -> None:
    """The loop makes a short write and may hang with it. The thread makes a long write."""
    reason = "disk_stalled"
    with (
        freezable_disk(tmp_path / "disk") as freeze,
        ShortTimeoutServer(tmp_path / "disk" / "data", shards=1, wal_file_bytes=1 * MIB) as server,
        Api(server.address) as api,
    ):
        ok(api.put("t", {"durability": durability}), 201)
        ok(api.append("t", 1))
        freeze(True)
        for number in (2, 3):  # The first hangs, the second is refused immediately
            answer = api.append("t", f"{number}".ljust(length))
            assert refused(answer, 503, "not_ready")["detail"]["reason"] == reason
        ready = refused(api.call("GET", "/v0/ready"), 503, "not_ready")
        assert ready["detail"]["shards"] == [{"shard": 0, "state": reason}]
        if length > 1:
            assert data_of(api, "t") == [1], "the loop lives, so reads go on"
        freeze(False)
        server.wait_ready()
        ok(api.append("t", 4))
        there = [1, "2".ljust(length), 4]
        assert data_of(api, "t") == there, "what hung is there; what was refused is not"
