"""Segment writer: a segment has its name only when it is whole on the disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.storage.segments.segments_support import add
from topics.storage.disk import Damaged
from topics.storage.segments.file import Segment
from topics.storage.segments.store import SegmentStore


def test_an_abandoned_segment_leaves_nothing(store: SegmentStore, folder: Path) -> None:
    writer = store.begin(1, 0, 1)
    writer.write([b"half"])
    writer.abandon()
    writer.abandon()
    assert [*folder.iterdir()] == []


def test_a_segment_has_its_name_only_when_it_is_whole_on_disk(
    store: SegmentStore, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    synced: list[tuple[str, list[str]]] = []

    def note(fd: int) -> None:
        synced.append(
            (Path(f"/proc/self/fd/{fd}").readlink().name, [path.name for path in folder.iterdir()])
        )

    folder.mkdir(parents=True)
    monkeypatch.setattr(os, "fdatasync", note)
    monkeypatch.setattr(os, "fsync", note)
    add(store, 1)
    assert synced == [("0000000001.tmp", ["0000000001.tmp"]), ("03", ["0000000001.seg"])]


def test_a_segment_that_reads_back_differently_is_none(
    store: SegmentStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    original = Segment.check_tables

    def spoilt(segment: Segment) -> None:
        entry = [*segment.entries()][1]
        with segment.path.open("r+b") as file:
            os.pwrite(file.fileno(), b"!", entry.tables_at + entry.tables_len - 1)
        original(segment)

    monkeypatch.setattr(Segment, "check_tables", spoilt)
    with pytest.raises(Damaged, match="tables"):
        add(store, 1)
    assert not store.segments
