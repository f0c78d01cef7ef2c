"""Helpers that damage files and read damaged topics."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import msgspec

from tests.actors.shard.sealing.sealing_support import Sealer
from topics.engine.page import Page
from topics.engine.reading import read
from topics.engine.topic import Topic
from topics.formats.api.diff_body import Diff


def walk(client: Sealer, topic: Topic, **view: Any) -> tuple[list[int], list[tuple[int, int]]]:
    """Read a topic up to its head. Return the received seqs and the reported damaged gaps."""
    seqs, gaps, cursor = [], [], 0
    while True:
        page: Page = read(topic, Diff(from_seq=cursor, **view), client.commits.store)
        shown = [
            record["$seq"]
            for record in msgspec.json.decode(b"[%b]" % b",".join(map(bytes, page.chunks)))
        ]
        if page.tombstone is not None:
            gap = page.tombstone
            assert gap.reason == "damaged"
            assert cursor < gap.gap_from <= gap.gap_to <= page.next_from_seq
            assert all(seq > gap.gap_to for seq in shown), "a gap is reported before later records"
            gaps.append((gap.gap_from, gap.gap_to))
        seqs += shown
        assert page.unfinished or page.next_from_seq > cursor or page.caught_up, (
            "each page advances the cursor"
        )
        cursor = page.next_from_seq
        if page.caught_up:
            return seqs, gaps


def lost(gaps: list[tuple[int, int]]) -> set[int]:
    return {seq for first, last in gaps for seq in range(first, last + 1)}


def flip(path: Path, offset: int, bit: int = 1) -> None:
    """Damage one bit of a file; a negative offset counts from its end."""
    with path.open("r+b") as file:  # in place, because the file may be mapped
        at = file.seek(offset, os.SEEK_SET if offset >= 0 else os.SEEK_END)
        (byte,) = file.read(1)
        file.seek(at)
        file.write(bytes([byte ^ bit]))
