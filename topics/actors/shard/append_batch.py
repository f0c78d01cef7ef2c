"""Append batch: the requests of one append message and their answers.

Each request is decided and answered by itself, as if it had come alone: a bad one fails and harms
none of its neighbours. The answers are sent in one message when the last of them is known, in the
order of the requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, TypeAlias

from topics.actors.rpc.replies import map_error
from topics.actors.rpc.typed_calls import InboundCall
from topics.errors import Internal
from topics.formats.buffers import Buffer
from topics.formats.wire.calls import AppendOutcome, AppendParams, AppendResult

AppendCall: TypeAlias = InboundCall[AppendParams, AppendResult]

FAILED = int(AppendOutcome.FAILED)
APPENDED_ALONE = AppendResult((int(AppendOutcome.APPENDED),))
CREATED_ALONE = AppendResult((int(AppendOutcome.CREATED),))


class AppendBatch:
    """Collects the outcome of each request, by its index in the message."""

    __slots__ = ("_answers", "_failures", "_outcomes", "_request", "_unanswered", "params")

    def __init__(self, request: AppendCall) -> None:
        self._request, self.params = request, request.params
        count = self._unanswered = len(request.params.lengths)
        assert count, "an append message holds at least one request"
        self._outcomes = [-1] * count
        self._answers: list[bytes] = [b""] * count
        self._failures: dict[int, tuple[str, str, Mapping[str, Any]]] = {}

    def bodies(self) -> Iterator[Buffer]:
        """The body of each request."""
        content, lengths = self._request.attachment, self.params.lengths
        if len(lengths) == 1:
            yield content
            return
        end = 0
        for length in lengths:
            start, end = end, end + length
            yield content[start:end]

    def succeed(self, index: int, body: bytes, *, created: bool = False) -> None:
        """The request has been appended; ``created``: it made the topic."""
        if len(self._outcomes) == 1:
            self._request.reply(CREATED_ALONE if created else APPENDED_ALONE, body)
            return
        self._answers[index] = body
        self._settle(index, int(AppendOutcome.CREATED if created else AppendOutcome.APPENDED))

    def fail(self, index: int, error: Exception) -> None:
        """The request fails. The log has what is unexpected; the caller is told no more of it."""
        _, message, data = map_error(error, self._request)
        if data is None or data["code"] == Internal.code:
            self._failures[index] = Internal.code, "internal error", {}
        else:
            self._failures[index] = data["code"], message, data["detail"]
        self._settle(index, FAILED)

    def _settle(self, index: int, outcome: int) -> None:
        assert self._outcomes[index] < 0, "a request is answered once"
        self._outcomes[index] = outcome
        self._unanswered -= 1
        if not self._unanswered:
            failures = [self._failures[index] for index in sorted(self._failures)]
            self._request.reply(
                AppendResult(self._outcomes, list(map(len, self._answers)), failures),
                b"".join(self._answers),
            )
