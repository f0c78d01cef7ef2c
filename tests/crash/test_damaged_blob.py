"""A server whose long write was hurt on the disk: it refuses the start, names file and offset, and
does not try again.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.api import Api, ok
from tests.support.server import Server

pytestmark = pytest.mark.slow

EXIT_DAMAGED = 3
HURT: dict[str, Callable[[Path], None]] = {
    "cut": lambda path: os.truncate(path, 70),
    "empty": lambda path: os.truncate(path, 0),
    "tables": lambda path: _flip(path, 66),
    "missing": lambda path: path.unlink(),
}


def _flip(path: Path, at: int) -> None:
    with path.open("r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 0xFF]))


@pytest.mark.parametrize("how", HURT)
def test_a_damaged_blob_refuses_the_start_with_file_and_offset(tmp_path: Path, how: str) -> None:
    server = Server(tmp_path / "data", shards=1)
    with server:
        with Api(server.address) as api:
            ok(api.append("t", records=[{"data": "x" * 900_000, "tag": "t"}] * 6), 201)
        server.kill()
    (blob,) = (tmp_path / "data" / "blob" / "00").glob("*.blob")
    HURT[how](blob)
    server.spawn()
    try:
        assert server.wait_exit(30) == EXIT_DAMAGED
    finally:
        server.kill()
    assert str(blob) in server.logged
    assert '"offset"' in server.logged
    assert "Traceback" not in server.logged


def test_a_blob_that_is_hurt_while_it_is_stopped_costs_its_readers_a_tombstone_and_nobody_else(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path / "data", shards=1)
    with server:
        with Api(server.address) as api:
            ok(api.append("t", *["x" * 900_000] * 6), 201)
            ok(api.append("t", "behind"))
        server.stop()
        (blob,) = (tmp_path / "data" / "blob" / "00").glob("*.blob")
        _flip(blob, 3_000_000)
        server.start()
        with Api(server.address) as api:
            for _ in range(3):
                tombstone = ok(api.diff("t", from_seq=0, limit=5))["tombstone"]
                assert (tombstone["reason"], tombstone["gap_from"], tombstone["gap_to"]) == (
                    "damaged",
                    1,
                    6,
                )
            assert [record["data"] for record in ok(api.diff("t", from_seq=6))["records"]] == [
                "behind"
            ]
            ok(api.append("t", "more"))
            ok(api.append("other", 1), 201)
        assert str(blob) in server.logged
        assert "Traceback" not in server.logged
