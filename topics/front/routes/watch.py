"""Watch (§7): create a session, open its event stream.

    POST   /v0/watch    ?lenient    a session for up to TOPICS_MAX_WATCH_TOPICS topics
    GET    /v0/watch/:wid           its event stream; ``?token=`` instead of a header

The sessions and streams themselves are `topics.front.live`.
"""

from __future__ import annotations

from topics.engine.access import Scope
from topics.formats.api.watch import decode_watch
from topics.formats.buffers import Buffer
from topics.front.answers import Answer, json_answer
from topics.front.http.connection import Connection
from topics.front.live.event_stream import HEADERS
from topics.front.queries import Parameter, boolean
from topics.front.request import Body, Request
from topics.front.route import BodyRule, Lane, Route
from topics.front.routes.context import RouteContext

LENIENT = Parameter("lenient", boolean, default=False)


async def create(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """The POST."""
    if not isinstance(body, Buffer):
        view = bytes(body.view)
        body.free()
        body = view
    asked = decode_watch(body, context.limits, context.settings.max_watch_topics)
    lenient = request.query[LENIENT]
    members = await context.watches.create(asked, request.principal, lenient=lenient)
    return json_answer(members, at)


async def stream(context: RouteContext, request: Request, _body: Body, _at: int) -> Answer:
    """The GET: an event stream that continues after ``Last-Event-ID``."""
    assert request.head is not None, "a request for a stream keeps its head"
    watches, fields = context.watches, request.head
    session = watches.open(request.wid, request.principal, fields.joined(b"accept"))
    context.pressure.check_stream(request.principal.digest, request.wid, [*session.cursors], None)
    last_event_id = fields.joined(b"last-event-id").strip()
    let_go = context.live.hold_slot(session.principal)

    async def run(connection: Connection) -> None:
        let_go()
        await watches.stream(session, connection, last_event_id)

    answer = Answer(200, headers=HEADERS, stream=run)
    answer.on_unsent = let_go
    return answer


ROUTES = {
    Route(
        ("POST",), "/v0/watch", "watch", Scope.READ, body=BodyRule.REQUIRED, parameters=(LENIENT,)
    ): create,
    # No scope: the session knows its key.
    Route(
        ("GET",),
        "/v0/watch/:wid",
        "watch.open",
        None,
        lane=Lane.HOT,
        streams=True,
        query_token=True,
    ): stream,
}
