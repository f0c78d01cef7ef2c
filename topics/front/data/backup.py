"""Backup: sends all data of the server as one tar (§8.5).

    GET   /v0/backup    all data
    POST  /v0/backup    all data, excluding the contents of the files that the body lists

Both need a key that has the scope admin and no prefixes. The response has no Content-Length. An
aborted response lacks its last chunk, and is not a backup (`topics.front.data.backup_stream`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

import trio

from topics.engine.access import Scope
from topics.errors import Forbidden
from topics.formats.api.backup_body import decode_backup
from topics.formats.buffers import Buffer
from topics.front.answers import Answer
from topics.front.data.backup_stream import Backup
from topics.front.data.context import RouteContext
from topics.front.dispatch import OnResult, PendingResult
from topics.front.request import Body, Request, copied
from topics.front.route import BodyRule, Route

HEADERS: Final = (
    (b"content-type", b"application/x-tar"),
    (b"cache-control", b"no-store, no-transform"),
    (b"connection", b"close"),
)


def backup(
    context: RouteContext, request: Request, _body: Body, _at: int, _then: OnResult
) -> PendingResult:
    """Start a backup. Raise `Forbidden`, `Throttled` or `NotReady`."""
    return _begin(context, request, None)


def changes(
    context: RouteContext, request: Request, body: Body, _at: int, _then: OnResult
) -> PendingResult:
    """Start an incremental backup. Raise `InvalidRequest`, `Forbidden`, `Throttled`, `NotReady`."""
    return _begin(context, request, copied(body))


async def _begin(context: RouteContext, request: Request, body: Buffer | None) -> Answer:
    """Return the response that starts the backup, after all shards have pinned their files.

    ``body`` lists the files that the client has. It is None for a full backup.
    """
    if request.principal.prefixes is not None:
        raise Forbidden("a backup contains all topics, but the key is limited to its prefixes")
    # Decode in a thread, because the body may list thousands of files.
    known = None if body is None else await trio.to_thread.run_sync(decode_backup, body)
    begun = Backup(
        *(context.shards, context.drain, context.live.keys, context.backups),
        known=None if known is None else known.files,
    )
    await begun.begin()
    answer = Answer(200, headers=HEADERS, stream=partial(begun.run, request))
    # If the stream never starts, the shards release their files.
    answer.on_unsent = begun.abandon
    return answer


ROUTES: Final = {
    Route(
        "GET",
        "/v0/backup",
        "backup",
        Scope.ADMIN,
        streams=True,
        waits=True,
        is_chunked=True,
        is_audited=True,
    ): backup,
    Route(
        "POST",
        "/v0/backup",
        "backup.changes",
        Scope.ADMIN,
        body=BodyRule.OPTIONAL,
        long_body=True,
        streams=True,
        waits=True,
        is_chunked=True,
        is_audited=True,
    ): changes,
}
