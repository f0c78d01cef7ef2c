"""Records of a topic: append (§2), diff (§3), delete (§5). The hot lane answers all of them.

POST   /v0/topics/:topic          ?return_seqs    §2
POST   /v0/topics/:topic/diff                     §3
POST   /v0/topics/:topic/delete                   §5
"""

from __future__ import annotations

from topics.actors.rpc.failures import failures_of
from topics.engine.access import Scope
from topics.formats.wire.calls import (
    APPEND,
    DELETE_RECORDS,
    AppendOutcome,
    AppendParams,
    DeleteRecordsParams,
)
from topics.front.answers import Answer, shard_answer
from topics.front.backend import Body, listed
from topics.front.queries import Parameter, boolean
from topics.front.request import Request
from topics.front.route import BodyRule, Lane, Route
from topics.front.routes.context import RouteContext

RETURN_SEQS = Parameter("return_seqs", boolean, default=True)


async def append(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """§2. The shard decodes the body."""
    prefixes = listed(request.principal.prefixes)
    params = AppendParams(request.topic, request.key, request.query[RETURN_SEQS], prefixes, at)
    reply = await context.backend.call(request.shard, APPEND, params, body)
    outcome = reply.result.outcomes[0]
    if outcome == AppendOutcome.FAILED:
        reply.release()
        raise failures_of(reply.result)[0]
    return shard_answer(reply, created=outcome == AppendOutcome.CREATED)


async def diff(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """§3. May wait for as long as the ``wait_ms`` of the body says."""
    with context.drain.waiting():
        return await context.read_ahead.diff(request, body, at)


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
        waits=True,
    ): diff,
    Route(
        ("POST",),
        "/v0/topics/:topic/delete",
        "topic.delete_records",
        Scope.DELETE,
        lane=Lane.HOT,
        body=BodyRule.REQUIRED,
    ): delete,
}
