"""A sync that fails: the kernel has marked the pages clean, so nothing that was written before it
is trusted afterwards.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.mounts import Lossy, needs_lossy
from tests.support.api import Api, ok, refused
from tests.support.server import Server

pytestmark = [pytest.mark.slow, needs_lossy]

MIB = 1 << 20


@pytest.fixture
def lossy(tmp_path: Path) -> Iterator[Lossy]:
    with Lossy(tmp_path / "lossy") as lossy:
        yield lossy


def data_of(server: Server, topic: str) -> list[Any]:
    with Api(server.address) as api:
        return [record["data"] for record in api.read(topic)]


def refuse_one(server: Server, lossy: Lossy) -> None:
    """Five records that are acknowledged, then one that the disk refuses."""
    with Api(server.address) as api:
        ok(api.put("t", {"durability": "fsync"}), 201)
        for number in range(5):
            ok(api.append("t", number))
        lossy.ctl("fault", op="fsync", err=errno.EIO, count=0)
        refused(api.append("t", "refused"), 503, "not_ready")
        lossy.ctl("faults", clear=True)
        refused(api.append("t", "after"), 503, "not_ready")


def power_loss(server: Server, lossy: Lossy) -> None:
    server.kill()
    lossy.ctl("crash", policy="drop")
    server.start()


def test_what_was_acknowledged_around_a_failed_sync_outlives_a_power_loss_and_no_more_is_shown(
    lossy: Lossy,
) -> None:
    """Records of class `disk` are in the pages that the failed sync has marked clean."""
    with Server(
        lossy.path / "data", shards=1, wal_file_bytes=1 * MIB, wal_sync_ms=60_000
    ) as server:
        with Api(server.address) as api:
            ok(api.put("d", {"durability": "disk"}), 201)
            for number in range(20):
                ok(api.append("d", number))
        refuse_one(server, lossy)
        server.restart("kill")
        before = data_of(server, "d")
        assert data_of(server, "t") == [*range(5)]
        with Api(server.address) as api:
            ok(api.append("t", "goes on"))
        power_loss(server, lossy)
        assert before == data_of(server, "d") == [*range(20)]
        assert data_of(server, "t") == [*range(5), "goes on"]


def test_a_start_whose_sync_fails_acknowledges_nothing_and_a_later_one_serves(lossy: Lossy) -> None:
    with Server(lossy.path / "data", shards=1, wal_file_bytes=1 * MIB) as server:
        refuse_one(server, lossy)
        server.kill()
        lossy.ctl("fault", op="fsync", err=errno.EIO, count=3)
        server.start()  # the supervisor tries again until it works
        assert data_of(server, "t") == [*range(5)]
        with Api(server.address) as api:
            ok(api.append("t", "goes on"))
        power_loss(server, lossy)
        assert data_of(server, "t") == [*range(5), "goes on"]
