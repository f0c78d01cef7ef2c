"""Files of the future and damaged checkpoints: refused, untouched, in one line."""

from __future__ import annotations

import shutil
import struct
from pathlib import Path

import pytest

from tests.campaigns.opened import Opened
from tests.support.api import Api, ok
from tests.support.hurt import flip, tree
from tests.support.server import Server
from topics.storage import checkpoints
from topics.storage.data_dir import DataDirectoryDamaged, encode_meta
from topics.storage.disk import Damaged
from topics.storage.verify import verify_blob

pytestmark = pytest.mark.slow
MIB = 1 << 20
REFUSED = 3


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed server leaves that has sealed, deleted, evicted and stored a long write: every
    kind of file that there is.
    """
    server = Server(tmp_path_factory.mktemp("kinds") / "data", shards=1, wal_file_bytes=64 << 10)
    with server:
        with Api(server.address) as api:
            _busy(api, 0)
        with server.again("stop") as api:
            _busy(api, 1)
        server.kill()
    return server.data_dir


def _busy(api: Api, part: int) -> None:
    for name, config in (("plain", {}), ("capped", {"cap_records": 30})):
        answer = api.put(name, {"durability": "fsync", **config})
        ok(answer, answer.status)
        for number in range(40):
            ok(
                api.append(
                    name, records=[{"data": [part, number, "x" * 3000], "tag": f"t{number % 5}"}]
                )
            )
    ok(api.call("POST", "/v0/topics/plain/delete", {"match": "t3"}))
    long = api.append(
        "long", *["y" * (MIB - 100) for _ in range(5)], config={"durability": "fsync"}
    )
    # The last of all: its blob has filled the log file, and the next frame would have it sealed.
    ok(long, 200 if part else 201)


def kinds_of(path: Path) -> dict[str, list[Path]]:
    """Files with something in them, which a spare log file may not have, by kind."""
    kinds: dict[str, list[Path]] = {}
    for file in sorted(
        file
        for file in path.rglob("*")
        if file.is_file() and file.read_bytes().strip(b"\0") and file.name != "LOCK"
    ):
        kinds.setdefault(file.suffix or file.name, []).append(file)
    return kinds


@pytest.mark.parametrize("kind", ["meta", ".wal", ".ckpt", ".blob", ".seg"])
def test_a_file_of_a_version_to_come_is_refused(killed: Path, tmp_path: Path, kind: str) -> None:
    files = kinds_of(killed).get(kind, [])
    if kind == ".seg":  # one that no checkpoint names would only be removed
        named = {
            number
            for found in checkpoints.whole(killed / "checkpoint" / "00")
            for number in found.segments
        }
        files = [file for file in files if int(file.stem, 16) in named]
    if not files:
        pytest.skip(f"there is no {kind} file yet")
    copy = Path(shutil.copytree(killed, tmp_path / "copy"))
    newest = copy / files[-1].relative_to(killed)
    data = bytearray(newest.read_bytes())
    struct.pack_into("<I", data, 8, 99)  # every format: magic of 8 bytes, then the version
    newest.write_bytes(encode_meta(1, version=99) if kind == "meta" else data)
    if kind == ".blob":
        # Segments may hold its records by now: then nobody needs the file, and only `verify` looks
        # at it.
        (finding,) = verify_blob(newest)
        assert "version" in finding.reason
        return
    with pytest.raises((Damaged, DataDirectoryDamaged)) as refusal:
        Opened(copy, boot="first")
    if kind != ".wal":
        assert "version" in str(refusal.value)
    assert newest.read_bytes()[8:12] == struct.pack("<I", 99), (
        "what is not understood stays as it is"
    )


def test_a_server_says_in_one_line_that_a_directory_is_too_new(
    killed: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(killed, tmp_path / "copy"))
    (copy / "meta").write_bytes(encode_meta(1, version=99))
    server = Server(copy)
    server.spawn()
    try:
        assert server.wait_exit(30) not in (0, -9)
    finally:
        server.kill()
    assert "version is 99" in server.logged
    assert str(copy) in server.logged
    assert "Traceback" not in server.logged


def test_a_server_without_a_whole_checkpoint_refuses_and_changes_nothing(
    killed: Path, tmp_path: Path
) -> None:
    copy = Path(shutil.copytree(killed, tmp_path / "copy"))
    for path in copy.glob("checkpoint/00/*.ckpt"):
        flip(path, 100)
    hurt = tree(copy)
    server = Server(copy, wal_file_bytes=64 << 10)
    server.spawn()
    try:
        assert server.wait_exit(30) == REFUSED
    finally:
        server.kill()
    assert tree(copy) == hurt
    assert "no checkpoint is whole" in server.logged
    assert "Traceback" not in server.logged
