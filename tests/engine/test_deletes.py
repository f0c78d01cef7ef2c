"""Deletes and selections: every live record that matches is selected exactly once."""

from __future__ import annotations

from random import Random
from typing import Any

import pytest

from tests.engine.shard_support import EngineHarness, seqs_of
from topics.engine import selection
from topics.engine.changes import delete_records
from topics.engine.locators import Locator
from topics.engine.removal import delete_runs
from topics.engine.selection import Selection
from topics.engine.store import Unreadable
from topics.engine.tags import BLOCK_TAGS, TagIndex
from topics.engine.topic import Topic
from topics.formats.api.diff_body import TagMatch
from topics.formats.buffers import Buffer
from topics.formats.json_text import json_string
from topics.formats.ranges import SeqRun

A = TagMatch("Eq", "a")


def filled(harness: EngineHarness, *writes: str) -> Topic:
    """Fill topic ``a`` with one write per argument. Each letter is the tag of a record, ``-``
    means none.
    """
    harness.put("a")
    for tags in writes:
        records = [{"data": 1} if tag == "-" else {"data": 1, "tag": tag} for tag in tags]
        harness.append("a", records=records)
    harness.commit()
    return harness.engine.topic("a")


def select(
    harness: EngineHarness,
    topic: Topic,
    before_seq: int | None = None,
    match: TagMatch | None = None,
) -> Selection:
    return selection.select(topic, harness.engine.store, before_seq, match)


@pytest.fixture
def short_slices(monkeypatch: pytest.MonkeyPatch) -> None:
    """Limit a slice to three entries, five seqs or two matching records."""
    for module in (selection, delete_records):
        monkeypatch.setattr(module, "SLICE_ENTRIES", 3)
        monkeypatch.setattr(module, "SLICE_SEARCH_MAX", 5)
    monkeypatch.setattr(delete_records, "SLICE_RECORDS", 2)
    monkeypatch.setattr(delete_records, "WINDOW_MIN_SEQS", 4)


def next_of(selection: Selection, count: int) -> list[int]:
    """Return the next seqs, or an empty list if all are taken."""
    while not (seqs := selection.take(count)) and not selection.is_exhausted:
        selection.search()
    return seqs


def count_left(selection: Selection) -> int:
    """Return the number of records that are not taken yet, counted slice by slice."""
    count = 0
    while not selection.is_exhausted:
        count += selection.count_slice()
    return count


@pytest.mark.parametrize("match", [None, A])
@pytest.mark.parametrize("taken", [0, 1, 3])
def test_the_counted_records_are_the_ones_that_would_be_taken(
    harness: EngineHarness, match: TagMatch | None, taken: int, short_slices: None
) -> None:
    selection = select(harness, filled(harness, "aa", "aaa", "a", "a", "aaaaaa"), None, match)
    assert sum(len(next_of(selection, 1)) for _ in range(taken)) == taken
    assert (count_left(selection), selection.take(9)) == (13 - taken, [])
    selection.search()
    assert (selection.is_exhausted, selection.take(9)) == (True, [])


@pytest.mark.parametrize("match", [None, A])
def test_a_slice_never_exceeds_its_limits(
    harness: EngineHarness, match: TagMatch | None, short_slices: None
) -> None:
    selection = select(harness, filled(harness, "aaaaaaaaaaaa", *["a"] * 12), None, match)
    sizes = []
    while not selection.is_exhausted:
        selection.search()
        sizes.append(len(selection.take()))
    assert (max(sizes) <= 8, sum(sizes)) == (True, 24)


def test_an_entry_with_unreadable_delete_flags_is_skipped(
    harness: EngineHarness, monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = filled(harness, "--", "--", "--")
    delete_runs(topic, [SeqRun(3, 1)], harness)

    def flags(_: Locator) -> Buffer | None:
        raise Unreadable

    monkeypatch.setattr(harness, "delete_flags", flags)
    selection = select(harness, topic)
    assert [*next_of(selection, 9), *next_of(selection, 9)] == [1, 2, 5, 6]


@pytest.mark.parametrize("seed", range(30))
def test_any_selection_equals_that_of_a_plain_list(seed: int, short_slices: None) -> None:
    rng, harness = Random(seed), EngineHarness()
    writes = ["".join(rng.choices("ab-", k=rng.randrange(1, 6))) for _ in range(rng.randrange(8))]
    topic = filled(harness, *writes)
    tags = dict(enumerate("".join(writes), 1))

    def remove() -> None:
        removed = sorted(rng.sample(sorted(tags), min(len(tags), rng.randrange(4))))
        delete_runs(topic, [SeqRun(seq, 1) for seq in removed], harness)
        for seq in removed:
            del tags[seq]

    remove()
    bound = rng.randrange(1, topic.head_seq + 3)
    match = rng.choice([None, A])
    selection, taken = select(harness, topic, bound, match), 0
    for step in range(6):
        left = [
            seq
            for seq, tag in sorted(tags.items())
            if taken < seq < bound and (match is None or tag == "a")
        ]
        if step == 5:
            assert count_left(selection) == len(left)
            return
        seqs = next_of(selection, rng.randrange(1, 5))
        assert seqs == left[: len(seqs)]
        assert seqs or not left
        taken = seqs[-1] if seqs else topic.head_seq + 9
        remove()


# Deletes of records


@pytest.mark.parametrize(
    ("match", "left"),
    [
        *(("x", [2, 3, 4, 5, 6]), (["tag", "Eq", "x"], [2, 3, 4, 5, 6])),
        *((["tag", "Glob", "x*"], [4, 5, 6]), (["tag", "Glob", "*"], [6])),
        *(("x*", [1, 3, 4, 5, 6]), ("", [1, 2, 3, 4, 6])),
        *(("no match", [1, 2, 3, 4, 5, 6]), (["tag", "Glob", 'é"*'], [1, 2, 3, 5, 6])),
    ],
)
def test_eq_matches_the_complete_tag_and_glob_its_prefix(
    harness: EngineHarness, match: Any, left: list[int]
) -> None:
    tags = ["x", "x*", "xyz", 'é"\\', "", None]
    harness.append(
        "a", records=[{"data": 1} if tag is None else {"data": 1, "tag": tag} for tag in tags]
    )
    harness.commit()
    harness.delete_records("a", match=match)
    harness.commit()
    assert seqs_of(harness.read("a")) == left


def test_only_the_fsync_class_syncs_deletes_and_only_logged_records_write_a_delete_frame(
    harness: EngineHarness,
) -> None:
    for durability, frames, sync in (
        ("fsync", 1, True),
        ("disk", 1, False),
        ("memory", 1, False),
        ("ephemeral", 0, False),
    ):
        harness.put(durability, durability=durability)
        harness.append(durability, 1)
        harness.commit()
        change = harness.delete_records(durability, before_seq=2)
        assert (len(change.frames), change.sync) == (frames, sync)
        harness.commit()
        assert change.deleted == 1


# Tag index


def test_tags_are_found_in_every_part_of_the_index_until_they_are_dropped() -> None:
    tags = TagIndex()
    texts = [f"tag-{number * 7919 % 20_011:05d}" for number in range(3 * BLOCK_TAGS)]
    tags.add([(index, json_string(text)) for index, text in enumerate(texts)], 100)
    for prefix in ("tag-00", "tag-1", "", "tag-20010", "tag-x", "u"):
        for first, stop in ((0, 1 << 40), (100, 101), (4000, 4500), (4195, 4197), (9000, 1 << 40)):
            expected = [
                100 + index
                for index, text in enumerate(texts)
                if text.startswith(prefix) and first <= 100 + index < stop
            ]
            found, visited = tags.find(TagMatch("Glob", prefix), first, stop)
            assert sorted(found) == expected
            assert visited <= len(texts) + 1
    one = TagMatch("Eq", texts[17])
    assert tags.find(one, 0, 99_000)[0] == [117]
    tags.add([(0, json_string(texts[17])), (1, json_string(texts[17]))], 99_000)
    tags.remove(one, 0, 200)
    assert tags.find(TagMatch("Glob", texts[17]), 0, 100_000)[0] == [99_000, 99_001]
    tags.remove(one, 200, 99_001)
    assert tags.find(one, 0, 100_000)[0] == [99_001]
    tags.remove(one, 200, 100_000)
    assert tags.find(one, 0, 100_000)[0] == []
