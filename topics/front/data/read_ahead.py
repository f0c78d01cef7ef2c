"""Diff (§3) with read-ahead: fetches the next pages for clients that read a topic page by page.

The requests of such a client differ only in ``from_seq``, and each response contains the next
``from_seq``. So the front predicts the bytes of the next request:

    the client sends                the front
    a diff                          calls the shard, and predicts the next diff
    the predicted diff              calls the shard, and requests a run of one page
    the diff for the first page     responds with this page, and requests the next run, which is
    of a run                        twice as long, up to `RUN_PAGES_MAX` pages

The shard processes a predicted body like the request itself. A counter in shared memory
(`topics.actors.link.heads`) shows whether a page is still up to date. An outdated page is dropped,
and the front starts predicting again. A response from a page that was read ahead must never contain
less than the shard would return.

Compared with a front without read-ahead, on two cores: a client with 1,000 records per page reads
1.3 times as many records per second, a client with 256 records per page 1.4 to 1.8 times as many,
and a client that decodes the records 1.13 times as many.
"""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

from topics.actors.link.heads import HeadMark
from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.engine.access import Scope
from topics.errors import TopicsError
from topics.formats.api.answers import difference_end
from topics.formats.wire.calls import (
    DIFF,
    DIFF_AHEAD,
    DiffAheadParams,
    DiffAheadResult,
    DiffResult,
    TopicParams,
)
from topics.front.answers import Answer, elapsed_ms, shard_answer
from topics.front.dispatch import OnResult, Pending
from topics.front.drain import Drain
from topics.front.request import Body, Request
from topics.front.route import BodyRule, Route

# Bounds for all clients of a front together: predicted diffs, and runs of pages.
PREDICTIONS_MAX = 1024
RUNS_MAX = 16
# Maximum length of a run, in pages.
RUN_PAGES_MAX = 8
STALE_NS = 1_000_000_000  # a run that has been unused for 1 s may be replaced by another one
BODY_MAX_BYTES = 1024  # longer bodies are not used for predictions
# Space for the JSON members that follow the records in a response.
TRAILER_MAX_BYTES = 512

_FROM_SEQ = re.compile(rb'("from_seq"[ \t\r\n]*:[ \t\r\n]*)[0-9]+')


class PageKey(NamedTuple):
    """The part of a diff that determines its response."""

    topic: str
    body: bytes

    @property
    def has_cursor(self) -> bool:
        """Whether the body has exactly one cursor."""
        return len(_FROM_SEQ.findall(self.body)) == 1

    def moved_to(self, from_seq: int) -> PageKey:
        """Return the same diff with another cursor. The body must have exactly one cursor."""
        return PageKey(self.topic, _FROM_SEQ.sub(rb"\g<1>%d" % from_seq, self.body))


class AheadPage(NamedTuple):
    """A page that was read ahead: the first ``length`` bytes of ``body``, which also has space for
    the trailer.
    """

    body: bytearray
    length: int
    next_from_seq: int
    scanned: int


class PageRun:
    """Pages that were requested with one message, in order. ``pages`` is None until they arrive.

    When the first page is used, the next run is requested.
    """

    __slots__ = (
        "earliest_seq",
        "epoch",
        "is_used",
        "mark",
        "page_count",
        "pages",
        "used_ns",
        "waiting",
    )

    def __init__(self, page_count: int) -> None:
        self.page_count = page_count
        # Set when the first page is used, so that only one next run is requested.
        self.is_used = False
        # A run that has been unused for `STALE_NS` may be dropped to make space for another
        # client's run.
        self.used_ns = time.monotonic_ns()
        self.pages: deque[AheadPage] | None = None
        self.waiting: Callable[[], object] | None = None  # a request that arrived before its page
        self.mark = HeadMark(0, 0)
        self.earliest_seq = self.epoch = 0

    def store(self, reply: Reply[DiffAheadResult]) -> None:
        """Copy the pages, because they must not occupy shared memory."""
        result, body, start = reply.result, memoryview(reply.body), 0
        self.mark = HeadMark(*result.mark)
        # The mark, the earliest seq and the epoch apply to all pages of the run.
        self.earliest_seq, self.epoch = result.earliest_seq, result.epoch
        self.pages = deque()
        for length, next_from_seq, scanned in result.pages:
            # Leave space after the records, so that the response needs no second copy.
            page = bytearray(length + TRAILER_MAX_BYTES)
            page[:length] = body[start : start + length]
            start += length
            self.pages.append(AheadPage(page, length, next_from_seq, scanned))


class NextRunRequest:
    """A substitute for a reply, which requests the next run after the response has been sent.

    An earlier request would delay the response.
    """

    def __init__(
        self, request_run: Callable[[], object], reply: Reply[DiffResult] | None = None
    ) -> None:
        self._request_run, self._reply = request_run, reply

    def on_reclaim(self, reclaim: Callable[[], object]) -> None:
        """Register ``reclaim``, which is called if the memory of the response is needed."""
        if self._reply is not None:
            self._reply.on_reclaim(reclaim)

    def release(self) -> None:
        """Release the reply and request the next run, because the response was sent."""
        if self._reply is not None:
            self._reply.release()
        self._request_run()


class ReadAhead:
    """Serves the diffs from all connections to a front."""

    def __init__(self, shards: Shards, drain: Drain) -> None:
        self._shards, self._drain = shards, drain
        # Predicted diffs, oldest first. Nothing has been read ahead for them yet.
        self._predicted: dict[PageKey, None] = {}
        # Keyed by the diff to which the next page is the response, in order of last use.
        self._runs: dict[PageKey, PageRun] = {}

    def diff(self, request: Request, body: Body, at: int, then: OnResult) -> Pending | None:
        """Read a page of records (§3). Takes ownership of ``body``.

        ``then`` is called with the response or the failure, possibly before this returns. Return
        the call in flight if it can be abandoned. The call may wait for up to the body's
        ``wait_ms``.
        """
        # The name of the field may be escaped, so a backslash also counts. The drain must be able
        # to end a request that may wait.
        may_wait = type(body) is not bytes or b"wait_ms" in body or b"\\" in body
        # The drain need not end a request that cannot wait for records.
        if not (may_wait or self._drain.is_draining):
            return self._begin(request, body, at, then)
        call = self._drain.waiting(request, then)
        call.attach(self._begin(request, body, at, call.answered))
        return call

    def _begin(self, request: Request, body: Body, at: int, then: OnResult) -> Pending | None:
        """Respond from a page that was read ahead, wait for such a page, or call the shard."""
        # Long bodies are not worth predicting, and streamed bodies are not in the front's memory.
        if type(body) is not bytes or len(body) > BODY_MAX_BYTES:
            return self._call_shard(request, body, at, then, None, was_predicted=False)
        key = PageKey(request.topic, body)
        # Remove the run. It is stored again under the key of its next page if it has one.
        run = self._runs.pop(key, None)
        if run is None:
            is_guessed = key in self._predicted
            self._predicted.pop(key, None)
            return self._call_shard(request, body, at, then, key, was_predicted=is_guessed)
        # The page was requested but has not arrived. The request waits for it. A second equal
        # request finds no run, and calls the shard.
        if run.pages is None:
            run.waiting = partial(self._answer_or_call, request, at, then, key, run)
            return None
        return self._answer_or_call(request, at, then, key, run)

    def _answer_or_call(
        self, request: Request, at: int, then: OnResult, key: PageKey, run: PageRun
    ) -> Pending | None:
        """Respond with the next page of the run, or call the shard if that page is outdated."""
        answer = self._answer(request.shard, key, run, at)
        if answer is None:
            return self._call_shard(request, key.body, at, then, key, was_predicted=False)
        then(answer)
        return None

    def _call_shard(
        self,
        request: Request,
        body: Body,
        at: int,
        then: OnResult,
        key: PageKey | None,
        *,
        was_predicted: bool,
    ) -> Pending:
        """Call the shard. ``was_predicted`` is true if the request was predicted."""

        def answered(reply: Reply[DiffResult] | TopicsError) -> None:
            if isinstance(reply, TopicsError):
                then(reply)
                return
            answer, next_from_seq = shard_answer(reply), reply.result.next_from_seq
            # If the body has no cursor or the reply has no next cursor, the next request cannot be
            # predicted.
            if key is not None and next_from_seq is not None and key.has_cursor:
                following = key.moved_to(next_from_seq)
                if was_predicted:
                    # The client has made the predicted request: request the page after this one.
                    request_run = partial(self.request_run, request.shard, following, 1)
                    answer.reply = NextRunRequest(request_run, reply)
                elif following not in self._runs:
                    # Only record the predicted request. Its page is read ahead after the client has
                    # actually sent such a request.
                    self._predict(following)
            then(answer)

        params = TopicParams(request.topic, at)
        return self._shards.call(request.shard, DIFF, params, body, answered)

    def _predict(self, key: PageKey) -> None:
        """Store a predicted request, and drop the oldest one above the bound."""
        if len(self._predicted) >= PREDICTIONS_MAX:
            del self._predicted[next(iter(self._predicted))]
        self._predicted[key] = None

    def _has_free_run(self) -> bool:
        """Return whether another run may be requested. Drop a stale run if necessary."""
        if len(self._runs) < RUNS_MAX:
            return True
        key, run = next(iter(self._runs.items()))
        if time.monotonic_ns() - run.used_ns < STALE_NS:
            return False
        del self._runs[key]
        return True

    def request_run(self, shard: int, key: PageKey, page_count: int) -> None:
        """Request a run that begins with the response to ``key``.

        Do nothing if the run has already been requested or if there are too many runs.
        """
        if key in self._runs or not self._has_free_run():
            return
        run = self._runs[key] = PageRun(page_count)

        def arrived(reply: Reply[DiffAheadResult] | TopicsError) -> None:
            if isinstance(reply, TopicsError):
                # The waiting request calls the shard itself and gets the error.
                run.pages = deque()
            else:
                run.store(reply)
                reply.release()
            # The request arrived before the page. Serve it now, or let it call the shard.
            waiting, run.waiting = run.waiting, None
            if waiting is not None:
                waiting()

        params = DiffAheadParams(key.topic, page_count)
        self._shards.call(shard, DIFF_AHEAD, params, key.body, arrived)

    def _answer(self, shard: int, key: PageKey, run: PageRun, at: int) -> Answer | None:
        """Return the response to ``key`` from the next page of its run.

        Return None if there is no page or if the page is stale.
        """
        # `head` returns None if the topic has changed since the page was read, except by appends.
        head = self._shards.head(shard, run.mark) if run.pages else None
        if head is None or not run.pages:
            return None
        page = run.pages.popleft()
        # These members depend on the time of the response. They are rendered now and follow the
        # records.
        trailer = difference_end(
            next_from_seq=page.next_from_seq,
            head_seq=head,
            earliest_seq=run.earliest_seq,
            epoch=run.epoch,
            tombstone=None,
            scanned=page.scanned,
            total_ms=elapsed_ms(at),
        )
        length = page.length + len(trailer)
        page.body[page.length : length] = trailer
        next_run = None
        # The run is used: request the next one while the client reads this one.
        if not run.is_used:
            run.is_used = True
            last = run.pages[-1] if run.pages else page
            page_count = min(2 * run.page_count, RUN_PAGES_MAX)
            request_run = partial(
                self.request_run, shard, key.moved_to(last.next_from_seq), page_count
            )
            next_run = NextRunRequest(request_run)
        # The run is stored under the request that its next page answers.
        # If there is no free slot, the remaining pages are dropped. The client then gets its pages
        # from the shard.
        if run.pages and self._has_free_run():
            run.used_ns = time.monotonic_ns()
            self._runs[key.moved_to(page.next_from_seq)] = run
        return Answer(200, memoryview(page.body)[:length], next_run)


DIFF_ROUTE = Route(
    "POST",
    "/v0/topics/:topic/diff",
    "diff",
    Scope.READ,
    body=BodyRule.OPTIONAL,
    waits=True,
)
