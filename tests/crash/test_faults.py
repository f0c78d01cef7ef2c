"""Disks that are full, fail, or may only be read; files of the future, flipped and torn ones; a
shard that stands still.
"""

from __future__ import annotations

import errno
import os
import random
import shutil
import signal
import struct
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.campaigns.mounts import (
    Lossy,
    freezable_disk,
    needs_lossy,
    needs_root,
    remount,
    small_disk,
)
from tests.campaigns.opened import Opened
from tests.contract.api import Answer, Api, ok, refused
from tests.crash.test_kill import topics_of
from tests.server import Server
from tests.support.sse import watch
from topics.formats.disk.segment import CHUNK_BYTES
from topics.storage import checkpoints
from topics.storage.data_dir import DataDirectoryDamaged, encode_meta
from topics.storage.disk import Damaged
from topics.storage.verify.blobs import verify_blob

pytestmark = pytest.mark.slow

SEED = 3
MIB = 1 << 20


def data_of(api: Api, topic: str) -> list[Any]:
    return [record["data"] for record in api.read(topic, max_batch_bytes=8 << 20)]


# --- no room


def fill_up(api: Api, topic: str, payload: str, most: int) -> tuple[list[int], Answer]:
    """Append until a write is refused: the numbers that were acknowledged, and the refusal."""
    taken: list[int] = []
    for number in range(most):
        answer = api.append(topic, [number, payload])
        if answer.status not in (200, 201):
            return taken, answer
        taken.append(number)
    raise AssertionError(f"{most} writes went onto a disk that has no room for them")


@needs_root
def test_a_full_disk_refuses_writes_and_loses_none(tmp_path: Path) -> None:
    """Small writes go into the log, larger ones beside it."""
    with (
        small_disk(tmp_path / "disk", 24 * MIB) as disk,
        Server(disk / "data", shards=1, wal_file_bytes=1 * MIB, max_record_bytes=8 * MIB) as server,
    ):
        with Api(server.address) as api:
            ok(api.put("t", {"durability": "fsync"}), 201)
            taken, answer = fill_up(api, "t", "x" * 20_000, 3000)
            refused(answer, 503, "not_ready")
            assert int(answer.headers["retry-after"]) >= 0
            assert [number for number, _ in data_of(api, "t")] == taken, "a full disk is still read"
            assert api.append("t", [-1, "x" * 6_000_000]).status == 503
        server.kill()
        remount(disk, f"size={64 * MIB}")
        server.start()
        with Api(server.address) as api:
            assert [number for number, _ in data_of(api, "t")] == taken
            assert ok(api.append("t", "room again"))["seqs"] == [len(taken) + 1]


@needs_root
def test_a_directory_that_may_only_be_read_refuses_the_start(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 64 * MIB) as disk:
        with (
            Server(disk / "data", shards=1, wal_file_bytes=1 * MIB) as server,
            Api(server.address) as api,
        ):
            ok(api.append("t", 1), 201)
        remount(disk, "ro")
        server = Server(disk / "data", shards=1, wal_file_bytes=1 * MIB)
        server.spawn()
        try:
            assert server.wait_exit(30) not in (0, -9)
        finally:
            server.kill()
        assert str(disk / "data") in server.logged
        assert "Traceback" not in server.logged
        remount(disk, "rw")
        with (
            Server(disk / "data", shards=1, wal_file_bytes=1 * MIB) as server,
            Api(server.address) as api,
        ):
            assert data_of(api, "t") == [1]


# --- a disk that fails


@pytest.fixture
def lossy(tmp_path: Path) -> Iterator[Lossy]:
    with Lossy(tmp_path / "lossy") as lossy:
        yield lossy


@needs_lossy
@pytest.mark.parametrize(
    ("operation", "durability"), [("fsync", "fsync"), ("fsync", "disk"), ("write", "disk")]
)
def test_a_failed_write_is_never_shown_and_the_shard_takes_no_more(
    lossy: Lossy, operation: str, durability: str
) -> None:
    with Server(lossy.path / "data", shards=1, wal_file_bytes=1 * MIB) as server:
        with Api(server.address) as api:
            ok(api.put("t", {"durability": durability}), 201)
            acknowledged: list[object] = []
            for number in range(5):
                ok(api.append("t", number))
                acknowledged.append(number)
            lossy.ctl("fault", op=operation, err=errno.EIO, count=0)
            refusal = None
            deadline = time.monotonic() + 10
            while refusal is None:
                assert time.monotonic() < deadline, "writes go on onto a disk that fails"
                answer = api.append("t", f"in doubt {len(acknowledged)}")
                if answer.status == 200:
                    assert (operation, durability) == ("fsync", "disk"), (
                        "acknowledged without the disk"
                    )
                    acknowledged.append(f"in doubt {len(acknowledged)}")
                else:
                    refusal = answer
            refused(refusal, 503, "not_ready")
            assert data_of(api, "t") == acknowledged, "reads go on, without the write that failed"
            lossy.ctl("faults", clear=True)
            if operation == "fsync":
                refused(
                    api.append("t", "after"), 503, "not_ready"
                )  # never trusted again until a restart
            assert data_of(api, "t")[: len(acknowledged)] == acknowledged
        server.kill()
        server.start()
        with Api(server.address) as api:
            found = data_of(api, "t")
            assert found[: len(acknowledged)] == acknowledged
            assert len(found) <= len(acknowledged) + 1
            assert ok(api.append("t", "goes on"))["seqs"][0] > len(acknowledged)


@needs_lossy
def test_a_disk_that_fills_up_between_writes_is_told_and_got_over(lossy: Lossy) -> None:
    with Server(lossy.path / "data", shards=1, wal_file_bytes=256 << 10) as server:
        with Api(server.address) as api:
            ok(api.put("t", {"durability": "fsync"}), 201)
            used = lossy.ctl("stat")["used"]
            lossy.ctl("limit", bytes=used + MIB)
            taken, answer = fill_up(api, "t", "x" * 20_000, 500)
            refused(answer, 503, "not_ready")
            lossy.ctl("limit", bytes=0)
        server.kill()
        server.start()
        with Api(server.address) as api:
            assert [number for number, _ in data_of(api, "t")] == taken
            ok(api.append("t", "room again"))


# --- files of the future, flipped and torn ones


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
    ok(
        long, 200 if part else 201
    )  # the last of all: its blob has filled the log file, and the next frame would have it sealed


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
        flags = (
            1 if kind == ".seg" else 0
        )  # delete flags stand under no checksum: a flipped one is a delete, or takes one back
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
    if (
        kind == ".blob"
    ):  # segments may hold its records by now: then nobody needs the file, and only `verify` looks at it
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


# --- damage under a running server


def test_records_damaged_under_a_running_server_are_told_to_their_readers_and_cost_nobody_else(
    tmp_path: Path,
) -> None:
    with (
        Server(tmp_path / "data", shards=1, wal_file_bytes=256 << 10) as server,
        Api(server.address) as api,
    ):
        ok(api.put("hurt", {"ttl_ms": 3_600_000, "cap_records": 2_000}), 201)
        for number in range(400):
            for topic in ("hurt", "sound"):
                answer = api.append(
                    topic, records=[{"data": [number, "x" * 1000], "tag": "t", "node": "n"}]
                )
                ok(answer, answer.status)
        deadline = time.monotonic() + 20
        while len(list((tmp_path / "data" / "checkpoint" / "00").glob("*.ckpt"))) < 2:
            assert time.monotonic() < deadline, "it seals"
            time.sleep(0.05)
        segment = min((tmp_path / "data" / "segment" / "00").glob("*.seg"))
        with segment.open("r+b") as file:
            file.seek(4096 + CHUNK_BYTES + 100)  # in the second chunk of the first extent
            file.write(b"\0\0\0\0")
        hurt, sound = sorted(
            ("hurt", "sound"), key=lambda topic: len(data_of(api, topic))
        )  # either may come first
        page = ok(api.diff(hurt, from_seq=0))
        first = page["next_from_seq"] + 1
        assert [record["$seq"] for record in page["records"]] == [*range(1, first)]
        assert (first > 30, page["tombstone"]) == (True, None)
        page = ok(api.diff(hurt, from_seq=first - 1, wait_ms=500, limit=1000))
        gap = page["tombstone"]
        assert (gap["gap_from"], gap["reason"], gap["earliest_seq"], gap["head_seq"]) == (
            first,
            "damaged",
            1,
            400,
        )
        assert gap["missed_estimate"] == gap["gap_to"] - first + 1 < 70
        assert [record["$seq"] for record in page["records"]] == [*range(gap["gap_to"] + 1, 401)]
        assert str(tmp_path) not in str(page), "paths are for the log"
        assert ok(api.diff(hurt, from_seq=0, node="n"))["tombstone"] is None, (
            "its filter drops all of it"
        )
        assert len(data_of(api, sound)) == 400
        with watch(api, [hurt]) as stream:
            told = stream.told([hurt])
        assert [(each["gap_from"], each["gap_to"], each["reason"]) for each in told.tombstones] == [
            (first, gap["gap_to"], "damaged")
        ]
        assert [record["$seq"] for record in told.records] == [
            *range(1, first),
            *range(gap["gap_to"] + 1, 401),
        ]
        for number in range(20):
            ok(api.append(hurt, number))
            ok(api.append(sound, number))
        ok(api.call("GET", "/v0/topics"))
        assert api.state(hurt)["head_seq"] == 420
        assert server.logged.count(str(segment)) == 1, "told once, whoever reads"
        assert "Traceback" not in server.logged


# --- a shard that stands still


def test_a_shard_that_stands_still_holds_up_nobody_else_and_comes_back(tmp_path: Path) -> None:
    with Server(tmp_path / "data", shards=2) as server:
        (stuck,), (other,) = topics_of(0, 2), topics_of(1, 2)
        with Api(server.address) as api:
            for topic in (stuck, other):
                ok(api.put(topic, {"durability": "fsync"}), 201)
            ok(api.append(stuck, "before"))
        shard = server.wait_roles(3)["shard 0"]
        os.kill(shard, signal.SIGSTOP)
        try:
            outcomes = [_impatient(server, stuck) for _ in range(2)]
            with Api(server.address, timeout_s=5) as api:
                for number in range(30):
                    ok(api.append(other, number))
                assert len(data_of(api, other)) == 30
        finally:
            os.kill(shard, signal.SIGCONT)
        with Api(server.address) as api:
            answer = api.append(stuck, "during", idempotency_key="during")
            while answer.status == 503:
                time.sleep(0.05)
                answer = api.append(stuck, "during", idempotency_key="during")
            ok(answer)
            ok(api.append(stuck, "after"))
            assert data_of(api, stuck) == ["before", "during", "after"]
    assert all(outcome in (None, 503) for outcome in outcomes), outcomes


def _impatient(server: Server, topic: str) -> int | None:
    """Ask for one second; the status, None when there was no answer."""
    with Api(server.address, timeout_s=1) as api:
        try:
            return api.append(topic, "during", idempotency_key="during").status
        except TimeoutError:
            return None


# --- a disk that hangs


@needs_root
@pytest.mark.parametrize(("durability", "reason"), [("fsync", "disk_stalled"), ("disk", "stalled")])
def test_a_disk_that_hangs_ends_the_writes_and_is_told(
    tmp_path: Path, durability: str, reason: str
) -> None:
    """A short write of class ``disk`` is made by the loop, which hangs with it and shows no sign of
    life.
    """
    with (
        freezable_disk(tmp_path / "disk") as freeze,
        Server(tmp_path / "disk" / "data", shards=1, wal_file_bytes=1 * MIB) as server,
        Api(server.address) as api,
    ):
        ok(api.put("t", {"durability": durability}), 201)
        ok(api.append("t", 1))
        freeze(True)
        for number in (2, 3):  # one that hangs, and one that is refused at once
            assert refused(api.append("t", number), 503, "not_ready")["detail"]["reason"] == reason
        ready = refused(api.call("GET", "/v0/ready"), 503, "not_ready")
        assert ready["detail"]["shards"] == [{"shard": 0, "state": reason}]
        if reason == "disk_stalled":
            assert data_of(api, "t") == [1], "the loop lives, so reads go on"
        freeze(False)
        server.wait_ready()
        ok(api.append("t", 4))
        assert data_of(api, "t") == [1, 2, 4], "what hung is there; what was refused is not"
