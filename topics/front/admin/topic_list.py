"""The list of topics (§1.3).

GET      /v0/topics           ?prefix ?page_size ?cursor ?touch
"""

from __future__ import annotations

from quart import Response

from topics.formats.wire import calls
from topics.front.admin import paging, rows
from topics.front.admin.views import View, admitted, call_all, response
from topics.front.request import listed
from topics.front.route import Route


async def list_topics() -> Response:
    """Return a page of topics, ordered by name.

    Each shard lists its own topics, up to one more than the page has, so that the response has a
    cursor only if there is a next page.
    """
    call = admitted()
    query, size = call.request.query, call.request.query[paging.SIZE]
    params = calls.TopicListParams(
        prefix=query[rows.PREFIX],
        after=query[rows.NAME_CURSOR],
        limit=size + 1,
        touch=query[rows.TOUCH],
        prefixes=listed(call.request.principal.prefixes),
    )
    found = await call_all(calls.TOPIC_LIST, params, paging.named_items)
    items = sorted(item for items in found for item in items)
    return response(paging.answer("topics", items, size, call.at))


VIEWS: dict[Route, View] = {rows.TOPIC_LIST: list_topics}
