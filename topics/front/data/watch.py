"""Watch (§7): create a session, open its event stream.

    POST   /v0/watch    ?lenient    a session for up to TOPICS_MAX_WATCH_TOPICS topics
    GET    /v0/watch/:wid           the session's event stream; ``?token=`` instead of a header
    GET    /v0/watch    ?topic ...  an event stream without a session: the event ids contain all
                                    data that a client needs to resume

If a shard is not ready, and during the drain, ``GET /v0/watch`` returns status 200, an ``error``
event with the code 503, and the end of the stream. After a response with status 503, an EventSource
would never reconnect. The sessions and streams are implemented in `topics.front.live`.
"""

from __future__ import annotations

from typing import Any

from topics.engine.access import Scope
from topics.errors import NotAcceptable, NotReady, ShuttingDown
from topics.formats.api.watch import (
    Cursor,
    CursorsId,
    Start,
    WatchRequest,
    decode_cursors,
    decode_watch,
    watch_of,
)
from topics.front.answers import Answer, json_answer
from topics.front.data.context import RouteContext
from topics.front.dispatch import OnResult, PendingResult
from topics.front.drain import shutting_down
from topics.front.error_answers import status_of
from topics.front.http.connection import Connection
from topics.front.live.sse import EVENT_STREAM, HEADERS, RETRY, error_event
from topics.front.live.watch_streams import OneRequestStream
from topics.front.media import accepts_events
from topics.front.queries import Names, Parameter, Query, boolean, integer, text
from topics.front.request import Body, Request, copied
from topics.front.route import BodyRule, Route

LENIENT = Parameter("lenient", boolean, default=False)
# Parameters of the event stream without a session.
TOPICS = Names("topic")
FROM_SEQ = Parameter("from_seq", integer, default=0)
TAIL = Parameter("tail", boolean, default=False)
CURSOR = Parameter("cursor", text, default="")
OPTIONS: tuple[Parameter[Any], ...] = (
    Names("node"),
    *(Parameter(name, integer, default=0) for name in ("limit", "max_batch_bytes", "heartbeat_ms")),
    *(
        Parameter(name, boolean, default=False)
        for name in ("include_data", "include_tags", "include_meta")
    ),
)


def create(
    context: RouteContext, request: Request, body: Body, at: int, _then: OnResult
) -> PendingResult:
    """Create a watch session (`POST /v0/watch`)."""
    asked = decode_watch(copied(body), context.limits, context.settings.max_watch_topics)
    return _create(context, request, asked, at)


async def _create(context: RouteContext, request: Request, asked: WatchRequest, at: int) -> Answer:
    """Create the session, after the shards have returned the heads of its topics."""
    lenient = request.query[LENIENT]
    members = await context.watches.create(asked, request.principal, lenient=lenient)
    return json_answer(members, at)


def stream(context: RouteContext, request: Request, _body: Body, _at: int, then: OnResult) -> None:
    """Open the event stream of a session, which continues after ``Last-Event-ID``."""
    assert request.head is not None, "a request for a stream keeps its head"
    watches, fields = context.watches, request.head
    session = watches.open(request.wid, request.principal, fields.joined(b"accept"))
    context.pressure.check_stream(request.principal.digest, request.wid, [*session.cursors], None)
    last_event_id = fields.joined(b"last-event-id").strip()
    release_slot = context.live.hold_slot(session.principal)

    async def run(connection: Connection) -> None:
        # The stream acquires its own slot when it begins.
        release_slot()
        await watches.stream(session, connection, last_event_id)

    answer = Answer(200, RETRY, headers=HEADERS, stream=run)
    answer.on_unsent = release_slot
    then(answer)


def stream_of_topics(
    context: RouteContext, request: Request, _body: Body, _at: int, _then: OnResult
) -> PendingResult:
    """Open an event stream without a session. Each request is an independent stream."""
    return _open_stream(context, request)


async def _open_stream(context: RouteContext, request: Request) -> Answer:
    """Return the response that starts the stream, or a short event stream with an error 503."""
    assert request.head is not None, "a request for a stream keeps its head"
    query, live, principal, fields = request.query, context.live, request.principal, request.head
    names = query[TOPICS]
    options = {option.name: query[option] for option in OPTIONS if query.has(option)}
    start = Start(query[FROM_SEQ], tail=query[TAIL])
    asked = watch_of(names, start, options, context.limits, context.settings.max_watch_topics)
    known = _known(fields.joined(b"last-event-id").strip(), query, names)
    if not accepts_events(fields.joined(b"accept")):
        raise NotAcceptable("this route only returns text/event-stream, which Accept excludes")
    try:
        if context.drain.is_draining:
            raise shutting_down()
        cursors, gone = await context.watches.cursors(asked, principal, known)
    except (NotReady, ShuttingDown) as failure:
        event = error_event(status_of(failure), failure.message)
        return Answer(200, event + RETRY, media_type=EVENT_STREAM)
    context.pressure.check_stream(principal.digest, f"watch/{min(names)}", [*names], None)
    live.check_limits(principal)
    release_slot = live.hold_slot(principal)
    id = CursorsId(cursors)

    async def run(connection: Connection) -> None:
        # The stream acquires its own slot when it begins.
        release_slot()
        heartbeat_s = asked.heartbeat_ms / 1000
        await OneRequestStream(
            live, connection, principal, heartbeat_s, asked.view, cursors, gone, id
        ).run()

    # Send the first id without an event, so that a client that began at the head loses nothing if
    # it must reconnect before the first event.
    answer = Answer(200, b"id: %b\n%b" % (id.text(), RETRY), headers=HEADERS, stream=run)
    answer.on_unsent = release_slot
    return answer


def _known(last_event_id: bytes, query: Query, names: tuple[str, ...]) -> dict[str, Cursor]:
    """Return the cursors up to which the client has received each topic. Raise `InvalidRequest`.

    An EventSource that reconnects sends the header with its original URL. So the header is newer
    than the ``cursor`` of the URL.
    """
    if last_event_id:
        return decode_cursors(last_event_id, names)
    if query.has(CURSOR):
        return decode_cursors(query[CURSOR].encode(), names, CURSOR.name)
    return {}


ROUTES = {
    Route(
        "POST",
        "/v0/watch",
        "watch",
        Scope.READ,
        body=BodyRule.REQUIRED,
        parameters=(LENIENT,),
    ): create,
    Route(
        "GET",
        "/v0/watch",
        "watch.topics",
        Scope.READ,
        parameters=(TOPICS, FROM_SEQ, TAIL, CURSOR, *OPTIONS),
        streams=True,
        query_token=True,
        answers_in_drain=True,
    ): stream_of_topics,
    # No scope is needed, because the session checks its key.
    Route(
        "GET",
        "/v0/watch/:wid",
        "watch.open",
        None,
        streams=True,
        query_token=True,
    ): stream,
}
