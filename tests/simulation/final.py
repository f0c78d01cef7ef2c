"""The final reading, when no other client sends requests: wait until the routers have caught up,
then read the state, all records and all leases of each topic, then the metrics.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any
from urllib.parse import quote

import trio

from tests.simulation.clients import Client

POLLS_MAX = 100  # polls of a lagging router before it is considered late


async def read_everything(client: Client, topics: Sequence[str], limit_s: float) -> None:
    """Read everything. ``topics``: the topics to read if the list request fails. ``limit_s``: how
    long to wait for an unavailable server.
    """
    client.until = trio.current_time() + limit_s
    await _wait_forwarded(client, limit_s)
    client.until = trio.current_time() + limit_s
    for topic in await _read_pages(client, "/v0/topics", "topics", "topic") or topics:
        await _read_topic(client, f"/v0/topics/{topic}")
    await _get(client, "/v0/metrics")


async def _wait_forwarded(client: Client, limit_s: float) -> None:
    """Wait until no router has anything to forward, for ``limit_s`` at most. Two passes must agree,
    because a router may forward records to the source of one that was checked before it.
    """
    routers = await _read_pages(client, "/v0/routers", "routers", "router")
    last: list[Any] = []
    while trio.current_time() <= client.until:
        found = [await _get(client, f"/v0/routers/{quote(router)}") for router in routers]
        totals = [each.get("forwarded_total") for each in found]
        if totals == last and not any(each.get("lag_records") for each in found):
            break
        last = totals
        await trio.sleep(limit_s / POLLS_MAX)


async def _read_topic(client: Client, path: str) -> None:
    body: dict[str, Any] = {"from_seq": 0, "limit": 1000, "include_tags": True}
    state = await _get(client, f"{path}?touch=false")
    while (page := await client.call_until_final("POST", f"{path}/diff", body)).status == 200:
        if page.answer["caught_up"]:
            break
        body = {**body, "from_seq": page.answer["next_from_seq"]}
    if state.get("type") == "queue":
        await _read_pages(client, f"{path}/leases", "leases", "$seq")
    await _get(client, f"{path}?touch=false")  # reading a page may expire records


async def _read_pages(client: Client, path: str, what: str, name: str) -> list[Any]:
    """Return ``name`` of all items on all pages of a list."""
    answer = await _get(client, f"{path}?page_size=20")
    found = [item[name] for item in answer.get(what, ())]
    while cursor := answer.get("next_cursor"):
        answer = await _get(client, f"{path}?page_size=20&cursor={quote(cursor)}")
        found += [item[name] for item in answer.get(what, ())]
    return found


async def _get(client: Client, path: str) -> dict[str, Any]:
    answer = (await client.call_until_final("GET", path)).answer
    return answer if isinstance(answer, dict) else {}
