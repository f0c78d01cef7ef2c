"""Backup: sends all data of the server as one tar.

    GET   /v0/backup    for a key with the scope admin and without prefixes

The response has no length. An aborted response ends without its last chunk, and is not a backup
(`topics.front.data.backup_stream`).
"""

from __future__ import annotations

from functools import partial
from typing import Final

from topics.engine.access import Scope
from topics.errors import Forbidden
from topics.front.answers import Answer
from topics.front.data.backup_stream import Backup
from topics.front.data.context import RouteContext
from topics.front.dispatch import Begun, Then
from topics.front.request import Body, Request
from topics.front.route import Route

HEADERS: Final = (
    (b"content-type", b"application/x-tar"),
    (b"cache-control", b"no-store, no-transform"),
    (b"connection", b"close"),
)


def backup(context: RouteContext, request: Request, _body: Body, _at: int, _then: Then) -> Begun:
    """Start a backup. Raise `Forbidden`, `Throttled` or `NotReady`."""
    return _begin(context, request)


async def _begin(context: RouteContext, request: Request) -> Answer:
    """Return the response that starts the backup, after all shards have pinned their files."""
    if request.principal.prefixes is not None:
        raise Forbidden("a backup contains all topics, but the key is limited to its prefixes")
    begun = Backup(context.shards, context.drain, context.live.keys, context.backups)
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
    ): backup
}
