"""The window of idempotency keys against a list of everything that was ever remembered."""

from __future__ import annotations

from time import perf_counter

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from topics.engine import dedupe
from topics.engine.dedupe import DedupeEntry, DedupeWindow, digest_of
from topics.engine.moved_keys import copy_key

WINDOW_MS = 10
STEPS = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.integers(0, 6), st.sampled_from([WINDOW_MS, WINDOW_MS, 5, 0])
    ),
    max_size=40,
)


@pytest.mark.parametrize("generation_keys", [1, 3, 1 << 17])
@given(steps=STEPS)
@example(steps=[("a", 0, 10), ("d", 3, 10), ("a", 0, 0), ("a", 0, 10), ("d", 0, 10), ("a", 0, 10)])
def test_a_key_stands_for_its_last_write_as_long_as_the_window(
    generation_keys: int, steps: list[tuple[str, int, int]]
) -> None:
    window, model, now_ms = DedupeWindow(), dict[str, tuple[int, int]](), 0
    before_ms = from_seq = 0
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(dedupe, "GENERATION_KEYS", generation_keys)
        for seq, (key, later_ms, window_ms) in enumerate(steps, 1):
            now_ms += later_ms
            if window_ms > before_ms:  # as a PUT: what was over does not come back
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
                window.remember(key, seq, 1, now_ms, window_ms)
                model |= {key: (seq, now_ms)} if window_ms else {}
        while window.expire(now_ms + WINDOW_MS, WINDOW_MS):
            pass
        assert len(window) == 0


def test_a_replay_whose_clock_had_stepped_keeps_the_order_of_seqs() -> None:
    window = DedupeWindow()
    for seq, (key, at_ms) in enumerate([("a", 5), ("b", 3), ("a", 4)], 1):
        window.add(digest_of(key), seq, 1, at_ms, WINDOW_MS)
    assert [window.find(key, 14, WINDOW_MS) for key in "ab"] == [(3, 1), (2, 1)]
    assert [window.find(key, 15, WINDOW_MS) for key in "ab"] == [None, None]


def test_a_copy_is_known_when_the_window_is_over_and_where_there_is_none() -> None:
    window = DedupeWindow()
    keys = [copy_key("dead_letter", "q", 7, seq) for seq in (1, 2)]
    window.remember(keys[0], 3, 1, 0, 0)
    window.remember(keys[1], 4, 1, 0, WINDOW_MS)
    window.remember("client", 5, 1, 0, WINDOW_MS)
    later = 1 << 40
    assert [window.find(key, later, WINDOW_MS) for key in (*keys, "client")] == [
        DedupeEntry(3, 1),
        DedupeEntry(4, 1),
        None,
    ]


def test_keys_that_end_at_once_are_dropped_in_short_steps() -> None:
    """Of 600,000; a key takes a few integers, and nothing that the collector looks at."""
    window, count, steps = DedupeWindow(), 600_000, list[float]()
    for seq in range(1, count + 1):
        window.add(seq * 0x9E3779B97F4A7C15F39CC0605CEDC834 & (1 << 128) - 1, seq, 1, 0, 120_000)
    assert len(window) == count
    dropped = 1
    while dropped:
        started = perf_counter()
        dropped = window.expire(120_000, 120_000)
        steps.append(perf_counter() - started)
        assert dropped <= dedupe.GENERATION_KEYS
    assert len(window) == 0
    assert len(steps) == count // dedupe.GENERATION_KEYS + 2
