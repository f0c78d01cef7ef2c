"""Append batch: the requests of one append message and their results.

Each request gets the same result as if it had arrived alone, so an invalid request does not affect
the other requests. All results are sent in one message, in the order of the requests, when the last
result is known.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

from topics.actors.rpc.replies import map_error
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.disk_space import unwritable
from topics.actors.shard.group_commit import NO_IO
from topics.engine.changes.append import Append
from topics.engine.dedupe import DedupeEntry
from topics.engine.priority import BANDS
from topics.errors import Internal
from topics.formats.api import answers
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import (
    AppendOutcome,
    AppendParams,
    AppendResult,
    Failure,
    outcome_byte,
)
from topics.storage.wal.log_file import NoSpace
from topics.storage.wal.log_progress import LogProgress

AppendCall: TypeAlias = InboundMessage[AppendParams, AppendResult]

APPENDED, CREATED, FAILED = map(int, AppendOutcome)
SINGLE_RESULTS = {
    (int(outcome), band): AppendResult(bytes((outcome_byte(outcome, band),)))
    for outcome in AppendOutcome
    for band in range(BANDS)
}
UNANSWERED = 255
assert outcome_byte(max(AppendOutcome), BANDS) < UNANSWERED


class AppendBatch:
    """Collects the result of each request, by its index in the message.

    For a message with a single request, no lists are needed: the reply is sent as soon as the
    result is known. ``band``: the topic's priority band, which is sent with each result.
    ``request``: the message, which holds the bodies until it is released or gets its reply.
    """

    __slots__ = (
        *("_answers", "_failures", "_lost", "_on_retry", "_outcomes", "_unanswered"),
        *("band", "params", "request"),
    )

    def __init__(self, request: AppendCall, band: int) -> None:
        self.request, self.band = request, band
        self._on_retry: Callable[[AppendBatch], object] | None = None
        self.params = params = request.params
        if params.lengths is not None:
            count = self._unanswered = len(params.lengths)
            assert count, "an append message holds at least one request"
            self._outcomes = bytearray((UNANSWERED,)) * count
            self._answers = [b""] * count
            self._failures: dict[int, Failure] = {}

    def bodies(self) -> Sequence[Buffer]:
        """Return the body of each request of a message with several requests."""
        content, lengths = self.request.attachment, self.params.lengths
        assert lengths is not None, "a message with several requests has their lengths"
        ends = accumulate(lengths, initial=0)
        return [content[start:end] for start, end in pairwise(ends)]

    def enable_retry(self, on_retry: Callable[[AppendBatch], object]) -> None:
        """Enable one retry of the requests that the log loses because it finds no space.

        ``on_retry`` is called once, when the log loses the first of them. No results are recorded
        for lost requests. Call `take_retries` later to get all lost requests.
        """
        self._on_retry, self._lost = on_retry, list[int]()

    def take_retries(self) -> list[int]:
        """Return the sorted indexes of the lost requests. They are not retried again."""
        self._on_retry = None
        return sorted(self._lost)

    @property
    def may_retry(self) -> bool:
        """Whether requests may have to be evaluated again. Their bodies must then be kept."""
        return self._on_retry is not None

    # Results

    def settle(self, index: int, change: Append, result: LogProgress | OSError) -> None:
        """Record the log's result for the request and for later requests with the same key."""
        self.end(index, change, result, created=change.created)
        for follower, at in change.followers:
            follower.end(at, change, result, deduped=True)

    def end(
        self,
        index: int,
        change: Append,
        result: LogProgress | OSError,
        *,
        created: bool = False,
        deduped: bool = False,
    ) -> None:
        """Record the log's ``result`` for the request.

        ``created``: the request created the topic. ``deduped``: another request with the same key
        made the append.
        """
        if isinstance(result, OSError):
            self.refuse(index, result)
        else:
            self._succeed(
                index,
                change.first_seq,
                change.count,
                self._ending(index, change, result),
                created=created,
                deduped=deduped,
            )

    def settle_joined(
        self, joined: Sequence[tuple[int, int]], change: Append, result: LogProgress | OSError
    ) -> None:
        """Record the log's ``result`` for requests that share one change.

        ``joined``: the index and the record count of each request.
        """
        if isinstance(result, OSError):
            for index, _ in joined:
                self.refuse(index, result)
            return
        seq, ending = change.first_seq, b""
        for index, count in joined:
            # Requests that arrived at the same time share one `performance` block.
            if not ending or self.params.ats is not None:
                ending = self._ending(index, change, result)
            self._succeed(index, seq, count, ending)
            seq += count

    def answer_known(self, index: int, entry: DedupeEntry) -> None:
        """Record the result of a request whose key belongs to an already committed append."""
        ending = self._ending(index, None, NO_IO)
        self._succeed(index, entry.first_seq, entry.record_count, ending, deduped=True)

    def refuse(self, index: int, error: OSError) -> None:
        """Fail a request that the log cannot write, or keep it for a retry if that is enabled."""
        if self._on_retry is None or not isinstance(error, NoSpace):
            self.fail(index, unwritable(error))
            return
        self._lost.append(index)
        if len(self._lost) == 1:
            self._on_retry(self)

    def fail(self, index: int, error: Exception) -> None:
        """Record ``error`` as the result of the request.

        An unexpected error is logged, and the caller gets no details.
        """
        _, message, data = map_error(error, self.request)
        failure: Failure = Internal.code, "internal error", {}
        if data is not None and data["code"] != Internal.code:
            failure = data["code"], message, data["detail"]
        if self.params.lengths is None:
            self.request.reply(
                AppendResult(bytes((outcome_byte(FAILED, self.band),)), None, (failure,))
            )
            return
        self._failures[index] = failure
        self._note(index, FAILED)

    def _ending(self, index: int, change: Append | None, result: LogProgress) -> bytes:
        """Render the ``performance`` block, which ends a result and includes the time until now."""
        params = self.params
        at = params.at if params.ats is None else params.ats[index]
        is_synced = change is not None and change.topic.config.durability == "fsync"
        return answers.performance(
            (time.monotonic_ns() - at) / 1e6,
            wal_ms=result.write_ms,
            fsync_ms=result.sync_ms if is_synced else 0.0,
            throttle_ms=params.parked_ms + self.request.parked_ms,
        )

    def _succeed(
        self,
        index: int,
        first_seq: int,
        count: int,
        ending: bytes,
        *,
        created: bool = False,
        deduped: bool = False,
    ) -> None:
        params, outcome = self.params, CREATED if created else APPENDED
        body = answers.appended(
            params.topic,
            first_seq,
            count,
            ending,
            with_seqs=params.with_seqs,
            created=created,
            deduped=deduped,
        )
        # For a single request, reply immediately with a prepared result.
        if params.lengths is None:
            self.request.reply(SINGLE_RESULTS[outcome, self.band], body)
            return
        self._answers[index] = body
        self._note(index, outcome)

    def _note(self, index: int, outcome: int) -> None:
        assert self._outcomes[index] == UNANSWERED, "a request gets one reply"
        self._outcomes[index] = outcome_byte(outcome, self.band)
        self._unanswered -= 1
        if not self._unanswered:
            lengths = list(map(len, self._answers))
            failures = [failure for _, failure in sorted(self._failures.items())] or None
            result = AppendResult(bytes(self._outcomes), lengths, failures)
            self.request.reply(result, b"".join(self._answers))
