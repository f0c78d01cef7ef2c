"""Guessed diffs: which request follows on another, and how many guesses are kept."""

from __future__ import annotations

from topics.front.routes.guesses import PageKey


async def test_requests_without_exactly_one_cursor_are_not_guessed() -> None:
    assert PageKey("t", b'{"limit":5}').following(9) is None
    assert PageKey("t", b'{"from_seq":1,"from_seq":2}').following(9) is None
    assert PageKey("t", b'{"node":"\\"from_seq\\":5","from_seq" : 1}').following(9) == PageKey(
        "t", b'{"node":"\\"from_seq\\":5","from_seq" : 9}'
    )
