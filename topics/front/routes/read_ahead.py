"""Reading ahead: a reader that goes through a topic page by page finds the next pages in the front
(decisions 0011, 0023).

The requests of such a reader differ in ``from_seq`` only, and the answer to one tells the next. So
the front guesses the bytes of the next request:

    a diff --> guess the next diff
                   |
                   it comes --> the shard answers; the front asks for the page after it
                                    |
                                    it is taken --> the next run of pages, twice as long

The shard reads a guessed body as it would read the request itself. A word in shared memory
(`topics.actors.link.heads`) tells whether a page is still the answer. A page that is not is
dropped, and its reader must show again that it reads on.

Reading ahead must never show less than the shard would. `TUNING.read_ahead` switches it off.
"""

from __future__ import annotations

from collections.abc import Callable

from topics.actors.link.heads import HeadMark
from topics.actors.rpc.stepping import in_task
from topics.config import TUNING
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
from topics.front.answers import Answer, elapsed_ms, shard_answer
from topics.front.backend import Backend, Body, Reply
from topics.front.request import Request
from topics.front.routes.guesses import Guess, Guesses, PageKey, Run

RUN_PAGES_MAX = 8
BODY_MAX_BYTES = 1024  # of a request whose successor is guessed
TRAILER_MAX_BYTES = 512


class RunAfterReply:
    """A reply that asks for the next run once the answer has been sent. Asking sooner would delay
    the answer.
    """

    body = b""

    def __init__(self, ask: Callable[[], None], reply: Reply[DiffResult] | None) -> None:
        self.result = NO_RESULT
        self._ask, self._reply = ask, reply

    def on_lost(self, release: Callable[[], object]) -> None:
        """As `Reply.on_lost`."""
        if self._reply is not None:
            self._reply.on_lost(release)

    def release(self) -> None:
        """The answer has been sent."""
        if self._reply is not None:
            self._reply.release()
        self._ask()


class ReadAhead:
    """Answers the diffs of all connections of a front."""

    def __init__(self, backend: Backend, *, enabled: bool = TUNING.read_ahead) -> None:
        self._backend = backend
        self._enabled = enabled
        self._guesses = Guesses()

    async def diff(self, request: Request, body: Body, at: int) -> Answer:
        """§3. Raises as `Backend.call`; takes over ``body``."""
        key = self._key_of(request.topic, body)
        guess = None if key is None else self._guesses.take(key)
        if guess is not None and guess.run is not None:
            if not guess.run.arrived.is_set():
                await in_task()
                await guess.run.arrived.wait()
            answer = self._answer(request.shard, guess, guess.run, at)
            if answer is not None:
                return answer
            guess = None
        reply = await self._backend.call(request.shard, DIFF, DiffParams(request.topic, at), body)
        answer = shard_answer(reply)
        next_from_seq = reply.result.next_from_seq
        if key is not None and next_from_seq is not None:
            following = key.following(next_from_seq)
            if following is not None and guess is not None:
                answer.reply = self._run_after(request.shard, following, 1, reply)  # type: ignore[assignment]
            elif following is not None and following not in self._guesses:
                self._guesses.add(following, Guess())
        return answer

    def _key_of(self, topic: str, body: Body) -> PageKey | None:
        if self._enabled and type(body) is bytes and len(body) <= BODY_MAX_BYTES:
            return PageKey(topic, body)
        return None

    def _run_after(
        self, shard: int, key: PageKey, page_count: int, reply: Reply[DiffResult] | None = None
    ) -> RunAfterReply:
        return RunAfterReply(lambda: self.ask(shard, key, page_count), reply)

    def ask(self, shard: int, key: PageKey, page_count: int) -> None:
        """Ask for a run that begins with the answer to ``key``, unless it was asked for or there
        are too many runs.
        """
        if self._guesses.is_asked(key) or not self._guesses.make_room():
            return
        run = Run(page_count)
        guess = Guess(run)
        self._guesses.add(key, guess)

        def arrived(reply: Reply[DiffAheadResult] | TopicsError) -> None:
            if not isinstance(reply, TopicsError):
                self._keep(run, key, guess, reply)
                reply.release()
            run.arrived.set()

        params = DiffAheadParams(key.topic, page_count)
        self._backend.ask(shard, DIFF_AHEAD, params, key.body, arrived)
        self._backend.flush(shard)

    def _answer(self, shard: int, guess: Guess, run: Run, at: int) -> Answer | None:
        """The answer from a page that was read ahead; None when the page is missing or stale."""
        if guess.page is None:
            return None
        head = self._backend.head(shard, run.mark)
        if head is None:
            return None
        trailer = difference_end(
            next_from_seq=guess.next_from_seq,
            head_seq=head,
            earliest_seq=run.earliest_seq,
            epoch=run.epoch,
            tombstone=None,
            scanned=guess.scanned,
            total_ms=elapsed_ms(at),
        )
        length = guess.length + len(trailer)
        guess.page[guess.length : length] = trailer
        next_run = None
        if guess.next_key is not None:
            page_count = min(2 * run.page_count, RUN_PAGES_MAX)
            next_run = self._run_after(shard, guess.next_key, page_count)
        return Answer(200, memoryview(guess.page)[:length], next_run)  # type: ignore[arg-type]

    def _keep(self, run: Run, key: PageKey, guess: Guess, reply: Reply[DiffAheadResult]) -> None:
        """Copy the pages of a run: prefetched pages must not occupy shared memory."""
        result, body, start = reply.result, memoryview(reply.body), 0
        if not result.pages:
            return
        run.mark = HeadMark(*result.mark)
        run.earliest_seq, run.epoch = result.earliest_seq, result.epoch
        page = guess
        for number, (length, next_from_seq, scanned) in enumerate(result.pages):
            if number:
                page = Guess(run)
                self._guesses.add(key, page)
            page.page = bytearray(length + TRAILER_MAX_BYTES)
            page.page[:length] = body[start : start + length]
            page.length, page.next_from_seq, page.scanned = length, next_from_seq, scanned
            start += length
            following = key.following(next_from_seq)
            assert following is not None, "the key itself was made so"
            key = following
        guess.next_key = key
