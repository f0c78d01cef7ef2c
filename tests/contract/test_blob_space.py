"""Disk space of long writes is freed with their records, also after a restart."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.api import Api, ok
from tests.support.server import Server

pytestmark = pytest.mark.slow

MB = 1_000_000
NINE_MB = ["x" * 900_000] * 10
# One file that is being filled, one that is being sealed, and the files that two checkpoints keep.
BOUND = 3 * 64 << 20


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with Server(tmp_path_factory.mktemp("space") / "data", shards=1) as server:
        yield server


def used(server: Server) -> int:
    return sum(
        path.stat().st_blocks * 512
        for kind in ("blob", "segment")
        for path in (server.data_dir / kind).rglob("*.*")
    )


def mapped(server: Server) -> int:
    pid = server.wait_roles(2)["shard 0"]
    return Path(f"/proc/{pid}/maps").read_text().count(".blob")


def settles(server: Server, bound: int) -> None:
    deadline = time.monotonic() + 60
    while used(server) > bound:
        assert time.monotonic() < deadline, f"{used(server)} bytes are kept"
        time.sleep(0.2)


@pytest.mark.timeout(300)
def test_many_long_appends_to_a_capped_topic_use_bounded_disk_space(server: Server) -> None:
    with Api(server.address) as api:
        ok(api.put("t", {"cap_bytes": 10 * MB}), 201)
        for number in range(36):
            ok(api.append("t", number, *NINE_MB))
            assert ok(api.diff("t", from_seq=11 * number, limit=1))["records"][0]["data"] == number
        settles(server, BOUND)
        assert mapped(server) <= 16, "sealed blobs are still mapped"
    with server.again("stop") as api:
        settles(server, BOUND)
        assert [record["data"] for record in api.read("t", max_batch_bytes=8 << 20)][-11:] == [
            35,
            *NINE_MB,
        ]
        for number in range(36, 44):
            ok(api.append("t", number, *NINE_MB))
        settles(server, BOUND)
        assert mapped(server) <= 16


@pytest.mark.timeout(300)
@pytest.mark.parametrize("how", ["delete", "ttl"])
def test_space_of_deleted_or_expired_records_is_freed_once_their_file_is_full(
    server: Server, how: str
) -> None:
    with Api(server.address) as api:
        ok(api.put(how, {"ttl_ms": 2000 if how == "ttl" else 0}), 201)
        for number in range(20):
            last = ok(api.append(how, number, *NINE_MB))["seqs"][-1]
        if how == "delete":
            ok(api.call("POST", f"/v0/topics/{how}/delete", {"before_seq": last + 1}))
        deadline = time.monotonic() + 60
        while api.state(how)["count"] or used(server) > 2 * BOUND:
            assert time.monotonic() < deadline, f"{used(server)} bytes are kept"
            time.sleep(0.2)
