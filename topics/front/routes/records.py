"""Records of a topic: append (§2), diff (§3), delete (§5). The hot lane answers all of them.

POST   /v0/topics/:topic          ?return_seqs    §2
POST   /v0/topics/:topic/diff                     §3
POST   /v0/topics/:topic/delete                   §5
"""

from __future__ import annotations

from functools import partial

from topics.engine.access import Scope
from topics.formats.wire.calls import DELETE_RECORDS, TopicParams
from topics.front.answers import Answer
from topics.front.dispatch import Begun, Operation, Then, answer_of
from topics.front.pressure.pressure import hold_back
from topics.front.queries import Parameter, boolean
from topics.front.request import Body, Request
from topics.front.route import BodyRule, Lane, Route
from topics.front.routes.context import RouteContext

RETURN_SEQS = Parameter("return_seqs", boolean, default=True)


def append(context: RouteContext, request: Request, body: Body, at: int, then: Then) -> Begun:
    """§2. The shard decodes the body. `Throttled` under pressure."""
    pressure = context.pressure
    if not pressure.is_calm:
        refusal = pressure.refusal_of(request, body)
        if refusal is not None:
            return hold_back(refusal)
    band = pressure.bands.of(request.topic)
    if not pressure.turns.may_go(band):
        return _append_parked(context, request, body, at, band)
    context.appends.append(request, body, at, request.query[RETURN_SEQS], 0.0, then)
    return None


async def _append_parked(
    context: RouteContext, request: Request, body: Body, at: int, band: int
) -> Answer:
    parked_ms = await context.pressure.park_append(band, body)
    with_seqs, append = request.query[RETURN_SEQS], context.appends.append
    return await answer_of(partial(append, request, body, at, with_seqs, parked_ms))


def diff(context: RouteContext, request: Request, body: Body, at: int, then: Then) -> Begun:
    """§3. May wait for as long as the ``wait_ms`` of the body says."""
    if not (context.drain.is_draining or may_wait(body)):
        return context.read_ahead.diff(request, body, at, then)
    call = context.drain.waiting(request, then)
    call.asked = context.read_ahead.diff(request, body, at, call.answered)
    return call


def may_wait(body: Body) -> bool:
    """Whether a diff with this body may become a long poll. A backslash may spell the name of the
    field in another way.
    """
    return type(body) is not bytes or b"wait_ms" in body or b"\\" in body


def delete(context: RouteContext, request: Request, body: Body, at: int, then: Then) -> Begun:
    """§5."""
    params = TopicParams(request.topic, at)
    return context.ask(request, DELETE_RECORDS, params, body, then)


ROUTES: dict[Route, Operation] = {
    Route(
        ("POST",),
        "/v0/topics/:topic",
        "append",
        Scope.WRITE,
        lane=Lane.HOT,
        is_plain=True,
        body=BodyRule.REQUIRED,
        parameters=(RETURN_SEQS,),
        long_body=True,
    ): append,
    Route(
        ("POST",),
        "/v0/topics/:topic/diff",
        "diff",
        Scope.READ,
        lane=Lane.HOT,
        is_plain=True,
        body=BodyRule.OPTIONAL,
        waits=True,
    ): diff,
    Route(
        ("POST",),
        "/v0/topics/:topic/delete",
        "topic.delete_records",
        Scope.DELETE,
        lane=Lane.HOT,
        is_plain=True,
        body=BodyRule.REQUIRED,
        is_audited=True,
    ): delete,
}
