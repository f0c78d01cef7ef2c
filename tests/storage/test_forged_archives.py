"""A restore of a forged archive fails with a one-line message, and leaves no files."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Literal

import pytest

from tests.support.log import Client
from topics import __version__
from topics.formats.disk import backup_archive
from topics.formats.disk.backup_archive import FORMAT, Manifest, Member
from topics.storage import backup_restore as restoring
from topics.storage.backup_restore import NotABackup, restore
from topics.storage.data_dir import DataDirectory

Members = dict[str, bytes]


def members(path: Path) -> Members:
    """Return the members of a backup of a small server."""
    DataDirectory(path, shards=1).close()
    client = Client(path)
    client.append("a", *range(10))
    client.stop()
    patterns = ("meta", "checkpoint/00/*.ckpt", "wal/00/*.wal")
    found = [file for pattern in patterns for file in sorted(path.glob(pattern))]
    return {str(file.relative_to(path)): file.read_bytes() for file in found}


def archive(files: Members, sizes: dict[str, int] | None = None) -> bytes:
    """Return a complete backup of these files."""
    data = io.BytesIO()
    listed = []
    for name, content in files.items():
        data.write(
            backup_archive.header(name, len(content), 0)
            + content
            + backup_archive.padding(len(content))
        )
        size = (sizes or {}).get(name, len(content))
        listed.append(Member(name, len(content), size, hashlib.sha256(content).hexdigest()))
    sealed = backup_archive.sealed(Manifest(FORMAT, __version__, 1, 0, [0], listed))
    data.write(backup_archive.header(backup_archive.MANIFEST, len(sealed), 0) + sealed)
    data.write(backup_archive.padding(len(sealed)) + backup_archive.END)
    return data.getvalue()


def tar_with(info: tarfile.TarInfo, content: bytes = b"", form: Literal[1, 2] = 2) -> bytes:
    """Return a tar file that begins with this member. ``form`` is a format of `tarfile`: 1 GNU, 2
    pax.
    """
    return info.tobuf(form) + content + backup_archive.padding(len(content)) + backup_archive.END


def member(name: str, **fields: object) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    for field, value in fields.items():
        setattr(info, field, value)
    return info


SPARSE = {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.realsize": "x"}
FORGERIES: dict[str, Callable[[Members], bytes]] = {
    "huge manifest size": lambda files: archive(files, {"meta": 1 << 70}),
    "huge log size": lambda files: archive(files, {[*files][-1]: 1 << 70}),
    "huge member": lambda _: tar_with(member("meta", size=1 << 70), form=1),
    "negative member": lambda _: tar_with(member("meta", size=-5), form=1),
    "no checkpoint": lambda files: archive(
        {name: data for name, data in files.items() if "ckpt" not in name}
    ),
    "no meta": lambda files: archive({n: data for n, data in files.items() if n != "meta"}),
    "sparse": lambda _: tar_with(member("meta", pax_headers=SPARSE), b"x" * 24),
    "bad number": lambda _: tar_with(member("meta", pax_headers={"size": "1e999"}), b"x"),
    "old sparse": lambda _: tar_with(
        member("meta", type=tarfile.GNUTYPE_SPARSE, size=24), b"x" * 24
    ),
    "link": lambda _: tar_with(member("meta", type=tarfile.SYMTYPE, linkname="/etc/passwd")),
    "hard link": lambda _: tar_with(member("meta", type=tarfile.LNKTYPE, linkname="meta")),
    "device": lambda _: tar_with(member("meta", type=tarfile.CHRTYPE, devmajor=1, devminor=3)),
    "fifo": lambda _: tar_with(member("meta", type=tarfile.FIFOTYPE)),
    "folder": lambda _: tar_with(member("wal", type=tarfile.DIRTYPE)),
    "absolute": lambda _: tar_with(member("/tmp/forged-meta", size=1), b"x"),
    "above": lambda _: tar_with(member("../meta", size=1), b"x"),
    "other digits": lambda _: tar_with(member("wal/٠٠/" + "0" * 16 + ".wal", size=1), b"x"),
    "twice": lambda files: archive(files)[: 512 + 512] + archive(files),
    "cut": lambda files: archive(files)[:-2000],
    "bytes after the end": lambda files: archive(files) + b"more",
    "members after the manifest": lambda files: archive(files)[:-1024] + archive(files),
    "nothing": lambda _: b"",
    "text": lambda _: b"hello " * 500,
}


@pytest.mark.parametrize("case", FORGERIES)
def test_a_forged_archive_is_refused_with_a_one_line_message_and_leaves_no_files(
    tmp_path: Path, case: str
) -> None:
    data = FORGERIES[case](members(tmp_path / "source"))
    target = tmp_path / "target"
    target.mkdir()
    with pytest.raises(NotABackup) as refused:
        restore(io.BytesIO(data), target / "data", as_new=False, with_damage=False)
    assert "\n" not in str(refused.value)
    assert [*target.iterdir()] == []


def test_an_unmodified_archive_of_the_same_files_is_restored(tmp_path: Path) -> None:
    data = archive(members(tmp_path / "source"))
    _, found = restore(io.BytesIO(data), tmp_path / "data", as_new=False, with_damage=False)
    assert found == []
    client = Client(tmp_path / "data")
    assert client.append("a", "next")[0] == 11
    client.kill()


def test_a_restore_that_leaves_too_little_space_for_appends_warns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = archive(members(tmp_path / "source"))
    monkeypatch.setattr(restoring, "MARGIN_BYTES", 1 << 60)
    _, (line,) = restore(io.BytesIO(data), tmp_path / "data", as_new=False, with_damage=False)
    assert line.startswith(f"{tmp_path / 'data'}: ")
    assert "a server refuses appends (disk_full)" in line
    assert (tmp_path / "data" / "meta").exists()
