"""Queues (§10): lease jobs, say what became of them, see who holds them.

POST   /v0/topics/:topic/claim                               §10.2, may wait
POST   /v0/topics/:topic/ack                                 §10.4
POST   /v0/topics/:topic/nack                                §10.5
POST   /v0/topics/:topic/extend                              §10.6
GET    /v0/topics/:topic/work     ?node ?max ?lease_ms       §10.8, an event stream; ``?token=``
                                                             instead of a header
GET    /v0/topics/:topic/leases   ?page_size ?cursor ?node   who holds which job
POST   /v0/topics/:topic/redrive                             dead letters back to their queue

The shard decodes all bodies. What it has leased to a client that does not hear of it is given back:
by `queue.unclaimed` when the answer cannot be sent, or comes when nobody waits for it any more, and
by `work.close` when a stream ends. An answer that the client's kernel has taken counts as heard.
"""

from __future__ import annotations

from functools import partial

import msgspec

from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.engine.access import Scope
from topics.errors import InvalidRequest, NotAcceptable
from topics.formats.api.limits import check_worker, clamped_lease_ms, clamped_max_jobs
from topics.formats.wire import calls
from topics.front.answers import Answer, elapsed_ms, shard_answer
from topics.front.dispatch import Begun, Operation, Then
from topics.front.http.connection import Connection
from topics.front.live.sse import HEADERS
from topics.front.live.work_stream import WorkStream
from topics.front.media import accepts_events
from topics.front.queries import Parameter, integer, text
from topics.front.request import Body, Request, listed
from topics.front.route import BodyRule, Lane, Route, plain
from topics.front.routes import paging
from topics.front.routes.context import RouteContext

NODE: Parameter[str | None] = Parameter("node", text, default=None)
MAX_JOBS = Parameter("max", integer, default=1)
LEASE_MS: Parameter[int | None] = Parameter("lease_ms", integer, default=None)
CURSOR = Parameter("cursor", paging.SEQS.decode, default=0)


def claim(context: RouteContext, request: Request, body: Body, at: int, then: Then) -> Begun:
    """§10.2. May wait for as long as the ``wait_ms`` of the body says."""
    shards, shard, topic = context.shards, request.shard, request.topic

    def answer(reply: Reply[calls.ClaimResult]) -> Answer:
        answer = shard_answer(reply)
        if reply.result.seqs:
            leases = calls.UnclaimedParams(topic, *reply.result)
            answer.on_unsent = partial(_give_back, shards, shard, leases)
        return answer

    call, params = context.drain.waiting(request, then), calls.TopicParams(topic, at)
    call.wait_for(context.ask(request, calls.CLAIM, params, body, call.answered, answer))
    return call


def _give_back(shards: Shards, shard: int, leases: calls.UnclaimedParams) -> None:
    shards.notify(shard, calls.UNCLAIMED, leases)


def ack(context: RouteContext, request: Request, body: Body, at: int, then: Then) -> Begun:
    """§10.4."""
    return context.ask(request, calls.ACK, calls.TopicParams(request.topic, at), body, then)


def nack(context: RouteContext, request: Request, body: Body, at: int, then: Then) -> Begun:
    """§10.5."""
    return context.ask(request, calls.NACK, calls.TopicParams(request.topic, at), body, then)


def extend(context: RouteContext, request: Request, body: Body, at: int, then: Then) -> Begun:
    """§10.6."""
    return context.ask(request, calls.EXTEND, calls.TopicParams(request.topic, at), body, then)


async def work(context: RouteContext, request: Request, _body: Body, _at: int) -> Answer:
    """§10.8: an event stream, if the shard opens it: a refusal is a plain answer."""
    assert request.head is not None, "a request for a stream keeps its head"
    query, live = request.query, context.live
    node, lease_ms = query[NODE], query[LEASE_MS]
    if node is None:
        raise InvalidRequest("node is required", field="node")
    check_worker(node, context.limits)
    max_jobs = clamped_max_jobs(query[MAX_JOBS], context.limits)
    lease_ms = None if lease_ms is None else clamped_lease_ms(lease_ms)
    if not accepts_events(request.head.joined(b"accept")):
        raise NotAcceptable("the answer is text/event-stream")
    context.pressure.check_stream(
        request.principal.digest, f"work/{request.topic}", [request.topic], request.shard
    )
    subscription = await live.work.open(
        request.shard,
        request.topic,
        request.principal,
        node=node,
        max_jobs=max_jobs,
        lease_ms=lease_ms,
    )

    async def run(connection: Connection) -> None:
        await WorkStream(live, subscription, connection).run()

    answer = Answer(200, headers=HEADERS, stream=run)
    answer.on_unsent = partial(live.work.close, subscription)
    return answer


async def leases(context: RouteContext, request: Request, _body: Body, at: int) -> Answer:
    """A page of leases by their seqs. Only a key that may write is shown the lease ids."""
    query, node = request.query, request.query[NODE]
    if node is not None:
        check_worker(node, context.limits)
    params = calls.LeasesParams(
        topic=request.topic,
        after=query[CURSOR],
        limit=query[paging.SIZE],
        node=node,
        with_ids=request.principal.allows(Scope.WRITE),
        at=at,
    )
    reply = await context.shards.answer(request.shard, calls.LEASES, params)
    try:
        page, after = bytes(reply.body), reply.result.next_after
    finally:
        reply.release()
    more = {} if after is None else {"next_cursor": paging.SEQS.encode(after)}
    tail = {**more, "performance": {"server_total_ms": elapsed_ms(at)}}
    return Answer(200, b'{"leases":' + page + b"," + msgspec.json.encode(tail)[1:])


async def redrive(context: RouteContext, request: Request, body: Body, at: int) -> Answer:
    """Dead letters back to their queues. The shard checks ``to`` against the key's prefixes, before
    it looks for the topic.
    """
    params = calls.RedriveParams(request.topic, listed(request.principal.prefixes), at)
    return await context.answer(request, calls.REDRIVE, params, body)


def _worker_call(name: str, scope: Scope, *, waits: bool = False) -> Route:
    path = f"/v0/topics/:topic/{name}"
    return plain("POST", path, f"queue.{name}", scope, body=BodyRule.REQUIRED, waits=waits)


ROUTES: dict[Route, Operation] = {
    _worker_call("claim", Scope.READ | Scope.WRITE, waits=True): claim,
    _worker_call("ack", Scope.WRITE): ack,
    _worker_call("nack", Scope.WRITE): nack,
    _worker_call("extend", Scope.WRITE): extend,
    Route(
        "GET",
        "/v0/topics/:topic/work",
        "queue.work",
        Scope.READ | Scope.WRITE,
        lane=Lane.HOT,
        parameters=(NODE, MAX_JOBS, LEASE_MS),
        streams=True,
        query_token=True,
    ): work,
    Route(
        "GET",
        "/v0/topics/:topic/leases",
        "queue.leases",
        Scope.READ,
        parameters=(paging.SIZE, CURSOR, NODE),
    ): leases,
    Route(
        "POST",
        "/v0/topics/:topic/redrive",
        "queue.redrive",
        Scope.READ | Scope.WRITE,
        body=BodyRule.OPTIONAL,
        is_audited=True,
    ): redrive,
}
