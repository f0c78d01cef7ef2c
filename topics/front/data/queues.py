"""Queues (§10): lease jobs and report their outcome.

    POST   /v0/topics/:topic/claim                             §10.2, may wait
    POST   /v0/topics/:topic/ack                               §10.4
    POST   /v0/topics/:topic/nack                              §10.5
    POST   /v0/topics/:topic/extend                            §10.6
    GET    /v0/topics/:topic/work     ?node ?max ?lease_ms     §10.8, an event stream; ``?token=``
                                                               instead of a header

The shard decodes all bodies. Leases whose response does not reach the client are released.
`queue.unclaimed` releases them if the response cannot be sent or is ready only after the client has
disconnected. `work.close` releases them when a stream ends. A response that the client's kernel has
accepted counts as received.
"""

from __future__ import annotations

from functools import partial

from topics.actors.rpc.session import Reply
from topics.actors.shard_client.shards import Shards
from topics.engine.access import Scope
from topics.errors import InvalidRequest, NotAcceptable
from topics.formats.api.limits import check_worker, clamped_lease_ms, clamped_max_jobs
from topics.formats.wire import calls
from topics.front.answers import Answer, shard_answer
from topics.front.data.context import RouteContext
from topics.front.dispatch import OnResult, Operation, PendingResult
from topics.front.http.connection import Connection
from topics.front.live.sse import HEADERS
from topics.front.live.work_stream import WorkStream
from topics.front.media import accepts_events
from topics.front.queries import Parameter, integer, text
from topics.front.request import Body, Request
from topics.front.route import BodyRule, Route

NODE: Parameter[str | None] = Parameter("node", text, default=None)
MAX_JOBS = Parameter("max", integer, default=1)
LEASE_MS: Parameter[int | None] = Parameter("lease_ms", integer, default=None)


def claim(
    context: RouteContext, request: Request, body: Body, at: int, then: OnResult
) -> PendingResult:
    """Lease jobs (§10.2). May wait up to the ``wait_ms`` of the body."""
    shards, shard, topic = context.shards, request.shard, request.topic

    def answer(reply: Reply[calls.ClaimResult]) -> Answer:
        answer = shard_answer(reply)
        # If the response does not reach the client, the shard releases the leases immediately.
        if reply.result.seqs:
            leases = calls.UnclaimedParams(topic, *reply.result)
            answer.on_unsent = partial(_release_undelivered, shards, shard, leases)
        return answer

    call, params = context.drain.waiting(request, then), calls.TopicParams(topic, at)
    call.attach(context.call(request, calls.CLAIM, params, body, call.answered, answer))
    return call


def _release_undelivered(shards: Shards, shard: int, leases: calls.UnclaimedParams) -> None:
    """Release leases whose response did not reach the client."""
    shards.notify(shard, calls.UNCLAIMED, leases)


def ack(
    context: RouteContext, request: Request, body: Body, at: int, then: OnResult
) -> PendingResult:
    """Acknowledge jobs (§10.4)."""
    return context.call(request, calls.ACK, calls.TopicParams(request.topic, at), body, then)


def nack(
    context: RouteContext, request: Request, body: Body, at: int, then: OnResult
) -> PendingResult:
    """Release jobs for a retry (§10.5)."""
    return context.call(request, calls.NACK, calls.TopicParams(request.topic, at), body, then)


def extend(
    context: RouteContext, request: Request, body: Body, at: int, then: OnResult
) -> PendingResult:
    """Extend leases (§10.6)."""
    return context.call(request, calls.EXTEND, calls.TopicParams(request.topic, at), body, then)


def work(
    context: RouteContext, request: Request, _body: Body, _at: int, _then: OnResult
) -> PendingResult:
    """Open a stream of jobs (§10.8). If the shard refuses, return an ordinary error response."""
    return _open(context, request)


async def _open(context: RouteContext, request: Request) -> Answer:
    """Return the response that starts the stream, after the shard has opened it."""
    assert request.head is not None, "a request for a stream keeps its head"
    query, live = request.query, context.live
    # Check all parameters first, because opening the stream leases jobs.
    node, lease_ms = query[NODE], query[LEASE_MS]
    if node is None:
        raise InvalidRequest("node is required", field="node")
    check_worker(node, context.limits)
    max_jobs = clamped_max_jobs(query[MAX_JOBS], context.limits)
    lease_ms = None if lease_ms is None else clamped_lease_ms(lease_ms)
    if not accepts_events(request.head.joined(b"accept")):
        raise NotAcceptable("this route only returns text/event-stream, which Accept excludes")
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
    # If the stream never starts, its leases are released.
    answer.on_unsent = partial(live.work.close, subscription)
    return answer


def _worker_call(name: str, scope: Scope, *, waits: bool = False) -> Route:
    """Return the row of a POST by which workers report or claim jobs."""
    path = f"/v0/topics/:topic/{name}"
    return Route("POST", path, f"queue.{name}", scope, body=BodyRule.REQUIRED, waits=waits)


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
        parameters=(NODE, MAX_JOBS, LEASE_MS),
        streams=True,
        query_token=True,
    ): work,
}
