"""File aside: it has its own name only when it is whole on the disk."""

from __future__ import annotations

import errno
from pathlib import Path

import pytest

from tests.support.log import failing
from topics.storage.aside import FileAside


def test_a_published_file_takes_the_place_of_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "name.kind"
    path.write_bytes(b"before")
    file = FileAside(path, ".tmp")
    with open(file.fd, "wb", closefd=False) as stream:
        stream.write(b"after")
    assert path.read_bytes() == b"before"
    file.publish()
    assert path.read_bytes() == b"after"
    assert [*tmp_path.iterdir()] == [path]


def test_an_abandoned_file_leaves_nothing_and_may_be_abandoned_again(tmp_path: Path) -> None:
    file = FileAside(tmp_path / "name.kind", ".tmp")
    file.abandon()
    file.abandon()
    assert [*tmp_path.iterdir()] == []


def test_a_file_whose_name_cannot_be_synced_is_abandoned_under_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = FileAside(tmp_path / "name.kind", ".tmp")
    monkeypatch.setattr("topics.storage.aside.sync_directory", failing(errno.EIO))
    with pytest.raises(OSError):
        file.publish()
    file.abandon()
    assert [*tmp_path.iterdir()] == []
