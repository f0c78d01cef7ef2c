"""Guessed diffs: requests that are likely to come next, and the pages read ahead for them.

    PageKey --> Guess --> Run     several guesses share the run of pages that one message asked for

A guess is a matter of bytes only: the topic and the body of a request. At most `GUESSES_MAX`
guesses and `RUNS_MAX` runs with a page that was not taken are kept; the oldest goes first.
"""

from __future__ import annotations

import re
import time
from typing import NamedTuple

import trio

from topics.actors.link.heads import HeadMark

GUESSES_MAX = 1024
RUNS_MAX = 16
STALE_NS = 1_000_000_000  # an older run makes room for the run of another reader

_FROM_SEQ = re.compile(rb'("from_seq"[ \t\r\n]*:[ \t\r\n]*)[0-9]+')


class PageKey(NamedTuple):
    """The part of a diff that must be equal for an equal answer."""

    topic: str
    body: bytes

    def following(self, from_seq: int) -> PageKey | None:
        """The same diff with another cursor; None when the body has no cursor or several."""
        body, found = _FROM_SEQ.subn(rb"\g<1>%d" % from_seq, self.body)
        return PageKey(self.topic, body) if found == 1 else None


class Run:
    """Pages that one message asked a shard for. ``keys``: of the guesses that still lead to one."""

    __slots__ = ("arrived", "asked_ns", "earliest_seq", "epoch", "keys", "mark", "page_count")

    def __init__(self, page_count: int) -> None:
        self.page_count = page_count
        self.asked_ns = time.monotonic_ns()
        self.arrived = trio.Event()
        self.keys: set[PageKey] = set()
        self.mark = HeadMark(0, 0)
        self.earliest_seq = self.epoch = 0


class Guess:
    """A request that is likely to come. ``run`` is None until its reader reads on, ``page`` until
    it has arrived, if it does.
    """

    __slots__ = ("length", "next_from_seq", "next_key", "page", "run", "scanned")

    def __init__(self, run: Run | None = None) -> None:
        self.run = run
        self.page: bytearray | None = None  # ``length`` bytes, and room for the trailer
        self.length = self.next_from_seq = self.scanned = 0
        self.next_key: PageKey | None = None  # on the first page of a run: the key after its last


class Guesses:
    """All guesses of a front, by key."""

    def __init__(self) -> None:
        self._guesses: dict[PageKey, Guess] = {}
        self._runs: dict[Run, None] = {}  # with a page that was not taken, oldest first

    def __contains__(self, key: PageKey) -> bool:
        return key in self._guesses

    def is_asked(self, key: PageKey) -> bool:
        """Whether a shard was asked for the page."""
        known = self._guesses.get(key)
        return known is not None and known.run is not None

    def add(self, key: PageKey, guess: Guess) -> None:
        """Keep a guess instead of the one that has its key, if any."""
        self.take(key)
        if len(self._guesses) >= GUESSES_MAX:
            self.take(next(iter(self._guesses)))
        self._guesses[key] = guess
        if guess.run is not None:
            guess.run.keys.add(key)
            self._runs[guess.run] = None

    def take(self, key: PageKey) -> Guess | None:
        """Remove the guess of a request that has come."""
        guess = self._guesses.pop(key, None)
        if guess is not None and guess.run is not None:
            guess.run.keys.discard(key)
            if not guess.run.keys:
                del self._runs[guess.run]
        return guess

    def make_room(self) -> bool:
        """Drop a stale run if there are too many; False when none is stale."""
        if len(self._runs) < RUNS_MAX:
            return True
        oldest = next(iter(self._runs))
        if time.monotonic_ns() - oldest.asked_ns < STALE_NS:
            return False
        for key in tuple(oldest.keys):
            self.take(key)
        return True
