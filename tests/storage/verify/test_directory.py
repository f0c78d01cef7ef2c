"""Verifying a directory: what its files say of one another; what a crash may leave is no damage."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.data_directory import findings, topics
from topics.formats.disk.segment import HEADER_BYTES
from topics.storage.data_dir import (
    DataDirectory,
    held_for_reading,
)
from topics.storage.verify.directory import verify_directory


def test_a_directory_after_an_orderly_stop_is_whole(data: Path) -> None:
    with held_for_reading(data) as shards:
        seen = [found.name for found in verify_directory(data, shards)]  # type: ignore[union-attr]
    assert [Path(name).suffix for name in seen] == [".wal", ".wal", ".wal", ".ckpt", ".seg"]


@pytest.mark.parametrize("kind", ["*.ckpt", "*.wal", "*.seg"])
def test_a_hurt_header_is_damage(data: Path, kind: str) -> None:
    path = sorted(data.rglob(kind))[-1]
    whole = bytearray(path.read_bytes())
    whole[17] ^= 1
    path.write_bytes(whole)
    assert any(found.startswith(path.name) for found in findings(data))


@pytest.mark.slow
def test_the_command_says_what_it_found(data: Path) -> None:
    done = topics("verify", str(data))
    assert (done.returncode, done.stdout) == (0, "5 files, no damage\n")
    path = next(data.rglob("*.seg"))
    whole = bytearray(path.read_bytes())
    whole[HEADER_BYTES + 20] ^= 1
    path.write_bytes(whole)
    done = topics("verify", str(data))
    assert (done.returncode, done.stdout) == (
        3,
        f"{path}, offset 4096: records are damaged\n5 files, 1 findings\n",
    )
    held = DataDirectory(data, shards=1)
    done = topics("verify", str(data))
    held.close()
    assert (done.returncode, done.stdout) == (1, "")
    assert "in use by process" in done.stderr
    done = topics("verify", str(data / "nowhere"))
    assert (done.returncode, done.stderr) == (2, f"topics: {data}/nowhere: no such directory\n")
    done = topics("inspect", str(data / "nowhere"))
    assert (done.returncode, done.stderr) == (
        2,
        f"topics: {data}/nowhere: No such file or directory\n",
    )
