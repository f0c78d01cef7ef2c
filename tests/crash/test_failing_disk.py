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
def test_after_a_failed_write_the_shard_refuses_writes_and_never_shows_the_record(
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
                assert time.monotonic() < deadline, (
                    "the shard still accepts writes to a disk that fails"
                )
                answer = api.append("t", f"uncertain {len(acknowledged)}")
                if answer.status == 200:
                    assert (operation, durability) == ("fsync", "disk"), (
                        "a write was acknowledged although the disk fails"
                    )
                    acknowledged.append(f"uncertain {len(acknowledged)}")
                else:
                    refusal = answer
            refused(refusal, 503, "not_ready")
            assert data_of(api, "t") == acknowledged, (
                "a read does not return exactly the acknowledged records"
            )
            lossy.ctl("faults", clear=True)
            if operation == "fsync":
                # The shard does not use the disk again until a restart.
                refused(api.append("t", "after"), 503, "not_ready")
            assert data_of(api, "t")[: len(acknowledged)] == acknowledged
        with server.again("kill") as api:
            found = data_of(api, "t")
            assert found[: len(acknowledged)] == acknowledged
            assert len(found) <= len(acknowledged) + 1
            assert ok(api.append("t", "after the restart"))["seqs"][0] > len(acknowledged)


# --- a disk that hangs


@needs_root
@pytest.mark.parametrize(
    ("durability", "length"), [("fsync", 1), ("disk", 1), ("fsync", LOOP_WRITE_MAX_BYTES)]
)
def test_a_hanging_disk_makes_the_shard_refuse_writes_and_is_reported(
    tmp_path: Path, durability: str, length: int
) -> None:
    """The loop executes a short write and hangs with it. A thread executes a long write."""
    reason = "disk_stalled"
    with (
        freezable_disk(tmp_path / "disk") as freeze,
        ShortTimeoutServer(tmp_path / "disk" / "data", shards=1, wal_file_bytes=1 * MIB) as server,
        Api(server.address) as api,
    ):
        ok(api.put("t", {"durability": durability}), 201)
        ok(api.append("t", 1))
        freeze(True)
        for number in (2, 3):  # The first write hangs, and the second is refused immediately
            answer = api.append("t", f"{number}".ljust(length))
            assert refused(answer, 503, "not_ready")["detail"]["reason"] == reason
        ready = refused(api.call("GET", "/v0/ready"), 503, "not_ready")
        assert ready["detail"]["shards"] == [{"shard": 0, "state": reason}]
        if length > 1:
            assert data_of(api, "t") == [1], "the loop does not serve reads"
        freeze(False)
        server.wait_ready()
        ok(api.append("t", 4))
        expected = [1, "2".ljust(length), 4]
        assert data_of(api, "t") == expected, (
            "the write that hung is missing, or a refused write is stored"
        )
