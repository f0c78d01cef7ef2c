"""Verifying blobs: every byte counts, and a blob is of the write in its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.data_directory import findings
from tests.support.log import Client, append_streamed
from topics.storage.data_dir import DataDirectory
from topics.storage.verify.blobs import verify_blob


@pytest.fixture
def blob(tmp_path: Path) -> Path:
    """The blob of a write that only the log holds yet."""
    DataDirectory(tmp_path / "data", shards=1).close()
    client = Client(tmp_path / "data")
    client.put("a")
    path = append_streamed(client, "a", records=[{"data": "x" * 100}] * 3)
    client.stop()
    return path


def test_a_blob_as_it_was_written_is_whole(blob: Path) -> None:
    assert [*verify_blob(blob)] == []


def test_every_flipped_bit_and_every_cut_of_a_blob_is_found(blob: Path) -> None:
    whole = blob.read_bytes()
    for at in range(len(whole)):
        blob.write_bytes(whole[:at] + bytes([whole[at] ^ 4]) + whole[at + 1 :])
        assert len([*verify_blob(blob)]) == 1, at
        blob.write_bytes(whole[:at])
        assert len([*verify_blob(blob)]) == 1, at


@pytest.mark.parametrize("name", ["1-2.blob", "2-1.blob", "no numbers.blob", "1.blob"])
def test_a_blob_under_another_name_is_found(blob: Path, name: str) -> None:
    moved = blob.rename(blob.with_name(name))
    (finding,) = verify_blob(moved)
    assert finding.path == moved


def test_a_blob_that_the_log_names_must_be_there(blob: Path, tmp_path: Path) -> None:
    assert findings(tmp_path / "data") == []
    blob.unlink()
    assert findings(tmp_path / "data") == [f"{blob.name}: blob named by the log is missing"]
