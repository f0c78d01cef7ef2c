"""Queue leases and redrives (§10).

GET    /v0/topics/:topic/leases   ?page_size ?cursor ?node
POST   /v0/topics/:topic/redrive
"""

from __future__ import annotations

import msgspec
from quart import Response

from topics.actors.rpc.session import Reply
from topics.engine.access import Scope
from topics.formats.api.limits import check_worker
from topics.formats.wire import calls
from topics.front.admin import paging, rows
from topics.front.admin.views import View, admitted, call_shard, context, copied, response
from topics.front.answers import Answer, elapsed_ms, shard_answer
from topics.front.request import listed
from topics.front.route import Route


async def leases(topic: str) -> Response:
    """Return a page of leases, ordered by seq. Only a key that may write gets the lease ids."""
    call = admitted()
    query, node = call.request.query, call.request.query[rows.NODE]
    if node is not None:
        check_worker(node, context().limits)
    params = calls.LeasesParams(
        topic=topic,
        after=query[rows.SEQ_CURSOR],
        limit=query[paging.SIZE],
        node=node,
        with_ids=call.request.principal.allows(Scope.WRITE),
        at=call.at,
    )
    page, after = copied(await call_shard(calls.LEASES, params), _page)
    more = {} if after is None else {"next_cursor": paging.SEQS.encode(after)}
    tail = {**more, "performance": {"server_total_ms": elapsed_ms(call.at)}}
    return response(Answer(200, b'{"leases":' + page + b"," + msgspec.json.encode(tail)[1:]))


def _page(reply: Reply[calls.LeasesResult]) -> tuple[bytes, int | None]:
    return bytes(reply.body), reply.result.next_after


async def redrive(topic: str) -> Response:
    """Move dead letters back to their queues.

    The shard checks ``to`` against the key's prefixes before it looks up the topic.
    """
    call = admitted()
    params = calls.RedriveParams(topic, listed(call.request.principal.prefixes), call.at)
    return response(shard_answer(await call_shard(calls.REDRIVE, params, has_body=True)))


VIEWS: dict[Route, View] = {rows.LEASES: leases, rows.REDRIVE: redrive}
