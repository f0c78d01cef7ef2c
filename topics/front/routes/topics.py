"""Topics (§1): create or configure, state, list, delete.

PUT      /v0/topics/:topic    ?dry_run                  §1.1
GET      /v0/topics/:topic    ?touch                    §1.2
GET      /v0/topics           ?prefix ?page_size ?cursor ?touch   §1.3
DELETE   /v0/topics/:topic    ?if_empty                 §1.4
"""

from __future__ import annotations

from functools import partial

from topics.actors.rpc.session import Reply
from topics.engine.access import Scope
from topics.formats.wire import calls
from topics.front.answers import Answer, location, shard_answer
from topics.front.dispatch import Begun, Operation, Then
from topics.front.queries import Parameter, boolean, name_text
from topics.front.request import Body, Request, listed
from topics.front.route import BodyRule, Route, plain
from topics.front.routes import paging
from topics.front.routes.context import RouteContext

DRY_RUN = Parameter("dry_run", boolean, default=False)
TOUCH = Parameter("touch", boolean, default=True)
IF_EMPTY = Parameter("if_empty", boolean, default=False)
LIST_PREFIX = Parameter("prefix", name_text, default="")
LIST_CURSOR: Parameter[str | None] = Parameter("cursor", paging.NAMES.decode, default=None)
LIST_TOUCH = Parameter("touch", boolean, default=False)


def put(context: RouteContext, request: Request, body: Body, at: int, then: Then) -> Begun:
    """§1.1."""
    prefixes = listed(request.principal.prefixes)
    params = calls.TopicPutParams(request.topic, prefixes, at, request.query[DRY_RUN])
    answer = partial(_put_answer, request.topic)
    return context.ask(request, calls.TOPIC_PUT, params, body, then, answer)


def _put_answer(topic: str, reply: Reply[calls.PutResult]) -> Answer:
    return shard_answer(reply, made=location("topics", topic) if reply.result.created else ())


def get(context: RouteContext, request: Request, _body: Body, at: int, then: Then) -> Begun:
    """§1.2."""
    params = calls.TopicGetParams(request.topic, request.query[TOUCH], at)
    return context.ask(request, calls.TOPIC_GET, params, b"", then)


def delete(context: RouteContext, request: Request, _body: Body, at: int, then: Then) -> Begun:
    """§1.4."""
    prefixes = listed(request.principal.prefixes)
    params = calls.TopicDeleteParams(request.topic, request.query[IF_EMPTY], prefixes, at)
    return context.ask(request, calls.TOPIC_DELETE, params, b"", then)


def list_topics(context: RouteContext, request: Request, _body: Body, at: int, then: Then) -> Begun:
    """§1.3. Every shard lists its names in order; one more than the page tells whether another page
    follows.
    """
    query = request.query
    size = query[paging.SIZE]
    prefixes = listed(request.principal.prefixes)
    params = calls.TopicListParams(
        prefix=query[LIST_PREFIX],
        after=query[LIST_CURSOR],
        limit=size + 1,
        touch=query[LIST_TOUCH],
        prefixes=prefixes,
    )

    def page(replies: list[Reply[calls.TopicListResult]]) -> Answer:
        items = sorted(item for reply in replies for item in reply.result.items)
        return paging.answer("topics", items, size, at)

    return context.ask_all(calls.TOPIC_LIST, params, then, page)


TOPIC = "/v0/topics/:topic"
LISTED = (LIST_PREFIX, paging.SIZE, LIST_CURSOR, LIST_TOUCH)
ROUTES: dict[Route, Operation] = {
    plain(
        *("PUT", TOPIC, "topic.put", Scope.ADMIN),
        body=BodyRule.OPTIONAL,
        parameters=(DRY_RUN,),
        is_audited=True,
    ): put,
    plain("GET", TOPIC, "topic.get", Scope.READ, parameters=(TOUCH,)): get,
    plain(
        "DELETE", TOPIC, "topic.delete", Scope.DELETE, parameters=(IF_EMPTY,), is_audited=True
    ): delete,
    plain("GET", "/v0/topics", "topic.list", Scope.READ, parameters=LISTED): list_topics,
}
