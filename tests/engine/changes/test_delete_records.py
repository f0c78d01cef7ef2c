"""Deletes of records: what goes, what readers see of it and what the log is told."""

from __future__ import annotations

from typing import Any

import pytest

from tests.engine.shard_support import Desk, seqs_of


@pytest.mark.parametrize(
    ("match", "left"),
    [
        *(("x", [2, 3, 4, 5, 6]), (["tag", "Eq", "x"], [2, 3, 4, 5, 6])),
        *((["tag", "Glob", "x*"], [4, 5, 6]), (["tag", "Glob", "*"], [6])),
        *(("x*", [1, 3, 4, 5, 6]), ("", [1, 2, 3, 4, 6])),
        *(("nobody", [1, 2, 3, 4, 5, 6]), (["tag", "Glob", 'é"*'], [1, 2, 3, 5, 6])),
    ],
)
def test_eq_is_the_tag_and_glob_its_beginning(desk: Desk, match: Any, left: list[int]) -> None:
    tags = ["x", "x*", "xyz", 'é"\\', "", None]
    desk.append(
        "a", records=[{"data": 1} if tag is None else {"data": 1, "tag": tag} for tag in tags]
    )
    desk.commit()
    desk.delete_records("a", match=match)
    desk.commit()
    assert seqs_of(desk.read("a")) == left


def test_only_a_class_that_is_synced_syncs_its_deletes_and_only_logged_records_are_told_of(
    desk: Desk,
) -> None:
    for durability, frames, sync in (
        ("fsync", 1, True),
        ("disk", 1, False),
        ("memory", 1, False),
        ("ephemeral", 0, False),
    ):
        desk.put(durability, durability=durability)
        desk.append(durability, 1)
        desk.commit()
        change = desk.delete_records(durability, before_seq=2)
        assert (len(change.frames), change.sync) == (frames, sync)
        desk.commit()
        assert change.deleted == 1
