"""A completely full disk: reads, deletes of records and topics, and starts succeed, and the shard
detects free space on its own.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.mounts import needs_root, small_disk
from tests.support.api import Answer, Api, ok, refused
from tests.support.server import Server
from topics.formats.disk.wal import FILE_HEADER_BYTES, decode_file_header, encode_file_header

pytestmark = [pytest.mark.slow, needs_root]

KIB, MIB = 1 << 10, 1 << 20
FILE_BYTES = 256 * KIB
RECOVERY_MAX_S = 40.0  # Two checkpoints, five seconds apart, and the time before and after


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", 16 * MIB) as disk:
        yield disk


def server_on(disk: Path) -> Server:
    return Server(disk / "data", shards=1, wal_file_bytes=FILE_BYTES)


def fill_up(api: Api, topic: str, disk: Path) -> int:
    """Append until a write is refused, and return the number of acknowledged records.

    The last writes are small, so that the log file is full too.
    """
    acknowledged = 0
    while acknowledged < 20_000:
        free = os.statvfs(disk)
        last = free.f_bavail * free.f_frsize < 8 * FILE_BYTES
        count, size = (4, 300) if last else (16, 8_000)
        answer = api.append(topic, *([acknowledged + one, "x" * size] for one in range(count)))
        if answer.status != 200:
            refused(answer, 503, "not_ready")
            return acknowledged
        acknowledged += count
    raise AssertionError("the disk never becomes full")


@contextlib.contextmanager
def completely_full(disk: Path) -> Iterator[None]:
    """Let another file take all the remaining space of the disk."""
    path = disk / "others"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(bytes(4096))
    assert os.statvfs(disk).f_bavail == 0
    yield
    path.unlink()


def numbers(api: Api, topic: str) -> list[Any]:
    return [record["data"][0] for record in api.read(topic, max_batch_bytes=8 * MIB)]


def append_until(api: Api, topic: str, status: int = 200) -> Answer:
    """Repeat an append until it has this status, and return the response."""
    deadline = time.monotonic() + RECOVERY_MAX_S
    while (answer := api.append(topic, ["again", ""])).status != status:
        refused(answer, 503, "not_ready")
        assert answer.json()["error"]["detail"]["reason"] == "disk_full"
        assert time.monotonic() < deadline, "the shard has not detected the free space"
        time.sleep(0.1)
    return answer


def test_deletes_of_records_and_topics_succeed_on_a_full_disk_and_free_space(disk: Path) -> None:
    with server_on(disk) as server, Api(server.address) as api:
        for topic in ("kept", "dropped"):
            ok(api.put(topic, {"durability": "fsync"}), 201)
        for number in range(200):
            ok(
                api.append(
                    "kept", records=[{"data": [number, "y" * 1_000], "tag": f"t{number % 2}"}]
                )
            )
        acknowledged = fill_up(api, "dropped", disk)
        with completely_full(disk):
            refused(api.put("new"), 503, "not_ready")
            assert ok(api.call("POST", "/v0/topics/kept/delete", {"match": "t1"}))["deleted"] == 100
            assert numbers(api, "kept") == [*range(0, 200, 2)]
            assert numbers(api, "dropped") == [*range(acknowledged)]
            ok(api.delete("dropped"))
            append_until(api, "kept")
            ok(api.put("new"), 201)
            assert numbers(api, "kept") == [*range(0, 200, 2), "again"]
        server.stop()


def test_expired_records_are_removed_from_a_full_disk_without_any_request(disk: Path) -> None:
    with server_on(disk) as server, Api(server.address) as api:
        ok(api.put("other"), 201)
        ok(api.put("old", {"ttl_ms": 20_000}), 201)
        fill_up(api, "old", disk)
        deadline = time.monotonic() + RECOVERY_MAX_S
        while (free := os.statvfs(disk)).f_bavail < free.f_blocks // 2:
            assert time.monotonic() < deadline, "expired records still occupy disk space"
            time.sleep(0.1)
        append_until(api, "other")


def test_a_shard_starts_on_a_full_disk_and_serves_reads_and_deletes(disk: Path) -> None:
    with server_on(disk) as server:
        with Api(server.address) as api:
            ok(api.put("t", {"durability": "fsync"}), 201)
            acknowledged = fill_up(api, "t", disk)
        with completely_full(disk):
            with server.again("kill") as api:
                assert numbers(api, "t") == [*range(acknowledged)]
                refused(api.append("t", [-1, "x" * 8_000]), 503, "not_ready")
                ok(api.call("POST", "/v0/topics/t/delete", {"before_seq": 2}))
            with server.again("kill") as api:
                assert numbers(api, "t") == [*range(1, acknowledged)]
                ok(api.delete("t"))
                append_until(api, "u", 201)
            with server.again("stop") as api:
                assert numbers(api, "u") == ["again"]


def without_reserves(data: Path) -> None:
    """Remove the reserves, which a restored directory does not have either."""
    for path in (*data.rglob("*.reserve"), *data.rglob("*.spare")):
        path.unlink()


def test_a_shard_with_a_full_log_and_no_reserve_serves_reads_and_continues_when_space_is_free(
    disk: Path,
) -> None:
    with server_on(disk) as server:
        with Api(server.address) as api:
            ok(api.put("t", {"durability": "fsync"}), 201)
            acknowledged = 0
            while len(list((disk / "data" / "wal" / "00").glob("*.wal"))) < 2:
                ok(api.append("t", [acknowledged, "x" * 8_000]))
                acknowledged += 1
        server.kill()
        without_reserves(disk / "data")
        newest = max((disk / "data" / "wal" / "00").glob("*.wal"))
        # Make the file exactly as long as its contents, as if it had been created with this size
        with newest.open("r+b") as file:
            used = len(file.read().rstrip(b"\0")) + 8 & -8
            file.seek(0)
            header = decode_file_header(file.read(FILE_HEADER_BYTES))
            file.seek(0)
            file.write(encode_file_header(header._replace(size=used)))
            file.truncate(used)
        with completely_full(disk):
            server.start()
            with Api(server.address) as api:
                assert numbers(api, "t") == [*range(acknowledged)]
                for answer in (api.append("t", [-1, ""]), api.put("new"), api.delete("t")):
                    refused(answer, 503, "not_ready")
                    assert answer.json()["error"]["detail"]["reason"] == "disk_full"
        with Api(server.address) as api:
            append_until(api, "t")
            assert numbers(api, "t") == [*range(acknowledged), "again"]
        with server.again("kill") as api:
            assert numbers(api, "t") == [*range(acknowledged), "again"]
