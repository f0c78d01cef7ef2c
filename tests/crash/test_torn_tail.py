"""Damage to the write-ahead log: a torn tail is cut, anything else stops the server with a place
and a reason.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

import pytest

from tests.support.api import Api, ok
from tests.support.data_directory import topics
from tests.support.server import Server

pytestmark = pytest.mark.slow

WRITES = 60
BATCH = 3
SEED = 11
REFUSED = 3


def marker(number: int) -> bytes:
    return b"marker-%04d-" % number


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data directory of a server that was killed after ``WRITES`` acknowledged fsync writes of
    ``BATCH`` records.
    """
    server = Server(tmp_path_factory.mktemp("wal") / "data", shards=1)
    with server:
        with Api(server.address) as api:
            ok(api.put("t", {"durability": "fsync"}), 201)
            for number in range(WRITES):
                text = marker(number).decode() + "x" * (number * 7 % 200)
                ok(api.append("t", *[text] * BATCH))
        server.kill()
    return server.data_dir


def wal_file(data_dir: Path) -> Path:
    """The last file of the log that holds the last write."""
    files = sorted(
        path
        for path in data_dir.rglob("*")
        if path.is_file() and "wal" in str(path.relative_to(data_dir)).lower()
    )
    holding = [path for path in files if marker(WRITES - 1) in path.read_bytes()]
    assert holding, f"no log file holds the last write; there are {files}"
    return holding[-1]


def copy_of(killed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(killed, tmp_path / "copy"))


def span(log: bytes) -> tuple[int, int]:
    """From the end of the first record's marker to the last byte that is not zero."""
    return log.index(marker(0)) + len(marker(0)), len(log.rstrip(b"\0"))


def whole_writes(log: bytes, cut: int) -> int:
    """How many writes lie wholly before ``cut``, at least: those before the last one that has
    begun.
    """
    return max(0, sum(0 <= log.find(marker(number)) < cut for number in range(WRITES)) - 1)


SOURCE = random.Random(SEED)
CUTS = [SOURCE.random() for _ in range(4)]


@pytest.mark.parametrize("place", [*CUTS, 1.0], ids=lambda place: f"{place:.3f}")
def test_a_log_cut_anywhere_leaves_a_prefix(killed: Path, tmp_path: Path, place: float) -> None:
    data_dir = copy_of(killed, tmp_path)
    path = wal_file(data_dir)
    log = path.read_bytes()
    first, end = span(log)
    cut = round(first + (end - first) * place)
    path.write_bytes(log[:cut].ljust(len(log), b"\0"))
    with Server(data_dir) as server:
        with Api(server.address) as api:
            kept = prefix(api)
            assert whole_writes(log, cut) <= kept <= WRITES
            assert ok(api.append("t", "after"))["seqs"] == [kept * BATCH + 1]
        with server.again("stop") as api:
            assert len(api.read("t")) == kept * BATCH + 1
    shutil.rmtree(data_dir)


def prefix(api: Api) -> int:
    """The number of whole writes that are there; they must be the first ones, untorn."""
    records = api.read("t")
    assert [record["$seq"] for record in records] == list(range(1, len(records) + 1))
    assert len(records) % BATCH == 0, "a batch was torn"
    for index, record in enumerate(records):
        assert record["data"].startswith(marker(index // BATCH).decode())
    return len(records) // BATCH


def test_zeros_instead_of_a_tail_leave_a_prefix(killed: Path, tmp_path: Path) -> None:
    data_dir = copy_of(killed, tmp_path)
    path = wal_file(data_dir)
    log = path.read_bytes()
    cut = log.index(marker(WRITES - 1)) + 3
    with path.open("r+b") as file:
        file.seek(cut)
        file.write(bytes(len(log) - cut))
    with Server(data_dir) as server, Api(server.address) as api:
        assert prefix(api) == WRITES - 1
    shutil.rmtree(data_dir)


@pytest.mark.parametrize("write", [0, WRITES // 2, WRITES - 5])
@pytest.mark.parametrize("flip", [0x01, 0x80, 0xFF], ids=hex)
def test_a_damaged_frame_below_acknowledged_ones_stops_the_server(
    killed: Path, tmp_path: Path, write: int, flip: int
) -> None:
    data_dir = copy_of(killed, tmp_path)
    path = wal_file(data_dir)
    log = bytearray(path.read_bytes())
    log[log.index(marker(write)) + 2] ^= flip
    path.write_bytes(log)
    server = Server(data_dir)
    server.spawn()
    try:
        assert server.wait_exit(30) == REFUSED, server.log_tail
    finally:
        server.kill()
    assert path.name in server.logged
    assert "offset" in server.logged
    assert f"topics repair --dry-run {data_dir}" in server.logged
    assert path.read_bytes() == log, "a refused log must stay as it is"
    lost = [*range(write * BATCH + 1, (write + 1) * BATCH + 1)]
    repaired = topics("repair", str(data_dir))
    assert repaired.returncode == 0, repaired.stderr
    assert f'topic "t": seqs {lost[0]} to {lost[-1]} are lost' in repaired.stdout
    verified = topics("verify", str(data_dir))
    assert (verified.returncode, verified.stderr) == (0, ""), verified.stdout
    with Server(data_dir) as server, Api(server.address) as api:
        page = ok(api.diff("t", from_seq=write * BATCH))
        assert page["tombstone"]["reason"] == "damaged"
        assert (page["tombstone"]["gap_from"], page["tombstone"]["gap_to"]) == (lost[0], lost[-1])
        kept = [record["$seq"] for record in api.read("t")]
        assert kept == [seq for seq in range(1, WRITES * BATCH + 1) if seq not in lost]
        assert ok(api.append("t", "after"))["seqs"] == [WRITES * BATCH + 1]
    shutil.rmtree(data_dir)
