"""Idempotency keys: the window, compared with a dict of all remembered keys, and the keys of
copies.
"""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from tests.engine.shard_support import EngineHarness
from tests.support.limits import LIMITS
from topics.engine import dedupe, shard
from topics.engine.dedupe import DedupeEntry, DedupeWindow, digest_of
from topics.engine.moved_keys import (
    BATCH_JOBS,
    SOURCES_MAX,
    WINDOW_RECORDS,
    MovedKeys,
    Part,
    copy_key,
    is_copy_key,
)
from topics.engine.topic import Topic
from topics.errors import InvalidRequest
from topics.formats.api.limits import MOVE_LIMITS, check_key
from topics.formats.api.topic_config import TopicConfig

WINDOW_MS = 10
STEPS = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.integers(0, 6), st.sampled_from([WINDOW_MS, WINDOW_MS, 5, 0])
    ),
    max_size=40,
)


@pytest.mark.slow
@pytest.mark.parametrize("generation_keys", [1, 3, 1 << 17])
@given(steps=STEPS)
@example(steps=[("a", 0, 10), ("d", 3, 10), ("a", 0, 0), ("a", 0, 10), ("d", 0, 10), ("a", 0, 10)])
def test_a_key_refers_to_its_last_write_until_the_window_ends(
    generation_keys: int, steps: list[tuple[str, int, int]]
) -> None:
    window, model, now_ms = DedupeWindow(), dict[str, tuple[int, int]](), 0
    before_ms = from_seq = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dedupe, "GENERATION_KEYS", generation_keys)
        for seq, (key, later_ms, window_ms) in enumerate(steps, 1):
            now_ms += later_ms
            # As a PUT that lengthens the window: expired keys stay expired
            if window_ms > before_ms:
                from_seq = max(from_seq, window.oldest_seq(now_ms, before_ms, seq))
                model = {k: v for k, v in model.items() if now_ms - v[1] < before_ms}
            before_ms = window_ms
            model = {k: v for k, v in model.items() if now_ms - v[1] < window_ms}
            for each in "abcd":
                found = window.find(each, now_ms, window_ms, from_seq)
                assert found == ((model[each][0], 1) if each in model else None)
            rows = [row.first_seq for row in window.rows(now_ms, window_ms)]
            assert [at for at in rows if at >= from_seq] == sorted(at for at, _ in model.values())
            if key not in model:
                window.add(key, seq, 1, now_ms, window_ms)
                model |= {key: (seq, now_ms)} if window_ms else {}
        while window.expire(now_ms + WINDOW_MS, WINDOW_MS):
            pass
        assert len(window) == 0


def test_a_replay_with_a_stepped_clock_keeps_the_order_of_seqs() -> None:
    window = DedupeWindow()
    for seq, (key, at_ms) in enumerate([("a", 5), ("b", 3), ("a", 4)], 1):
        window.extend([(digest_of(key), seq, 1, at_ms)], WINDOW_MS)
    assert [window.find(key, 14, WINDOW_MS) for key in "ab"] == [(3, 1), (2, 1)]
    assert [window.find(key, 15, WINDOW_MS) for key in "ab"] == [None, None]


def test_a_key_may_be_older_than_the_boot_of_the_machine() -> None:
    window = DedupeWindow()
    window.extend([(digest_of("a"), 1, 1, -8)], WINDOW_MS)
    assert window.find("a", 1, WINDOW_MS) == (1, 1)
    assert window.find("a", 2, WINDOW_MS) is None


def test_the_key_of_a_copy_is_found_after_the_window_and_without_a_window() -> None:
    window = DedupeWindow()
    keys = [copy_key("dead_letter", "q", 7, seq) for seq in (1, 2)]
    window.add(keys[0], 3, 1, 0, 0)
    window.add(keys[1], 4, 1, 0, WINDOW_MS)
    window.add("client", 5, 1, 0, WINDOW_MS)
    later = 1 << 40
    assert [window.find(key, later, WINDOW_MS) for key in (*keys, "client")] == [
        DedupeEntry(3, 1),
        DedupeEntry(4, 1),
        None,
    ]


@pytest.mark.slow
def test_keys_that_expire_together_are_dropped_in_short_steps() -> None:
    """A key takes a few integers and no object that the garbage collector visits."""
    window, count, steps = DedupeWindow(), 600_000, list[float]()
    digests = (seq * 0x9E3779B97F4A7C15F39CC0605CEDC834 & (1 << 128) - 1 for seq in range(count))
    window.extend(((digest, seq, 1, 0) for seq, digest in enumerate(digests, 1)), 120_000)
    assert len(window) == count
    dropped = 1
    while dropped:
        started = perf_counter()
        dropped = window.expire(120_000, 120_000)
        steps.append(perf_counter() - started)
        assert dropped <= dedupe.GENERATION_KEYS
    assert len(window) == 0
    assert len(steps) == count // dedupe.GENERATION_KEYS + 2


# Keys of copies: which record they identify, and how long they are kept


def parts(moved: MovedKeys) -> list[Part]:
    return [(source, seqs.tobytes(), copies.tobytes()) for source, seqs, copies in moved.parts()]


def test_every_record_has_its_own_copy_key_and_no_client_may_send_it() -> None:
    """Topics of two shards may have the same epoch."""
    keys = {
        copy_key(what, source, epoch, seq)
        for what in ("dead_letter", "redrive")
        for source in ("q", "q:1", "q:11", "q.", "q" * 255)
        for epoch in (1, 11)
        for seq in (1, 11)
    }
    assert len(keys) == 40
    moved = MovedKeys()
    for at, key in enumerate(sorted(keys), 1):
        with pytest.raises(InvalidRequest):
            check_key(key, LIMITS)
        check_key(key, MOVE_LIMITS)
        assert is_copy_key(key)
        assert moved.find(key) == 0
        moved.add(key, at)
    assert [moved.find(key) for key in sorted(keys)] == [*range(1, 41)]


@pytest.mark.parametrize(
    ("what", "kept"), [("dead_letter", BATCH_JOBS), ("redrive", WINDOW_RECORDS)]
)
def test_a_source_keeps_as_many_copy_keys_as_it_can_have_in_flight(what: str, kept: int) -> None:
    moved = MovedKeys()
    for seq in range(1, kept + 11):
        moved.add(copy_key(what, "q", 7, seq), 100 + seq)
        moved.add(copy_key(what, "other", 7, 1), 5)  # As a replay may repeat it
    assert [moved.find(copy_key(what, "q", 7, seq)) for seq in (10, 11, kept + 10)] == [
        0,
        111,
        110 + kept,
    ]
    assert moved.find(copy_key(what, "other", 7, 1)) == 5


def test_the_keys_of_the_source_that_was_idle_longest_are_dropped_first() -> None:
    moved = MovedKeys()
    for number in range(SOURCES_MAX):
        moved.add(copy_key("redrive", f"q{number}", 7, 1), number + 1)
    moved.add(copy_key("redrive", "q0", 7, 2), SOURCES_MAX + 1)
    moved.add(copy_key("redrive", "another", 7, 1), SOURCES_MAX + 2)
    found = [moved.find(copy_key("redrive", name, 7, 1)) for name in ("q0", "q1", "q2", "another")]
    assert found == [1, 0, 3, SOURCES_MAX + 2]
    assert len(parts(moved)) == SOURCES_MAX


def test_a_checkpoint_and_the_frames_after_it_restore_the_same_copy_keys() -> None:
    """The checkpoint may already cover some of those frames."""
    notes = [(copy_key("dead_letter", "abc"[at % 3], 7, at), at) for at in range(1, 300)]
    original, cut = MovedKeys(), 200
    for key, at in notes[:cut]:
        original.add(key, at)
    restored = MovedKeys()
    for part in parts(original):
        restored.restore(part)
    for key, at in notes[cut:]:
        original.add(key, at)
    for key, at in notes[cut - 50 :]:
        restored.add(key, at)
    assert sorted(parts(restored)) == sorted(parts(original))


# Keys of idle topics


def test_expired_keys_of_idle_topics_are_swept_a_few_topics_at_a_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(shard, "SWEEP_TOPICS", 4)
    monkeypatch.setattr(shard, "SWEEP_KEYS", 2)
    harness, names = EngineHarness(), [f"t{number}" for number in range(10)]
    for name in names:
        harness.append(name, 1, key="a")
        harness.later(TopicConfig().idempotency_window_ms // 2)
        harness.append(name, 2, key="b")
    harness.commit()
    assert harness.engine.sweep_keys(harness.now._replace(ms=0)) == []
    harness.later(2 * TopicConfig().idempotency_window_ms)
    topics = [harness.engine.topic(name) for name in names]
    swept: list[Topic] = []
    while any(len(topic.dedupe) for topic in topics):
        some = harness.engine.sweep_keys(harness.now)
        assert len(some) <= 4
        swept += some
    assert {topic.name for topic in swept} == {*names}
    assert harness.engine.sweep_keys(harness.now) == []


def test_keys_of_one_generation_expire_individually() -> None:
    window = DedupeWindow()
    for seq, (key, now_ms) in enumerate([("a", 0), ("b", 10), ("c", 40)], 1):
        window.add(key, seq, 1, now_ms, 40)
    assert [window.find(key, 40, 40) for key in "abc"] == [None, (2, 1), (3, 1)]
    assert (window.expire(49, 40), window.expire(50, 40), len(window)) == (0, 2, 1)
