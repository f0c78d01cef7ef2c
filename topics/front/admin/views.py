"""View functions: the admitted request, calls to shards, and responses of the admin plane.

The data plane has read and admitted the request (`topics.front.http.admin_plane`). Views use its
parsed values, and must not parse the head or the body again. The error handlers of
`topics.front.admin.application` convert their exceptions to responses.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeAlias, TypeVar

import trio
from quart import Response, request

from topics.actors.rpc.session import Reply
from topics.errors import TopicsError
from topics.formats.api.request_heads import Headers
from topics.formats.wire.contract import Call, P, R
from topics.front.answers import Answer
from topics.front.data.context import RouteContext
from topics.front.http.admin_plane import AdminCall

CALL, CONTEXT = "topics.call", "topics.context"  # keys in the state of the ASGI scope
CONTENT_TYPE = "content-type"

T = TypeVar("T")

View: TypeAlias = Callable[..., Awaitable[Response]]


def admitted() -> AdminCall:
    """Return the request that this view serves."""
    call: AdminCall = request.scope["state"][CALL]
    return call


def context() -> RouteContext:
    """Return the parts of this front."""
    found: RouteContext = request.scope["state"][CONTEXT]
    return found


def response(answer: Answer) -> Response:
    """Convert an `Answer` to a Quart response, and release its shared memory."""
    try:
        made = Response(bytes(answer.body), answer.status)
    finally:
        answer.done()
    made.headers[CONTENT_TYPE] = answer.media_type.decode("ascii")
    for name, value in answer.headers:
        made.headers.add(name.decode("ascii"), value.decode("ascii"))
    return made


async def call_shard(call: Call[P, R], params: P, *, has_body: bool = False) -> Reply[R]:
    """Call the shard of the request's topic, or the shard that owns the routers.

    ``has_body``: send the request's body with the call. Raise `TopicsError`.
    """
    asked = admitted()
    body = asked.take_body() if has_body else b""
    return await context().shards.answer(asked.request.shard, call, params, body)


async def call_all(call: Call[P, R], params: P, take: Callable[[Reply[R]], T]) -> list[T]:
    """Call all shards concurrently. Return the data that ``take`` copies from each reply, by shard.

    Raise the first `TopicsError`.
    """
    shards, taken, failures = context().shards, dict[int, T](), list[TopicsError]()

    async def call_one(shard: int) -> None:
        try:
            taken[shard] = copied(await shards.answer(shard, call, params), take)
        except TopicsError as failure:
            failures.append(failure)
            asking.cancel_scope.cancel()

    async with trio.open_nursery() as asking:
        for shard in range(shards.count):
            asking.start_soon(call_one, shard)
    if failures:
        raise failures[0]
    return [taken[shard] for shard in sorted(taken)]


def copied(reply: Reply[R], take: Callable[[Reply[R]], T]) -> T:
    """Return the data that ``take`` copies from a reply, and release the reply's shared memory."""
    try:
        return take(reply)
    finally:
        reply.release()


def answer_of(made: Response, body: memoryview) -> Answer:
    """Convert a Quart response to the `Answer` that the data plane sends, with the body from
    Hypercorn.
    """
    headers: Headers = tuple(
        (name.lower().encode("ascii"), value.encode("ascii"))
        for name, value in made.headers.items()
        if name.lower() not in (CONTENT_TYPE, "content-length")
    )
    media_type = made.headers[CONTENT_TYPE].encode("ascii")
    return Answer(made.status_code, body, headers=headers, media_type=media_type)
