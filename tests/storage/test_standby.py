"""Standby directory: generations share files; interrupted and altered transfers harm none."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NoReturn

import msgspec
import pytest

from topics.formats.disk import backup_archive
from topics.formats.disk.backup_archive import ArchiveFile, Manifest
from topics.storage.backup_restore import NotABackup
from topics.storage.backup_writer import BackupWriter
from topics.storage.standby import (
    BadStandby,
    Generation,
    LogVolume,
    Origin,
    SourceOlder,
    Standby,
    StandbyInUse,
)

LOG = "wal/00/0000000000000000.wal"
SEGMENT = "segment/00/0000000001.seg"
BLOB = "blob/00/1-1.blob"
META = "meta"


class Source:
    """A server's files, and the incremental backup of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.files: dict[str, bytes] = {}
        self.cuts, self.runs = [0], [1]

    def backup(self, copy: Standby) -> bytes:
        """Return what the server sends to this standby."""
        for name, data in self.files.items():
            path = self._folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        stream = BackupWriter(0, copy.known()[1])
        rows = [
            ArchiveFile(name, str(self._folder / name), 0, len(data), len(data))
            for name, data in self.files.items()
        ]
        stream.runs = self.runs
        sent = b"".join(stream.add(rows))
        manifest = Manifest(
            backup_archive.FORMAT, "0", len(self.cuts), 7, self.cuts, stream.members, self.runs
        )
        return sent + stream.end(manifest)


@pytest.fixture
def source(tmp_path: Path) -> Source:
    source = Source(tmp_path / "source")
    source.files = {META: b"m" * 24, SEGMENT: b"s" * 10_000, LOG: b"l" * 5_000}
    return source


@pytest.fixture
def copy(tmp_path: Path) -> Standby:
    copy = Standby(tmp_path / "copy")
    copy.create(Origin("http://a"))
    return copy


def receive(copy: Standby, data: bytes, *, accepts_older: bool = False) -> Generation:
    return copy.receive(
        *(io.BytesIO(data), copy.known()[0], None), requested_ms=1, accepts_older=accepts_older
    )


def failing(error: Exception) -> Callable[..., NoReturn]:
    def fail(*_: object) -> NoReturn:
        raise error

    return fail


def contents(copy: Standby, generation: Generation, folder: Path) -> Mapping[str, bytes]:
    copy.unpack(generation, folder, link=False)
    return {part.path: (folder / part.path).read_bytes() for part in generation.members}


def test_an_interrupted_creation_is_repeated(tmp_path: Path) -> None:
    for name in ("files", "generations", "lost+found"):
        (tmp_path / "copy" / name).mkdir(parents=True)
    (tmp_path / "copy" / "standby.json.new").write_text("{")
    copy = Standby(tmp_path / "copy")
    copy.create(Origin("http://a"))
    assert copy.origin() == Origin("http://a")


def test_a_directory_with_generations_and_no_origin_is_refused(tmp_path: Path) -> None:
    copy = Standby(tmp_path / "copy")
    copy.generations.mkdir(parents=True)
    (copy.generations / "000000000001.json").write_text("{}")
    with pytest.raises(BadStandby, match="neither empty nor a standby"):
        copy.create(Origin("http://a"))


def test_each_generation_has_its_files_and_shares_unchanged_ones(
    source: Source, copy: Standby, tmp_path: Path
) -> None:
    states = []
    for grown in (b"", b"x" * 100, b"y" * 7_000):
        source.files[LOG] += grown
        states.append(dict(source.files))
        data = source.backup(copy)
        receive(copy, data)
    assert len(data) < 20_000  # without the segment
    for number, state in enumerate(states, 1):
        found = contents(copy, copy.generation(number), tmp_path / str(number))
        assert found == state
    assert len([*copy.files.rglob("*.*")]) == 3  # meta, segment, and one log file


def test_a_log_of_another_history_is_not_appended_to_the_known_one(
    source: Source, copy: Standby, tmp_path: Path
) -> None:
    receive(copy, source.backup(copy))
    before = dict(source.files)
    source.files[LOG] = b"l" * 4_500 + b"other" * 1_000  # a restored server with the same file
    found = receive(copy, source.backup(copy))
    assert contents(copy, found, tmp_path / "new") == source.files
    assert contents(copy, copy.generation(1), tmp_path / "old") == before


def test_a_log_with_the_same_ends_is_sent_again_after_a_restart(
    source: Source, copy: Standby, tmp_path: Path
) -> None:
    source.files[LOG] = b"l" * 5_000 + b"a" + b"l" * 9_000
    receive(copy, source.backup(copy))
    source.files[LOG] = b"l" * 5_000 + b"b" + b"l" * 9_000
    source.runs = [2]
    found = receive(copy, source.backup(copy))
    assert contents(copy, found, tmp_path / "new") == source.files


@pytest.mark.parametrize("cuts", [[9], [10, 10]])
def test_older_data_replaces_the_copy_only_on_request(
    source: Source, copy: Standby, cuts: list[int]
) -> None:
    source.cuts = [10]
    receive(copy, source.backup(copy))
    source.cuts = cuts
    for _ in range(2):
        with pytest.raises(SourceOlder, match="older data than generation 1"):
            receive(copy, source.backup(copy))
    assert copy.numbers() == [1]
    assert receive(copy, source.backup(copy), accepts_older=True).cuts == cuts


def test_damaged_files_are_found_and_an_altered_log_is_sent_again(
    source: Source, copy: Standby, tmp_path: Path
) -> None:
    found = receive(copy, source.backup(copy))
    assert copy.damaged(found) == []
    (log,), (segment,) = copy.files.glob("wal/*/*"), copy.files.glob("segment/*/*")
    data = bytearray(log.read_bytes())
    data[len(data) // 2] ^= 1
    log.write_bytes(data)
    assert copy.damaged(found) == [str(log.relative_to(copy.files))]
    source.files[LOG] += b"new"
    again = Standby(copy.path)  # without the hashes of the first process
    assert contents(again, receive(again, source.backup(again)), tmp_path / "2") == source.files
    segment.unlink()
    segment.mkdir()  # cannot be read, like a bad block
    assert str(segment.relative_to(copy.files)) in copy.damaged(found)
    assert SEGMENT not in {file.path for file in again.known()[1]}


@pytest.mark.parametrize("place", ["path", "file"])
def test_a_manifest_cannot_name_files_outside_of_the_directory(
    source: Source, copy: Standby, tmp_path: Path, place: str
) -> None:
    found = receive(copy, source.backup(copy))
    parts = [msgspec.structs.replace(found.members[0], **{place: "../../meta.1"})]
    found = msgspec.structs.replace(found, members=parts)
    with pytest.raises(BadStandby, match="invalid file"):
        copy.unpack(found, tmp_path / "a" / "b", link=False)


@pytest.mark.parametrize("cut", [0, 600, 6_000, 11_000, 16_500, -1_100])
def test_an_interrupted_transfer_is_continued(
    source: Source, copy: Standby, tmp_path: Path, cut: int
) -> None:
    receive(copy, source.backup(copy))
    before = dict(source.files)
    source.files |= {BLOB: b"b" * 5_000, LOG: source.files[LOG] + b"z" * 9_000}
    data = source.backup(copy)
    with pytest.raises(NotABackup):
        receive(copy, data[:cut])
    assert copy.numbers() == [1]
    assert contents(copy, copy.generation(1), tmp_path / "old") == before
    again = Standby(copy.path)  # of another process
    rest = source.backup(again)
    assert len(rest) <= len(data)
    assert contents(again, receive(again, rest), tmp_path / "new") == source.files
    again.prune(1)
    assert {path.name for path in again.files.rglob("*") if path.is_file()} == {
        part.file.rpartition("/")[2] for part in again.generation(2).members
    }


def test_complete_files_of_an_interrupted_transfer_are_not_sent_again(
    source: Source, copy: Standby
) -> None:
    data = source.backup(copy)
    with pytest.raises(NotABackup):
        receive(copy, data[:12_000])  # with the segment
    assert len(source.backup(Standby(copy.path))) < len(data) - 10_000


def test_altered_bytes_make_no_generation(source: Source, copy: Standby) -> None:
    data = bytearray(source.backup(copy))
    data[data.index(b"s" * 100) + 50] ^= 1
    with pytest.raises(NotABackup, match="altered"):
        receive(copy, bytes(data))
    assert copy.newest() is None


def test_altered_delete_flags_prevent_a_promotion(
    source: Source, copy: Standby, tmp_path: Path
) -> None:
    source.files["flags/00/0000000001.seg"] = b"\0\1\0"
    found = receive(copy, source.backup(copy))
    (flags,) = copy.files.glob("flags/*/*")
    flags.write_bytes(b"\1\1\0")
    with pytest.raises(BadStandby, match="altered"):
        copy.unpack(found, tmp_path / "new", link=True)


@pytest.mark.parametrize(
    "name",
    [
        *("../x", "wal/00/../../x", "other", "wal/00/1.wal@5"),
        *(f"{LOG}@5", f"{LOG}@0", f"{LOG}@x", f"{SEGMENT}@10000"),
    ],
)
def test_a_member_with_another_name_is_refused(
    source: Source, copy: Standby, tmp_path: Path, name: str
) -> None:
    receive(copy, source.backup(copy))
    data = backup_archive.header(name, 0, 0) + backup_archive.END
    with pytest.raises(NotABackup, match="not a backup file"):
        receive(copy, data)
    assert not (tmp_path / "x").exists()


def linked(data: bytes) -> bytes:
    """Return the tar with a symbolic link as its first member."""
    info = tarfile.TarInfo(META)
    info.type, info.linkname = tarfile.SYMTYPE, "/etc/hosts"
    return info.tobuf(tarfile.GNU_FORMAT) + data


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (linked, "not a backup file"),
        (lambda data: data + b"more", "followed by other data"),
        (lambda data: data[:-1024] + backup_archive.header(META, 0, 0) + data[-1024:], "after its"),
        (lambda _: b"not a tar" * 1000, "not a tar archive"),
        (lambda _: b"", "truncated"),
    ],
    ids=["a link", "more data", "a member after the manifest", "not a tar", "nothing"],
)
def test_a_tar_that_is_not_a_backup_is_refused(
    source: Source, copy: Standby, change: Callable[[bytes], bytes], reason: str
) -> None:
    data = source.backup(copy)
    with pytest.raises(NotABackup, match=reason):
        receive(copy, change(data))
    assert copy.numbers() == []


def test_errors_of_the_disk_and_bugs_do_not_count_as_a_bad_backup(
    source: Source, copy: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = source.backup(copy)
    for error in (OSError("disk"), ValueError("a bug")):
        monkeypatch.setattr(copy, "_store", failing(error))
        with pytest.raises(type(error), match=str(error)):
            receive(copy, data)


def test_a_damaged_generation_is_refused_and_the_others_are_usable(
    source: Source, copy: Standby, tmp_path: Path
) -> None:
    for _ in range(2):
        receive(copy, source.backup(copy))
    manifest = copy.generations / "000000000002.json"
    manifest.write_bytes(manifest.read_bytes().replace(b'"created_ms":7', b'"created_ms":8'))
    with pytest.raises(BadStandby, match="the manifest was changed"):
        copy.generation(2)
    newest = copy.newest()
    assert newest is not None
    assert newest.number == 1
    found = receive(copy, source.backup(copy))
    assert found.number == 3
    copy.prune(2)
    assert copy.numbers() == [2, 3]
    assert contents(copy, found, tmp_path / "third") == source.files
    (segment,) = copy.files.rglob("*.seg.*")
    segment.write_bytes(b"t" * 10_000)
    with pytest.raises(BadStandby, match="cut or was altered"):
        copy.unpack(found, tmp_path / "copied", link=False)
    segment.unlink()
    with pytest.raises(BadStandby, match="is missing"):
        copy.unpack(found, tmp_path / "linked", link=True)


def test_no_files_are_removed_while_a_kept_manifest_cannot_be_read(
    source: Source, copy: Standby, monkeypatch: pytest.MonkeyPatch
) -> None:
    for size in (100, 200, 300):
        source.files[BLOB] = b"b" * size
        receive(copy, source.backup(copy))
    before, again = {*copy.files.rglob("*")}, Standby(copy.path)
    with monkeypatch.context() as patch:
        patch.setattr(again, "generation", failing(OSError("disk")))
        again.prune(2)
    assert again.numbers() == [2, 3]
    assert {*copy.files.rglob("*")} == before
    again.prune(2)
    assert len(before - {*copy.files.rglob("*")}) == 1


def test_the_counters_of_a_restarted_server_have_no_difference() -> None:
    assert LogVolume(5, 50).since(LogVolume(3, 50)) == LogVolume(2, 0)
    assert LogVolume(5, 50).since(LogVolume(3, 51)) is None


def test_one_process_writes_at_a_time(copy: Standby) -> None:
    other = Standby(copy.path)
    with copy.lock(), pytest.raises(StandbyInUse):
        other.lock()
    with other.lock():
        pass
