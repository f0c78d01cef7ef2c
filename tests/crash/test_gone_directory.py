"""A data directory that is taken from under a running server: nothing is acknowledged into files
that no name leads to.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.api import Api, ok, refused
from tests.support.server import Server
from topics.storage.wal.writer import GONE, LOOK_S

pytestmark = pytest.mark.slow


def _move(data: Path) -> None:
    data.rename(data.with_name("elsewhere"))


def _replace(data: Path) -> None:
    shutil.copytree(data, data.with_name("copy"))
    data.rename(data.with_name("elsewhere"))
    data.with_name("copy").rename(data)


def _unlink_the_log(data: Path) -> None:
    for path in (data / "wal" / "00").glob("*.wal"):
        path.unlink()


@pytest.mark.parametrize("take", [shutil.rmtree, _move, _replace, _unlink_the_log])
def test_a_shard_whose_files_are_gone_refuses_writes_of_every_class_and_reads_on(
    tmp_path: Path, take: Callable[[Path], None]
) -> None:
    data = tmp_path / "data"
    with Server(data, shards=1, wal_file_bytes=1 << 20) as server, Api(server.address) as api:
        classes = ("fsync", "disk", "memory", "ephemeral")
        for name in classes:
            ok(api.put(name, {"durability": name}), 201)
            ok(api.append(name, 1))
        take(data)
        time.sleep(LOOK_S)  # since the last write that has looked
        refused(api.append("disk", 2), 503, "not_ready")
        for name in classes:
            refused(api.append(name, "lost"), 503, "not_ready")
            assert api.read(name)[0]["data"] == 1
        refused(api.delete("disk"), 503, "not_ready")
        assert GONE in server.logged
        server.stop()
