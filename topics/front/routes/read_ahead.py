"""Reading ahead: who reads a topic page by page finds the next pages here when it asks for them
(decision 0011).

The requests of such a reader differ in ``from_seq`` only, and the answer to one tells the next. So
the front guesses their bytes:

    a diff --> guessed: the one behind it --comes true--> answered by the shard, and a run of one
    page behind it is asked for
                                                                                          |
               the run behind it is asked for, twice as long <--the first comes true-- guessed: each
               page of the run

A guess is a matter of bytes only: the shard reads what was guessed as it would read the request
itself. Whether a page is still the answer is told by a word in shared memory
(`topics.actors.link.heads`), so a reader never sees less than if the shard had been asked. A page
that is not is dropped, and its reader must show again that it reads on.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import NamedTuple

import trio

from topics.actors.link.heads import HeadMark
from topics.errors import TopicsError
from topics.formats.api.answers import difference_end
from topics.formats.wire.calls import (
    DIFF,
    DIFF_AHEAD,
    NO_RESULT,
    DiffAheadParams,
    DiffAheadResult,
    DiffParams,
    DiffResult,
)
from topics.front.answers import Answer, elapsed_ms
from topics.front.backend import Backend, Body, Reply
from topics.front.guard import Request

GUESSES_MAX = 1024
RUNS_MAX = 16
RUN_PAGES_MAX = 8
BODY_MAX_BYTES = 1024  # of a request whose successor is guessed
END_ROOM = 512
STALE_NS = 1_000_000_000  # who has not come for its pages by now may lose them to others

_FROM_SEQ = re.compile(rb'("from_seq"[ \t\r\n]*:[ \t\r\n]*)[0-9]+')


class PageKey(NamedTuple):
    """A diff: what must be the same for the same answer."""

    topic: str
    body: bytes

    def following(self, from_seq: int) -> PageKey | None:
        """The same with another cursor; None when it does not say one."""
        body, found = _FROM_SEQ.subn(rb"\g<1>%d" % from_seq, self.body)
        return PageKey(self.topic, body) if found == 1 else None


class Run:
    """Pages that a shard was asked for in one message. ``keys``: of the guesses that still lead to
    one.
    """

    __slots__ = ("arrived", "asked_ns", "keys", "mark", "pages", "place")

    def __init__(self, pages: int) -> None:
        self.pages = pages
        self.asked_ns = time.monotonic_ns()
        self.arrived = trio.Event()
        self.keys: set[PageKey] = set()
        self.mark = HeadMark(0, 0)
        self.place: dict[str, int] = {}  # what the pages' ends have in common


class Guess:
    """A request that is likely to come. ``run`` is None until its reader reads on, ``page`` until
    it has arrived, if it does.
    """

    __slots__ = ("behind", "length", "next_from_seq", "page", "run", "scanned")

    def __init__(self, run: Run | None = None) -> None:
        self.run = run
        self.page: bytearray | None = None  # of so many bytes, and room for its end
        self.length = self.next_from_seq = self.scanned = 0
        self.behind: PageKey | None = None  # of the first page of a run: what comes behind the last


class Sent:
    """Stands for the reply of a shard: when the answer is out, the next run is asked for. Sooner,
    that would hold it up.
    """

    body = b""

    def __init__(
        self,
        ahead: ReadAhead,
        shard: int,
        key: PageKey,
        pages: int,
        reply: Reply[DiffResult] | None = None,
    ) -> None:
        self.result = NO_RESULT
        self._ahead, self._shard, self._key, self._pages, self._reply = (
            ahead,
            shard,
            key,
            pages,
            reply,
        )

    def on_lost(self, let_go: Callable[[], object]) -> None:
        """As `Reply.on_lost`."""
        if self._reply is not None:
            self._reply.on_lost(let_go)

    def release(self) -> None:
        """The answer is out."""
        if self._reply is not None:
            self._reply.release()
        self._ahead.ask(self._shard, self._key, self._pages)


class ReadAhead:
    """Answers diffs for all connections of a front."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend
        self._guesses: dict[PageKey, Guess] = {}
        self._runs: dict[
            Run, None
        ] = {}  # those with a page that nobody has come for, the oldest first

    async def diff(self, request: Request, body: Body, at: int) -> Answer:
        """§3. Raises as `Backend.call`; takes over ``body``."""
        key = (
            PageKey(request.topic, body)
            if type(body) is bytes and len(body) <= BODY_MAX_BYTES
            else None
        )
        guess = self._take(key) if key is not None else None
        if guess is not None and guess.run is not None:
            await guess.run.arrived.wait()
            answer = self._answer(request.shard, guess, guess.run, at)
            if answer is not None:
                return answer
            guess = None
        reply = await self._backend.call(request.shard, DIFF, DiffParams(request.topic, at), body)
        next_from_seq = reply.result.next_from_seq
        following = (
            key.following(next_from_seq) if key is not None and next_from_seq is not None else None
        )
        if following is not None and guess is not None:
            return Answer(200, reply.body, Sent(self, request.shard, following, 1, reply))
        if following is not None and following not in self._guesses:
            self._expect(following, Guess())
        return Answer(200, reply.body, reply)

    def ask(self, shard: int, key: PageKey, pages: int) -> None:
        """Ask for a run that begins with the answer to ``key``, unless it is there or there are too
        many.
        """
        known = self._guesses.get(key)
        if (known is not None and known.run is not None) or not self._has_room():
            return
        run = Run(pages)
        guess = Guess(run)
        self._expect(key, guess)
        params = DiffAheadParams(key.topic, pages)
        self._backend.ask(
            shard, DIFF_AHEAD, params, key.body, lambda reply: self._arrived(run, key, guess, reply)
        )
        self._backend.flush(shard)

    def _answer(self, shard: int, guess: Guess, run: Run, at: int) -> Answer | None:
        head = self._backend.head(shard, run.mark) if guess.page is not None else None
        if guess.page is None or head is None:
            return None
        end = difference_end(
            next_from_seq=guess.next_from_seq,
            head_seq=head,
            tombstone=None,
            scanned=guess.scanned,
            total_ms=elapsed_ms(at),
            **run.place,
        )
        length = guess.length + len(end)
        guess.page[guess.length : length] = end
        sent = (
            None
            if guess.behind is None
            else Sent(self, shard, guess.behind, min(2 * run.pages, RUN_PAGES_MAX))
        )
        return Answer(200, memoryview(guess.page)[:length], sent)

    def _arrived(
        self, run: Run, key: PageKey, guess: Guess, reply: Reply[DiffAheadResult] | TopicsError
    ) -> None:
        """Copy the pages: shared memory is not for what nobody has asked for."""
        if not isinstance(reply, TopicsError):
            result, body, start = reply.result, memoryview(reply.body), 0
            if result.pages:
                run.mark = HeadMark(*result.mark)
                run.place = {"earliest_seq": result.earliest_seq, "epoch": result.epoch}
                page = guess
                for number, (length, next_from_seq, scanned) in enumerate(result.pages):
                    if number:
                        page = Guess(run)
                        self._expect(key, page)
                    page.page = bytearray(length + END_ROOM)
                    page.page[:length] = body[start : start + length]
                    page.length, page.next_from_seq, page.scanned = length, next_from_seq, scanned
                    start += length
                    following = key.following(next_from_seq)
                    assert following is not None, "the key itself was made so"
                    key = following
                guess.behind = key
            reply.release()
        run.arrived.set()

    # Guesses

    def _expect(self, key: PageKey, guess: Guess) -> None:
        self._take(key)
        if len(self._guesses) >= GUESSES_MAX:
            self._take(next(iter(self._guesses)))
        self._guesses[key] = guess
        if guess.run is not None:
            guess.run.keys.add(key)
            self._runs[guess.run] = None

    def _take(self, key: PageKey) -> Guess | None:
        guess = self._guesses.pop(key, None)
        if guess is not None and guess.run is not None:
            guess.run.keys.discard(key)
            if not guess.run.keys:
                del self._runs[guess.run]
        return guess

    def _has_room(self) -> bool:
        if len(self._runs) < RUNS_MAX:
            return True
        oldest = next(iter(self._runs))
        if time.monotonic_ns() - oldest.asked_ns < STALE_NS:
            return False
        for key in tuple(oldest.keys):
            self._take(key)
        return True
