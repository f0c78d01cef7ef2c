"""Keys of copies: what they name, and which are kept for how long."""

from __future__ import annotations

import pytest

from tests.support.limits import LIMITS
from topics.engine.moved_keys import (
    BATCH_JOBS,
    SOURCES_MAX,
    WINDOW_RECORDS,
    MovedKeys,
    Part,
    copy_key,
    earlier_copy_key,
    is_copy_key,
)
from topics.errors import InvalidRequest
from topics.formats.api.limits import MOVE_LIMITS, check_key


def parts(moved: MovedKeys) -> list[Part]:
    return [(source, seqs.tobytes(), copies.tobytes()) for source, seqs, copies in moved.parts()]


def test_no_two_records_have_one_key_and_no_client_may_send_it() -> None:
    """Topics of two shards may have one epoch."""
    keys = {
        copy_key(what, source, epoch, seq)
        for what in ("dead_letter", "redrive")
        for source in ("q", "q:1", "q:11", "q.", "q" * 255)
        for epoch in (1, 11)
        for seq in (1, 11)
    }
    keys |= {earlier_copy_key("redrive", epoch, seq) for epoch in (1, 11) for seq in (1, 11)}
    assert len(keys) == 44
    moved = MovedKeys()
    for at, key in enumerate(sorted(keys), 1):
        with pytest.raises(InvalidRequest):
            check_key(key, LIMITS)
        check_key(key, MOVE_LIMITS)
        assert is_copy_key(key)
        assert moved.find(key) == 0
        moved.note(key, at)
    assert [moved.find(key) for key in sorted(keys)] == [*range(1, 45)]


@pytest.mark.parametrize(
    ("what", "kept"), [("dead_letter", BATCH_JOBS), ("redrive", WINDOW_RECORDS)]
)
def test_a_source_keeps_as_many_keys_as_it_may_have_under_way(what: str, kept: int) -> None:
    moved = MovedKeys()
    for seq in range(1, kept + 11):
        moved.note(copy_key(what, "q", 7, seq), 100 + seq)
        moved.note(copy_key(what, "other", 7, 1), 5)  # as a replay may tell it again
    assert [moved.find(copy_key(what, "q", 7, seq)) for seq in (10, 11, kept + 10)] == [
        0,
        111,
        110 + kept,
    ]
    assert moved.find(copy_key(what, "other", 7, 1)) == 5


def test_the_source_that_was_idle_longest_goes_first() -> None:
    moved = MovedKeys()
    for number in range(SOURCES_MAX):
        moved.note(copy_key("redrive", f"q{number}", 7, 1), number + 1)
    moved.note(copy_key("redrive", "q0", 7, 2), SOURCES_MAX + 1)
    moved.note(copy_key("redrive", "another", 7, 1), SOURCES_MAX + 2)
    found = [moved.find(copy_key("redrive", name, 7, 1)) for name in ("q0", "q1", "q2", "another")]
    assert found == [1, 0, 3, SOURCES_MAX + 2]
    assert len(parts(moved)) == SOURCES_MAX


def test_a_checkpoint_and_the_frames_behind_it_come_to_the_same_keys() -> None:
    """The checkpoint may know of some of those frames."""
    notes = [(copy_key("dead_letter", "abc"[at % 3], 7, at), at) for at in range(1, 300)]
    whole, cut = MovedKeys(), 200
    for key, at in notes[:cut]:
        whole.note(key, at)
    again = MovedKeys()
    for part in parts(whole):
        again.restore(part)
    for key, at in notes[cut:]:
        whole.note(key, at)
    for key, at in notes[cut - 50 :]:
        again.note(key, at)
    assert sorted(parts(again)) == sorted(parts(whole))
