"""Only files with the server's own names are used, changed or removed. `verify` lists others."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.actors.shard.sealing.sealing_support import Sealer, fill, findings, free_all, seen
from tests.support.damage import busy, stepped
from tests.support.log import START
from topics.storage import file_names
from topics.storage.data_dir import DataDirectory
from topics.storage.file_names import Foreign, foreign, own_files
from topics.storage.recovery.repair import ShardRepair
from topics.storage.verify import verify_directory
from topics.storage.wal.spares import prepare

FOREIGN_FILES = (
    *("checkpoint/00/old.ckpt", "checkpoint/00/0000000000000001-copy.ckpt"),
    *("segment/00/notes.txt", "segment/00/copy.seg", "segment/00/0000000001.seg.bak"),
    *("wal/00/x-copy.wal", "wal/00/x.spare-copy", "wal/00/x-copy.spare", "wal/00/old.new"),
    *("blob/00/x.blob", "blob/00/01-02.blob", "blob/00/old.new"),
    *("wal/notes", "notes"),
)
FOLDERS = (".snapshot", "wal/00/.snapshot", "segment/00/.snapshot", "segment/00/000000ffff.seg")
MORE_FOLDERS = ("checkpoint/00/00000000000000ff.ckpt", "blob/00/1-1.blob", "wal/00/old.spare")


@pytest.fixture(autouse=True)
def _stepped() -> Iterator[None]:
    with stepped():
        yield


def create_foreign_files(data: Path) -> dict[Path, bytes | None]:
    """Create the files that an operator or a file system may create, and return their contents."""
    for folder in (*FOLDERS, *MORE_FOLDERS):
        (data / folder).mkdir(parents=True)
    source = next((data / "wal" / "00").glob("*.wal"))
    shutil.copyfile(source, data / "wal" / "00" / "x-copy.wal")
    for name in FOREIGN_FILES:
        path = data / name
        path.parent.mkdir(exist_ok=True, parents=True)
        if not path.exists():
            path.write_bytes(b"foreign")
    found: dict[Path, bytes | None] = {
        data / name: (data / name).read_bytes() for name in FOREIGN_FILES
    }
    return found | {data / name: None for name in (*FOLDERS, *MORE_FOLDERS)}


def assert_unchanged(foreign_files: dict[Path, bytes | None]) -> None:
    for path, content in foreign_files.items():
        assert path.is_dir() if content is None else path.read_bytes() == content, path


@pytest.mark.slow
def test_a_shard_leaves_foreign_files_unchanged_from_its_start_to_its_stop(tmp_path: Path) -> None:
    client = busy(tmp_path / "data")
    client.kill()
    foreign_files = create_foreign_files(tmp_path / "data")
    client = client.again()
    for _ in range(3):
        fill(client, "a", "b", rounds=12)
        client.seal()
        client.checkpoint()
    free_all(client)
    before = seen(client)
    client.stop()
    assert_unchanged(foreign_files)
    again = client.again()
    assert seen(again) == before
    again.kill()
    assert_unchanged(foreign_files)
    assert findings(tmp_path / "data") == []
    reported = {
        each.path for each in verify_directory(tmp_path / "data", 1) if isinstance(each, Foreign)
    }
    assert reported == {*foreign_files}


def test_a_repair_leaves_foreign_files_unchanged(tmp_path: Path) -> None:
    client = busy(tmp_path / "data")
    client.kill()
    foreign_files = create_foreign_files(tmp_path / "data")
    repair = ShardRepair(tmp_path / "data", 0, 1, START)
    repair.plan()
    assert not repair.is_needed
    assert_unchanged(foreign_files)


def test_all_files_of_a_busy_shard_have_known_names(tmp_path: Path) -> None:
    client = busy(tmp_path / "data")
    assert [*foreign(tmp_path / "data", 1)] == []
    client.checkpoint()
    client.seal()
    for name in ("0000000000000010.fresh", "0000000000000010.room", "log"):
        assert file_names.SPARE.fullmatch(prepare(tmp_path, name, 4096).name)
    assert [*foreign(tmp_path / "data", 1)] == []
    client.stop()
    (tmp_path / "data" / "wal" / "00" / "0000000000000000.wal.3.damaged").touch()
    assert [*foreign(tmp_path / "data", 1)] == []


def test_files_are_found_by_name_and_kind(tmp_path: Path) -> None:
    for name in ("0" * 16 + ".wal", "0" * 15 + ".wal", "0" * 16 + ".wal.bak"):
        (tmp_path / name).touch()
    (tmp_path / ("1" * 16 + ".wal")).mkdir()
    assert own_files(tmp_path, file_names.LOG) == [tmp_path / ("0" * 16 + ".wal")]
    assert own_files(tmp_path / "missing", file_names.LOG) == []
    DataDirectory(tmp_path / "data", shards=1).close()
    assert [*foreign(tmp_path / "data", 1)] == []


def test_verify_lists_foreign_files_and_reports_no_damage(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from topics.cli import main

    DataDirectory(tmp_path / "data", shards=1).close()
    client = Sealer(tmp_path / "data")
    fill(client, "a")
    client.stop()
    (tmp_path / "data" / "wal" / "00" / "x-copy.wal").write_bytes(b"?")
    for command in ("verify", "repair"):
        assert main([command, str(tmp_path / "data")]) == 0
        output = capsys.readouterr().out
        if command == "verify":
            assert "x-copy.wal: foreign name, ignored" in output
            assert "no damage, 1 foreign name" in output
