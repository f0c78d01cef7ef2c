"""Verifying the log: a torn tail is no damage, a damaged frame before synced ones is."""

from __future__ import annotations

import os
from pathlib import Path

from tests.support.data_directory import findings
from tests.support.log import log_files
from topics.storage.disk import DAMAGED
from topics.storage.linked import LinkedPayloads
from topics.storage.verify.finding import Finding
from topics.storage.verify.log import LogCheck


def test_a_torn_tail_is_no_damage_and_a_hurt_frame_is(data: Path) -> None:
    last, first = log_files(data)[-1], log_files(data)[0]
    for checkpoint in (data / "checkpoint" / "00").iterdir():
        checkpoint.unlink()
    whole = last.read_bytes()
    end = len(whole.rstrip(b"\0"))
    last.write_bytes(whole[:end] + b"WF01 torn".ljust(len(whole) - end, b"\0"))
    assert findings(data) == []
    hurt = bytearray(whole)
    hurt[5000] ^= 1
    last.write_bytes(hurt)
    (found,) = findings(data)
    assert found.startswith(f"{last.name}: damaged frame; the frame at offset ")
    last.write_bytes(whole)
    hurt = bytearray(first.read_bytes())
    hurt[9000] ^= 1
    first.write_bytes(hurt)
    (found,) = findings(data)
    assert "the log before it ends at" in found


def test_a_missing_log_file_is_damage(data: Path) -> None:
    log_files(data)[1].unlink()
    (found,) = findings(data)
    assert "a file between is missing or cut" in found


def test_a_log_file_that_was_kept_aside_is_no_finding(data: Path) -> None:
    path = log_files(data)[0]
    path.with_name(path.name + DAMAGED).write_bytes(b"hurt")
    assert findings(data) == []


def test_a_file_that_is_cut_or_of_another_shard_is_found(data: Path) -> None:
    path = log_files(data)[0]
    check = LogCheck(path, 1, LinkedPayloads(data, 1))
    assert [finding.reason for finding in check.run(begins_at=None, last=False)] == [
        "belongs to shard 0, LSN 0x0"
    ]
    size = path.stat().st_size
    os.truncate(path, size - 1)
    assert [*LogCheck(path, 0, LinkedPayloads(data, 0)).run(begins_at=None, last=False)] == [
        Finding(path, size - 1, f"the file is cut: it was made with {size} bytes")
    ]
