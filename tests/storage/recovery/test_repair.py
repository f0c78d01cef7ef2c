"""Repair of a shard that refuses to start: exactly the lost records are reported, and all others
remain.
"""

from __future__ import annotations

import random
import re
import shutil
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest

from tests.actors.shard.sealing.sealing_support import Sealer, fill
from tests.support.damage import (
    FILE_BYTES,
    WAYS,
    Seen,
    all_missing,
    busy,
    findings,
    flip,
    frames,
    kinds,
    opened,
    repaired,
    seen,
    seen_once,
    small,
    stepped,
    tree,
    without,
)
from tests.support.forwarding import RECORDS, forward, forward_named
from tests.support.log import START, Client, append_streamed, log_files
from tests.support.recovery import frames_of
from topics.formats.disk.copies import Run
from topics.formats.disk.frames import FrameKind
from topics.storage import checkpoints
from topics.storage.disk import Damaged
from topics.storage.mapped_file import PAGE_BYTES, MappedFile
from topics.storage.recovery.log_repair import CannotRepair
from topics.storage.recovery.repair import ShardRepair
from topics.storage.segments.segment_file import segment_path

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def _stepped() -> Iterator[None]:
    with stepped():
        yield


@pytest.mark.parametrize("is_emptied", [False, True])
def test_a_log_file_without_a_header_may_have_contained_any_later_seqs(
    tmp_path: Path, is_emptied: bool
) -> None:
    client = Client(tmp_path, file_bytes=FILE_BYTES)
    for number in range(30):
        client.append("a", "x" * 500, number)
    before = seen(client)
    client.kill()
    newest = log_files(tmp_path)[-1]
    first = min(header.first_seq for _, header in frames_of(newest))
    data = bytearray(newest.read_bytes())
    data[:4200] = b"?" * 4200  # Destroy the salt and the first frame
    newest.write_bytes(b"" if is_emptied else data)
    lines = repaired(tmp_path)
    assert f'topic "a": may have lost records after seq {first - 1};' in lines[-1]
    assert not findings(tmp_path)
    client = opened(tmp_path)
    assert seen(client).shown == without(before, "a", *range(first, 61))
    assert client.append("a", "next")[0] > 60
    client.kill()


def _truncate(path: Path, at: int, *, is_extended: bool = False) -> None:
    """Cut a file at the offset of its frame number ``at``. Extend it with zeros if requested."""
    data = path.read_bytes()
    kept = data[: frames_of(path)[at][0] + 40]
    path.write_bytes(kept.ljust(len(data), b"\0") if is_extended else kept)


@pytest.mark.parametrize("before_stop", [5, 60])
@pytest.mark.parametrize(
    "damage",
    [
        Path.unlink,
        partial(Path.write_bytes, data=b""),
        partial(_truncate, at=0),  # before the checkpoint
        partial(_truncate, at=0, is_extended=True),
        partial(_truncate, at=-2),  # after the checkpoint
    ],
)
def test_a_topic_continues_above_all_seqs_that_the_lost_end_of_the_log_may_contain(
    tmp_path: Path, damage: Callable[[Path], None], before_stop: int
) -> None:
    client = Client(tmp_path, file_bytes=FILE_BYTES)
    for number in range(before_stop):
        client.append("a", "x" * 500, number)
    client.stop()  # Writes a checkpoint
    client = Client(tmp_path, file_bytes=FILE_BYTES)
    for number in range(8):
        client.append("a", "later", number)
    before = seen(client).shown["a"]
    client.kill()
    damage(log_files(tmp_path)[-1])
    lines = repaired(tmp_path)
    assert "the end of the log is lost" in lines[-2]
    assert 'topic "a": may have lost records after seq' in lines[-1]
    assert not findings(tmp_path)
    client = opened(tmp_path)
    after = seen(client)
    assert {*before} == {*after.shown["a"]} | (after.reported["a"] & {*before})
    assert client.append("a", "next")[0] > max(before)
    client.kill()


def test_a_missing_newest_file_is_replaced_even_if_all_earlier_files_are_sealed(
    tmp_path: Path,
) -> None:
    client = Sealer(tmp_path, file_bytes=FILE_BYTES)
    fill(client, "a", rounds=30, size=300)
    client.seal()  # Writes a checkpoint in the middle of the newest file
    client.append("a", "later")
    before = seen(client).shown["a"]
    client.kill()
    newest = log_files(tmp_path)[-1]
    newest.unlink()
    lines = repaired(tmp_path)
    assert lines[0].startswith(f"{newest}: the log from")
    assert 'topic "a": may have lost records after seq' in lines[-1]
    assert not findings(tmp_path)
    repaired_client = opened(tmp_path)
    after = seen(repaired_client)
    assert {*before} == {*after.shown["a"]} | (after.reported["a"] & {*before})
    assert repaired_client.append("a", "next")[0] > max(before)
    repaired_client.kill()


@pytest.mark.parametrize(("page", "is_end_lost"), [(1, False), (3, True)])
def test_an_unreadable_page_loses_the_end_of_the_log_only_if_no_frame_follows_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, page: int, is_end_lost: bool
) -> None:
    client = Client(tmp_path)
    for _ in range(3):  # Each frame is longer than a page and ends in the next one
        client.append("a", "x" * (PAGE_BYTES - 200))
    client.kill()

    def first_unreadable(file: MappedFile, start: int, end: int, *_: object) -> int | None:
        is_image = isinstance(file.data.obj, bytearray)
        return (
            page * PAGE_BYTES if not is_image and start < (page + 1) * PAGE_BYTES <= end else None
        )

    def can_read(file: MappedFile, start: int, end: int) -> bool:
        return first_unreadable(file, start, end) is None

    monkeypatch.setattr(MappedFile, "first_unreadable", first_unreadable)
    monkeypatch.setattr(MappedFile, "can_read", can_read)
    repair = ShardRepair(tmp_path, 0, 1, START)
    repair.plan()
    assert any("the end of the log is lost" in line for line in repair.lines) == is_end_lost


def test_nothing_is_skipped_if_the_last_frame_before_the_checkpoint_is_damaged(
    tmp_path: Path,
) -> None:
    client = Client(tmp_path)
    client.append("a", "x")
    client.append("a", "y")
    client.stop()
    flip(log_files(tmp_path)[0], frames(tmp_path, FrameKind.APPEND)[-1][0] + 70)
    assert repaired(tmp_path)[1:] == ['topic "a": seqs 2 to 2 are lost']
    client = opened(tmp_path)
    assert client.append("a", "next")[0] == 3
    client.kill()


@pytest.mark.parametrize("is_only", [True, False])
def test_a_damaged_checkpoint_that_startup_does_not_need_is_set_aside(
    tmp_path: Path, is_only: bool
) -> None:
    for _ in range(1 if is_only else 2):
        client = Client(tmp_path)
        client.append("a", "x")
        before = seen(client)
        client.stop()
    *_, path = kinds(tmp_path)["checkpoint .ckpt"]
    path.write_bytes(b"hello")
    source = "startup replays the entire log" if is_only else "another one is intact"
    assert repaired(tmp_path) == [f"{path}: incomplete checkpoint; {source}, no record is lost"]
    assert not findings(tmp_path)
    assert path.with_name(path.name + ".damaged").read_bytes() == b"hello"
    assert seen_once(tmp_path) == before


@pytest.mark.parametrize("part", ["magic", "size", "checksum", "salt"])
def test_a_log_file_with_a_damaged_header_is_identified_by_its_name_and_first_frame(
    tmp_path: Path, part: str
) -> None:
    before = small(tmp_path)
    flip(log_files(tmp_path)[0], {"magic": 3, "salt": 26, "size": 33, "checksum": 41}[part])
    with pytest.raises(Damaged):
        opened(tmp_path)
    (line,) = repaired(tmp_path)
    assert line.startswith(str(log_files(tmp_path)[0]))
    assert not findings(tmp_path)
    assert seen_once(tmp_path) == before, "no frame is lost"


@pytest.mark.parametrize("is_missing", [False, True])
def test_a_damaged_or_missing_blob_loses_only_its_write(tmp_path: Path, is_missing: bool) -> None:
    client = Client(tmp_path)
    client.append("a", 1)
    path = append_streamed(client, "a", *("y" * 100 for _ in range(9)))
    client.append("a", 2)
    before = seen(client)
    client.kill()
    if is_missing:
        path.unlink()
    else:
        flip(path, 500)
    assert 'topic "a": seqs 2 to 10 are lost' in repaired(tmp_path)
    assert not findings(tmp_path)
    assert path.with_name(path.name + ".damaged").exists() != is_missing
    after = seen_once(tmp_path)
    assert after.shown == without(before, "a", *range(2, 11))
    assert after.reported["a"] == {*range(2, 11)}


def test_losses_stay_reported_after_the_repaired_log_file_is_sealed_and_removed(
    tmp_path: Path,
) -> None:
    client = Sealer(tmp_path, file_bytes=FILE_BYTES)
    fill(client, "a", "b", rounds=6, size=300)
    fill(client, "c", rounds=1)
    before = seen(client)
    client.kill()
    Client(tmp_path, file_bytes=FILE_BYTES).kill()
    offsets = [offset for offset, _ in frames(tmp_path, FrameKind.APPEND)]
    for at in (4, -1):
        flip(log_files(tmp_path)[0], offsets[at] + 100)
    repaired(tmp_path)
    client = Sealer(tmp_path, file_bytes=FILE_BYTES)
    after = seen(client)
    assert (after.reported["a"], after.reported["c"]) == ({5, 6}, {1, 2})
    for _ in range(3):
        fill(client, "other", rounds=20, size=300)
        client.checkpoint()
        client.checkpoint()
        client.kill()
        client = Sealer(tmp_path, file_bytes=FILE_BYTES)
        found = seen(client)
        assert all(found.shown[name] == after.shown[name] for name in before.shown)
        assert all(found.reported[name] == after.reported[name] for name in before.shown)
    assert not any("00000000.wal" in path.name for path in log_files(tmp_path)), (
        "the repaired log file is removed"
    )
    client.kill()


class Scene:
    path: Path
    before: Seen


@pytest.fixture(scope="module", params=["stop", "kill"])
def scene(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Scene:
    found = Scene()
    with stepped():
        client = busy(tmp_path_factory.mktemp("repair") / "data")
        found.path, found.before = client.path, seen(client)
        getattr(client, request.param)()
    (found.path / "checkpoint" / "00" / "next.reserve").unlink()
    return found


@pytest.mark.parametrize("way", [way for way in WAYS if way is not all_missing])
@pytest.mark.parametrize("kind", ["wal .wal", "blob .blob", "checkpoint .ckpt"])
def test_a_successful_repair_of_any_damage_reports_every_lost_record(
    scene: Scene, tmp_path: Path, kind: str, way: Callable[[list[Path], random.Random], None]
) -> None:
    for number in range(2):
        case = f"{way.__name__} {kind} {number}"
        path = Path(shutil.copytree(scene.path, tmp_path / "copy"))
        way(kinds(path)[kind], random.Random(case))
        damaged = tree(path)
        try:
            seen_once(Path(shutil.copytree(path, tmp_path / "started")))
        except Damaged:
            repair = ShardRepair(path, 0, 1, START)
            try:
                repair.plan()
            except CannotRepair:
                assert tree(path) == damaged, case
            else:
                repair.apply()
                assert not findings(path), case
                after = seen_once(path)
                for name, records in scene.before.shown.items():
                    shown, reported = after.shown.get(name, {}), after.reported.get(name, set())
                    lost = {seq for seq in records if shown.get(seq) != records[seq]}
                    assert lost <= reported, (case, name, repair.lines)
        shutil.rmtree(path)
        shutil.rmtree(tmp_path / "started")


@pytest.mark.parametrize("kind", ["wal .wal", "segment .seg", "checkpoint .ckpt", "blob .blob"])
def test_a_file_of_another_version_is_refused_and_not_repaired(
    scene: Scene, tmp_path: Path, kind: str
) -> None:
    path = Path(shutil.copytree(scene.path, tmp_path / "copy"))
    file = kinds(path)[kind][-1]
    if kind == "segment .seg":  # A start reads only the segments that its checkpoint names
        newest, *_ = checkpoints.intact_checkpoints(path / "checkpoint" / "00")
        file = segment_path(file.parent, newest.segments[-1])
    flip(file, 8, 6)
    changed = tree(path)
    reason = rf"{file.name}, offset \d+: .*has format version [67]\d; this program reads version"
    with pytest.raises(Damaged, match=reason):
        opened(path)
    with pytest.raises(CannotRepair, match=reason):
        ShardRepair(path, 0, 1, START).plan()
    (finding,) = findings(path)
    assert re.search(reason, str(finding))
    assert tree(path) == changed


def test_a_repair_without_an_intact_checkpoint_is_refused(scene: Scene, tmp_path: Path) -> None:
    path = Path(shutil.copytree(scene.path, tmp_path / "copy"))
    for checkpoint in kinds(path)["checkpoint .ckpt"]:
        flip(checkpoint, 100)
    damaged = tree(path)
    with pytest.raises(CannotRepair, match="restore a backup"):
        ShardRepair(path, 0, 1, START).plan()
    assert tree(path) == damaged


def repaired_after_kills(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Kill a repair of ``tmp_path/data`` at each step and repeat it. Yield each repaired copy."""
    killed = 0
    for step in ("link", "fdatasync", "rename", "replace", "unlink", "fsync"):
        for at in range(8):
            path = Path(shutil.copytree(tmp_path / "data", tmp_path / "copy"))
            calls = 0

            def interrupt(*_: object, at: int = at, **__: object) -> None:
                nonlocal calls
                calls += 1
                if calls > at:
                    raise KeyboardInterrupt

            repair = ShardRepair(path, 0, 1, START)
            repair.plan()
            with monkeypatch.context() as patch:
                patch.setattr(f"os.{step}", interrupt)
                try:
                    repair.apply()
                except KeyboardInterrupt:
                    killed += 1
            again = ShardRepair(path, 0, 1, START)
            again.plan()
            again.apply()
            yield path
            assert not findings(path)
            shutil.rmtree(path)
    assert killed


def test_a_repair_that_is_killed_between_two_steps_is_completed_by_the_next_repair(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path / "data", file_bytes=FILE_BYTES)
    for number in range(60):
        client.append("a", "x" * 500, number)
    before = seen(client)
    client.kill()
    files = log_files(tmp_path / "data")
    for file in files[:2]:
        flip(file, frames_of(file)[4][0] + 100)
    for path in repaired_after_kills(tmp_path, monkeypatch):
        after = seen_once(path)
        assert len(before.shown["a"]) - len(after.shown["a"]) == 4


def test_a_killed_repair_of_a_missing_newest_file_assigns_no_seq_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = Client(tmp_path / "data", file_bytes=FILE_BYTES)
    for number in range(60):
        client.append("a", "x" * 500, number)
    client.stop()  # Writes a checkpoint
    client = Client(tmp_path / "data", file_bytes=FILE_BYTES)
    client.append("a", "later")
    before = seen(client).shown["a"]
    client.kill()
    first, *_, newest = log_files(tmp_path / "data")
    flip(first, frames_of(first)[4][0] + 100)
    newest.unlink()
    for path in repaired_after_kills(tmp_path, monkeypatch):
        client = opened(path)
        after = seen(client)
        assert {*before} == {*after.shown["a"]} | (after.reported["a"] & {*before})
        assert client.append("a", "next")[0] > max(before)
        client.kill()


def test_copies_of_lost_records_are_reported_as_lost_in_each_dest(tmp_path: Path) -> None:
    client = Client(tmp_path)
    for name in ("a", "dest", "other"):
        client.put(name)
    first = client.wal.next_lsn
    client.append("a", "x" * 100)
    forward_named(client, ["dest", "other"], Run(first, 0, 0, 1))
    kept = forward(client, ["dest", "other"])
    forward_named(client, ["dest"], Run(kept, 0, 0, len(RECORDS)))
    client.append("a", 2)
    before = seen(client)
    client.kill()
    Client(tmp_path).kill()
    flip(log_files(tmp_path)[0], frames(tmp_path, FrameKind.APPEND)[0][0] + 100)
    lines = repaired(tmp_path)
    assert any('topic "other": seqs 1 to 1 are lost' in line for line in lines), lines
    after = seen_once(tmp_path)
    assert after.reported == {"a": {1}, "dest": {1}, "other": {1}}
    assert after.shown["dest"] == without(before, "dest", 1)["dest"]
    assert after.shown["other"] == without(before, "other", 1)["other"]
    assert not findings(tmp_path)


@pytest.mark.parametrize("at", [20, 64 + 10, -30])
def test_a_damaged_forward_frame_is_reported_as_lost_in_each_dest(tmp_path: Path, at: int) -> None:
    client = Client(tmp_path)
    for name in ("dest", "other"):
        client.put(name)
    for _ in range(3):
        lsn = forward(client, ["dest", "other"])
    forward_named(client, ["other"], Run(lsn, 0, 0, len(RECORDS)))
    before = seen(client)
    client.kill()
    Client(tmp_path).kill()
    offset, header = frames(tmp_path, FrameKind.FORWARD)[1]
    flip(log_files(tmp_path)[0], offset + (at if at > 0 else header.end - header.lsn + at), 1)
    repaired(tmp_path)
    after = seen_once(tmp_path)
    for name in ("dest", "other"):
        lost = {seq for seq in before.shown[name] if seq not in after.shown[name]}
        assert lost >= {4, 5, 6}
        assert lost <= after.reported[name]
    assert not findings(tmp_path)
