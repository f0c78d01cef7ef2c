"""Verifying checkpoints: each for itself, and against the log and the segments."""

from __future__ import annotations

from pathlib import Path

from tests.support.data_directory import findings
from tests.support.log import log_files
from topics.formats.disk.segment import HEADER_BYTES
from topics.storage import checkpoints
from topics.storage.verify.checkpoints import standing_checkpoints, unfounded, verify_checkpoint


def test_a_log_that_ends_before_its_checkpoint_is_damage(data: Path) -> None:
    last = log_files(data)[-1]
    last.write_bytes(last.read_bytes()[:HEADER_BYTES].ljust(last.stat().st_size, b"\0"))
    (found,) = findings(data)
    assert ".ckpt: says that the log was synced to 0x" in found


def test_a_segment_that_a_checkpoint_names_must_be_there(data: Path) -> None:
    (path,) = (data / "checkpoint" / "00").glob("*.ckpt")
    checkpoint = checkpoints.read(path)
    assert checkpoint is not None
    named = checkpoint._replace(shard={**checkpoint.shard, "segments": [1, 0xAB]})
    (finding,) = unfounded(path, named, checkpoint.lsn, data / "segment" / "00")
    assert finding.reason == "names segment 0xab, which is missing"


def test_a_checkpoint_that_is_cut_or_of_an_unknown_version_is_found(data: Path) -> None:
    (path,) = (data / "checkpoint" / "00").glob("*.ckpt")
    whole = path.read_bytes()
    assert [*verify_checkpoint(path)] == []
    path.write_bytes(whole[:-1])
    assert [finding.reason for finding in verify_checkpoint(path)] == ["is not a whole checkpoint"]
    path.write_bytes(whole[:8] + b"\x63" + whole[9:])
    assert [finding.offset for finding in verify_checkpoint(path)] == [8]


def test_only_the_checkpoints_that_are_kept_are_asked_about_other_files(data: Path) -> None:
    folder = data / "checkpoint" / "00"
    (path,) = folder.glob("*.ckpt")
    later = [folder / f"{number:016x}{checkpoints.SUFFIX}" for number in (0xE, 0xF)]
    for other in later:
        other.write_bytes(path.read_bytes())
    assert [*standing_checkpoints(folder)] == later
    later[1].write_bytes(b"")
    assert [*standing_checkpoints(folder)] == later[:1]
