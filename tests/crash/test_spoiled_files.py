"""Files of the future, flipped and torn ones: refused, or told."""

from __future__ import annotations

import random
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.opened import Opened
from tests.support.api import Api, ok
from tests.support.server import Server
from topics.storage import checkpoints
from topics.storage.data_dir import DataDirectoryDamaged, encode_meta
from topics.storage.disk import Damaged
from topics.storage.verify.blobs import verify_blob

pytestmark = pytest.mark.slow
SEED = 3
MIB = 1 << 20


@pytest.fixture(scope="module")
def killed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What a killed server leaves that has sealed, deleted, evicted and stored a long write: every
    kind of file that there is.
    """
    server = Server(tmp_path_factory.mktemp("kinds") / "data", shards=1, wal_file_bytes=64 << 10)
    with server:
        with Api(server.address) as api:
            _busy(api, 0)
        server.stop()
        server.start()
        with Api(server.address) as api:
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


def whole(path: Path) -> dict[str, dict[int, Any]]:
    with Opened(path, boot="first") as opened:
        found = {name: opened.read(name) for name in opened.topics()}
    return {
        name: {seq: record["data"] for seq, record in topic.records.items()}
        | {seq: TOLD for first, last in topic.damaged for seq in range(first, last + 1)}
        for name, topic in found.items()
        if topic
    }


TOLD = object()  # stands for a record of which readers are told that it is damaged
Spoil = Callable[[bytearray, random.Random], None]


def flip(data: bytearray, dice: random.Random) -> None:
    """One bit where there is something."""
    used = len(bytes(data).rstrip(b"\0"))
    data[dice.randrange(used)] ^= 1 << dice.randrange(8)


def tear(data: bytearray, dice: random.Random) -> None:
    """The end is not there."""
    del data[dice.randrange(len(bytes(data).rstrip(b"\0"))) :]


def blank(data: bytearray, dice: random.Random) -> None:
    """A sector of zeros."""
    used = len(bytes(data).rstrip(b"\0"))
    at = dice.randrange(used) // 512 * 512
    data[at : at + 512] = bytes(len(data[at : at + 512]))


@pytest.mark.timeout(300)
@pytest.mark.parametrize("spoil", [flip, tear, blank])
def test_a_spoiled_file_of_any_kind_is_refused_or_costs_nothing_that_is_not_told(
    killed: Path, tmp_path: Path, spoil: Spoil
) -> None:
    dice = random.Random(SEED)
    right = whole(Path(shutil.copytree(killed, tmp_path / "right")))
    refusals: list[tuple[str, str]] = []
    for kind, files in kinds_of(killed).items():
        for number in range(12):
            copy = Path(shutil.copytree(killed, tmp_path / "copy"))
            file = copy / dice.choice(files).relative_to(killed)
            data = bytearray(file.read_bytes())
            spoil(data, dice)
            file.write_bytes(data)
            what = f"{kind} {number}: {file.name} {spoil.__name__}"
            try:
                found = whole(copy)
            except (Damaged, DataDirectoryDamaged) as error:
                refusals.append((what, str(error)))
            else:
                _compare(right, found, what, kind, last=file.name == files[-1].name)
            shutil.rmtree(copy)
    unnamed = [(what, said) for what, said in refusals if str(tmp_path / "copy") not in said]
    assert not unnamed, "a refusal names the place"


def _compare(
    right: dict[str, dict[int, Any]],
    found: dict[str, dict[int, Any]],
    what: str,
    kind: str,
    *,
    last: bool,
) -> None:
    """Nothing is read that was not written. What is missing is the tail of the last log file, which
    looks like a torn write.
    """
    for name, records in right.items():
        there = found.get(name, {})
        # Delete flags stand under no checksum: a flipped one is a delete, or takes one back.
        flags = 1 if kind == ".seg" else 0
        strangers = {seq for seq, data in there.items() if records.get(seq) != data}
        if kind == ".seg":
            strangers = {seq for seq in strangers if there[seq] is not TOLD}
        cut = kind == ".wal" and last
        if not cut:
            assert len(strangers) <= flags, f"{what}: {name} shows {sorted(strangers)[:5]}"
            assert len({*records} - {*there}) <= flags, (
                f"{what}: {name} has lost {sorted({*records} - {*there})[:5]}"
            )
        elif there and name != "capped":
            # A delete or an eviction that stood in the tail is gone with it, so more may be there;
            # never something else.
            assert min(records) >= min(there), f"{what}: {name} has lost its beginning"


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
        whole(copy)
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
