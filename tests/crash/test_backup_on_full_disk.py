"""A backup never stops a writer: if the disk becomes full, its pin breaks, the files that it kept
are deleted, and the failed write is retried once.
"""

from __future__ import annotations

import http.client
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.campaigns.mounts import needs_root, small_disk
from tests.support.api import Api, ok
from tests.support.server import Server

pytestmark = [pytest.mark.slow, needs_root]

KIB, MIB = 1 << 10, 1 << 20
DISK_BYTES = 96 * MIB
BLOB_RECORDS = 6  # of a MiB each: the body is streamed into a blob
KEPT_BLOBS, NEW_BLOBS = 8, 10  # more than the disk holds, unless the first ones are freed


@pytest.fixture
def disk(tmp_path: Path) -> Iterator[Path]:
    with small_disk(tmp_path / "disk", DISK_BYTES) as disk:
        yield disk


class SlowClient:
    """Reads the first bytes of a backup, and the rest on request."""

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
        assert api.call("GET", "/v0/backup").status == 200, "the next backup begins"
        server.stop()
