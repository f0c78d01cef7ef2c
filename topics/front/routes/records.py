"""Records of a topic: append (§2), diff (§3), delete (§5). The hot lane answers all of them.

POST   /v0/topics/:topic          ?return_seqs    §2
POST   /v0/topics/:topic/diff                     §3
POST   /v0/topics/:topic/delete                   §5
"""

from __future__ import annotations

from functools import partial

from topics.actors.rpc.stepping import in_task
from topics.engine.access import Scope
from topics.formats.wire.calls import DELETE_RECORDS, DIFF, DeleteRecordsParams, DiffParams
from topics.front.answers import Answer
from topics.front.backend import Body
from topics.front.pressure.admission import check_append, park_append
from topics.front.queries import Parameter, boolean
from topics.front.request import Request
from topics.front.route import BodyRule, Lane, Route
from topics.front.routes.context import RouteContext
from topics.front.routes.joined_appends import answered

RETURN_SEQS = Parameter("return_seqs", boolean, default=True)


async def append(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """§2. The shard decodes the body. Raises `Throttled` under pressure."""
    pressure = context.pressure
    if not pressure.is_calm:
        await check_append(pressure, request, body)
    band, parked_ms = pressure.bands.of(request.topic), 0.0
    if not pressure.turns.may_go(band):
        parked_ms = await park_append(pressure, band, body)
    with_seqs, appends = request.query[RETURN_SEQS], context.appends
    return await answered(partial(appends.append, request, body, at, with_seqs, parked_ms))


async def diff(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """§3. May wait for as long as the ``wait_ms`` of the body says."""
    params = DiffParams(request.topic, at)
    if not (context.drain.is_draining or may_wait(body)):
        return await context.ask(request, DIFF, params, body)
    await in_task()
    with context.drain.waiting(request):
        return await context.ask(request, DIFF, params, body)


def may_wait(body: Body) -> bool:
    """Whether a diff with this body may become a long poll. A backslash may spell the name of the
    field in another way.
    """
    return type(body) is not bytes or b"wait_ms" in body or b"\\" in body


async def delete(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """§5."""
    params = DeleteRecordsParams(request.topic, at)
    return await context.ask(request, DELETE_RECORDS, params, body)


ROUTES = {
    Route(
        ("POST",),
        "/v0/topics/:topic",
        "append",
        Scope.WRITE,
        lane=Lane.HOT,
        body=BodyRule.REQUIRED,
        is_stepped=True,
        parameters=(RETURN_SEQS,),
        long_body=True,
    ): append,
    Route(
        ("POST",),
        "/v0/topics/:topic/diff",
        "diff",
        Scope.READ,
        lane=Lane.HOT,
        body=BodyRule.OPTIONAL,
        is_stepped=True,
        waits=True,
    ): diff,
    Route(
        ("POST",),
        "/v0/topics/:topic/delete",
        "topic.delete_records",
        Scope.DELETE,
        lane=Lane.HOT,
        body=BodyRule.REQUIRED,
        is_stepped=True,
        is_audited=True,
    ): delete,
}
