"""Damaged files and files of another version are refused unchanged, with a one-line message."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from tests.storage.test_forged_archives import archive as archived
from tests.support.api import Api, ok
from tests.support.damage import flip
from tests.support.data_directory import topics
from tests.support.server import Server
from topics.formats.disk.versions import BLOB, CHECKPOINT, LOG, META, SEGMENT, VERSIONS
from topics.storage import checkpoints
from topics.storage.segments.segment_file import segment_path

pytestmark = pytest.mark.slow
MIB = 1 << 20
REFUSED = 3


@pytest.fixture(scope="module")
def killed_data_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the directory of a killed server with every kind of file.

    The server has sealed, deleted, evicted and streamed a long write into a blob.
    """
    server = Server(tmp_path_factory.mktemp("kinds") / "data", shards=1, wal_file_bytes=64 << 10)
    with server:
        with Api(server.address) as api:
            _write_load(api, 0)
        with server.again("stop") as api:
            _write_load(api, 1)
        server.kill()
    return server.data_dir


def _write_load(api: Api, round_number: int) -> None:
    for name, config in (("plain", {}), ("capped", {"cap_records": 30})):
        answer = api.put(name, {"durability": "fsync", **config})
        ok(answer, answer.status)
        for number in range(40):
            ok(
                api.append(
                    name,
                    records=[{"data": [round_number, number, "x" * 3000], "tag": f"t{number % 5}"}],
                )
            )
    ok(api.call("POST", "/v0/topics/plain/delete", {"match": "t3"}))
    long = api.append(
        "long", *["y" * (MIB - 100) for _ in range(5)], config={"durability": "fsync"}
    )
    # This write must be the last one. Its blob has filled the log file, and the next frame would
    # seal it.
    ok(long, 200 if round_number else 201)


def kinds_of(path: Path) -> dict[str, list[Path]]:
    """Return the files by kind, except files that contain only zeros, such as a spare log file."""
    kinds: dict[str, list[Path]] = {}
    for file in sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and file.read_bytes().strip(b"\0") and file.name != "LOCK"
    ):
        kinds.setdefault(file.suffix or file.name, []).append(file)
    return kinds


KINDS = {"meta": META, ".wal": LOG, ".ckpt": CHECKPOINT, ".seg": SEGMENT, ".blob": BLOB}


@pytest.mark.parametrize("kind", KINDS)
def test_every_command_refuses_a_file_of_another_version_with_a_one_line_message(
    killed_data_dir: Path, tmp_path: Path, kind: str
) -> None:
    path = Path(shutil.copytree(killed_data_dir, tmp_path / "copy"))
    newest = kinds_of(path)[kind][-1]
    if kind == ".seg":  # A start reads only the segments that its checkpoint names
        found, *_ = checkpoints.intact_checkpoints(path / "checkpoint" / "00")
        newest = segment_path(newest.parent, found.segments[-1])
    data = bytearray(newest.read_bytes())
    struct.pack_into("<I", data, 8, 99)
    newest.write_bytes(data)
    reason = f"has format version 99; this program reads version {VERSIONS[KINDS[kind]]}"
    archive = tmp_path / "all.tar"
    archive.write_bytes(archive_of(path))
    target = tmp_path / "restored"
    for command, name in (
        (("verify", str(path)), newest),
        (("repair", str(path)), newest),
        (("restore", str(archive), str(target)), newest.relative_to(path)),
    ):
        result = topics(*command)
        (line,) = [line for line in (result.stdout + result.stderr).splitlines() if reason in line]
        assert str(name) in line
        assert result.returncode == REFUSED
        assert "Traceback" not in result.stderr
    assert not target.exists()
    if kind != ".blob":  # A start does not read the blob if a segment contains its records
        server = Server(path)
        server.spawn()
        try:
            assert server.wait_exit(30) == REFUSED, server.log_tail
        finally:
            server.kill()
        (line,) = [line for line in server.logged.splitlines() if reason in line]
        assert str(newest) in line
        assert "Traceback" not in server.logged
    assert newest.read_bytes() == data


def archive_of(path: Path) -> bytes:
    """Return a backup of the files as they are."""
    files = [file for kind, found in kinds_of(path).items() if kind in KINDS for file in found]
    return archived({str(file.relative_to(path)): file.read_bytes() for file in files})


def check_refused_start(server: Server, damaged: Path) -> None:
    """Check that the start names file and offset, and that it is not retried."""
    server.spawn()
    try:
        assert server.wait_exit(30) == REFUSED, server.log_tail
    finally:
        server.kill()
    assert str(damaged) in server.logged
    assert '"offset"' in server.logged
    assert f"topics repair --dry-run {server.data_dir}" in server.logged
    assert "Traceback" not in server.logged


def test_a_damaged_frame_below_acknowledged_ones_stops_the_server_until_a_repair(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path / "data", shards=1)
    with server:
        with Api(server.address) as api:
            ok(api.put("t", {"durability": "fsync"}), 201)
            for number in range(20):
                ok(api.append("t", *[f"marker-{number}-"] * 3))
        server.kill()
        (path,) = (
            path for path in server.data_dir.rglob("*.wal") if b"marker-9-" in path.read_bytes()
        )
        flip(path, path.read_bytes().index(b"marker-9-"))
        log = path.read_bytes()
        check_refused_start(server, path)
        assert path.read_bytes() == log, "a refused start has changed the log"
        repaired = topics("repair", str(server.data_dir))
        assert repaired.returncode == 0, repaired.stderr
        assert 'topic "t": seqs 28 to 30 are lost' in repaired.stdout
        verified = topics("verify", str(server.data_dir))
        assert (verified.returncode, verified.stderr) == (0, ""), verified.stdout
        server.start()
        with Api(server.address) as api:
            tombstone = ok(api.diff("t", from_seq=27))["tombstone"]
            assert [tombstone[name] for name in ("reason", "gap_from", "gap_to")] == [
                *("damaged", 28, 30)
            ]
            kept = [record["$seq"] for record in api.read("t")]
            assert kept == [*range(1, 28), *range(31, 61)]
            assert ok(api.append("t", "after"))["seqs"] == [61]


def test_a_damaged_blob_refuses_the_start(tmp_path: Path) -> None:
    server = Server(tmp_path / "data", shards=1)
    with server:
        with Api(server.address) as api:
            ok(api.append("t", records=[{"data": "x" * 900_000, "tag": "t"}] * 6), 201)
        server.kill()
    (blob,) = (tmp_path / "data" / "blob" / "00").glob("*.blob")
    flip(blob, 66)
    check_refused_start(server, blob)


def test_a_blob_damaged_during_a_stop_causes_a_tombstone_and_affects_no_other_topic(
    tmp_path: Path,
) -> None:
    server = Server(tmp_path / "data", shards=1)
    with server:
        with Api(server.address) as api:
            ok(api.append("t", *["x" * 900_000] * 6), 201)
            ok(api.append("t", "later"))
        server.stop()
        (blob,) = (tmp_path / "data" / "blob" / "00").glob("*.blob")
        flip(blob, 3_000_000)
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
                "later"
            ]
            ok(api.append("t", "more"))
            ok(api.append("other", 1), 201)
        assert str(blob) in server.logged
        assert "Traceback" not in server.logged
