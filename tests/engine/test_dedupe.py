"""The window of idempotency keys against a list of everything that was ever remembered."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from topics.engine.dedupe import DedupeEntry, DedupeWindow

WINDOW_MS = 10
STEPS = st.lists(
    st.tuples(
        st.sampled_from("abcd"), st.integers(0, 6), st.sampled_from([WINDOW_MS, WINDOW_MS, 5, 0])
    ),
    max_size=40,
)


@given(STEPS)
def test_a_key_stands_for_its_last_write_as_long_as_the_window_and_is_then_let_go(
    steps: list[tuple[str, int, int]],
) -> None:
    window, model, now_ms = DedupeWindow(), dict[str, DedupeEntry](), 0
    for seq, (key, later_ms, window_ms) in enumerate(steps, 1):
        now_ms += later_ms
        alive = {known: write for known, write in model.items() if now_ms - write.at_ms < window_ms}
        assert {known: window.find(known, now_ms, window_ms) for known in "abcd"} == {
            known: alive.get(known) for known in "abcd"
        }
        write = DedupeEntry(seq, 1, now_ms)
        window.remember(key, write, window_ms)
        model = alive | ({key: write} if window_ms else {})
        assert len(window) == len(model)


def test_a_key_that_was_remembered_again_while_it_lived_keeps_its_new_place() -> None:
    """Only a replay does this, when the clock had stepped."""
    window = DedupeWindow()
    for at_ms, key in enumerate(["a", "b", "a"]):
        window.remember(key, DedupeEntry(at_ms + 1, 1, at_ms), WINDOW_MS)
    window.expire(WINDOW_MS + 1, WINDOW_MS)
    assert [window.find(key, 3, WINDOW_MS) for key in "ab"] == [DedupeEntry(3, 1, 2), None]
    window.expire(WINDOW_MS + 2, WINDOW_MS)
    assert len(window) == 0


def test_empty_windows_share_what_they_are_made_of_and_never_a_key() -> None:
    first, second = DedupeWindow(), DedupeWindow()
    write = DedupeEntry(1, 1, 0)
    first.remember("a", write, 0)  # not kept
    assert (len(first), len(second)) == (0, 0)
    first.remember("a", write, WINDOW_MS)
    assert "a" not in second
    first.expire(WINDOW_MS, WINDOW_MS)
    second.remember("b", write, WINDOW_MS)
    assert (list(first.items()), list(second.items())) == ([], [("b", write)])
    assert list(DedupeWindow().items()) == []
