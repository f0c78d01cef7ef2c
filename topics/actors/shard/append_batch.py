"""Append batch: the requests of one append message and their answers.

Each request is answered as if it had come alone: a bad one fails and harms none of its neighbours.
The answers are sent in one message when the last of them is known, in the order of the requests.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from itertools import accumulate, pairwise
from typing import TypeAlias

from topics.actors.rpc.replies import map_error
from topics.actors.rpc.session import InboundMessage
from topics.actors.shard.group_commit import NO_IO
from topics.actors.shard.room import unwritable
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
from topics.storage.wal.file import NoRoom
from topics.storage.wal.progress import Progress

AppendCall: TypeAlias = InboundMessage[AppendParams, AppendResult]

APPENDED, CREATED, FAILED = map(int, AppendOutcome)
ALONE = {
    (int(outcome), band): AppendResult(bytes((outcome_byte(outcome, band),)))
    for outcome in AppendOutcome
    for band in range(BANDS)
}
UNANSWERED = 255
assert outcome_byte(max(AppendOutcome), BANDS) < UNANSWERED


class AppendBatch:
    """Collects the outcome of each request, by its index in the message.

    A single request needs no lists: it is answered as soon as its outcome is known. ``band``: of
    the topic's priority, told with each outcome. ``request``: the message, which holds the bodies
    until it is released or answered.
    """

    __slots__ = (
        *("_answers", "_failures", "_lost", "_on_lost", "_outcomes", "_unanswered"),
        *("band", "params", "request"),
    )

    def __init__(self, request: AppendCall, band: int) -> None:
        self.request, self.band = request, band
        self._on_lost: Callable[[AppendBatch], object] | None = None
        self.params = params = request.params
        if params.lengths is not None:
            count = self._unanswered = len(params.lengths)
            assert count, "an append message holds at least one request"
            self._outcomes = bytearray((UNANSWERED,)) * count
            self._answers = [b""] * count
            self._failures: dict[int, Failure] = {}

    def bodies(self) -> Sequence[Buffer]:
        """The body of each request, of which there are several."""
        content, lengths = self.request.attachment, self.params.lengths
        assert lengths is not None, "a single request is the whole attachment"
        ends = accumulate(lengths, initial=0)
        return [content[start:end] for start, end in pairwise(ends)]

    def retry_lost(self, on_lost: Callable[[AppendBatch], object]) -> None:
        """Do not answer requests for which the log finds no space, but call ``on_lost`` once.

        It is called while the first of them is lost; `take_lost` follows later.
        """
        self._on_lost, self._lost = on_lost, list[int]()

    def take_lost(self) -> list[int]:
        """Return the indexes of the lost requests in order. They are not retried again."""
        self._on_lost = None
        return sorted(self._lost)

    @property
    def may_retry(self) -> bool:
        """Whether requests may have to be decided again, so that their bodies must be kept."""
        return self._on_lost is not None

    # Outcomes

    def settle(self, index: int, change: Append, result: Progress | OSError) -> None:
        """The log has done the request, or lost it; and all that came meanwhile with its key."""
        self.end(index, change, result, created=change.created)
        for follower, at in change.followers:
            follower.end(at, change, result, deduped=True)

    def end(
        self,
        index: int,
        change: Append,
        result: Progress | OSError,
        *,
        created: bool = False,
        deduped: bool = False,
    ) -> None:
        """Answer the request. ``created``: it made the topic. ``deduped``: a request with the same
        key did the append.
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
        self, joined: Sequence[tuple[int, int]], change: Append, result: Progress | OSError
    ) -> None:
        """The log has done requests that were decided together, or lost all of them. ``joined``:
        the index of each, and how many records it has.
        """
        if isinstance(result, OSError):
            for index, _ in joined:
                self.refuse(index, result)
            return
        seq, ending = change.first_seq, b""
        for index, count in joined:
            if not ending or self.params.ats is not None:
                ending = self._ending(index, change, result)
            self._succeed(index, seq, count, ending)
            seq += count

    def answer_known(self, index: int, entry: DedupeEntry) -> None:
        """The request's key stands for an append that was committed before."""
        ending = self._ending(index, None, NO_IO)
        self._succeed(index, entry.first_seq, entry.record_count, ending, deduped=True)

    def refuse(self, index: int, error: OSError) -> None:
        """The log cannot take the request: answer it, unless it is retried."""
        if self._on_lost is None or not isinstance(error, NoRoom):
            self.fail(index, unwritable(error))
            return
        self._lost.append(index)
        if len(self._lost) == 1:
            self._on_lost(self)

    def fail(self, index: int, error: Exception) -> None:
        """The request fails. The log has what is unexpected; the caller is told no more of it."""
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

    def _ending(self, index: int, change: Append | None, result: Progress) -> bytes:
        """The end of the answer to a request that is given now."""
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
        if params.lengths is None:
            self.request.reply(ALONE[outcome, self.band], body)
            return
        self._answers[index] = body
        self._note(index, outcome)

    def _note(self, index: int, outcome: int) -> None:
        assert self._outcomes[index] == UNANSWERED, "a request is answered once"
        self._outcomes[index] = outcome_byte(outcome, self.band)
        self._unanswered -= 1
        if not self._unanswered:
            lengths = list(map(len, self._answers))
            failures = [failure for _, failure in sorted(self._failures.items())] or None
            result = AppendResult(bytes(self._outcomes), lengths, failures)
            self.request.reply(result, b"".join(self._answers))
