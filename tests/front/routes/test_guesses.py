"""Guessed diffs: which request follows on another, and how many guesses are kept."""

from __future__ import annotations

from topics.front.routes.guesses import (
    GUESSES_MAX,
    RUNS_MAX,
    STALE_NS,
    Guess,
    Guesses,
    PageKey,
    Run,
)


def test_requests_without_exactly_one_cursor_are_not_guessed() -> None:
    assert PageKey("t", b'{"limit":5}').following(9) is None
    assert PageKey("t", b'{"from_seq":1,"from_seq":2}').following(9) is None
    assert PageKey("t", b'{"node":"\\"from_seq\\":5","from_seq" : 1}').following(9) == PageKey(
        "t", b'{"node":"\\"from_seq\\":5","from_seq" : 9}'
    )


def keys(count: int) -> list[PageKey]:
    return [PageKey("t", b"%d" % number) for number in range(count)]


def run_of(guesses: Guesses, *pages: PageKey) -> Run:
    """A run that was asked for, with these pages."""
    run = Run(len(pages))
    for key in pages:
        guesses.add(key, Guess(run))
    return run


def test_the_oldest_guess_goes_when_there_are_too_many() -> None:
    guesses = Guesses()
    for key in keys(GUESSES_MAX + 1):
        guesses.add(key, Guess())
    oldest, second, *_ = keys(2)
    assert oldest not in guesses
    assert second in guesses


def test_a_guess_is_taken_once_and_knows_whether_a_shard_was_asked() -> None:
    guesses = Guesses()
    unasked, asked = keys(2)
    guesses.add(unasked, Guess())
    run = run_of(guesses, asked)
    assert (guesses.is_asked(unasked), guesses.is_asked(asked)) == (False, True)
    guess = guesses.take(asked)
    assert guess is not None
    assert guess.run is run
    assert guesses.take(asked) is None
    assert not guesses.is_asked(asked)


def test_a_run_makes_room_when_all_its_pages_are_taken() -> None:
    guesses = Guesses()
    first, second, *others = keys(RUNS_MAX + 1)
    run_of(guesses, first, second)
    for key in others:
        run_of(guesses, key)
    assert not guesses.make_room()
    guesses.take(first)
    assert not guesses.make_room(), "a page of it is left"
    guesses.take(second)
    assert guesses.make_room()


def test_only_a_stale_run_is_dropped_to_make_room_with_all_its_pages() -> None:
    guesses = Guesses()
    first, second, *others = keys(RUNS_MAX + 1)
    run = run_of(guesses, first, second)
    for key in others:
        run_of(guesses, key)
    assert not guesses.make_room()
    run.asked_ns -= STALE_NS
    assert guesses.make_room()
    assert first not in guesses
    assert second not in guesses
    assert all(key in guesses for key in others)
