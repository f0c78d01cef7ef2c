"""Topics (§1): create or configure, get the state, delete.

PUT      /v0/topics/:topic    ?dry_run                  §1.1
GET      /v0/topics/:topic    ?touch                    §1.2
DELETE   /v0/topics/:topic    ?if_empty                 §1.4
"""

from __future__ import annotations

from functools import partial

from topics.actors.rpc.session import Reply
from topics.engine.access import Scope
from topics.formats.wire import calls
from topics.front.answers import Answer, location, shard_answer
from topics.front.data.context import RouteContext
from topics.front.dispatch import OnResult, Operation, PendingResult
from topics.front.queries import Parameter, boolean
from topics.front.request import Body, Request, listed
from topics.front.route import BodyRule, Route

DRY_RUN = Parameter("dry_run", boolean, default=False)
TOUCH = Parameter("touch", boolean, default=True)
IF_EMPTY = Parameter("if_empty", boolean, default=False)


def put(
    context: RouteContext, request: Request, body: Body, at: int, then: OnResult
) -> PendingResult:
    """Create or configure a topic (§1.1)."""
    prefixes = listed(request.principal.prefixes)
    params = calls.TopicPutParams(request.topic, prefixes, at, request.query[DRY_RUN])
    answer = partial(_put_answer, request.topic)
    return context.call(request, calls.TOPIC_PUT, params, body, then, answer)


def _put_answer(topic: str, reply: Reply[calls.PutResult]) -> Answer:
    return shard_answer(reply, made=location("topics", topic) if reply.result.created else ())


def get(
    context: RouteContext, request: Request, _body: Body, at: int, then: OnResult
) -> PendingResult:
    """Return the config and state of a topic (§1.2)."""
    params = calls.TopicGetParams(request.topic, request.query[TOUCH], at)
    return context.call(request, calls.TOPIC_GET, params, b"", then)


def delete(
    context: RouteContext, request: Request, _body: Body, at: int, then: OnResult
) -> PendingResult:
    """Delete a topic (§1.4)."""
    prefixes = listed(request.principal.prefixes)
    params = calls.TopicDeleteParams(request.topic, request.query[IF_EMPTY], prefixes, at)
    return context.call(request, calls.TOPIC_DELETE, params, b"", then)


TOPIC = "/v0/topics/:topic"
ROUTES: dict[Route, Operation] = {
    Route(
        *("PUT", TOPIC, "topic.put", Scope.ADMIN),
        body=BodyRule.OPTIONAL,
        parameters=(DRY_RUN,),
        is_audited=True,
    ): put,
    Route("GET", TOPIC, "topic.get", Scope.READ, parameters=(TOUCH,)): get,
    Route(
        "DELETE", TOPIC, "topic.delete", Scope.DELETE, parameters=(IF_EMPTY,), is_audited=True
    ): delete,
}
