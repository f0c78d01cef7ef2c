"""Records of a topic: append (§2), diff (§3), delete (§5). The hot lane answers all of them.

POST   /v0/topics/:topic          ?return_seqs    §2
POST   /v0/topics/:topic/diff                     §3
POST   /v0/topics/:topic/delete                   §5
"""

from __future__ import annotations

from topics.engine.access import Scope
from topics.front.answers import Answer
from topics.front.backend import Body
from topics.front.queries import Parameter, boolean
from topics.front.request import Request
from topics.front.route import BodyRule, Lane, Route
from topics.front.routes.context import RouteContext

RETURN_SEQS = Parameter("return_seqs", boolean, default=True)


async def append(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """§2. The shard decodes the body."""
    params = {
        "topic": request.topic,
        "key": request.key,
        "seqs": request.query[RETURN_SEQS],
        "at": at,
        "prefixes": request.principal.prefixes,
    }
    return await context.ask(request, "append", params, body)


async def diff(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """§3. May wait for as long as the ``wait_ms`` of the body says."""
    with context.drain.waiting():
        return await context.read_ahead.diff(request, body, at)


async def delete(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """§5."""
    params = {"topic": request.topic, "at": at}
    return await context.ask(request, "topic.delete_records", params, body)


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
