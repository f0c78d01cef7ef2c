"""Dispatch: run the operation of an admitted request and turn every failure into an answer. Both
lanes answer requests here and nowhere else.
"""

from __future__ import annotations

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace

from topics.actors.shard_client.readiness import Readiness
from topics.errors import Internal, NotReady, TopicsError
from topics.front.answers import Answer
from topics.front.backend import Body
from topics.front.compression import compressed
from topics.front.errors import error_answer
from topics.front.request import Request
from topics.front.route import Route
from topics.front.server_timing import server_timing

LOG = logging.getLogger("topics.front")
Operation = Callable[[Request, Body, int], Awaitable[Answer]]


class Dispatcher:
    """The operations of all routes."""

    def __init__(
        self, operations: Mapping[Route, Operation], readiness: Callable[[], Readiness]
    ) -> None:
        self._operations, self._readiness = operations, readiness

    async def run(self, request: Request, body: Body, at: int) -> Answer:
        """Answer an admitted request; takes over ``body``. ``at``: monotonic ns when the front had
        the whole request.
        """
        if request.is_timed:
            return await self._run_timed(request, body, at)
        try:
            answer = await self._operations[request.route](request, body, at)
            return await compressed(answer) if request.gzip_out else answer
        except Internal as failure:
            # Not LOG.exception: the traceback is in the log of the shard.
            name, message = request.route.name, failure.message
            LOG.error("unexpected shard error: route %s: %s", name, message)  # noqa: TRY400
            return error_answer(Internal("internal error"), at)
        except TopicsError as failure:
            return self.failed(failure, at)
        except Exception:
            LOG.exception("unexpected server error: route %s", request.route.name)
            return error_answer(Internal("internal error"), at)

    async def _run_timed(self, request: Request, body: Body, at: int) -> Answer:
        """As `run`, with Server-Timing. The answer is compressed after its end has been read."""
        plain = replace(request, is_timed=False, gzip_out=False)
        answer = await self.run(plain, body, at)
        answer.headers += server_timing(answer, at)
        try:
            return await compressed(answer) if request.gzip_out else answer
        except TopicsError as failure:
            return self.failed(failure, at)

    def failed(self, failure: TopicsError, at: int = 0) -> Answer:
        """The answer to an expected failure; a `NotReady` tells the replay progress (§0.6)."""
        if isinstance(failure, NotReady):
            failure.detail.setdefault("replay_progress", self._readiness().progress)
        return error_answer(failure, at)
