"""A backup never blocks a writer. If the disk becomes full, the pin of the backup is broken, the
files that it kept are deleted, and the failed write is retried once.
"""

from __future__ import annotations

import contextlib
import http.client
import itertools
import os
import socket
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.campaigns.mounts import needs_root, small_disk
from tests.support.api import Api, ok
from tests.support.server import Server

pytestmark = [pytest.mark.slow, needs_root]

KIB, MIB = 1 << 10, 1 << 20
DISK_BYTES = 96 * MIB
BLOB_RECORDS = 6  # Of a MiB each: the body is streamed into a blob
KEPT_BLOBS, NEW_BLOBS = 8, 10  # More than the disk holds, unless the first ones are freed
KEPT_MIB = 30  # Fits on the disk together with the log files or blobs of the same records
WRITERS = 8  # Clients of a burst; each appends 1.5 MiB


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


class SlowClient:
    """A client that reads the first bytes of a backup immediately, and the rest in `rest`."""

    def __init__(self, address: tuple[str, int]) -> None:
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.settimeout(60.0)
        self._socket.connect(address)
        self._socket.sendall(b"GET /v0/backup HTTP/1.1\r\nHost: localhost\r\n\r\n")
        self._answer = http.client.HTTPResponse(self._socket)
        self._answer.begin()
        assert self._answer.status == 200
        assert len(self._answer.read(1024)) == 1024

    def rest(self) -> bytes:
        return self._answer.read()

    def close(self) -> None:
        self._answer.close()
        self._socket.close()


def fill(disk: Path) -> None:
    """Fill the disk up to 2 MiB, so that it is full after the current log file."""
    with (disk / "other").open("wb") as file, contextlib.suppress(OSError):
        for mebibytes in itertools.count():
            found = os.statvfs(disk)
            if found.f_bavail * found.f_frsize < 2 * MIB:
                break
            os.posix_fallocate(file.fileno(), mebibytes * MIB, MIB)


def records(number: int) -> list[list[object]]:
    return [[number, "x" * (MIB - KIB)] for _ in range(BLOB_RECORDS)]


def test_a_streamed_append_takes_the_space_that_a_slow_backup_keeps(disk: Path) -> None:
    with (
        Server(disk / "data", shards=1) as server,
        Api(server.address, timeout_s=60.0) as api,
    ):
        for number in range(KEPT_BLOBS):
            ok(api.append("gone", *records(number)), 201 if not number else 200)
        ok(api.put("next"), 201)
        slow = SlowClient(server.address)
        ok(api.delete("gone"))
        for number in range(NEW_BLOBS):
            ok(api.append("next", *records(number)))
        with pytest.raises(http.client.IncompleteRead):
            slow.rest()
        slow.close()
        found = ok(api.call("GET", "/v0/topics/next"))
        assert found["count"] == NEW_BLOBS * BLOB_RECORDS
        assert api.call("GET", "/v0/backup").status == 200, "the next backup fails"
        server.stop()


@pytest.mark.parametrize("durability", ["fsync", "disk", "memory"])
@pytest.mark.parametrize("kept", ["blobs", "segments"])
def test_a_burst_of_small_appends_takes_the_space_that_a_slow_backup_keeps(
    disk: Path, kept: str, durability: str
) -> None:
    """The log grows faster than the shard's checks of the free disk space."""
    with (
        Server(disk / "data", shards=1, wal_file_bytes=4 * MIB) as server,
        Api(server.address, timeout_s=60.0) as api,
    ):
        ok(api.put("gone"), 201)
        ok(api.put("next", {"durability": durability}), 201)
        for number in range(KEPT_MIB // BLOB_RECORDS):
            if kept == "blobs":
                ok(api.append("gone", *records(number)))
            else:
                for record in records(number):
                    ok(api.append("gone", record))
        slow = SlowClient(server.address)
        ok(api.delete("gone"))
        fill(disk)

        def burst(number: int) -> int:
            with Api(server.address, timeout_s=60.0) as writer:
                return writer.append("next", *[[number, "x" * (768 * KIB)]] * 2).status

        with ThreadPoolExecutor(WRITERS) as pool:
            assert Counter(pool.map(burst, range(WRITERS))) == {200: WRITERS}
        with pytest.raises(http.client.IncompleteRead):
            slow.rest()
        slow.close()
        assert ok(api.call("GET", "/v0/topics/next"))["count"] == 2 * WRITERS
        server.stop()
