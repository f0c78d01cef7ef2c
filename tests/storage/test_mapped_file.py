"""Mapped files: unreadable pages are detected before they are accessed."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from tests.support.log import failing
from topics.storage import mapped_file
from topics.storage.disk import Damaged
from topics.storage.mapped_file import PAGE_BYTES, MappedFile, read_at

SIZE = 5 * PAGE_BYTES + 100


@pytest.fixture(params=["queried", "copied"])
def cut(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> MappedFile:
    """Return a map of a file that was cut afterwards, also as on a kernel before 5.14."""
    if request.param == "copied":
        monkeypatch.setattr(mapped_file, "_POPULATE_READ", 99)
    path = tmp_path / "file"
    path.write_bytes(b"x" * SIZE)
    mapped = MappedFile.of(path)
    assert mapped.can_read(0, SIZE)
    assert mapped.first_unreadable(0, SIZE) is None
    os.truncate(path, 2 * PAGE_BYTES)
    return mapped


def test_a_page_beyond_the_end_of_a_cut_file_is_detected(cut: MappedFile) -> None:
    end = 2 * PAGE_BYTES
    assert cut.can_read(0, end)
    assert cut.can_read(end - 1, end)
    assert cut.can_read(SIZE, SIZE), "an empty range is readable"
    assert not cut.can_read(end - 1, end + 1)
    assert not cut.can_read(SIZE - 1, SIZE)
    assert cut.first_unreadable(0, end) is None
    assert cut.first_unreadable(7, SIZE) == end
    assert cut.first_unreadable(end + 5, SIZE) == end + 5
    cut.check_readable(0, end)
    with pytest.raises(Damaged) as damage:
        cut.check_readable(100, SIZE + PAGE_BYTES)
    assert (damage.value.path, damage.value.offset) == (cut.path, end)


def test_the_readable_pages_of_a_damaged_file_are_salvaged(cut: MappedFile) -> None:
    data, bad = cut.salvage()
    assert bad == [*range(2 * PAGE_BYTES, SIZE, PAGE_BYTES)]
    assert data == b"x" * 2 * PAGE_BYTES + bytes(SIZE - 2 * PAGE_BYTES)
    assert cut.data[: 2 * PAGE_BYTES] == b"x" * 2 * PAGE_BYTES


def test_an_empty_file_can_be_mapped(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    mapped = MappedFile.of(tmp_path / "empty")
    data, bad = mapped.salvage()
    assert (bytes(data), bad) == (b"", [])
    assert mapped.can_read(0, 0)


@pytest.mark.parametrize("code", [errno.EIO, errno.EMFILE])
def test_a_failed_read_is_damage_only_if_the_disk_failed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    monkeypatch.setattr(os, "pread", failing(code))
    with pytest.raises(Damaged if code == errno.EIO else OSError, match=r"."):
        read_at(tmp_path, 0, 10, 20)
