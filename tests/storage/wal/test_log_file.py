"""One file of the log: created completely or not at all, and used only if its header matches its
name.
"""

from __future__ import annotations

import errno
import os
import resource
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tests.support.log import LossyDisk
from topics.formats.disk.wal import FILE_HEADER_BYTES, FileHeader, encode_file_header
from topics.storage.disk import Damaged
from topics.storage.wal import log_file as wal_file
from topics.storage.wal.log_file import NoSpace, WalFile
from topics.storage.wal.spares import prepare

SIZE = 64 << 10


@pytest.fixture
def file(tmp_path: Path) -> Iterator[WalFile]:
    file = WalFile(tmp_path, FileHeader(3, 0x1000, 7, SIZE), SIZE)
    yield file
    file.close()


def failing(code: int) -> Any:
    def fail(*_: object) -> NoReturn:
        raise OSError(code, os.strerror(code))

    return fail


def test_a_new_log_file_has_its_name_its_header_and_all_its_space(
    file: WalFile, tmp_path: Path
) -> None:
    file.create()
    (path,) = tmp_path.iterdir()
    assert path.name == "0000000000001000.wal"
    assert path.read_bytes() == encode_file_header(file.header).ljust(SIZE, b"\0")
    assert path.stat().st_blocks * 512 >= SIZE
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_new_log_file_and_its_name_are_synced_before_the_first_frame(
    file: WalFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []

    def note(fd: int) -> None:
        synced.append(
            (
                Path(f"/proc/self/fd/{fd}").readlink().name,
                [path.suffix for path in tmp_path.iterdir()],
            )
        )

    monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "fsync", note)
    file.create()
    assert synced == [("0000000000001000.new", [".new"]), (tmp_path.name, [".wal"])]


def test_only_the_name_of_the_first_log_file_made_from_a_spare_is_synced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A power failure may lose the names of the others, but the file before them identifies their
    place.
    """
    disk = LossyDisk(monkeypatch)
    for base in (0, 4096, 8192):
        spare = prepare(tmp_path, f"{base:016x}.fresh", SIZE)
        WalFile(tmp_path, FileHeader(0, base, 7, SIZE), SIZE).create(spare)
    disk.power_loss(tmp_path, tmp_path / "left")
    found = wal_file.log_paths(tmp_path / "left", 0)
    assert [WalFile.open(path, 0).base for path in found] == [0, 4096, 8192]
    assert [path.suffix for path in found] == [".wal", ".wal", ".spare"]


@pytest.mark.parametrize("call", ["open", "posix_fallocate", "pwrite", "fdatasync"])
def test_a_log_file_that_cannot_be_created_leaves_no_file(
    call: str, file: WalFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(os, call, failing(errno.ENOSPC))
        with pytest.raises(NoSpace, match="cannot create a log file") as raised:
            file.create()
    assert raised.value.errno == errno.ENOSPC
    assert list(tmp_path.iterdir()) == []
    file.create()
    assert file.path.exists()


def test_a_size_above_the_file_size_limit_of_the_process_is_treated_as_a_full_disk(
    tmp_path: Path,
) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (SIZE, hard))
    try:
        with pytest.raises(NoSpace):
            WalFile(tmp_path, FileHeader(0, 0, 0, SIZE), SIZE + 1).create()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_failure_after_the_file_has_its_name_is_not_treated_as_a_full_disk(
    file: WalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wal_file, "sync_directory", failing(errno.EIO))
    with pytest.raises(OSError, match="Input/output error") as raised:
        file.create()
    assert not isinstance(raised.value, NoSpace)


def test_a_log_file_that_is_opened_read_only_cannot_be_written(file: WalFile) -> None:
    file.create()
    opened = WalFile.open(file.path, 3, writable=False)
    assert bytes(opened.view()) == bytes(file.view())
    with pytest.raises(OSError, match="Bad file descriptor"):
        opened.blank(opened.base, opened.base + 8)
    opened.close()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("0000000000001000.wal", b"", "shorter than its header"),
        ("0000000000001000.wal", bytes(SIZE), "is not a log file"),
        (
            "0000000000002000.wal",
            encode_file_header(FileHeader(3, 0x1000, 7, SIZE)),
            "belongs to shard 3, LSN 0x1000",
        ),
        (
            "0000000000001000.wal",
            encode_file_header(FileHeader(4, 0x1000, 7, SIZE)),
            "belongs to shard 4, LSN 0x1000",
        ),
        ("other.wal", encode_file_header(FileHeader(3, 0x1000, 7, SIZE)), "belongs to shard 3"),
    ],
)
def test_a_log_file_that_contradicts_its_name_is_damage(
    name: str, content: bytes, reason: str, tmp_path: Path
) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(Damaged, match=reason) as raised:
        WalFile.open(path, 3)
    assert (raised.value.path, raised.value.offset) == (path, 0)
    assert str(path) in str(raised.value)


def test_a_cut_leaves_zeros_and_all_the_space_of_the_file(file: WalFile) -> None:
    file.create()
    os.pwrite(file.fd, b"x" * (SIZE - FILE_HEADER_BYTES), FILE_HEADER_BYTES)
    file.cut(0x1000 + 100)
    content = file.path.read_bytes()
    assert content[FILE_HEADER_BYTES:] == (b"x" * 100).ljust(SIZE - FILE_HEADER_BYTES, b"\0")
    assert file.path.stat().st_blocks * 512 >= SIZE


def test_a_cut_never_shortens_the_file_even_briefly(
    file: WalFile, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A crash at that moment would leave a file that seems to have lost its end."""
    file.create()
    monkeypatch.setattr(
        "topics.storage.disk._fallocate", None
    )  # The zeros are then written in chunks
    sizes: list[int] = []
    for name in ("ftruncate", "posix_fallocate", "pwrite", "pwritev", "fsync"):
        real = getattr(os, name)

        def recording(*arguments: Any, real: Any = real) -> Any:
            result = real(*arguments)
            sizes.append(file.path.stat().st_size)
            return result

        monkeypatch.setattr(os, name, recording)
    file.cut(0x1000 + 100)
    assert set(sizes) == {SIZE}
